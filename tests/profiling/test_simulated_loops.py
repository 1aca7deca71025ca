"""Programs whose bottleneck is known by construction, on a simulated machine: each verdict.

The same verdicts of programs that run are in test_limited_programs.py.
"""

from typing import NamedTuple

import pytest

from tests.support.simulated_loops import Loop

LEAVE = "the loader is not the limit: leave it"
ITEM, STREAM = "in __getitem__", "in the stream's __iter__"
WAITS, HELPS, NOT = "mostly waiting for storage", "add workers", "more workers do not help"


class Right(NamedTuple):
    """A program, what its verdict has, and what it has not."""

    loop: Loop
    says: tuple[str, ...]
    never: tuple[str, ...] = ()


ADVICE = ("add workers", "raise", "make __getitem__", "num_workers", "set_num_threads", "send less")
PROGRAMS: dict[str, Right] = {
    # The step is the limit.
    "step sleeps": Right(Loop(sleep=1e-3, step=0.03), (LEAVE,), ADVICE),
    "step computes": Right(Loop(compute=1e-3, step=0.03, step_threads=1), (LEAVE,), ADVICE),
    "step, one worker is just enough": Right(Loop(1, sleep=3e-3, step=0.03), (LEAVE,), ADVICE),
    "step, no workers, samples cost nothing": Right(Loop(0, step=0.03), (LEAVE,), ADVICE),
    "step of a stream": Right(Loop(sleep=1e-3, step=0.03, iterable=True), (LEAVE,), ADVICE),
    "step, two epochs": Right(
        Loop(sleep=1e-3, step=0.03, epochs=2, persistent=True), (LEAVE,), ADVICE
    ),
    "step, many workers": Right(Loop(16, compute=1e-3, step=0.03), (LEAVE,), ADVICE),
    "step, large batches": Right(Loop(nbytes=40_000_000, encode=0.01, step=0.03), (LEAVE,), ADVICE),
    "step, a slow sample now and then": Right(Loop(4, slow=0.05, step=0.03), (LEAVE,), ADVICE),
    "step, full cache": Right(
        Loop(sleep=1e-3, step=0.03, cache=(10, 90, 10**9)), (LEAVE, "from the cache"), ADVICE
    ),
    "step, worker threads": Right(Loop(sleep=1e-3, step=0.03, method="thread"), (LEAVE,), ADVICE),
    # Samples sleep, or compute.
    "samples sleep": Right(Loop(sleep=5e-3), (ITEM, WAITS, HELPS, "reads_ahead")),
    "samples sleep, as many workers as processors": Right(
        Loop(4, sleep=5e-3), (ITEM, WAITS, HELPS, "reads_ahead"), (NOT,)
    ),
    "samples sleep, 64 workers": Right(Loop(64, sleep=0.1), (ITEM, WAITS)),
    "samples sleep, no workers": Right(Loop(0, sleep=5e-3), ("it loads the data", "set num_work")),
    "samples compute": Right(Loop(compute=5e-3), (ITEM, HELPS), ("storage", NOT)),
    "samples compute, on one processor": Right(
        Loop(1, compute=5e-3, processors=1), (ITEM, "cheaper", NOT), (HELPS, "storage")
    ),
    "samples compute, workers as processors": Right(
        Loop(4, compute=5e-3), (ITEM, "make __getitem__ cheaper", NOT), ("storage", HELPS)
    ),
    "samples compute, three times too many": Right(
        Loop(12, compute=5e-3), (ITEM, "make __getitem__ cheaper", NOT), ("storage", HELPS)
    ),
    "samples compute, 64 processors": Right(
        Loop(8, compute=5e-3, processors=64), (ITEM, HELPS), ("storage", NOT)
    ),
    "samples compute, no workers": Right(Loop(0, compute=5e-3), (ITEM, "set num_workers")),
    "samples compute, other programs too": Right(
        Loop(compute=5e-3, others=12.0), ("waited for a processor", "something else uses them")
    ),
    "half asleep, half computing": Right(
        Loop(4, sleep=2.5e-3, compute=2.5e-3), (ITEM, HELPS), (NOT,)
    ),
    "samples cost nothing, no workers": Right(
        Loop(0, collate=2e-5), ("make them larger",), ("set num_workers",)
    ),
    "samples cost nothing, workers": Right(Loop(1, batches=2000), ("make batches larger",)),
    "auto": Right(
        Loop(4, compute=5e-3, auto="more than 4 did not help"), ("in the end",), (HELPS,)
    ),
    # Streams.
    "a stream sleeps": Right(
        Loop(sleep=5e-3, iterable=True), (STREAM, WAITS, "read_stream"), (ITEM,)
    ),
    "a stream computes": Right(Loop(4, compute=5e-3, iterable=True), (STREAM, NOT), (ITEM,)),
    "a stream, no workers": Right(Loop(0, sleep=5e-3, iterable=True), (STREAM, "set num_workers")),
    "a stream with a dear state": Right(
        Loop(state=0.02, iterable=True), ("taking the stream's state", "make state_dict cheaper")
    ),
    # Collating, and the way to the loop.
    "collate_fn": Right(Loop(collate=0.03), ("in collate_fn", HELPS, "make collate_fn cheaper")),
    "collate_fn, no workers": Right(Loop(0, collate=0.03), ("in collate_fn: set num_workers",)),
    "objects are pickled": Right(
        Loop(encode=0.03), ("writing batches into shared memory", "return tensors or arrays")
    ),
    "objects are unpickled": Right(
        Loop(decode=0.03), ("rebuilding batches in the training process", "tensors or arrays")
    ),
    "large batches": Right(Loop(encode=0.03, nbytes=32_000_000), ("send less: a batch has 32 MB",)),
    "large batches are pinned, no workers": Right(Loop(0, pin=0.03), ("page-locked memory",)),
    # Locks, storage, slow samples, swap.
    "a lock": Right(Loop(lock=3e-3), ("a lock that they share", NOT), (HELPS, "storage")),
    "a lock, eight workers": Right(
        Loop(8, lock=3e-3), ("a lock that they share", NOT), (HELPS, "storage")
    ),
    "a lock for a fifth of a sample": Right(
        Loop(8, lock=1e-3, sleep=4e-3), ("a lock that they share",), (HELPS,)
    ),
    "swap": Right(Loop(page=3e-3), ("comes from a disk", "the machine swaps"), (HELPS,)),
    "storage, marked": Right(
        Loop(read=5e-3), ("samples waited for storage", "raise concurrent_reads"), (HELPS,)
    ),
    "storage, marked, of a stream": Right(
        Loop(read=5e-3, iterable=True), ("samples waited for storage", "raise concurrent_reads")
    ),
    "storage, no workers": Right(
        Loop(0, read=5e-3), ("waited for storage", "raise concurrent_reads")
    ),
    "one slow sample in each batch": Right(
        Loop(slow=0.05, sleep=1e-4), ("a few slow samples", "slowest samples: 3 (50 ms)"), (WAITS,)
    ),
    "unequal shares": Right(
        Loop(4, sleep=2e-3, uneven=0.8, iterable=True), ("worker 0 was", "equal shares")
    ),
    # Starts.
    "workers start for each short epoch": Right(
        Loop(batches=4, epochs=8, start=0.4, sleep=1e-3),
        ("for the first batches of 8 epochs", "persistent_workers=True"),
        (HELPS,),
    ),
    "short epochs, persistent workers": Right(
        Loop(1, batches=3, epochs=20, sleep=5e-3, step=0.04, start=0, persistent=True),
        ("workers begin an epoch with nothing ready",),
        ("persistent_workers=True",),
    ),
    "a slow start, and the run is over": Right(
        Loop(batches=20, start=5.0, sleep=1e-3, step=0.03),
        ("5.0 s for the first batch",),
        (HELPS,),
    ),
    "a slow start of a long run": Right(
        Loop(batches=3000, start=5.0, sleep=1e-3, step=0.03),
        (LEAVE, "5.0 s for the first batch"),
        ADVICE,
    ),
    # Caches.
    "a cache that is full": Right(
        Loop(sleep=5e-3, cache=(50, 50, 2 * 10**9)), ("2 GB more memory would hold all",)
    ),
    "a cache that holds all": Right(
        Loop(step=0.03, cache=(90, 10, 0)), (LEAVE, "90 % of the samples"), ("more memory",)
    ),
    # Threads.
    "torch's threads fight with workers": Right(
        Loop(4, compute=5e-3, step=0.03, step_threads=4), ("torch.set_num_threads(",), (LEAVE,)
    ),
    "torch's threads have room": Right(
        Loop(4, compute=5e-3, step=0.03, step_threads=4, processors=16), (), ("set_num_threads",)
    ),
    "one thread computes beside workers": Right(
        Loop(3, compute=1e-3, step=0.03, step_threads=1), (LEAVE,), ("set_num_threads",)
    ),
    "torch's threads beside workers that sleep": Right(
        Loop(4, sleep=1e-3, step=0.03, step_threads=4), (LEAVE,), ("set_num_threads",)
    ),
    "worker threads hold the interpreter": Right(
        Loop(4, compute=5e-3, held=True, method="thread"),
        ("hold the interpreter's lock", "worker_method='multiprocessing'"),
        (HELPS, WAITS),
    ),
    "worker threads release the interpreter": Right(
        Loop(compute=5e-3, method="thread"), (ITEM, HELPS), ("interpreter", WAITS)
    ),
    "worker threads sleep": Right(
        Loop(4, sleep=5e-3, method="thread"), (ITEM, WAITS, HELPS), ("interpreter",)
    ),
    "worker threads compute on all processors": Right(
        Loop(8, compute=5e-3, method="thread"), (ITEM, NOT), ("interpreter", WAITS)
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_verdict_is_right(name: str) -> None:
    loop, says, never = PROGRAMS[name]
    found = loop.statistics().verdict
    assert all(words in found for words in says), found
    assert not any(words in found for words in never), found
    assert "pin_memory=True" not in found and "\n" not in found
    # Under 5 % of waiting nothing is advised.
    assert not (LEAVE in found and "raise prefetch_factor" in found)
