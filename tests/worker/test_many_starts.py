"""Thousands of starts from a process that is busy: none may hang, and every byte is right.

    LIT_LOADER_STARTS=1000 pytest -m slow -n 0 -s -o faulthandler_timeout=0 \\
        tests/worker/test_many_starts.py

Threads compute with OpenMP, log, draw a progress bar, import, allocate and decode text without a
pause, while the main thread begins one loader after the other. A second test does so in two ranks
of a gloo group whose threads are at collectives meanwhile. A worker that hangs at its start is
either healed (and told of, which is counted), or ends the test by the loader's own ``timeout``.
"""

from __future__ import annotations

import collections
import importlib
import json
import logging
import os
import random
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.utils.data import Dataset

from lit_loader import DataLoader
from lit_loader.errors import WorkerRestartWarning
from tests.support.busy_threads import busy

STARTS = int(os.environ.get("LIT_LOADER_STARTS", "1000"))
RANKS = 2
NOWHERE = open(os.devnull, "w")  # noqa: SIM115  # a lock as any file has it, and keeps nothing

LONG = pytest.param(STARTS, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


class Drawn(Dataset[torch.Tensor]):
    """What it gives takes the locks that a fork may have copied, and the loader's seeds."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        logging.getLogger("lit_loader.tests.many_starts").info("sample %d", index)
        sys.modules.pop("colorsys", None)
        importlib.import_module("colorsys")
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor(drawn) @ torch.full((3, 3), float(index))


def alone() -> torch.Tensor:
    """What a loader without workers gives; while no other thread draws from the generators."""
    return torch.cat(list(DataLoader(Drawn(), batch_size=2, seed=3)))


def begin_loaders(starts: int, expected: torch.Tensor) -> dict[str, int]:
    """Begin so many loaders, which give what is expected; returns how often what was told of."""
    dataset = Drawn()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", WorkerRestartWarning)
        for start in range(starts):
            loader = DataLoader(
                dataset,
                batch_size=2,
                num_workers=1 + start % 2,
                seed=3,
                timeout=30,
                multiprocessing_context="fork",
            )
            assert torch.equal(torch.cat(list(loader)), expected)
    texts = [str(warning.message).splitlines()[0] for warning in caught]
    return collections.Counter(re.sub(r"\d+", "n", text) for text in texts)


def deeds() -> list[Callable[[], object]]:
    """What threads do without a pause."""
    log = logging.getLogger("lit_loader.tests.many_starts.threads")
    log.propagate = False
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler(NOWHERE))
    matrix = torch.rand(120, 120)

    def imported() -> None:
        sys.modules.pop("wave", None)
        importlib.import_module("wave")

    return [
        lambda: matrix @ matrix,
        lambda: (np.random.rand(20_000), torch.empty(20_000).normal_()),
        lambda: log.info("%s", "." * 500),
        imported,
        lambda: [bytearray(random.randrange(1 << 18)) for _ in range(20)],
        lambda: json.loads(json.dumps({"numbers": list(range(200))})),
    ]


@pytest.mark.parametrize("starts", [3, LONG])
def test_from_a_process_with_busy_threads(starts: int) -> None:
    progress = pytest.importorskip("rich.progress")
    console = importlib.import_module("rich.console").Console(file=NOWHERE, force_terminal=True)
    expected, begun = alone(), time.monotonic()
    with progress.Progress(console=console, refresh_per_second=50) as bar, busy(deeds()):
        bar.add_task("starts", total=None)
        told = begin_loaders(starts, expected)
    print(f"\n{starts} starts, {dict(told)} in {time.monotonic() - begun:.0f} s")


def rank(number: int, starts: int, store: str, folder: str) -> None:
    """One rank: a thread reduces without a pause; all others are as above."""
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, RANKS),
        rank=number,
        world_size=RANKS,
        timeout=timedelta(minutes=30),
    )
    numbers, more = torch.ones(1000), torch.ones(1)
    expected, ended = alone(), threading.Event()

    def reduce_to_the_end() -> None:
        # All ranks leave the collectives after the same one.
        while True:
            more.fill_(0.0 if ended.is_set() else 1.0)
            dist.all_reduce(more)
            if not more.item():
                return
            dist.all_reduce(numbers.fill_(1.0))

    thread = threading.Thread(target=reduce_to_the_end)
    thread.start()
    try:
        with busy(deeds()):
            told = begin_loaders(starts, expected)
    finally:
        ended.set()
        thread.join()
    dist.destroy_process_group()
    Path(folder, f"{number}.json").write_text(json.dumps(told))


@pytest.mark.parametrize("starts", [pytest.param(3, marks=pytest.mark.slow), LONG])
def test_from_ranks_at_their_collectives(starts: int, tmp_path: Path) -> None:
    begun = time.monotonic()
    multiprocessing.spawn(
        rank, (starts, str(tmp_path / "store"), str(tmp_path)), nprocs=RANKS, join=True
    )
    for number in range(RANKS):
        told = (tmp_path / f"{number}.json").read_text()
        print(f"\nrank {number}: {starts} starts, {told} in {time.monotonic() - begun:.0f} s")
