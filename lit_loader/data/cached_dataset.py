"""`CachedDataset`: each sample is made once, and kept for all workers and epochs.

What changes from epoch to epoch comes after it: ``CachedDataset(decoded, "4 GB").map(augment)``.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from torch.utils.data import Dataset, IterableDataset

from lit_loader.context import reading
from lit_loader.core.options.checks import check_dataset, filled_text, memory_size, path, refuse
from lit_loader.data.cache_entry import MISSING, pack, unpack
from lit_loader.data.cache_folder import Folder
from lit_loader.data.cache_identity import places_compared, sample_digest
from lit_loader.data.cache_store import HITS, MADE, NOT_KEPT, NOT_ON_DISK, CacheFigures, SharedStore
from lit_loader.data.draws import Draws
from lit_loader.describe import public, short_repr
from lit_loader.errors import OptionError, TransportError
from lit_loader.streams.wrapped import wrapped

__all__ = ["CachedDataset", "MappedDataset", "figures_of"]

_T = TypeVar("_T")
T_co = TypeVar("T_co", covariant=True)

_Read = Callable[[Sequence[object]], Sequence[Any]]
"""What makes samples of their indices."""

_watching: weakref.WeakKeyDictionary[object, Draws] = weakref.WeakKeyDictionary()
"""Not attributes of caches: what looks for a dataset's generators would look through them, too."""


class Indexed(Protocol[T_co]):
    """What gives samples by their index."""

    def __getitem__(self, index: int, /) -> T_co: ...


class MappedDataset(Dataset[T_co]):
    """A map-style dataset whose samples go through a function, each time."""

    def __init__(self, dataset: Any, function: Callable[[Any], T_co]) -> None:
        if not callable(function):
            refuse("function", "a function, to be called with each sample", function)
        self.dataset = dataset
        self.function = function

    def map(self, function: Callable[[T_co], _T]) -> MappedDataset[_T]:
        """Return a dataset of ``function(sample)``, which is called after this one's."""
        return MappedDataset(self, function)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> T_co:
        return self.function(self.dataset[index])

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        """Reads a batch's samples at once; None where the dataset cannot."""
        many = getattr(self.dataset, "__getitems__", None)
        if many is None:
            return None
        return lambda indices: [self.function(sample) for sample in many(indices)]


