"""The adapters of SPDL and Grain, whose workers persist within one iterator only.

Where workers are to persist, each gets an iterator without end, of which so many batches count as
an epoch. `bench/loaders/adapters.py` says what else was decided to be fair to them.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from lit_loader.bench.core.processes import wait_until_idle
from lit_loader.bench.loaders.interface import (
    CannotRun,
    LoaderAdapter,
    OpenLoader,
    Reiterable,
    Setup,
    check_sampler_memory,
)

__all__ = ["Grain", "Spdl"]

_REPEATS = 1_000_000
"""Epochs that stand for any number: without end Grain's own arithmetic overflows."""


class _Endless:
    """An open loader whose one iterator has no end.

    Args:
        iterator: It.
        batches: What counts as an epoch.
        ahead: More batches than it has ready or in flight at any time.
    """

    def __init__(self, iterator: Iterator[Any], batches: int, ahead: int) -> None:
        self._iterator: Any = iterator
        self._batches, self._ahead = batches, ahead

    def before_turn(self) -> None:
        for _ in itertools.islice(self._iterator, self._ahead):
            pass

    def after_turn(self) -> None:
        wait_until_idle()

    def epoch(self) -> Iterator[Any]:
        return itertools.islice(self._iterator, self._batches)

    def close(self) -> None:
        iterator, self._iterator = self._iterator, iter(())
        iterator.close()
        del iterator
        gc.collect()


class _Spdl(_Endless):
    """SPDL's, which leaves the dataset that it put into shared memory to the end of the process."""

    def __init__(self, loader: Any, batches: int, ahead: int) -> None:
        super().__init__(iter(loader), batches, ahead)
        self._shared = vars(loader).get("_shmem")

    def close(self) -> None:
        super().close()
        if self._shared is not None:
            self._shared.close()
            self._shared.unlink()


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Processes started within have no standard error.

    Grain's print, each of them, that they miss a profiler; what goes wrong arrives as an exception.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class Spdl(LoaderAdapter):
    """SPDL's PyTorch-style loader, over processes."""

    name = "spdl"

    def open(self, dataset: Any, setup: Setup) -> OpenLoader:
        """Open it; with an endless sampler if workers are to persist."""
        from spdl.dataloader import get_pytorch_dataloader

        _check_foreign(dataset, setup)
        if setup.num_workers == 0:
            raise CannotRun("it has no mode without workers")
        check_sampler_memory(dataset, setup)
        options: dict[str, Any] = {
            "num_workers": setup.num_workers,
            "prefetch_factor": setup.prefetch_factor,
            "collate_fn": setup.collate_fn,
            "in_order": True,
            "multiprocessing_context": setup.start_method,
        }
        if not setup.persistent:
            return Reiterable(
                get_pytorch_dataloader(
                    dataset, batch_size=setup.batch_size, shuffle=setup.shuffle, **options
                )
            )
        sampler: Any = RandomSampler(dataset) if setup.shuffle else SequentialSampler(dataset)
        if setup.batch_size is None:
            options |= {"batch_size": None, "sampler": _EndlessSampler(sampler)}
        else:
            batches = BatchSampler(sampler, setup.batch_size, False)
            options |= {"batch_size": None, "batch_sampler": _EndlessSampler(batches)}
        loader = get_pytorch_dataloader(dataset, **options)
        return _Spdl(loader, _batches(dataset, setup), _ahead(setup))


class Grain(LoaderAdapter):
    """Grain's ``MapDataset`` with ``mp_prefetch``."""

    name = "grain"

    def open(self, dataset: Any, setup: Setup) -> OpenLoader:
        """Open it; repeated without end if workers are to persist."""
        import grain

        _check_foreign(dataset, setup)
        if setup.start_method not in (None, "spawn"):
            raise CannotRun(f"it starts its processes by spawn, not by {setup.start_method}")
        source = grain.MapDataset.source(dataset)
        if setup.shuffle:
            source = source.seed(0).shuffle()
        if setup.persistent:
            source = source.repeat(_REPEATS)
        if setup.batch_size is None:
            source = source.map(_AsArrays(setup.collate()))
        else:
            source = source.batch(setup.batch_size, batch_fn=_AsArrays(setup.collate()))
        batches = source.to_iter_dataset(
            grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        ).mp_prefetch(
            grain.MultiprocessingOptions(
                num_workers=setup.num_workers, per_worker_buffer_size=setup.prefetch_factor
            ),
            worker_init_fn=_one_thread,
        )
        if setup.persistent:
            with _without_stderr():
                iterator = iter(batches)
                next(iterator)  # starts its processes; which batches an epoch has is all the same
            return _Endless(iterator, _batches(dataset, setup), _ahead(setup))
        return Reiterable(batches)


def _batches(dataset: Any, setup: Setup) -> int:
    """Batches of an epoch."""
    return math.ceil(len(cast(Sized, dataset)) / (setup.batch_size or 1))


def _ahead(setup: Setup) -> int:
    """More batches than are ready or in flight: prefetching, and queues of such loaders besides."""
    return 2 * max(1, setup.ahead)


def _check_foreign(dataset: Any, setup: Setup) -> None:
    """Refuse what loaders without torch's options have no place for."""
    if isinstance(dataset, IterableDataset):
        raise CannotRun("it reads map-style datasets only")
    if setup.options:
        raise CannotRun(f"it has no option {next(iter(setup.options))!r}")


class _EndlessSampler:
    """A sampler, epoch after epoch."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._sampler

    def __len__(self) -> int:
        return len(self._sampler)


class _AsArrays:
    """Collates, and gives every tensor as the NumPy array that shares its memory."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        return _arrays(self._collate(list(samples) if isinstance(samples, tuple) else samples))


def _arrays(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, Mapping):
        return {key: _arrays(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_arrays(item) for item in value]
    return value


def _one_thread(worker: int, workers: int) -> None:
    torch.set_num_threads(1)
