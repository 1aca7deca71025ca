"""Real signals to real programs: Ctrl-C, alarms, SIGTERM, SIGKILL, to the parent alone and to all.

Each program leads a session of its own (`tests/support/sessions.py`).
"""

import inspect
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.support.sessions import end_all, expect, finish, launch, send, tell, wait_until_empty

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds (Linux)")

SLOW = pytest.mark.slow
METHOD = pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=SLOW)])


@pytest.fixture(autouse=True)
def programs_end() -> Iterator[None]:
    """A test that fails leaves its program running."""
    yield
    end_all()


PROGRAM = """
import os, signal, sys, threading, warnings
import torch
from lit_loader import DataLoader, WorkerRestartWarning

class Data(torch.utils.data.Dataset):
    '''Some samples, the first time that they are asked for, wait until nobody wants them.'''

    def __init__(self, folder, gated):
        self.folder, self.gated = folder, gated

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index in self.gated:
            self.wait_once(self.gate(index))
        return index

    def gate(self, index):
        return os.path.join(self.folder, f"{index}.gate")

    def wait_once(self, gate):
        try:
            os.mkfifo(gate)
        except FileExistsError:
            return
        with open(os.open(gate, os.O_RDWR), "rb", 0) as pipe:
            say("fetching", os.path.basename(gate).partition(".")[0])
            pipe.read(1)

    def open_gate(self, index):
        try:
            with open(os.open(self.gate(index), os.O_WRONLY | os.O_NONBLOCK), "wb", 0) as pipe:
                pipe.write(b"!")
        except OSError:  # whoever waited there has ended
            pass

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def main():
    warnings.simplefilter("error")
    folder, method, gated = sys.argv[1], sys.argv[2], [9, 24]
    data = Data(folder, gated)
    loader = DataLoader(data, num_workers=2, multiprocessing_context=method)
BODY

if __name__ == "__main__":
    main()
"""


def start(
    body: str, folder: Path, method: str, *arguments: str, forked: bool = True
) -> subprocess.Popen[str]:
    """Start the program above with ``body`` for the rest of its main function."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    forked = forked and method == "fork"  # a fork would find the fork server of this process
    return launch(PROGRAM.replace("BODY", lines), folder, method, *arguments, forked=forked)


# Exceptions of handlers ------------------------------------------------------------------------

INTERRUPTED = """
class Late(Exception):
    pass

def late(*_):
    raise Late

signal.signal(signal.SIGTERM, late)
for workers in (2, 0):
    gated[:], data.folder = [9, 24], os.path.join(folder, str(workers))
    os.mkdir(data.folder)
    if not workers:
        loader = DataLoader(data)
    found, iterator = [], iter(loader)
    while True:
        try:
            if len(found) in gated:
                say("next", len(found))
            batch = next(iterator, None)
        except (KeyboardInterrupt, Late):
            say("interrupted")
            gated.remove(len(found))
            data.open_gate(len(found))
        else:
            if batch is None:
                break
            found.append(int(batch))
    say(*sorted({*range(40)} - {*found}), len(found), found == sorted(found))
"""


@pytest.mark.parametrize("whom", ["parent", pytest.param("group", marks=SLOW)])
@METHOD
def test_an_iterator_goes_on_after_an_interruption(tmp_path: Path, method: str, whom: str) -> None:
    """The exception comes out of next(), and the next one returns the batch that was due.

    Without workers an `Exception` that a handler raises in ``dataset[i]`` is that sample's.
    """
    process = start(INTERRUPTED, tmp_path, method)
    for last in ("40 True", "24 39 True"):
        for place, number in ((9, signal.SIGINT), (24, signal.SIGTERM)):
            expect(process, f"fetching {place}", f"next {place}")
            send(process, number, whom)
            expect(process, "interrupted")
        expect(process, last)
    assert finish(process) == ("", "", 0)


# Handlers --------------------------------------------------------------------------------------

GROUP = """
named, ran = sys.argv[3].split(), os.pipe()
os.set_blocking(ran[0], False)
for name in named:
    signal.signal(getattr(signal, name), lambda *_: os.write(ran[1], f"{os.getpid()} ".encode()))
gated[:] = [9, 10]  # each worker is at one
loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context=method)
warnings.simplefilter("error")
found, iterator = [], iter(loader)
for batch in iterator:
    found.append(int(batch))
    if len(found) == 9:
        say("next 9")
