"""A program that uses a loader ends when it should, however it ends, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from .tools import finish_script, is_oracle, start_script, wait_gone

# Under the limit of `finish_script`, above what importing torch and starting two workers takes.
HARD_LIMIT = 60.0

DATA = """
import os, sys, threading
import torch

class Data(torch.utils.data.Dataset):
    def __init__(self, stuck_at=None):
        self.stuck_at = stuck_at
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        if index == self.stuck_at:
            threading.Event().wait()
        return os.getpid()

def say(*words):
    print(*words, flush=True)
"""

PERSISTENT = pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])


def run(loader_class, folder, body, persistent=False):
    """Run a whole program; return what it printed, its errors and its exit status."""
    source = DATA + body.replace("OPTIONS", f"num_workers=2, persistent_workers={persistent}")
    out, err, status = finish_script(start_script(loader_class, source, folder), HARD_LIMIT)
    wait_gone({int(pid) for pid in re.findall(r"worker (\d+)", out)})
    return out, err, status


@PERSISTENT
def test_after_a_whole_epoch(loader_class, tmp_path, persistent):
    body = """
loader = DataLoader(range(10), OPTIONS)
say(sum(int(batch) for batch in loader))
"""
    assert run(loader_class, tmp_path, body, persistent) == ("45\n", "", 0)


@PERSISTENT
def test_after_an_early_break(loader_class, tmp_path, persistent):
    body = """
loader = DataLoader(Data(), OPTIONS)
for batch in loader:
    say("worker", int(batch))
    break
"""
    out, err, status = run(loader_class, tmp_path, body, persistent)
    assert out.startswith("worker")
    assert (err, status) == ("", 0)


@PERSISTENT
def test_with_an_iterator_still_alive(loader_class, tmp_path, persistent):
    body = """
iterator = iter(DataLoader(Data(), OPTIONS))
say("worker", int(next(iterator)))
"""
    _, err, status = run(loader_class, tmp_path, body, persistent)
    assert (err, status) == ("", 0)


def test_with_huge_index_lists_still_queued(loader_class, tmp_path):
    body = """
class Lengths(Data):
    def __getitems__(self, indices):
        return [os.getpid()]

batches = [list(range(1_000_000)) for _ in range(5)]
loader = DataLoader(Lengths(), batch_sampler=batches, OPTIONS)
for batch in loader:
    say("worker", int(batch))
    break
"""
    began = time.monotonic()
    _, err, status = run(loader_class, tmp_path, body)
    assert (err, status) == ("", 0)
    assert time.monotonic() - began < HARD_LIMIT / 2


@PERSISTENT
def test_after_the_consumers_exception(loader_class, tmp_path, persistent):
    body = """
loader = DataLoader(Data(), OPTIONS)
for batch in loader:
    say("worker", int(batch))
    1 / 0
"""
    _, err, status = run(loader_class, tmp_path, body, persistent)
    assert status == 1
    assert err.count("Traceback") == 1
    assert err.endswith("ZeroDivisionError: division by zero\n")


def test_sys_exit_in_the_loop(loader_class, tmp_path):
    body = """
loader = DataLoader(Data(), OPTIONS)
for batch in loader:
    say("worker", int(batch))
    sys.exit(5)
"""
    _, err, status = run(loader_class, tmp_path, body, persistent=True)
    assert (err, status) == ("", 5)


def test_a_hung_worker(loader_class, tmp_path):
    body = """
loader = DataLoader(Data(stuck_at=2), OPTIONS)
for batch in loader:
    say("worker", int(batch))
    break
"""
    _, err, status = run(loader_class, tmp_path, body)
    assert (err, status) == ("", 0)


def test_a_loader_that_was_never_iterated(loader_class, tmp_path):
    assert run(loader_class, tmp_path, "loader = DataLoader(Data(), OPTIONS)") == ("", "", 0)


def start_and_read(loader_class, folder, body):
    """Start a program and read the two worker lines it prints before it waits."""
    process = start_script(loader_class, DATA + body, folder)
    assert process.stdout is not None
    pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
    return process, pids


WAITS_IN_NEXT = """
loader = DataLoader(Data(stuck_at=2), num_workers=1)
iterator = iter(loader)
say("worker", int(next(iterator)))
say("worker", int(next(iterator)))
next(iterator)
"""
WAITS_IN_THE_BODY = """
loader = DataLoader(Data(), num_workers=2, persistent_workers=True)
for number, batch in enumerate(loader):
    say("worker", int(batch))
    if number == 1:
        threading.Event().wait()
"""


@pytest.mark.parametrize("body", [WAITS_IN_NEXT, WAITS_IN_THE_BODY], ids=["next", "body"])
@pytest.mark.parametrize("whom", ["program", "group"])
def test_an_interrupt(loader_class, tmp_path, body, whom):
    process, pids = start_and_read(loader_class, tmp_path, body)
    (os.killpg if whom == "group" else os.kill)(process.pid, signal.SIGINT)
    _, err, status = finish_script(process, HARD_LIMIT)
    assert status in (-signal.SIGINT, 130, 1)
    assert "KeyboardInterrupt" in err
    wait_gone(pids)
    if not is_oracle(loader_class):
        assert err.count("Traceback") == 1, "workers must end without a word"


@pytest.mark.parametrize("body", [WAITS_IN_NEXT, WAITS_IN_THE_BODY], ids=["next", "body"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=str)
def test_workers_end_with_their_parent(loader_class, tmp_path, body, how):
    if is_oracle(loader_class) and body == WAITS_IN_NEXT:
        pytest.skip("torch's worker looks for its parent between samples only")
    process, pids = start_and_read(loader_class, tmp_path, body)
    os.kill(process.pid, how)
    _, _, status = finish_script(process, HARD_LIMIT)
    assert status == -how
    wait_gone(pids)
