"""The verdict's words, for every case that its rules tell apart."""

import dataclasses
import random
from typing import Any

import pytest

from lit_loader import DataLoader
from lit_loader.profiling.records import (
    NodeTimes,
    SlowSample,
    StageTimes,
    Surroundings,
    WorkerTimes,
)
from lit_loader.profiling.verdict import LoaderStatistics, cause, verdict


def lasted(total: float) -> StageTimes:
    return StageTimes(total=total)


def run(waited: float, *busy: float, **fields: Any) -> LoaderStatistics:
    """100 seconds and 1,000 batches, of which the loop waited, and each worker was busy, so."""
    made = sum(busy) * 100
    known: dict[str, Any] = {
        "batches": 1_000,
        "seconds": 100.0,
        "waited": 100 * waited,
        "wait_fraction": waited,
        "starts": 1,
        "startup": 0.1 * waited,
        "fetch": lasted(0.81 * made),
        "collate": lasted(0.1 * made),
        "encode": lasted(0.09 * made),
        "workers": tuple(WorkerTimes(n, 1, 1, 100 * b, b) for n, b in enumerate(busy)),
    }
    return LoaderStatistics(**{**known, **fields})


def among(statistics: LoaderStatistics, workers: int, **around: Any) -> LoaderStatistics:
    """With so many workers, on four processors."""
    surroundings = Surroundings(**{"processors": 4, **around})
    return dataclasses.replace(statistics, num_workers=workers, surroundings=surroundings)


def stages(fetch: float = 0, collate: float = 0, encode: float = 0) -> dict[str, StageTimes]:
    return {"fetch": lasted(fetch), "collate": lasted(collate), "encode": lasted(encode)}


def elsewhere(busy: float, nbytes: int, transit: float) -> dict[str, Any]:
    """One worker here, always busy, and two on a node; half of the batches are theirs."""
    here = WorkerTimes(0, 500, 500, 100, 1.0)
    there = [WorkerTimes(1024 + n, 250, 250, 100 * busy, busy, node="a.b") for n in range(2)]
    node = NodeTimes("a.b", 2, 500, 500, 500 * nbytes, 200 * busy, transit)
    sums = {"remote_batches": 500, "remote_nbytes": 500 * nbytes, "transit": transit}
    return {"workers": (here, *there), "nodes": (node,), **sums}


STORAGE = {"read": lasted(60.0), "straggler_seconds": 40.0}
"""Of the seconds in __getitem__, those that samples waited for what is read ahead."""


SLOW = (SlowSample(77, 0.055, 0, 3), SlowSample("a.png", 1.26, 0, 9), SlowSample(None, 1, 0, 1))

CACHE = {"cache_hits": 71, "cache_misses": 29, "cache_bytes_missing": 2_140_000_000}


