"""Contracts for your own samplers, streams and executors: derive a test class, and pytest runs it.

::

    from lit_loader.testing import StreamContract

    class TestMyStream(StreamContract):
        def make(self):
            return MyStream("tests/data")

Each test is an ``assert`` on what a `DataLoader` yields, so any other runner will do too.
"""

from __future__ import annotations

import io
import threading
import warnings
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset

from lit_loader.core.executors.executor import Executor
from lit_loader.errors import ExactnessWarning
from lit_loader.loader import DataLoader

__all__ = ["ExecutorContract", "SamplerContract", "StreamContract"]


class _Indices(Dataset[object]):
    """Sample ``index`` is the index, whatever the sampler yields."""

    def __getitem__(self, index: object) -> object:
        return index


class _ResumeContract:
    """Whatever `loader` makes continues exactly, from a state after any batch."""

    most = 20
    """Batches that are read of a pass, in case there is no end."""

    def loader(self) -> DataLoader[object]:
        """Make the loader, each time with new objects."""
        raise NotImplementedError

    def _read(self, loader: DataLoader[object]) -> list[object]:
        return [_plain(batch) for batch in islice(loader, self.most)]

    def test_a_resume_from_any_batch_is_exact(self) -> None:
        """Also the pass after the resumed one; and nothing warns that the resume is not exact."""
        with self.loader() as whole:
            passes = [self._read(whole) for _ in range(3)]
        assert passes[0], "the first pass is empty"
        for stop in range(1, len(passes[1])):
            with self.loader() as first:
                self._read(first)
                for _ in islice(first, stop):
                    pass
                state = _saved(first.state_dict())
            with self.loader() as second, warnings.catch_warnings():
                warnings.simplefilter("error", ExactnessWarning)
                second.load_state_dict(state)
                assert self._read(second)[: self.most - stop] == passes[1][stop:], stop
                if len(passes[1]) < self.most:
                    assert self._read(second) == passes[2], stop


class SamplerContract(_ResumeContract):
    """A sampler, or a batch sampler, that has ``state_dict`` and ``load_state_dict``."""

    is_batch_sampler = False

    def make(self) -> Any:
        """Make a sampler as a program does at its start."""
        raise NotImplementedError

    def loader(self) -> DataLoader[object]:
        """Make a loader that yields what the sampler yields."""
        name = "batch_sampler" if self.is_batch_sampler else "sampler"
        options: dict[str, Any] = {name: self.make()}
        return DataLoader(_Indices(), collate_fn=list, seed=1, **options)


class StreamContract(_ResumeContract):
    """An iterable dataset that has ``state_dict``, or whose iterator has it.

    It divides its samples by `get_shard`, and draws from what the loader seeds.
    """

    batch_size: int | None = 2

    def make(self) -> Any:
        """Make a dataset as a program does at its start."""
        raise NotImplementedError

    def loader(self) -> DataLoader[object]:
        """Make a loader of the stream."""
        return DataLoader(self.make(), self.batch_size, num_shards=2, seed=1)

    def test_shards_divide_the_samples(self) -> None:
        """However many shards there are, they have as many samples together."""
        counts = set()
        for shards in (1, 2, 3):
            loader = DataLoader(self.make(), None, num_shards=shards, seed=1)
            counts.add(sum(1 for _ in islice(loader, 10_000)))
        assert len(counts) == 1, counts


class ExecutorContract(_ResumeContract):
    """Something else than processes or threads that makes batches: see `Executor`."""

    def make(self, loader: DataLoader[object], depth: int) -> Executor:
        """Make an executor for a loader of 26 numbers, with ``depth`` batches outstanding."""
        raise NotImplementedError

    def loader(self, dataset: Any = range(26)) -> DataLoader[object]:
        """Make a loader with the executor at its seam."""
        loader = DataLoader(dataset, 4, shuffle=True, seed=3, num_workers=1)
        seams: Any = loader._core.seams
        seams.executor = lambda core, _: self.make(core.loader, core.depth)
        return loader

    def test_it_yields_what_the_process_itself_yields(self) -> None:
        """Also after a pass that was left; and no thread is left in the end."""
        before = threading.active_count()
        dataset: Any = range(26)
        alone: DataLoader[object] = DataLoader(dataset, 4, shuffle=True, seed=3)
        with self.loader() as loader:
            assert self._read(loader) == self._read(alone)
            for _ in loader:
                break
            alone.set_epoch(7)
            loader.set_epoch(7)
            assert self._read(loader) == self._read(alone)
        assert threading.active_count() <= before

    def test_an_error_is_raised_in_its_turn_and_the_next_batch_follows(self) -> None:
        """Batches before it are yielded, and so are those after it."""
        found = []
        with self.loader(_Failing()) as loader:
            iterator = iter(loader)
            for _ in range(7):
                try:
                    found.append(len(next(iterator)))
                except LookupError:
                    found.append(0)
        assert sorted(found) == [0, 2, 4, 4, 4, 4, 4]

    def test_resizing_and_statistics_ask_for_nothing_that_it_does_not_have(self) -> None:
        """A loader may be resized and looked at, whatever its executor is."""
        with self.loader() as loader:
            next(iter(loader))
            loader.resize(2)
            assert loader.statistics(memory=True).batches == 1
            assert len(self._read(loader)) == 7


class _Failing(Dataset[int]):
    """Sample 7 cannot be read."""

    def __len__(self) -> int:
        return 26

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise LookupError("no sample 7")
        return index


def _saved(state: dict[str, Any]) -> dict[str, Any]:
    """Save and load a state as a checkpoint is."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def _plain(batch: object) -> object:
    """Return a batch as numbers, lists and dicts, which can be compared."""
    if hasattr(batch, "tolist"):
        return batch.tolist()
    if isinstance(batch, dict):
        return {name: _plain(part) for name, part in batch.items()}
    return [_plain(part) for part in batch] if isinstance(batch, (list, tuple)) else batch