assert {*map(int, os.read(ran[0], 1 << 16).split())} == {os.getpid()}
say(found == list(range(40)))
"""

SENT = ["HUP", "TERM", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "XCPU", "QUIT", "TSTP", "CONT"]
"""What schedulers, terminals and limits send to all processes of a job."""


@METHOD
def test_signals_to_the_group_are_the_parents_affair(tmp_path: Path, method: str) -> None:
    """Its handlers run there alone. It goes on, and so do its workers: no batch is made again."""
    sent = [f"SIG{name}" for name in SENT]
    process = start(GROUP, tmp_path, method, " ".join(sent), forked=False)
    expect(process, "fetching 9", "fetching 10", "next 9")
    for name in sent:
        os.killpg(process.pid, getattr(signal, name))
    for index in (9, 10):
        (tmp_path / f"{index}.gate").write_text("!")
    out, err, status = finish(process)
    assert (out, err, status) == ("True\n", "", 0)


ENDED = """
import resource, signal
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # QUIT and XCPU write all of the memory down
signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # which shells ignore for what is in the background
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
gated[:] = [9, 10]
for name in sys.argv[3:]:  # each in a fork, which leads a session of its own
    data.folder = os.path.join(folder, name)
    os.mkdir(data.folder)
    if (child := os.fork()) == 0:
        os.setsid()
        say("leads", os.getpid())
        list(DataLoader(data, num_workers=2, multiprocessing_context=method))
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@METHOD
def test_when_the_parent_ends_of_it_so_do_they(tmp_path: Path, method: str) -> None:
    names = ["SIGTERM", "SIGQUIT", "SIGUSR1"]
    process = start(ENDED, tmp_path, method, *names)
    assert process.stdout is not None
    for name in names:
        number, leader = getattr(signal, name), int(process.stdout.readline().split()[1])
        expect(process, "fetching 9", "fetching 10")
        os.killpg(leader, number)
        expect(process, str(-number))
        wait_until_empty(leader)
    assert finish(process) == ("", "", 0)


PAUSED = """
import time
class Slow(Data):
    def __getitem__(self, index):
        if index == 3:
            say("at 3")
            for _ in range(10):
                time.sleep(0.1)
        return index
for kind in ({"multiprocessing_context": method}, {"worker_method": "thread"}):
    loader = DataLoader(Slow(folder, ()), num_workers=2, timeout=1.5, stall_warning=1.5, **kind)
    say([int(batch) for batch in loader] == list(range(40)))
"""


def test_a_pause_of_the_whole_job_is_no_hang(tmp_path: Path) -> None:
    """A scheduler's, or Ctrl-Z and ``fg``, longer than ``timeout``, while a sample takes time.

    Of worker processes, and of threads.
    """
    process = start(PAUSED, tmp_path, "fork")
    for _ in range(2):
        expect(process, "at 3")
        os.killpg(process.pid, signal.SIGSTOP)
        threading.Event().wait(2)
        os.killpg(process.pid, signal.SIGCONT)
        expect(process, "True")
    assert finish(process) == ("", "", 0)


# Lightning -------------------------------------------------------------------------------------

FIT = """
import json, logging, os, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from tests.support.exact import Augmented
from tests.support.lightning_runs import Seen, quiet_trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lit_loader import LoaderDataModule
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

folder, where, phase = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

class Gated(Augmented):
    '''The first time that sample 17 is asked for, it is waited for in vain.'''
    def __getitem__(self, index):
        if index == 17 and (where, phase) == ("next", "first"):
            try:
                os.mkfifo(folder / "gate")
            except FileExistsError:
                pass
            else:
                os.write(1, b"waiting\\n")
                open(folder / "gate").read()
        return super().__getitem__(index)

class Waiting(Seen):
    def training_step(self, batch, batch_idx):
        if (where, phase, self.global_step) == ("step", "first", 9):
            os.write(1, b"waiting\\n")
            sys.stdin.readline()
        return super().training_step(batch, batch_idx)

def fit(checkpoint=None):
    model = Waiting()
    data = LoaderDataModule(
        {"train": Gated(26)},
        {"batch_size": 4, "seed": 5, "seeding": "sample", "num_workers": 2},
        train={"shuffle": True, "persistent_workers": True},
    )
    saver = ModelCheckpoint(folder, save_last=True, save_on_exception=True, every_n_epochs=99)
    trainer = quiet_trainer(folder, max_epochs=3, callbacks=[saver], enable_checkpointing=True)
    try:
        trainer.fit(model, data, ckpt_path=checkpoint)
    finally:
        print(json.dumps(model.seen), flush=True)

if __name__ == "__main__":
    if os.fork() == 0:
        os.setsid()
        os.write(1, f"{os.getpid()}\\n".encode())
        fit()
    else:
        phase, (_, status) = "second", os.wait()
        print(os.waitstatus_to_exitcode(status))
        fit(folder / "last.ckpt")
        fit()
"""


@pytest.mark.skipif(
    "save_on_exception" not in inspect.signature(ModelCheckpoint).parameters,
    reason="this Lightning does not save when a program is ended",
)
@pytest.mark.parametrize("where", ["step", pytest.param("next", marks=SLOW)])
def test_sigterm_to_the_group_lets_lightning_save_and_resume(tmp_path: Path, where: str) -> None:
    """In a training step; and in next(), which must first bring the batch that it was asked for."""
    process = launch(FIT, tmp_path, where, "first", forked=True)
    assert process.stdout is not None
    leader = int(process.stdout.readline())
    expect(process, "waiting")
    os.killpg(leader, signal.SIGTERM)
    tell(process, "go on")
    out, err, status = finish(process)
    assert status == 0, err
    # Lightning ends by SystemExit once the step is done.
    first, ended, rest, whole = map(json.loads, out.splitlines())
    assert ended == 0, err
    assert 1 <= len(first) < 21
    if where == "step":
        assert len(first) == 10
    assert len(whole) == 21
    assert first + rest == whole
