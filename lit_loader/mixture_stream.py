"""`MixtureStream`: several iterable datasets, mixed by weights, resumed exactly.

::

    Schedule: draw number ─▶ source ─▶ the next sample of its iterator
                              └─ at its end: stop, drop it, or iterate it again

The state is the number of draws and the place of each source, which the source itself tells where
it can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import IterableDataset

from lit_loader.context import reading
from lit_loader.errors import OptionError, StateError
from lit_loader.fingerprint import Fingerprint, in_brief
from lit_loader.mixture import Schedule, Weights, named_sources, named_weights, tell_epoch
from lit_loader.places import short_repr
from lit_loader.sampling import whole_number
from lit_loader.seeding import derive
from lit_loader.stateful import Opened
from lit_loader.streams import preserved

__all__ = ["MixtureStream"]


class MixtureStream(IterableDataset[Any]):
    """Several iterable datasets, mixed by weights.

    Each reader (rank × worker) mixes what it gets of every source, so each source asks
    `lit_loader.get_shard` for its share. The stream is resumed exactly: from the sources' own
    ``state_dict`` and ``load_state_dict`` (those of the iterator and of the dataset). A source
    without them is read again up to the place; its order must not be drawn from a global random
    generator then.

    Args:
        datasets: The sources, in a list, or by name; factories without arguments are called.
        weights: Relative frequency of each, alike a list or by name; None: all alike.
        epoch_length: Samples of an epoch, over all readers; None: until sources are exhausted.
        exhausted: What happens where a source has no more: "stop" ends the epoch (of this reader),
            "drop" goes on with the others until none has more, "repeat" iterates it again.
        seed: Seed of the mixture.

    Raises:
        OptionError: The weights or options are refused; "repeat" without ``epoch_length`` would
            never end.
    """

    def __init__(
        self,
        datasets: Mapping[str, Iterable[Any]] | Sequence[Iterable[Any]],
        weights: Weights | None = None,
        epoch_length: int | None = None,
        exhausted: str = "stop",
        seed: int = 0,
    ) -> None:
        if exhausted not in ("stop", "drop", "repeat"):
            raise OptionError(
                f"exhausted must be one of 'stop', 'drop', 'repeat', got exhausted={exhausted!r}"
            )
        if epoch_length is not None:
            epoch_length = whole_number("epoch_length", epoch_length, low=1)
        seed = whole_number("seed", seed)
        if epoch_length is None and exhausted == "repeat":
            raise OptionError(
                "exhausted='repeat' never ends an epoch: set epoch_length, got epoch_length=None"
            )
        self.names, self.datasets = named_sources(datasets)
        self.weights = (
            [1] * len(self.names) if weights is None else named_weights(weights, self.names)
        )
        # Made here, too, so that bad weights are refused before a worker has them.
        self._shares = Schedule(self.weights, seed).shares
        self.epoch_length, self.exhausted, self.seed = epoch_length, exhausted, seed

    def __iter__(self) -> Iterator[Any]:
        return _Mixing(self)

    def __repr__(self) -> str:
        sources = dict(zip(self.names, self.weights, strict=True))
        return (
            f"{type(self).__name__}(weights={short_repr(sources)}, "
            f"epoch_length={self.epoch_length}, exhausted={self.exhausted!r}, seed={self.seed})"
        )

    def set_epoch(self, epoch: int) -> None:
        """Tell the sources which epoch begins, those that want to know."""
        tell_epoch(self.datasets, epoch)

    def state_fingerprint(self) -> Fingerprint:
        """Tell what the mixture depends on, besides epoch and reader; of the sources, how many."""
        return {
            "seed": self.seed,
            "exhausted": self.exhausted,
            "epoch_length": self.epoch_length,
            "shares": in_brief(self._shares),
        }


class _Mixing(Iterator[Any]):
    """One reader's pass over a `MixtureStream`."""

    def __init__(self, stream: MixtureStream) -> None:
        # Not get_shard(): that would count as if the sources had asked for their shares.
        index, count = reading.shard
        self._schedule = Schedule(stream.weights, derive(stream.seed, reading.epoch, index))
        length = stream.epoch_length
        self._left = math.inf if length is None else -((index - length) // count)
        self._sources = [_Source(dataset) for dataset in stream.datasets]
        for source, weight in zip(self._sources, stream.weights, strict=True):
            source.ended = not weight  # never drawn from, so that its end would not be met
        self._exhausted, self._draws, self._given, self._ended = stream.exhausted, 0, 0, False

    def __next__(self) -> Any:
        while not self._ended and self._given < self._left:
            sources, _ = self._schedule.at(self._draws // self._schedule.block)
            source = self._sources[sources[self._draws % self._schedule.block]]
            if source.ended:
                self._draws += 1
                continue
            try:
                sample = source.next()
            except StopIteration:
                self._on_end_of(source)
                continue
            self._draws += 1
            self._given += 1
            return sample
        raise StopIteration

    def _on_end_of(self, source: _Source) -> None:
        # One that has nothing to give (an empty share, perhaps) would be asked for ever.
        if self._exhausted == "repeat" and source.taken:
            source.begin_again()
        else:
            source.ended = True
        self._ended = self._exhausted == "stop" or all(source.ended for source in self._sources)

    def state_dict(self) -> dict[str, Any]:
        """Give the place, with that of each source."""
        return {
            "draws": self._draws,
            "given": self._given,
            "ended": self._ended,
            "sources": [source.state() for source in self._sources],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; sources are opened when they are drawn from.

        Raises:
            StateError: The state is of another number of sources.
        """
        if len(state["sources"]) != len(self._sources):
            raise StateError(
                f"the state is of a mixture of {len(state['sources'])} sources, but this one has "
                f"{len(self._sources)}: resume with the datasets that it was taken with"
            )
        self._draws, self._given, self._ended = state["draws"], state["given"], state["ended"]
        for source, theirs in zip(self._sources, state["sources"], strict=True):
            source.load(theirs)


class _Source:
    """One source of a stream: its iterator, opened at its first sample, and where that is."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._opened: Opened | None = None
        self._loaded: Any = None
        self.taken, self.ended = 0, False

    def next(self) -> Any:
        """Give the next sample; StopIteration at the end."""
        if self._opened is None:
            self._open()
        assert self._opened is not None
        sample = next(self._opened.iterator)
        self.taken += 1
        return sample

    def begin_again(self) -> None:
        """Iterate the source from its start at the next sample."""
        self._opened, self._loaded, self.taken = None, None, 0

    def state(self) -> list[Any]:
        """Give the samples taken, whether none is left, and the source's own state."""
        own = self._loaded if self._opened is None else self._opened.state()
        return [self.taken, self.ended, own]

    def load(self, state: Sequence[Any]) -> None:
        """Go on where `state` was asked for."""
        self.taken, self.ended, self._loaded = state
        self._opened = None

    def _open(self) -> None:
        if not self.taken:
            self._opened = Opened(self._dataset, "dataset")
            return
        # In the run that is resumed, this batch was made without any of what follows.
        with preserved():
            state, self._loaded = self._loaded, None
            self._opened = Opened(self._dataset, "dataset", state)
            for _ in range(0 if state else self.taken):
                next(self._opened.iterator, None)
