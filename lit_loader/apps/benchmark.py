"""Measures the loader beside torch's, in one process run: ``python -m lit_loader.apps.benchmark``.

Transport: both loaders make the same batches with the same number of persistent workers, in rounds
that take turns, so that both meet the machine in the same moods. What is printed is the median
over the rounds of the time a batch, and the ratio of the medians. The samples cost next to nothing:
what is measured is what a loader adds. ``in process`` is fetching and collating alone.

Exactness: size and cost of the checkpoint state, time to the first batch after resuming early and
late in an epoch, what seeding costs, and the first batch of an order of a billion items.
"""

from __future__ import annotations

import argparse
import json
import pickle
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, default_collate

import lit_loader
from lit_loader.seeding import derive, extend, sample_seed, seed_globals

__all__ = ["CASES", "Case", "main", "measure_exactness", "measure_transport"]

_POOL = 64  # different samples that a dataset holds: fetching stays cheap, memory stays small


class Tensors(Dataset[Any]):
    """Tensors that lie in memory; with a label or without.

    Args:
        length: Number of samples.
        shape: Of each sample, float32.
        labelled: Whether a sample is (tensor, int).
    """

    def __init__(self, length: int, shape: tuple[int, ...], labelled: bool = False) -> None:
        self._length = length
        self._labelled = labelled
        self._pool = torch.arange(_POOL, dtype=torch.float32).view(-1, *[1] * len(shape))
        self._pool = self._pool.expand(_POOL, *shape).contiguous()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        tensor = self._pool[index % _POOL]
        return (tensor, index) if self._labelled else tensor


class ManyTensors(Dataset[dict[str, torch.Tensor]]):
    """Dictionaries of small tensors.

    Args:
        length: Number of samples.
        keys: Tensors a sample.
    """

    def __init__(self, length: int, keys: int) -> None:
        self._length = length
        self._sample = {f"feature_{key}": torch.full((4,), float(key)) for key in range(keys)}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self._sample


@dataclass(frozen=True)
class Case:
    """A kind of batch to measure.

    Attributes:
        name: What it is.
        make: Makes the dataset of a number of samples.
        batch_size: Samples a batch.
        batches: Batches a round.
    """

    name: str
    make: Callable[[int], Dataset[Any]]
    batch_size: int
    batches: int


CASES = (
    Case("32x3x224x224 float32 + 32 ints", lambda n: Tensors(n, (3, 224, 224), True), 32, 60),
    Case("32x3x64x64 float32", lambda n: Tensors(n, (3, 64, 64)), 32, 400),
    Case("32x16 float32", lambda n: Tensors(n, (16,)), 32, 1000),
    Case("batch of 1", lambda n: Tensors(n, (16,)), 1, 1000),
    Case("dict of 20 tensors, batch of 8", lambda n: ManyTensors(n, 20), 8, 300),
)


@dataclass(frozen=True)
class Timing:
    """Medians of one case, in microseconds a batch."""

    case: str
    torch_us: float
    ours_us: float
    in_process_us: float
    ratio: float
    ratio_low: float
    ratio_high: float


def measure_transport(case: Case, num_workers: int = 2, rounds: int = 5) -> Timing:
    """Measure a case.

    Args:
        case: What to load.
        num_workers: Persistent workers of each loader.
        rounds: Rounds of each loader that count, after one that does not.
    """
    dataset = case.make(case.batch_size * case.batches)
    options: dict[str, Any] = {
        "batch_size": case.batch_size,
        "num_workers": num_workers,
        "persistent_workers": True,
    }
    theirs: Any = TorchDataLoader(dataset, **options)
    times: dict[str, list[float]] = {"torch": [], "ours": [], "in process": []}
    with lit_loader.DataLoader(dataset, **options) as ours:
        for round_ in range(rounds + 1):
            taken = {"torch": _per_batch(theirs), "ours": _per_batch(ours)}
            taken["in process"] = _in_process(dataset, case)
            for name, seconds in taken.items():
                if round_:  # the first one starts workers and touches memory
                    times[name].append(seconds)
    del theirs
    median = {name: statistics.median(values) * 1e6 for name, values in times.items()}
    ratios = [theirs / ours for theirs, ours in zip(times["torch"], times["ours"], strict=True)]
    return Timing(
        case=case.name,
        torch_us=median["torch"],
        ours_us=median["ours"],
        in_process_us=median["in process"],
        ratio=median["torch"] / median["ours"],
        ratio_low=min(ratios),
        ratio_high=max(ratios),
    )


