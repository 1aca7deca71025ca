"""`MixtureStream`: several iterable datasets, mixed by weights, resumed exactly.

::

    Timeline: draw number ─▶ source ─▶ the next sample of its iterator
                              └─ at its end: stop, drop it, or iterate it again

Where weights count tokens, the source is that which has given the fewest for its weight.

The state is the number of draws and each source's own state, where it has one. Once a source
without a state has been begun, `lit_loader.DataLoader` reads all of them again instead. Weights
that are still to come may change when a run is resumed, and sources of no weight so far be added.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from torch.utils.data import IterableDataset

from lit_loader.context import reading, share
from lit_loader.core.options.checks import is_list, known_keywords, one_of, refuse, whole_number
from lit_loader.core.seeding.seeds import derive
from lit_loader.core.state.state_validation import Fingerprint, damaged, is_count
from lit_loader.core.state.stateful import OpenStream, checked_parts
from lit_loader.data.mixture import announce_epoch, named_sources
from lit_loader.data.weights import Changes, Timeline, Weights, named_changes
from lit_loader.describe import program_stacklevel, public, short_repr
from lit_loader.errors import OptionError
from lit_loader.streams.other_streams import open_stream

__all__ = ["MixtureStream"]

STRATEGIES: Final = ("first_exhausted", "all_exhausted_without_replacement", "repeat")


@public
class MixtureStream(IterableDataset[Any]):
    """Several iterable datasets, mixed by weights.

    Each shard (one of ``num_shards``; without, each worker of each rank) mixes its share of every
    source, so each source asks `lit_loader.get_shard` for its share. A resume continues from the
    sources' own ``state_dict`` and ``load_state_dict`` (those of the iterator and of the dataset).
    A source that shuffles before its first sample must save the order, or what it draws it from.
    If a source that has been begun has no state, all of the mixture is replayed from the epoch's
    start, each batch with the seeds that it had. (Other loaders know only the mixture's own state:
    there such a source alone is replayed.)

    Args:
        datasets: The sources, in a list, or by name; factories without arguments are called.
        weights: Relative frequency of each, in a list or by name. None: all sources are equally
            frequent. Weights that change are a list of pairs, ``[(0, {"web": 3, "books": 1}),
            (5000, {"web": 1, "books": 1})]``: from which draw on they count, of all shards
            together. With ``epoch_length`` draws are counted over all epochs, without it in each.
            Sources begin again in each epoch: shuffle them, or their ends are not reached.
        epoch_length: Samples of an epoch, over all shards. None: until sources are exhausted.
        stopping_strategy: What happens where a source has no more samples. "first_exhausted" ends
            the epoch (of this shard). "all_exhausted_without_replacement" continues with the others
            until none has more. Both have the names and the meaning that they have in Hugging
            Face's ``interleave_datasets``. "repeat" iterates the source again, as their
            "all_exhausted" does, but the epoch ends by ``epoch_length``; each source needs at least
            as many samples as there are shards.
        seed: Seed of the mixture.
        tokens: What ``weights`` count, in each shard. None: samples. A string: tokens, taken as
            ``len(sample[tokens])``. A function: its return value per sample. With tokens, the next
            sample is of the source that has had the fewest for its weight.

    Raises:
        OptionError: The weights or options are refused; "repeat" without ``epoch_length`` would
            never end; a source that has a state is there twice.

    Examples:
        >>> from lit_loader import DataLoader, MixtureStream
        >>> sources = {"web": ["w0", "w1", "w2"], "books": ["b0"]}  # or iterable datasets
        >>> mixture = MixtureStream(
        ...     sources,
        ...     weights={"web": 3, "books": 1},
        ...     stopping_strategy="all_exhausted_without_replacement",
        ... )
        >>> list(DataLoader(mixture, batch_size=4))
        [['w0', 'b0', 'w1', 'w2']]
    """

    state_is_that_of_sources: Final = True
    """For the advice that is given where there is none."""

    @known_keywords
    def __init__(
        self,
        datasets: Mapping[str, Iterable[Any]] | Sequence[Iterable[Any]],
        weights: Weights | Sequence[tuple[int, Weights]] | None = None,
        epoch_length: int | None = None,
        stopping_strategy: str = "first_exhausted",
        seed: int = 0,
        tokens: str | Callable[[Any], int] | None = None,
    ) -> None:
        if not (tokens is None or isinstance(tokens, str) or callable(tokens)):
            refuse("tokens", "an entry's name, or a function from a sample to a number", tokens)
        stopping_strategy = one_of("stopping_strategy", stopping_strategy, STRATEGIES)
        if epoch_length is not None:
            epoch_length = whole_number("epoch_length", epoch_length, low=1)
        seed = whole_number("seed", seed)
        if epoch_length is None and stopping_strategy == "repeat":
            raise OptionError(
                "stopping_strategy='repeat' never ends an epoch: set epoch_length, got "
                "epoch_length=None"
            )
        self.names, self.datasets = named_sources(datasets)
        _check_distinct(self.names, self.datasets)
        self.changes: Changes = [(0, [1] * len(self.names))]
        if weights is not None:
            self.changes = named_changes(weights, self.names)
        self.weights = self.changes[0][1]
        # Made here, too, so that bad weights are refused before a worker has them.
        self._shares = Timeline(self.names, self.changes, seed).to_state()[0][1]
        self.epoch_length, self.seed = epoch_length, seed
        self.stopping_strategy, self.tokens = stopping_strategy, tokens

    def __iter__(self) -> Iterator[Any]:
        return _Mixing(self)

    def __repr__(self) -> str:
        sources = dict(zip(self.names, self.weights, strict=True))
        return (
            f"{type(self).__name__}(weights={short_repr(sources)}, "
            f"epoch_length={self.epoch_length}, stopping_strategy={self.stopping_strategy!r}, "
            f"seed={self.seed})"
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch on those sources that have ``set_epoch``."""
        announce_epoch(self.datasets, epoch)

    def state_fingerprint(self) -> Fingerprint:
        """Name what the mixture depends on, besides epoch and reader; of the sources, how many."""
        return {
            "seed": self.seed,
            "stopping_strategy": self.stopping_strategy,
            "epoch_length": self.epoch_length,
            "shares": self._shares,
            **({} if self.tokens is None else {"weights_of": "tokens"}),
        }