@pytest.mark.parametrize(
    ("statistics", "num_workers", "expected"),
    [
        (run(0.2, 0.9, **STORAGE), 1,
         "workers were 90 % busy, 81 % of it in __getitem__: samples waited for storage for 82"
         " % of that: raise concurrent_reads"),
        (LoaderStatistics(), 2, "no batch was loaded"),
        (run(0.004, 0.2, 0.3), 2,
         "the loader is not the limit: leave it (the loop waited 0.4 % of the time)"),
        (run(0.38, 0.97, 0.97, slowest_samples=SLOW), 2,
         "workers were 97 % busy, 81 % of it in __getitem__: add workers or make __getitem__ "
         "cheaper; slowest samples: 77 (55 ms), 'a.png' (1.3 s)"),
        (run(0.38, 0.97, 0.97, 0.9, 0.9), 4,
         "workers were 94 % busy, 81 % of it in __getitem__: make __getitem__ cheaper; with 4 "
         "processors more workers help only if they wait for files or network"),
        (run(0.5, 0.9, 0.9, **stages(20, 140, 20), slowest_samples=SLOW), 2,
         "workers were 90 % busy, 78 % of it in collate_fn: add workers or make collate_fn "
         "cheaper (the default one stacks tensors where they are needed)"),
        (run(0.5, 0.9, 0.9, **stages(20, 20, 140)), 2,
         "workers were 90 % busy, 78 % of it writing batches into shared memory: add workers "
         "or return tensors or arrays, which are copied, instead of objects, which are pickled"),
        (run(0.2, 0.3, 0.3, straggler_seconds=40.0, slowest_samples=SLOW[:1]), 2,
         "a few slow samples were 82 % of the time in __getitem__: make these cheaper, or "
         "raise prefetch_factor; slowest samples: 77 (55 ms)"),
        (run(0.5, 0.95, 0.1, 0.1, surroundings=Surroundings(iterable=True)), 3,
         "worker 0 was 95 % busy, the others 10 %: give the workers equal shares"),
        (run(0.4, 0.3, 0.3, decode=lasted(30.0)), 2,
         "75 % of that rebuilding batches in the training process: return tensors or arrays, "
         "instead of objects that take long to unpickle"),
        (run(0.4, 0.3, 0.3, decode=lasted(5.0), pin=lasted(90.0)), 2,
         "the pin-memory thread was 95 % busy, mostly copying batches into page-locked memory:"
         " return fewer, larger tensors, or try pin_memory=False"),
        (run(0.4, 0.5, **elsewhere(0.2, 150_000_000, 180.0)), 1,
         "remote workers were only 20 % busy: the network, or the process that takes batches "
         "in, is the limit (150 MB a batch, 5 a second; 10 GbE carries 7.7): send less, images"
         " as uint8, say, and convert and normalise them in the model; 50 % of the batches (75"
         " GB) came from 2 remote workers (a.b 500), each 360 ms in transit"),
        (run(0.4, 0.5, **elsewhere(0.2, 2_000, 180.0)), 1,
         "remote workers were only 20 % busy: a batch of 2 kB is 360 ms on its way or waiting "
         "for it: raise remote.in_flight, or make larger batches; 50 % of the batches (1 MB) "
         "came from 2 remote workers (a.b 500), each 360 ms in transit"),
        (run(0.4, 0.9, **elsewhere(0.9, 2_000, 10.0)), 1,
         "workers were 93 % busy, 81 % of it in __getitem__: raise num_remote_workers or make "
         "__getitem__ cheaper; 50 % of the batches (1 MB) came from 2 remote workers (a.b "
         "500), each 20 ms in transit"),
        (run(0.1, 0.3, 0.3, decode=lasted(1.0)), 2,
         "workers were only 30 % busy, and the training process was not held up either: raise "
         "prefetch_factor, so that more batches are ready when the loop asks"),
        (run(0.5, 0.5, **stages(40, 10)), 0,
         "it loads the data itself, 80 % of that in __getitem__: set num_workers"),
        (run(*(0.01, 0.3, 0.3), **stages(40, 10), **CACHE), 2,
         "the loader is not the limit: leave it (the loop waited 1.0 % of the time); 71 % "
         "of the samples came from the cache, and reading samples was 80 % of the work on "
         "batches: 2.14 GB more memory would hold all"),
        (run(0.3, 0.9, 0.9, num_workers=2, num_workers_reason="more than 2 did not help",
             processor_fraction=0.05, queued_fraction=0.02), 2,
         "workers were 90 % busy, 81 % of it in __getitem__: make __getitem__ cheaper; 2 workers "
         "on 4 processors in the end: more than 2 did not help (workers computed for 5 % of their "
         "time, waited for a processor for 2 %, for storage or network 93 %)"),
        (run(0.1, 0.9, 0.9, startup=8.0), 2,
         "the loader is not the limit: leave it (the loop waited 8.0 s for the first batch, and "
         "then 2.2 % of the time)"),
        (run(0.4, 0.9, 0.9, startup=32.0), 2,
         "80 % of that for the first batch (32 s): starting workers takes that long, which "
         "matters less the longer a run is"),
        (run(0.4, 0.9, 0.9, startup=32.0, startup_fetch=30.0), 2,
         "80 % of that for the first batch (32 s), 94 % of it in __getitem__: the dataset opens or "
         "builds something on first use, which matters less the longer a run is; loader.start() "
         "does it while you build the model"),
        (run(0.4, 0.9, startup=32.0, startup_fetch=30.0), 0,
         "80 % of that for the first batch (32 s), 94 % of it in __getitem__: the dataset opens or "
         "builds something on first use, which matters less the longer a run is"),
        (run(0.1, 0.9, 0.9, startup=8.0, startup_fetch=7.0, starts=20), 2,
         "80 % of that for the first batches of 20 epochs (400 ms each), 88 % of it in "
         "__getitem__: the dataset opens or builds something on first use: "
         "persistent_workers=True keeps it"),
        (run(0.1, 0.9, 0.9, startup=8.0, starts=20), 2,
         "80 % of that for the first batches of 20 epochs (400 ms each): "
         "persistent_workers=True starts workers once"),
        (run(0.9, 0.9, startup=90.0, batches=1), 0,
         "it loads the data itself, 89 % of that in __getitem__: set num_workers"),
    ],
)  # fmt: skip
def test_cases(statistics: LoaderStatistics, num_workers: int, expected: str) -> None:
    if statistics.wait_fraction >= 0.05 and "leave it" not in expected:
        waited = f"{100 * statistics.wait_fraction:.0f} % of the time"
        expected = f"the loop waited {waited}; {expected}"
    found = among(statistics, num_workers, iterable=statistics.surroundings.iterable)
    assert verdict(found) == found.verdict == expected
    assert str(found).endswith(f"\n{expected}")


