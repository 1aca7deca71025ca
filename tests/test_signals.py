"""Real signals to real programs: SIGTERM, SIGKILL and Ctrl-C, to the parent alone and to all.

Each program leads a session of its own, so that a test can signal its process group, as schedulers
and terminals do, and can see afterwards that none of the session's processes is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from parity.tools import PROMPT, ROOT, finish_script
from samples import METHODS

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds (Linux)")

METHOD = pytest.mark.parametrize("method", METHODS)
WHOM = pytest.mark.parametrize("whom", ["parent", "group"])


def members(session: int) -> Iterator[int]:
    """Processes of a session that run."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                # After the name, which is in parentheses and may hold anything.
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] not in "ZX":
                    yield int(entry)


def wait_until_empty(session: int) -> float:
    """Wait until a session has no processes; returns the seconds it took."""
    begun = time.monotonic()
    while left := list(members(session)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                ended, _, _ = select.select([pidfd], [], [], begun + PROMPT - time.monotonic())
                os.close(pidfd)
                if not ended:
                    for other in members(session):
                        os.kill(other, signal.SIGKILL)
                    raise AssertionError(f"processes {left} are still running")
    return time.monotonic() - begun


def send(process: subprocess.Popen[str], number: int, whom: str) -> None:
    (os.killpg if whom == "group" else os.kill)(process.pid, number)


def expect(process: subprocess.Popen[str], *lines: str) -> None:
    """Read lines that come in any order."""
    assert process.stdout is not None
    found = {process.stdout.readline().strip() for _ in lines}
    assert found == set(lines), (found, process.poll() is not None and process.communicate())


def tell(process: subprocess.Popen[str], word: object) -> None:
    """Write a line to the program's standard input."""
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    """Let a program end; none of its processes may be left."""
    done = finish_script(process)
    wait_until_empty(process.pid)
    return done


def launch(source: str, folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """Run a program with a folder and further arguments."""
    program = folder / "program.py"
    program.write_text(source)
    return subprocess.Popen(
        [sys.executable, str(program), str(folder), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )


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


def start(body: str, folder: Path, method: str) -> subprocess.Popen[str]:
    """Start the program above with ``body`` for the rest of its main function."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return launch(PROGRAM.replace("BODY", lines), folder, method)


# Ctrl-C ----------------------------------------------------------------------------------------

INTERRUPTED = """
found, iterator = [], iter(loader)
while True:
    try:
        if len(found) in gated:
            say("next", len(found))
        batch = next(iterator, None)
    except KeyboardInterrupt:
        say("interrupted")
        gated.remove(len(found))
        data.open_gate(len(found))
    else:
        if batch is None:
            break
        found.append(int(batch))
say(found == list(range(40)))
"""


@WHOM
@METHOD
def test_an_iterator_goes_on_after_ctrl_c(tmp_path: Path, method: str, whom: str) -> None:
    """In the middle of next(): an interrupt in the loop, and then the rest, nothing missing."""
    process = start(INTERRUPTED, tmp_path, method)
    expect(process, "fetching 9", "next 9")
    send(process, signal.SIGINT, whom)
    expect(process, "interrupted")
    expect(process, "fetching 24", "next 24")
    send(process, signal.SIGINT, whom)
    assert finish(process) == ("interrupted\nTrue\n", "", 0)


IN_A_THREAD = """
found, done = [], threading.Event()

def read():
    found.extend(int(batch) for batch in loader)
    done.set()

threading.Thread(target=read).start()
try:
    done.wait()
except KeyboardInterrupt:
    say("interrupted")
for index in gated:
    data.open_gate(sys.stdin.readline().strip())
done.wait()
say(found == list(range(40)))
"""


@WHOM
def test_a_loader_in_a_thread_hears_nothing_of_ctrl_c(tmp_path: Path, whom: str) -> None:
    process = start(IN_A_THREAD, tmp_path, "fork")
    expect(process, "fetching 9")
    send(process, signal.SIGINT, whom)
    expect(process, "interrupted")
    tell(process, 9)  # only now can the epoch go on: nobody has given up its workers
    expect(process, "fetching 24")
    tell(process, 24)
    assert finish(process) == ("True\n", "", 0)


RANKS = """
import os, subprocess, sys
import lit_loader

class Data:
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        return index

def be_rank(folder, rank):
    import torch
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=2
    )
    sampler = torch.utils.data.DistributedSampler(data := Data())
    loader = lit_loader.DataLoader(data, sampler=sampler, num_workers=2)
    for number, batch in enumerate(loader):
        torch.distributed.all_reduce(batch)
        if number == 20:
            os.write(1, f"rank {rank}\\n".encode())

if len(sys.argv) == 3:
    be_rank(*sys.argv[1:])
else:
    ranks = [subprocess.Popen([sys.executable, *sys.argv, str(rank)]) for rank in range(2)]
    try:
        print([rank.wait() for rank in ranks])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        assert 0 not in [rank.wait() for rank in ranks]  # an error, and no hang
"""


def test_ctrl_c_ends_all_ranks(tmp_path: Path) -> None:
    """As torchrun runs them: a parent of two, in one group with them and all of their workers."""
    process = launch(RANKS, tmp_path)
    expect(process, "rank 0", "rank 1")
    os.killpg(process.pid, signal.SIGINT)
    out, err, status = finish(process)
    assert (out, status) == ("interrupted\n", 0)
    assert "KeyboardInterrupt" in err
    assert "DataLoader worker" not in err


# Handlers --------------------------------------------------------------------------------------

TERMINATED = """
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(os.getpid()))
gated.remove(24)
found, iterator = [], iter(loader)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", WorkerRestartWarning)
    for batch in iterator:
        found.append(int(batch))
        if len(found) == 9:
            say("next 9")
say(asked == [os.getpid()], found == list(range(40)), len(caught))
"""


@METHOD
def test_sigterm_to_the_group_leaves_the_epoch_to_the_parent(tmp_path: Path, method: str) -> None:
    """Schedulers send it to all processes; the parent's handler means to finish something."""
    process = start(TERMINATED, tmp_path, method)
    expect(process, "fetching 9", "next 9")
    os.killpg(process.pid, signal.SIGTERM)
    out, err, status = finish(process)
    assert (out, err, status) == ("True True 2\n", "", 0)
