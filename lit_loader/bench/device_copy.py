"""Measures ways of getting batches onto a CUDA device while it computes.

    python -m lit_loader.bench.device_copy [--megabytes 64] [--batches 200] [--step-ms 5]

Per batch, in milliseconds, medians of rounds that take turns:

- ``pageable``: copied when it is wanted, straight from the arena.
- ``pinned``: the pin-memory thread makes a page-locked copy; copied when it is wanted.
- ``pinned, ahead``: the same, copied on a stream of its own while the step before computes
  (`DataLoader.copy_ahead`, which ``LoaderDataModule(device_prefetch=True)`` asks for).
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

from lit_loader.loader import DataLoader


class Blocks:
    """Sample ``index`` is a block of bytes."""

    def __init__(self, nbytes: int, length: int) -> None:
        self.block = torch.zeros(nbytes, dtype=torch.uint8)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.block


class Step:
    """Keeps a device busy for a time, by multiplying matrices.

    Args:
        device: The device.
        milliseconds: How long.
    """

    def __init__(self, device: torch.device, milliseconds: float) -> None:
        self._matrix = torch.randn(2048, 2048, device=device)
        self._times = 20
        self()  # the first one loads the library
        torch.cuda.synchronize()
        began = time.perf_counter()
        self()
        torch.cuda.synchronize()
        took = (time.perf_counter() - began) * 1e3
        self._times = max(1, round(self._times * milliseconds / took))

    def __call__(self) -> None:
        """Queue the work; returns at once."""
        for _ in range(self._times):
            torch.mm(self._matrix, self._matrix)


class Registered:
    """Page-locks memory of the arena in place, each page once.

    The pages stay locked until the process ends or the memory is unmapped.
    """

    def __init__(self) -> None:
        self._until: dict[int, int] = {}

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Lock the pages that the batch lies in; returns the batch."""
        begin = batch.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        end = batch.data_ptr() + batch.nbytes
        if self._until.get(begin, 0) < end:
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            code = runtime.cudaHostRegister(begin, end - begin, 0)
            if int(code) != 0:
                raise RuntimeError(f"cudaHostRegister of {end - begin} bytes failed: {code}")
            self._until[begin] = end
        return batch


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
    device = torch.device("cuda", 0)
    step = Step(device, options.step_ms)
    data = Blocks(options.megabytes << 20, options.batches)
    ways: dict[str, Callable[[], Iterator[Any]]] = {
        "pageable": lambda: _batches(data, device, pin=False, ahead=False),
        "pinned": lambda: _batches(data, device, pin=True, ahead=False),
        "pinned, ahead": lambda: _batches(data, device, pin=True, ahead=True),
        "registered, ahead": lambda: _batches(data, device, pin=False, ahead=True, lock=True),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            times[name].append(_time(way, step) / options.batches * 1e3)
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}")
    print(f"{options.megabytes} MiB a batch, {options.step_ms:g} ms a step; ms a batch")
    for name, found in times.items():
        print(f"{name:20} {statistics.median(found):8.2f}   ({min(found):.2f} to {max(found):.2f})")
    return 0


def _batches(
    data: Blocks, device: torch.device, pin: bool, ahead: bool, lock: bool = False
) -> Iterator[Any]:
    locked: Callable[[Any], Any] = Registered() if lock else lambda batch: batch

    def move(batch: Any, to: torch.device) -> Any:
        return locked(batch).to(to, non_blocking=True)

    # One block a batch, uncollated: what is measured is the way, not the making.
    with DataLoader[Any](
        data,  # type: ignore[arg-type]
        batch_size=None,
        num_workers=2,
        pin_memory=pin,
    ) as loader:
        if ahead:
            loader.copy_ahead(device, move)
        for batch in loader:
            yield batch if ahead else move(batch, device)


def _time(way: Callable[[], Iterator[Any]], step: Step) -> float:
    batches = way()
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
