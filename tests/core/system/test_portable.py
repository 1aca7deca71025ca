"""``LIT_LOADER_PORTABLE=1`` under spawn: ordinary programs run, and nothing of Linux is touched."""

import json
from pathlib import Path

from tests.support.programs import default_environment, run_program

PROGRAM = '''
import mmap, os, signal, socket, sys

def from_lit_loader():
    frame = sys._getframe(2)
    while frame is not None:
        if "/lit_loader/" in frame.f_code.co_filename:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back

def touched(what):
    if where := from_lit_loader():
        os.write(1, f"TOUCHED {what} at {where}\\n".encode())
        raise AssertionError(what)

def guarded(module, name):
    real = getattr(module, name)
    def guard(*args, **options):
        touched(name)
        return real(*args, **options)
    setattr(module, name, guard)

for name in ("memfd_create", "pidfd_open", "posix_fallocate", "sched_getaffinity",
             "sched_setscheduler", "sched_getscheduler", "fork"):
    guarded(os, name)
guarded(signal, "pidfd_send_signal")

class Mapping(mmap.mmap):
    def madvise(self, *_):
        touched("madvise")

mmap.mmap = Mapping

def audit(event, args):
    if event in ("open", "os.listdir", "os.scandir") and str(args[0]).startswith(("/proc", "/sys")):
        touched(f"{event} {args[0]}")
    if event in ("socket.bind", "socket.connect") and str(args[1]).startswith("\\0"):
        touched("an abstract address")

sys.addaudithook(audit)

import json, multiprocessing, warnings
import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset
import lit_loader
from lit_loader import CachedDataset, DataLoader

class Rows(Dataset):
    """Draws random numbers; a file says once that the worker is to be killed."""
    def __init__(self, length, kill=""):
        self.length, self.kill = length, kill
        self.table = np.arange(50_000.)
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        if index == 7 and self.kill and not os.path.exists(self.kill):
            open(self.kill, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        grown = 1 + (index >= 12) * 40_000  # more than a slot on a disk has room for
        return torch.full((grown,), self.table[index] + torch.rand(()).item())

class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        at, step = (info.id, info.num_workers) if info else (0, 1)
        yield from (torch.rand(3) + number for number in range(at, 12, step))

class Five(Dataset):
    def __len__(self):
        return 5
    def __getitem__(self, index):
        return index

def uncollated(batch):
    return batch

def sums(batches):
    return [[float(row.sum()) for row in batch] for batch in batches]

def loader(dataset, num_workers, **options):
    options = {"batch_size": 4, "seed": 3, "collate_fn": uncollated, **options}
    return DataLoader(dataset, num_workers=num_workers, **options)

def main():
    multiprocessing.set_start_method("spawn")  # as on macOS
    folder = sys.argv[1]
    said = {}
    here = loader(Rows(30), 0, shuffle=True)
    expected = [sums(here) for _ in range(2)]

    killed = loader(Rows(30, f"{folder}/killed"), 2, shuffle=True, persistent_workers=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept = list(killed)  # all of them are held at once
        epochs = [sums(kept), sums(killed)]
    said["epochs"] = epochs == expected
    said["replaced"] = [w.category.__name__ for w in caught if "killed" in str(w.message)]
    iterator = iter(killed)
    rest = [next(iterator), next(iterator)]
    state = killed.state_dict()
    del iterator
    killed.resize(1)
    killed.load_state_dict(state)
    resumed = sums(killed)
    here.load_state_dict(state)
    said["resumed"] = resumed == sums(here)
    said["workers"] = any(w.is_alive() for w in iter(killed)._workers)
    said["memory"] = killed.statistics(memory=True).memory.parent
    killed.close()

    stream = loader(Stream(), 1, num_shards=2)
    said["stream"] = sums(stream) == sums(loader(Stream(), 0, num_shards=2))

    cached = CachedDataset(lit_loader.shared_dataset(Five, "five"), "1 MB", key="cached")
    auto = loader(cached, "auto", persistent_workers=True)
    said["auto"] = [sum(auto, []) for _ in range(2)] == [list(range(5))] * 2
    auto.close()

    from lit_loader.top.app import main as top
    said["top"] = top(["--once"])
    print(json.dumps(said))

if __name__ == "__main__":
    main()
'''


def test_ordinary_programs(tmp_path: Path) -> None:
    program = tmp_path / "portable_program.py"
    program.write_text(PROGRAM)
    environment = {**default_environment(), "LIT_LOADER_PORTABLE": "1"}
    out = run_program(program, tmp_path, environment=environment)
    assert json.loads(out) == {  # and no line that says what was touched
        "epochs": True,
        "replaced": ["WorkerRestartWarning"],
        "resumed": True,
        "workers": True,
        "memory": None,
        "stream": True,
        "auto": True,
        "top": 1,
    }