def _check_distinct(names: Sequence[str], datasets: Sequence[object]) -> None:
    """Refuse an object that is two sources and has a state: it can be in one place only."""
    first: dict[int, str] = {}
    for name, dataset in zip(names, datasets, strict=True):
        other = first.setdefault(id(dataset), name)
        if other != name and callable(getattr(dataset, "load_state_dict", None)):
            raise OptionError(
                "datasets must be different objects where they have a state, got the same "
                f"{type(dataset).__name__} as {other} and {name}: make it twice, or deepcopy it"
            )


class _Mixing(Iterator[object]):
    def __init__(self, stream: MixtureStream) -> None:
        # Not get_shard(): that would count as if the sources had asked for their shares.
        index, count = share()
        length = stream.epoch_length
        self._left = math.inf if length is None else -((index - length) // count)
        # Draws of this shard, in this epoch.
        before = index + (0 if length is None else reading().epoch * length)
        changes = {max(0, (draw - before + count - 1) // count): w for draw, w in stream.changes}
        seed = derive(stream.seed, reading().epoch, index)
        self._timeline = Timeline(stream.names, [*changes.items()], seed)
        self._strategy, self._shards = stream.stopping_strategy, count
        self._tokens = stream.tokens
        self._draws, self._given, self._ended = 0, 0, False
        self._sources = [*map(_Source, stream.names, stream.datasets, range(len(stream.names)))]

    def __next__(self) -> object:
        while not self._ended and self._given < self._left:
            source = self._next_source()
            if source.ended:
                self._draws += 1
                continue
            try:
                sample = source.next()
            except StopIteration:
                self._end_of(source)
                continue
            self._draws += 1
            self._given += 1
            if self._tokens is not None:
                source.tokens += _count_tokens(self._tokens, sample)
            return sample
        raise StopIteration

    def _next_source(self) -> _Source:
        if self._tokens is not None:
            if self._timeline.changes_at(self._draws):
                for source in self._sources:
                    source.tokens = 0
            weighed = [
                (source.tokens / share, source.number)
                for source, share in zip(
                    self._sources, self._timeline.shares(self._draws), strict=True
                )
                if share and not source.ended
            ]
            if weighed:
                return self._sources[min(weighed)[1]]
            # None is left for these weights: as without tokens, a draw that yields nothing.
        return self._sources[self._timeline.source(self._draws)]

    def _end_of(self, source: _Source) -> None:
        """Do what is to be done where a source has no more samples."""
        # One that has no sample (an empty share, perhaps) would be iterated forever.
        if self._strategy == "repeat" and source.taken:
            source.load([0, False, source.tokens, None])  # from its start
            return
        source.ended = True
        self._ended = self._strategy == "first_exhausted" or self._all_ended()
        # By "first_exhausted" a shard without a sample of it has no epoch at all.
        lost = self._strategy == "first_exhausted" and self._shards > 1 and not source.taken
        if self._strategy == "repeat" or lost:
            self._warn_of_nothing(source.name)

    def _warn_of_nothing(self, name: str) -> None:
        """Warn of a source that is empty here: its weight is not kept, or the epoch ends."""
        where = f" in at least one of {self._shards} shards" if self._shards > 1 else ""
        what = "its weight cannot be kept, and the epoch may be short"
        if self._strategy != "repeat":
            what = f"stopping_strategy={self._strategy!r} ends the epoch of such a shard at once"
        text = (
            f"source {name!r} is empty{where}, so {what}. Give it more samples or files, lower "
            "num_shards (without it: workers × ranks), or leave it out"
        )
        if not self._ended:
            reading().warn(text)
        else:  # no batch comes that could carry it
            warnings.warn(f"lit_loader: {text}", stacklevel=program_stacklevel())

    def _all_ended(self) -> bool:
        return not any(
            self._timeline.needs(source.number, self._draws)
            for source in self._sources
            if not source.ended
        )

    @property
    def must_be_read_again(self) -> bool:
        """Whether a source has been begun that has no state."""
        return any(source.must_be_read_again for source in self._sources)

    def state_dict(self) -> dict[str, object]:
        """Return the draws, the weights that they were made by, and the state of each source."""
        return {
            "draws": self._draws,
            "given": self._given,
            "ended": self._ended,
            "weights": self._timeline.to_state(),
            "sources": {source.name: source.state() for source in self._sources},
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue where a state was taken; a StateError if it is something else."""
        self._draws, self._given, self._ended, sources = _checked(state)
        self._timeline.check(state.get("weights"), self._draws)
        for source in self._sources:
            if source.name in sources:  # else it has been added since
                source.load(sources[source.name])
        # Else it would be drawn on and on, and nothing found.
        self._ended = self._ended or self._all_ended()


def _count_tokens(tokens: str | Callable[..., int], sample: object) -> int:
    """Count a sample's tokens."""
    if not isinstance(tokens, str):
        found = tokens(sample)
    elif isinstance(sample, Mapping) and tokens in sample:
        found = len(sample[tokens])
    else:
        what = f"is no mapping but a {type(sample).__name__}"
        if isinstance(sample, Mapping):
            what = f"has {short_repr([*sample])[1:-1]}"
        raise OptionError(
            f"tokens={tokens!r} is no entry of a sample, which {what}: name one, or pass a "
            "function from a sample to its number of tokens"
        )
    if not is_count(found):
        raise OptionError(f"tokens must count a sample's tokens, got {found!r}")
    return int(found)


_KEY, _ROLE = "dataset", "source"


class _Source:
    """One source of a stream: its iterator, opened at its first sample, and where that is."""

    def __init__(self, name: str, dataset: object, number: int) -> None:
        self.name, self.number, self._dataset = name, number, dataset
        self._opened: OpenStream | None = None
        # Its state, until it has yielded a sample from there.
        self._loaded: Mapping[str, object] | None = None
        self.taken, self.ended = 0, False
        self.tokens = 0  # since weights have changed, where they count tokens

    def next(self) -> object:
        """Return the next sample; StopIteration at the end."""
        if self._opened is None:
            # In whichever batch it begins: generators are as before the epoch's first sample.
            with reading().beginning(self.number):
                self._opened = open_stream(self._dataset, _KEY, role=_ROLE)
                sample = next(self._opened.iterator)
        else:
            sample = next(self._opened.iterator)
        self._loaded = None
        self.taken += 1
        return sample

    @property
    def must_be_read_again(self) -> bool:
        """Whether it has yielded samples, and no state leads to where it is."""
        if not self.taken or self.ended or self._opened is None or self._loaded:
            return False
        return not self._opened.stateful

    def state(self) -> list[object]:
        """Return samples taken, whether none is left, tokens, and the source's own state."""
        own = self._loaded
        if own is None and self._opened is not None and not self.ended:
            own = self._opened.state()
        return [self.taken, self.ended, self.tokens, own]

    def load(self, state: Sequence[Any]) -> None:
        """Continue where `state` was called."""
        self.taken, self.ended, self.tokens, self._loaded = state
        self._opened = None
        if self.taken and not self.ended:
            # Now, and not at its next sample: no batch draws from what it draws as it begins.
            with reading().beginning(self.number):
                self._opened = open_stream(self._dataset, _KEY, self._loaded, role=_ROLE)
            if not self._loaded:
                for _ in zip(range(self.taken), self._opened.iterator, strict=False):
                    pass


def _checked(state: Any) -> tuple[int, int, bool, dict[str, list[Any]]]:
    """Return the draws, given, ended and sources of `_Mixing.state_dict`; or a StateError."""
    if not isinstance(state, Mapping):
        raise damaged("mixture must be a dict", state)
    draws, given, ended = (state.get(name) for name in ("draws", "given", "ended"))
    if not (is_count(draws) and is_count(given) and given <= draws and type(ended) is bool):
        raise damaged("draws, given and ended must be two numbers and a bool", [draws, given])
    sources = state.get("sources")
    if not isinstance(sources, Mapping):
        raise damaged("sources must be a dict", sources)
    parts = {}
    for name, part in sources.items():
        whole = is_list(part) and len(part) == 4 and type(part[1]) is bool and is_count(part[2])
        # A sample that was given was taken from a source.
        if not (whole and is_count(part[0]) and part[0] <= given):
            raise damaged("sources must be [taken, ended, tokens, the source's state] each", part)
        parts[name] = [*part[:3], checked_parts("sources' states", part[3], _KEY)]
    return draws, given, ended, parts
