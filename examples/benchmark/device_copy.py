"""Measures ways of getting batches onto a CUDA device while it computes.

    python examples/benchmark/device_copy.py [--megabytes 64] [--batches 200] [--step-ms 5]

Per batch, in milliseconds, medians of rounds that take turns:

- ``pageable``: copied when it is wanted, straight from the arena.
- ``pinned in the loop``: the loop makes a page-locked copy, and copies that.
- ``pinned``: the pin-memory thread makes a page-locked copy; copied when it is wanted.
- ``pinned, ahead``: the same, copied on a stream of its own while the step before computes
  (`DataLoader._copy_ahead`, which ``LoaderDataModule(device_prefetch=True)`` asks for).
- ``registered, ahead``: the arena's own pages are page-locked where they are used
  (``cudaHostRegister``), so that no copy on the host is needed.

A step that keeps the device busy for ``--step-ms`` is what there is to hide the copy behind: a way
that hides all of it takes no longer than the step.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from samples import Pool

from lit_loader.loader import DataLoader


def _step(device: torch.device, milliseconds: float) -> Callable[[], None]:
    """Make what keeps a device busy for a time, by multiplying matrices; it returns at once."""
    matrix, times = torch.randn(2048, 2048, device=device), 20

    def step() -> None:
        for _ in range(times):
            torch.mm(matrix, matrix)

    step()  # the first one loads the library
    torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    times = max(1, round(times * milliseconds / 1e3 / (time.perf_counter() - began)))
    return step


def _lock(batch: torch.Tensor, until: dict[int, int]) -> None:
    """Page-lock memory of the arena in place, each page once, until the process ends."""
    begin = batch.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    end = batch.data_ptr() + batch.nbytes
    if until.get(begin, 0) < end:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = runtime.cudaHostRegister(begin, end - begin, 0)
        if int(code) != 0:
            raise RuntimeError(f"cudaHostRegister of {end - begin} bytes failed: {code}")
        until[begin] = end  # where what is locked begins, to where it ends


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=64, help="MiB of a batch (64)")
    parser.add_argument("--batches", type=int, default=200, help="batches of a round (200)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (5)")
    parser.add_argument("--step-ms", type=float, default=5.0, help="ms that a step computes (5)")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no CUDA device: there is nothing to copy to, and nothing was measured")
        return 1
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    print(f"{options.megabytes} MiB a batch, {options.step_ms:g} ms a step; ms a batch")
    times = measure(options.megabytes, options.batches, options.rounds, options.step_ms)
    for name, found in times.items():
        print(f"{name:20} {statistics.median(found):8.2f}   ({min(found):.2f} to {max(found):.2f})")
    return 0


def measure(megabytes: int, batches: int, rounds: int, step_ms: float) -> dict[str, list[float]]:
    """Measure each way in turns: milliseconds a batch, by round."""
    device = torch.device("cuda", 0)
    step = _step(device, step_ms)
    data = Pool(batches, torch.zeros(1, megabytes << 20, dtype=torch.uint8))
    ways: dict[str, dict[str, bool]] = {
        "pageable": {},
        "pinned in the loop": {"here": True},
        "pinned": {"pin": True},
        "pinned, ahead": {"pin": True, "ahead": True},
        "registered, ahead": {"ahead": True, "lock": True},
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(_time(_batches(data, device, **way), step) / batches * 1e3)
    return times


def _batches(
    data: Pool,
    device: torch.device,
    pin: bool = False,
    ahead: bool = False,
    lock: bool = False,
    here: bool = False,
) -> Iterator[Any]:
    until: dict[int, int] = {}

    def move(batch: Any, to: torch.device) -> Any:
        if lock:
            _lock(batch, until)
        if here:
            batch = batch.pin_memory()
        return batch.to(to, non_blocking=True)

    # One block a batch, uncollated: what is measured is the way, not the making.
    with DataLoader[Any](data, batch_size=None, num_workers=2, pin_memory=pin) as loader:
        if ahead:
            loader._copy_ahead(device, move)
        for batch in loader:
            yield batch if ahead else move(batch, device)


def _time(batches: Iterator[Any], step: Callable[[], None]) -> float:
    next(batches)  # the workers are up, and the first pages are touched
    torch.cuda.synchronize()
    began = time.perf_counter()
    for batch in batches:
        step()
        batch.sum()
    torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
