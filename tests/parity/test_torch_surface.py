"""What programs reach for behind a loader and its iterators, in the shapes that packages have.

Each program is run with torch's loader too, where that does the same.
"""

import functools
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset, dataloader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lit_loader import DataLoader
from tests.support.datasets import Stream
from tests.support.exact import loaded
from tests.support.samples import OfLength
from tests.support.tools import children, lists

LENGTH = 12


class Endless:
    """A sampler that begins anew for ever; programs put it in the place of the loader's own."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class Stage(OfLength):
    """Its samples say at which stage of the training it was when it came to who reads it."""

    length, stage = LENGTH, 0

    def __getitem__(self, index: int) -> int:
        return self.stage * 100 + index


def stages(batches: Any) -> set[int]:
    return {number // 100 for batch in batches for number in batch.tolist()}


# --- Ultralytics and timm: datasets that are changed between epochs ---


@functools.cache
def infinite(base: type, flagged: bool = False) -> Any:
    """As in ultralytics: one iterator for all epochs, exchanged when the dataset is changed.

    And as in timm, which exchanges the sampler by torch's own flag.
    """

    class InfiniteDataLoader(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            endless = Endless(self.batch_sampler)
            if flagged:
                self._DataLoader__initialized = False
                self.batch_sampler = endless
                self._DataLoader__initialized = True
            else:
                object.__setattr__(self, "batch_sampler", endless)
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

        def end(self) -> None:
            """Its ``__del__``."""
            if hasattr(self.iterator, "_workers"):
                for worker in self.iterator._workers:
                    if worker.is_alive():
                        worker.terminate()
                self.iterator._shutdown_workers()

        def reset(self) -> None:
            self.iterator = self._get_iterator()

    return InfiniteDataLoader


@pytest.mark.parametrize("flagged", [False, True])
def test_a_sampler_that_is_exchanged_is_used(
    loader_class: Any, num_workers: int, flagged: bool
) -> None:
    before = children()
    loader = infinite(loader_class, flagged)(Stage(), 4, shuffle=True, num_workers=num_workers)
    epochs = [lists(loader) for _ in range(3)]
    assert all(sorted(chain(*epoch)) == list(range(LENGTH)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]  # iterated anew, a shuffled sampler shuffles anew
    assert len(children() - before) <= num_workers + 1
    loader.end()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_new_iterator_has_workers_of_its_own(loader_class: Any, persistent: bool) -> None:
    before, dataset = children(), Stage()
    loader = infinite(loader_class)(dataset, 3, num_workers=2, persistent_workers=persistent)
    assert (stages(loader), stages(loader)) == ({0}, {0})
    first = children() - before
    dataset.stage = 1
    loader.reset()
    assert (stages(loader), stages(loader)) == ({1}, {1})
    workers = loader.iterator._workers
    assert len(workers) == 2
    assert {worker.pid for worker in workers} <= children() - first
    assert all(worker.is_alive() for worker in workers)
    loader.end()
    for worker in workers:
        worker.join(timeout=60)
        assert not worker.is_alive()


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("midway", [False, True])
def test_the_usual_reset(loader_class: Any, midway: bool, table: bool) -> None:
    """As Lightning and others end persistent workers."""
    dataset: Any = Stage()
    if table:
        dataset = TensorDataset(torch.arange(LENGTH))

    options = {"num_workers": 1, "persistent_workers": True, "collate_fn": torch.tensor}
    loader = loader_class(dataset, 3, **options | ({"collate_fn": None} if table else {}))
    next(iter(loader)) if midway else list(loader)
    if table:
        dataset.tensors[0].add_(100)
    else:
        dataset.stage = 1
    assert loader._iterator is not None
    loader._iterator._shutdown_workers()
    loader._iterator = None
    assert stages(batch[0] if table else batch for batch in loader) == {1}


# --- what iterators have ---


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [Stage(), Stream(LENGTH)], ids=["map", "iterable"])
def test_what_means_nothing_here_is_an_attribute_error(dataset: Any, workers: int) -> None:
    """So ``hasattr`` says the truth. What torch's iterators count, ours count too."""
    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers}
    with DataLoader(dataset, **options) as loader:
        ours: Any = iter(loader)
        theirs: Any = iter(dataloader.DataLoader(dataset, **options))
        assert isinstance(ours, _BaseDataLoaderIter)
        for given, batch in enumerate(ours, 1):
            assert torch.equal(batch, next(theirs))
            assert ours._num_yielded == theirs._num_yielded == given
        for name in {*vars(theirs), "_reset", "_next_data", "_next_index"}:
            if name in ("_num_yielded", "_sampler_iter", "_workers"):
                assert hasattr(ours, name)
            elif not hasattr(_BaseDataLoaderIter, name) or not hasattr(ours, name):
                with pytest.raises(AttributeError):
                    getattr(ours, name)


