"""Workers that die or hang: an error at once, and a loader that can be used again.

Most of this is shown of ours alone. Torch reports a death from a signal handler, as RuntimeError
too, but the handler strikes wherever the interpreter happens to be, in the test runner as well.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time

import pytest

from .datasets import Call, Squares
from .tools import PROMPT, flat, raises, wait_gone


def die(how: object) -> None:
    """End this process in the given way."""
    if isinstance(how, signal.Signals):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if how is not signal.SIGKILL:
            signal.signal(how, signal.SIG_DFL)
        os.kill(os.getpid(), how)
    elif how == "sys.exit":
        sys.exit(3)
    else:
        os._exit(3 if how == "os._exit" else 0)


WAYS = [
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGTERM,
    "os._exit",
    "sys.exit",
]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.ours_only
def test_a_worker_that_dies_is_an_error_at_once(loader_class, how, persistent):
    def sample(index):
        if index == 4:
            die(how)
        return index

    loader = loader_class(Call(sample, 40), num_workers=2, persistent_workers=persistent)
    began = time.monotonic()
    with raises(RuntimeError, match=r"worker"):
        list(loader)
    assert time.monotonic() - began < PROMPT


@pytest.mark.ours_only
@pytest.mark.parametrize("how", [*WAYS, "exit status 0"], ids=str)
def test_the_error_tells_the_signal_or_exit_status(loader_class, how):
    def sample(index):
        if index == 1:
            die(how)
        return index

    loader = loader_class(Call(sample, 8), num_workers=1)
    expected = how.name if isinstance(how, signal.Signals) else "0" if "0" in how else "3"
    with raises(RuntimeError, match=expected):
        list(loader)


@pytest.mark.ours_only
def test_a_worker_killed_from_outside(loader_class):
    """It is replaced; a sample that kills whoever reads it is an error."""
    loader = loader_class(Call(lambda index: os.getpid(), 1000), num_workers=2)
    iterator = iter(loader)
    victim = int(next(iterator))
    os.kill(victim, signal.SIGKILL)
    assert len(list(iterator)) == 999


@pytest.mark.ours_only
def test_death_in_worker_init_fn(loader_class):
    def init(worker_id):
        os.kill(os.getpid(), signal.SIGKILL)

    with raises(RuntimeError, match="worker"):
        list(loader_class(Squares(4), num_workers=1, worker_init_fn=init))


@pytest.mark.ours_only
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_is_usable_after_a_death(loader_class, persistent):
    deadly = multiprocessing.Value("i", 1)

    def sample(index):
        if index == 2 and deadly.value:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    loader = loader_class(Call(sample, 6), num_workers=2, persistent_workers=persistent)
    with raises(RuntimeError, match="worker"):
        list(loader)
    deadly.value = 0
    assert flat(loader) == [0, 1, 2, 3, 4, 5]


@pytest.mark.ours_only
def test_another_loader_is_not_disturbed_by_a_death(loader_class):
    def sample(index):
        os.kill(os.getpid(), signal.SIGKILL)

    healthy = iter(loader_class(Squares(30), num_workers=1))
    assert int(next(healthy)) == 0
    with raises(RuntimeError, match="worker"):
        list(loader_class(Call(sample), num_workers=1))
    assert flat(healthy) == [i * i for i in range(1, 30)]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_timeout(loader_class, gate, batch_size):
    def sample(index):
        assert index < 2 or gate.wait(60)
        return index

    loader = loader_class(Call(sample, 8), batch_size=batch_size, num_workers=1, timeout=1)
    iterator = iter(loader)
    assert flat([next(iterator)])[0] == 0
    began = time.monotonic()
    with raises(RuntimeError, match=r"timeout|timed out"):
        list(iterator)
    assert 0.5 < time.monotonic() - began < PROMPT


def test_timeout_that_is_not_reached(loader_class):
    loader = loader_class(Squares(5), num_workers=2, timeout=60)
    assert flat(loader) == [0, 1, 4, 9, 16]


@pytest.mark.ours_only
def test_a_loader_is_usable_after_a_timeout(loader_class, gate):
    def sample(index):
        assert index != 1 or gate.wait(60)
        return index

    loader = loader_class(Call(sample, 4), num_workers=1, timeout=1, persistent_workers=True)
    with raises(RuntimeError, match="timeout"):
        list(loader)
    gate.open()
    assert flat(loader) == [0, 1, 2, 3]


@pytest.mark.ours_only
def test_a_worker_that_hangs_does_not_hang_the_end(loader_class):
    """The worker of an abandoned epoch is stuck in a sample: it is killed in the end."""

    def sample(index):
        if index == 1:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
            signal.pause()
        return os.getpid()

    iterator = iter(loader_class(Call(sample), num_workers=1))
    pid = int(next(iterator))
    began = time.monotonic()
    del iterator
    wait_gone([pid])
    assert time.monotonic() - began < PROMPT


@pytest.mark.ours_only
def test_an_iterator_in_a_reference_cycle_is_collected_promptly(loader_class):
    import gc

    iterator = iter(loader_class(Call(lambda index: os.getpid(), 100), num_workers=1))
    cycle = [iterator, int(next(iterator))]
    cycle.append(cycle)
    pid = cycle[1]
    began = time.monotonic()
    del iterator, cycle
    gc.collect()
    wait_gone([pid])
    assert time.monotonic() - began < PROMPT / 5


@pytest.mark.parametrize("persistent", [False, True])
def test_dropping_everything_ends_the_workers(loader_class, persistent):
    loader = loader_class(
        Call(lambda index: os.getpid(), 20), num_workers=2, persistent_workers=persistent
    )
    iterator = iter(loader)
    pids = {int(batch) for batch in iterator}
    del iterator, loader
    wait_gone(pids)