def _per_batch(loader: Any) -> float:
    """Seconds a batch over an epoch."""
    batches = 0
    begin = time.perf_counter()
    for _ in loader:
        batches += 1
    return (time.perf_counter() - begin) / batches


def _in_process(dataset: Any, case: Case) -> float:
    count = max(1, case.batches // 10)
    begin = time.perf_counter()
    for batch in range(count):
        first = batch * case.batch_size
        default_collate([dataset[i] for i in range(first, first + case.batch_size)])
    return (time.perf_counter() - begin) / count


def measure_exactness() -> dict[str, float]:
    """Measure what resuming and a billion items cost; names carry the units."""
    figures: dict[str, float] = {}
    length, batch_size = 1_000_000, 32
    dataset = Tensors(length, (16,))

    def loader(**options: Any) -> lit_loader.DataLoader[Any]:
        return lit_loader.DataLoader(
            dataset, batch_size=batch_size, shuffle=True, seed=1, **options
        )

    subject = loader()
    iterator = iter(subject)
    next(iterator)
    state = subject.state_dict()
    figures["state, bytes"] = len(pickle.dumps(state))
    figures["state_dict(), us"] = _median(subject.state_dict) * 1e6
    for percent in (1, 99):
        moved = {**state, "batches": len(subject) * percent // 100}

        def first_batch(moved: dict[str, Any] = moved) -> None:
            resumed = loader()
            resumed.load_state_dict(moved)
            next(iter(resumed))

        figures[f"first batch after resuming at {percent} %, us"] = _median(first_batch) * 1e6
    figures["first batch, not resumed, us"] = _median(lambda: next(iter(loader()))) * 1e6

    epoch_seed = derive(1, 2)
    figures["seeding a batch, us"] = _median(lambda: seed_globals(extend(epoch_seed, 3))) * 1e6
    figures["seeding a sample, us"] = (
        _median(lambda: seed_globals(sample_seed(epoch_seed, 3))) * 1e6
    )

    billion = lit_loader.DataLoader(range(10**9), batch_size=32, shuffle=True, seed=1)  # type: ignore[arg-type,var-annotated]
    tracemalloc.start()
    begin = time.perf_counter()
    next(iter(billion))
    figures["first batch of 10^9 shuffled items, ms"] = (time.perf_counter() - begin) * 1e3
    figures["memory for it, MB"] = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return figures


def _median(call: Callable[[], object], times: int = 51) -> float:
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def main(arguments: list[str] | None = None) -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(prog="lit_loader.apps.benchmark", description=__doc__)
    parser.add_argument("--num-workers", type=int, default=2, help="workers of each loader")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--json", help="file to write the figures to")
    options = parser.parse_args(arguments)

    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, "
        f"{options.num_workers} persistent workers, medians of {options.rounds} rounds"
    )
    print(f"\n{'microseconds a batch':32}{'torch':>9}{'ours':>9}{'in process':>12}{'ratio':>8}")
    timings = []
    for case in CASES:
        timing = measure_transport(case, options.num_workers, options.rounds)
        timings.append(timing)
        print(
            f"{timing.case:32}{timing.torch_us:9.0f}{timing.ours_us:9.0f}"
            f"{timing.in_process_us:12.0f}{timing.ratio:7.1f}x"
            f"   ({timing.ratio_low:.1f} to {timing.ratio_high:.1f})",
            flush=True,
        )
    print("\nexactness")
    figures = measure_exactness()
    for name, value in figures.items():
        print(f"{name:50}{value:10.1f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"transport": [asdict(t) for t in timings], "exactness": figures}, file)


if __name__ == "__main__":
    main()