# --- SpeechBrain: positions that are saved and gone back to by what iterators have ---


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As SpeechBrain patches torch's iterators, for all that are made from then on."""

    def new_init(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        self.__old_init__(loader, *args, **kwargs)
        if getattr(loader, "_recovery_skip_to", None) is not None:
            for i in range(loader._recovery_skip_to):
                next(self._sampler_iter)
                self._num_yielded = i + 1
            loader._recovery_skip_to = None

    def new_reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            self._sampler_iter = iter(self._index_sampler)
            self._num_yielded = 0
            self._IterableDataset_len_called = loader._IterableDataset_len_called

    old = _BaseDataLoaderIter.__init__
    functools.update_wrapper(new_init, old)
    monkeypatch.setattr(_BaseDataLoaderIter, "__old_init__", old, raising=False)
    monkeypatch.setattr(_BaseDataLoaderIter, "__init__", new_init)
    monkeypatch.setattr(_BaseDataLoaderIter, "_reset", new_reset)


@functools.cache
def saveable(base: type) -> Any:
    class SaveableDataLoader(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._recovery_skip_to: int | None = None
            self._kept_iterator: Any = None

        def __iter__(self) -> Any:
            self._kept_iterator = super().__iter__()
            return self._kept_iterator

        def save(self) -> str:
            return str(None if self._kept_iterator is None else self._kept_iterator._num_yielded)

        def load(self, saved: str) -> None:
            self._recovery_skip_to = int(saved)

    return SaveableDataLoader


class Reproducible:
    """SpeechBrain's sampler: an order by epoch, which it is told."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(77 + self.epoch)
        return iter(torch.randperm(LENGTH, generator=generator).tolist())

    def __len__(self) -> int:
        return LENGTH


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.usefixtures("patched")
def test_a_position_that_was_saved_is_gone_back_to(
    loader_class: Any, num_workers: int, at: int
) -> None:
    def new() -> Any:
        options = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
        return saveable(loader_class)(Stage(), 3, **options, sampler=Reproducible())

    whole = new()
    epochs = [lists(whole) for _ in range(2)]
    assert whole.save() == "4"
    stopped = new()
    assert stopped.save() == "None"
    iterator = iter(stopped)
    assert lists(next(iterator) for _ in range(at)) == epochs[0][:at]
    saved = stopped.save()
    assert saved == str(at)
    resumed = new()
    resumed.load(saved)
    assert lists(resumed) == epochs[0][at:]
    assert resumed.save() == "4"
    assert lists(resumed) == epochs[1]  # and once only


def test_a_skip_gives_the_indices_and_ends_with_the_first_batch(num_workers: int) -> None:
    with DataLoader(Stage(), 3, num_workers=num_workers) as loader:
        iterator: Any = iter(loader)
        assert next(iterator._sampler_iter) == [0, 1, 2]
        assert iterator._num_yielded == 1
        position = loader.state_dict()
        assert next(iterator).tolist() == [3, 4, 5]
        with pytest.raises(RuntimeError, match="_sampler_iter.*before the first batch"):
            next(iterator._sampler_iter)
        with pytest.raises(RuntimeError, match="_num_yielded .* load_state_dict"):
            iterator._num_yielded = 7
        with pytest.raises(RuntimeError, match="_sampler_iter .* sampler="):
            iterator._sampler_iter = iter([[1]])
        assert lists(iterator) == [[6, 7, 8], [9, 10, 11]]
        skipping: Any = iter(loader)
        assert list(chain(*skipping._sampler_iter)) == list(range(LENGTH))
        assert list(skipping) == []
    assert next(iter(loaded(DataLoader(Stage(), 3), position))).tolist() == [3, 4, 5]