def test_every_first_batch_is_of_the_usual_length() -> None:
    """Epochs of two batches, the first of which takes no longer than the second."""
    usual = run(0.5, 0.95, 0.95, batches=20, starts=10, startup=25.0)
    assert "workers were 95 % busy" in verdict(among(usual, 2))


def test_a_cause_where_nobody_waited() -> None:
    """Of one batch, say: the bench asks for it."""
    words = cause(among(run(0.0, 0.5, batches=1), 1, persistent_workers=True))
    assert words.startswith("nothing was waited for")


def test_persistent_workers_need_no_advice_to_have_them() -> None:
    first = run(0.2, 0.9, 0.9, startup=16.0, starts=20)
    words = verdict(among(first, 2, persistent_workers=True))
    assert words.endswith(
        ": workers begin an epoch with nothing ready, which matters less in longer ones"
    )


@pytest.mark.parametrize("waited", [0.0, 0.5])
def test_transfer(waited: float) -> None:
    found = among(run(waited, 0.9), 1, device=True)
    assert "device" not in verdict(found, lasted(9.0))
    words = verdict(found, lasted(12.0))
    told = "; bringing batches to the device took 12 % of the time"
    assert words.endswith(f"{told}: pin_memory=True makes it cheaper")
    words = verdict(found, lasted(150.0))
    assert "took 100 % of the time" in words  # the last one's is behind that time
    pinned = dataclasses.replace(found, pin=lasted(1.0))
    assert verdict(pinned, lasted(12.0)).endswith(told)
    # On a CPU there is no device, and nothing to pin for: it is the Trainer's own work.
    words = verdict(among(found, 1), lasted(12.0))
    assert words.endswith("; the way from a batch to its step took 12 % of the time")


@pytest.mark.parametrize("waited", [0.0, 0.5])
def test_accidents(waited: float) -> None:
    found = run(waited, 0.9, worker_restarts=1, sample_errors=3)
    words = verdict(among(found, 1))
    assert words.endswith("; 1 worker had to be replaced; 3 samples could not be read")
    found = run(waited, 0.9, worker_restarts=2, sample_errors=1)
    words = verdict(among(found, 1))
    assert words.endswith("; 2 workers had to be replaced; 1 sample could not be read")


@pytest.mark.parametrize(
    ("computing", "queued", "cores", "expected"),
    [
        (0.3, 0.0, 4, "mostly waiting for storage, network or each other (they computed for 30 %)"),
        (0.3, 0.0, 1, "make __getitem__ cheaper; more workers do not help: 1 processor for 3"),
        (0.3, 0.6, 4, "workers waited for a processor for 60 % of their time (4 processors may"),
        (0.3, 0.6, 2, "more workers do not help: 2 processors for 3 that compute"),
        (0.6, 0.3, 4, "add workers or make __getitem__ cheaper"),
        (0.9, 0.0, 4, "add workers or make __getitem__ cheaper"),
    ],
)
def test_workers_that_wait(computing: float, queued: float, cores: int, expected: str) -> None:
    found = run(0.9, 0.9, 0.9, 0.9, processor_fraction=computing, queued_fraction=queued)
    assert expected in verdict(among(found, 3, processors=cores))