@public
class CachedDataset(Dataset[T_co]):
    """A map-style dataset whose samples are made once, by whichever worker needs them first.

    Samples are in memory that all workers share under every start method, for as long as this
    object lives, and on disk in ``directory``. Each read returns a copy.
    The dataset is read by plain integers, whatever a sampler yields. No sample is dropped for
    another one: if the memory is full, the other samples are made in each epoch, and a line is
    logged.

    What is kept must not depend on random numbers, or on the epoch: a sample that draws from a
    generator while it is kept is an error. Augment after the cache: `map`. Attributes that this
    object does not have are the dataset's. Copies by ``pickle`` and ``copy.deepcopy`` begin empty,
    unless there is a key.

    Args:
        dataset: Makes the samples. It has a length, and does not change from now on.
        memory: Bytes of memory that samples may take, or text such as ``"4 GB"``. 0 keeps samples
            in ``directory`` alone.
        directory: A folder in which samples outlive the run, and which several runs may use at
            once. None writes nothing to disk.
        key: Names the data, as in ``"flowers, June 2026"``: all processes of this user on this
            machine that pass the same one (ranks, other runs) share the memory, and ``directory``
            if there is one. Choose another one when files, transforms or code change. The length
            and three samples, which are read at once, count as part of the key: datasets that
            differ in them have caches of their own.

    Raises:
        OptionError: An argument is refused, or the directory is not this user's alone.
        OSError: There is no memory, or the directory cannot be made.

    Examples:
        >>> from lit_loader import CachedDataset, DataLoader
        >>> cached = CachedDataset(range(100), "1 MB")  # decoded images, in a program
        >>> augmented = cached.map(lambda value: -value)  # random transforms go here
        >>> next(iter(DataLoader(augmented, batch_size=4)))
        tensor([ 0, -1, -2, -3])
        >>> cached
        CachedDataset(range, 4 of 100 samples in 0.0 of 1.0 MB)
    """

    alike_in_processes: ClassVar[tuple[str, ...]] = ("dataset",)
    """See `streams/digest.py`."""

    shared_by_readers: ClassVar[tuple[str, ...]] = ("_store", "_folder")
    """See `streams/copies.py`: samples do not depend on who has made them."""

    def __init__(
        self,
        dataset: Indexed[T_co],
        memory: int | str,
        directory: str | Path | None = None,
        key: str | None = None,
    ) -> None:
        check_dataset(dataset)
        _check_is_fixed(dataset)
        self.dataset: Any = dataset
        self.memory = memory_size("memory", memory)
        self.directory = None if directory is None else path("directory", directory)
        self.key = None if key is None else filled_text("key", key)
        if self.directory is not None and self.key is None:
            raise OptionError(
                "directory needs a key, which names the data and all that their samples depend on, "
                f"so that no run reads those of another, got directory={short_repr(directory)} and "
                "key=None"
            )
        if not self.memory and self.directory is None:
            raise OptionError("memory=0 keeps nothing without a directory, got directory=None")
        self._open()

    def _open(self) -> None:
        length = len(self.dataset)
        samples = {} if self.key is None else self._compared(length)
        digests = {place: sample_digest(sample) for place, sample in samples.items()}
        self._folder: Folder | None = None
        if self.directory is not None and self.key is not None:
            self._folder = Folder(self.directory, self.key, (length, digests))
        name = None if self.key is None else (self.key, length, digests)
        self._store = SharedStore(length, self.memory, name)
        for place, sample in samples.items():
            if self._held(place, count=False) is MISSING:
                self._store.count(MADE)
                self._keep(place, sample)

    def _compared(self, length: int) -> dict[int, T_co]:
        """Make the samples that tell caches apart, those that can be read."""
        made: dict[int, T_co] = {}
        for place in places_compared(length):
            try:
                [made[place]] = self._made([place], self._one_by_one)
            except OptionError:
                raise
            except Exception:  # a bad sample, which raises when it is read
                continue
        return made

    # --- samples ---

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> T_co:
        return self._samples(self._one_by_one, [index])[0]

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[Any]] | None:
        """Reads a batch's samples at once; None where the dataset cannot."""
        many = getattr(self.dataset, "__getitems__", None)
        return functools.partial(self._samples, many) if many else None

    def _one_by_one(self, indices: Sequence[object]) -> list[T_co]:
        return [self.dataset[index] for index in indices]

    def _samples(self, read: _Read, indices: Sequence[object]) -> list[T_co]:
        """Return samples; those that are not kept are made by ``read``, and kept."""
        numbers = [*map(self._number, indices)]
        samples: list[Any] = [MISSING if number < 0 else self._held(number) for number in numbers]
        absent = [place for place, sample in enumerate(samples) if sample is MISSING]
        if not absent:
            return samples
        keeps = self._store.is_open or self._disk is not None
        asked = [indices[place] if numbers[place] < 0 else numbers[place] for place in absent]
        made = self._made(asked, read) if keeps else read(asked)
        for place, sample in zip(absent, made, strict=True):
            samples[place] = sample
            if numbers[place] >= 0:
                self._store.count(MADE)
                if keeps:
                    self._keep(numbers[place], sample)
        return samples

    def _number(self, index: Any) -> int:
        """Return the number of a sample that may be kept; -1: the dataset is to answer itself."""
        if type(index) is not int:
            try:
                index = -1 if type(index) is bool else operator.index(index)
            except TypeError:
                return -1
        return index if 0 <= index < self._store.length else -1

    def _held(self, number: int, count: bool = True) -> Any:
        """Return a sample from memory, or from disk; `MISSING` if it is in neither."""
        store = self._store
        sample = store.get(number)
        if sample is MISSING and self._folder is not None:
            entry = self._folder.get(number)
            if entry is not None:
                if store.is_open:
                    store.put(number, entry)  # before the sample, which looks into it, is changed
                sample = unpack(number, entry)
        if sample is not MISSING and count:
            store.count(HITS)
        return sample

    def _made(self, asked: Sequence[object], read: _Read) -> list[T_co]:
        """Make samples, and see that they depend neither on random numbers nor on the epoch."""
        draws = _watching.get(self)
        if draws is None:
            draws = _watching[self] = Draws(self.dataset)
        before = draws.look()
        reading().asked = ""
        made = list(read(asked))
        drawn = draws.drawn(before)
        if drawn is None and not reading().asked:
            return made
        what = f"draws from (or seeds) {drawn}" if drawn else f"asks for {reading().asked}"
        raise OptionError(
            f"{type(self.dataset).__name__} {what} in sample {short_repr(asked[0])}, and "
            "CachedDataset would keep what it drew for all epochs. Move it after the cache, as in "
            "CachedDataset(dataset, memory).map(augment) [LL109]"
        )

    @property
    def _disk(self) -> Folder | None:
        """The folder, if it still takes samples."""
        return None if self._store.noted(NOT_ON_DISK) else self._folder

    def _keep(self, number: int, sample: object) -> None:
        store, folder = self._store, self._disk
        if number in store:  # by another worker, meanwhile; or it cannot be read here
            return
        try:
            entry = pack(number, sample)
        except TransportError as error:
            store.note(NOT_KEPT, f"such samples are not kept: {error.text}")
            return
        if store.is_open:
            store.put(number, entry)
        if folder is not None:
            try:
                folder.put(number, entry)
            except OSError as error:
                full = f"{folder.path} takes no more samples ({error.strerror})"
                store.note(NOT_ON_DISK, f"{full}: memory alone keeps the others")

    # --- the rest ---

    def map(self, function: Callable[[T_co], _T]) -> MappedDataset[_T]:
        """Return a dataset of ``function(sample)``, which is called each time: to augment.

        Args:
            function: Called with each kept sample; what is random belongs here.

        Raises:
            OptionError: It cannot be called.
        """
        return MappedDataset(self, function)

    def figures(self) -> CacheFigures:
        """Say what the cache holds and has spared, in all processes together.

        Returns:
            ``hits`` and ``misses`` in samples; memory used, and lacking to hold all, in bytes.
        """
        return self._store.figures()

    def __repr__(self) -> str:
        store = self._store
        where = "" if self.directory is None else f", directory={str(self.directory)!r}"
        return (
            f"{type(self).__name__}({type(self.dataset).__name__}, {store.kept:,} of "
            f"{store.length:,} samples in {store.used / 1e6:,.1f} of "
            f"{store.limit / 1e6:,.1f} MB{where})"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "dataset" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def __copy__(self) -> CachedDataset[T_co]:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __getstate__(self) -> dict[str, object]:
        state = {**self.__dict__}
        if get_spawning_popen() is None:
            del state["_store"], state["_folder"]
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        if "_store" not in state:
            self._open()


def _check_is_fixed(dataset: object) -> None:
    kind = type(dataset)
    indexed = hasattr(kind, "__getitem__") and hasattr(kind, "__len__")
    told = ", which has set_epoch" if callable(getattr(dataset, "set_epoch", None)) else ""
    if isinstance(dataset, IterableDataset) or not indexed or told:
        raise OptionError(
            "dataset must have __getitem__ and __len__, and the same samples in every epoch, to be "
            f"cached, got {kind.__name__}{told}. Cache a map-style dataset that lies below it"
        )


def figures_of(dataset: object) -> dict[str, int]:
    """Add up the figures of the caches in a dataset, by their names in `LoaderStatistics`."""
    inner = wrapped(dataset, "__getitem__")
    found = [each.figures() for each in inner if isinstance(each, CachedDataset)]
    if not found:
        return {}
    sums = map(sum, zip(*found, strict=True))
    return dict(zip((f"cache_{name}" for name in CacheFigures._fields), sums, strict=True))