@pytest.mark.parametrize(
    ("computing", "workers", "looks", "locked", "sure"),
    [
        (0.5, 2, 100, 0.0, True),  # no look has found a lock
        (0.5, 2, 100, 0.05, False),
        (0.5, 2, 5, 0.0, False),
        (0.25, 4, 0, 0.0, False),
        (0.25, 2, 0, 0.0, True),  # one processor could do more
        (0.5, 4, 0, 0.0, True),  # one could not do it
        (0.5, 1, 0, 0.0, True),
    ],
)
def test_workers_that_may_be_one_behind_another(
    computing: float, workers: int, looks: int, locked: float, sure: bool
) -> None:
    """Together they compute as much as one processor can: that need not be by chance."""
    busy = [0.95] * workers
    fields = {"processor_fraction": computing, "lock_fraction": locked, "worker_looks": looks}
    found = verdict(among(run(0.9, *busy, **fields), workers, processors=4))
    assert ("mostly waiting for storage, network or each other" in found) == sure
    assert ("add workers" in found) == sure
    assert ("or for a lock that they share" in found) != sure


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"lock_fraction": 0.4}, "workers waited for a lock that they share (40 % of the looks"),
        ({"page_fraction": 0.4}, "workers waited for memory that comes from a disk (40 % of the"),
        ({"queued_fraction": 0.5}, "workers waited for a processor for 50 % of their time (4 p"),
    ],
)
def test_what_workers_were_kept_by(fields: dict[str, float], expected: str) -> None:
    assert expected in verdict(among(run(0.5, 0.5, 0.5, **fields), 2))


@pytest.mark.parametrize(
    ("waiting", "workers", "said"),
    [(0.4, 2, True), (0.7, 4, True), (0.05, 2, False), (0.4, 1, False)],
)
def test_threads_that_wait_for_a_lock(waiting: float, workers: int, said: bool) -> None:
    found = among(run(0.5, 0.5, 0.5, lock_fraction=waiting), workers, worker_method="thread")
    assert ("worker threads waited for a lock that they share" in verdict(found)) == said
    assert not (said and "add workers" in verdict(found))


def test_threads_take_no_time_to_start() -> None:
    tiny = among(run(0.999, 0.01, startup=95.0, batches=4), 2, worker_method="thread")
    assert "starting workers" not in verdict(tiny)
    assert "nothing is ready when a run begins" in verdict(tiny)


def test_workers_are_there_before_the_first_batch() -> None:
    with DataLoader(list(range(8)), num_workers=2) as loader:
        assert "; 2 workers 0% busy" in str(loader.statistics())


FIGHT: dict[str, Any] = {"processor_fraction": 0.9, "queued_threads": 2.0, "active_threads": 4}


def test_threads_that_fight() -> None:
    """It is said though the loop hardly waits: the step takes so long."""
    words = verdict(among(run(0.01, 0.9, 0.9, **FIGHT), 2, threads=4))
    assert words.startswith("the step computes with 4 threads while workers want 1.6 of 4 proc")
    assert "call torch.set_num_threads(2) at the program's start" in words


@pytest.mark.parametrize(
    ("fields", "around"),
    [
        ({}, {"threads": 1}),
        ({}, {"threads": 4, "processors": 64}),
        ({"active_threads": 1}, {"threads": 4}),  # it computes with one
        ({"queued_threads": 0.1}, {"threads": 4}),
        ({"running_threads": 1.0}, {"threads": 4}),  # other programs have the processors
        ({"processor_fraction": 0.05}, {"threads": 4}),  # workers that wait
    ],
)
def test_threads_that_do_not(fields: dict[str, Any], around: dict[str, Any]) -> None:
    found = among(run(0.01, 0.9, 0.9, **{**FIGHT, **fields}), 2, **around)
    assert verdict(found).startswith("the loader is not the limit")


@pytest.mark.parametrize("seed", range(60))
def test_it_is_one_line_whatever_the_figures_are(seed: int) -> None:
    """It is printed with the statistics, and must not raise there."""
    draw = random.Random(seed)
    fields: dict[str, Any] = {
        field.name: draw.choice([0, 1, 2, 3.5])
        for field in dataclasses.fields(LoaderStatistics)
        if field.type in ("int", "float")
    }
    for name in ("fetch", "collate", "encode", "decode", "pin", "step", "wait", "read"):
        fields[name] = lasted(draw.choice([0.0, 1e-5, 3.0]))
    fields |= {"straggler_seconds": fields["fetch"].total / 2, "wait": lasted(0.0)}
    workers = tuple(
        WorkerTimes(draw.choice([-1, 0, 1024]), 1, 1, draw.random(), draw.random())
        for _ in range(draw.randrange(3))
    )
    seconds, part = draw.choice([1e-9, 10.0]), draw.choice([0.0, 0.03, 0.8, 1.0])
    fields |= {"seconds": seconds, "waited": part * seconds, "wait_fraction": part}
    fields |= {"starts": 1 + draw.randrange(2), "startup": draw.random() * part * seconds}
    found = LoaderStatistics(**{**fields, "batches": draw.choice([0, 1, 5]), "workers": workers})
    text = verdict(among(found, draw.choice([0, 2]), threads=draw.choice([1, 4])))
    assert text and "\n" not in text
