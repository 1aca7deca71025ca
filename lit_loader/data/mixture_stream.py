"""`MixtureStream`: several iterable datasets, mixed by weights, resumed exactly.

::

    Timeline: draw number ─▶ source ─▶ the next sample of its iterator
                              └─ at its end: stop, drop it, or iterate it again

Where weights count tokens, the source is that which has given the fewest for its weight.

The state is the number of draws and each source's own state, where it has one. Once a source
without a state has been begun, `lit_loader.DataLoader` reads all of them again instead.

A state saved with other weights resumes with this mixture's, after the samples since the state have
been replayed: the loader calls `adapt_state` with their number.
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
from lit_loader.core.state.fingerprint import Fingerprint
from lit_loader.core.state.state_validation import damaged, is_count
from lit_loader.core.state.stateful import OpenStream, checked_parts
from lit_loader.data.mixture import announce_epoch, named_sources
from lit_loader.data.weights import Changes, Timeline, Weights, named_changes, summary
from lit_loader.describe import program_stacklevel, public, short_repr
from lit_loader.errors import OptionError, StateError
from lit_loader.streams.other_streams import open_stream

__all__ = ["MixtureStream"]

_WARNED: Final[set[str]] = set()  # of in this process

_UNTIL: Final = "until"
"""Key of a state that was adapted: the samples after which other weights count."""

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
        Timeline(self.names, self.changes, seed)
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
            "shares": summary(self.changes),
            **({} if self.tokens is None else {"weights_of": "tokens"}),
        }

    def elastic(self) -> frozenset[str]:
        """Name the fields of its fingerprint in which a state may differ: see `adapt_state`."""
        return frozenset({"shares"})

    def adapt_state(self, state: Any, again: int) -> Any:
        """Return an iterator's state, of other weights, such that it continues by these.

        Args:
            state: What the iterator's ``state_dict`` returned, in a mixture with other weights.
            again: Samples that were yielded since, and are replayed first.

        Raises:
            StateError: It is something else, or was saved just after another change.
        """
        _, given, _, _ = _checked(state)
        if _UNTIL in state:
            raise StateError(
                "the weights of a MixtureStream cannot change here: the state was saved just after "
                "another change. Resume with its weights, and change them at a later checkpoint"
            )
        return {**state, _UNTIL: given + again}


def _check_distinct(names: Sequence[str], datasets: Sequence[Any]) -> None:
    """Refuse an object that is two sources and has a state: it can be in one place only."""
    first: dict[int, str] = {}
    for name, dataset in zip(names, datasets, strict=True):
        other = first.setdefault(id(dataset), name)
        if other != name and callable(getattr(dataset, "load_state_dict", None)):
            raise OptionError(
                "datasets must be different objects where they have a state, got the same "
                f"{type(dataset).__name__} as {other} and {name}: make it twice, or deepcopy it"
            )


class _Mixing(Iterator[Any]):
    def __init__(self, stream: MixtureStream) -> None:
        # Not get_shard(): that would count as if the sources had asked for their shares.
        index, count = share()
        length = stream.epoch_length
        self._left = math.inf if length is None else -((index - length) // count)
        # Draws of this shard, in this epoch.
        before = index + (0 if length is None else reading().epoch * length)
        changes = {max(0, (draw - before + count - 1) // count): w for draw, w in stream.changes}
        seed = derive(stream.seed, reading().epoch, index)
        self._own = Timeline(stream.names, [*changes.items()], seed)
        self._datasets = dict(zip(stream.names, stream.datasets, strict=True))
        self._strategy, self._shards = stream.stopping_strategy, count
        self._draws, self._given, self._ended = 0, 0, False
        self._until: int | None = None  # samples, after which other weights count
        self._measure = None if stream.tokens is None else _Measure(stream.tokens)
        self._part, self._tokens = -1, list[int]()  # of each source, by the weights of that part
        self._sources: list[_Source | None] = []
        self._draw_by(self._own)

    def _draw_by(self, timeline: Timeline) -> None:
        """Draw by a timeline; its sources beyond those that are known have not been begun."""
        self._timeline = timeline
        for number, name in enumerate(timeline.names[len(self._sources) :], len(self._sources)):
            dataset = self._datasets.get(name)
            self._sources.append(None if dataset is None else _Source(dataset, number))

    def _draw_by_own(self) -> None:
        self._until = None
        self._draw_by(self._timeline.going_on(self._own, self._draws))

    def __next__(self) -> Any:
        while not self._ended and self._given < self._left:
            if self._until is not None and self._given >= self._until:
                self._draw_by_own()
            number = self._next_source()
            source = self._sources[number]
            if source is None:
                raise StateError(
                    f"the mixture's source {self._timeline.names[number]!r} was drawn from shortly "
                    "before the state was taken, and these samples are replayed. Resume with the "
                    "source, with weight 0, and take it out at a later checkpoint"
                )
            if source.ended:
                self._draws += 1
                continue
            try:
                sample = source.next()
            except StopIteration:
                self._end_of(number, source)
                continue
            self._draws += 1
            self._given += 1
            if self._measure is not None:
                self._tokens[number] += self._measure(sample)
            return sample
        raise StopIteration

    def _next_source(self) -> int:
        if self._measure is None:
            return self._timeline.source(self._draws)
        part = self._timeline.part(self._draws)
        if self._part != part:
            self._part, self._tokens = part, []
        self._tokens += [0] * (len(self._sources) - len(self._tokens))
        weighed = [
            (tokens / weight, number)
            for number, (tokens, weight) in enumerate(
                zip(self._tokens, self._timeline.changes[part][1], strict=True)
            )
            if weight and not ((source := self._sources[number]) and source.ended)
        ]
        # None is left for these weights: as without tokens, a draw that yields nothing.
        return min(weighed)[1] if weighed else self._timeline.source(self._draws)

    def _end_of(self, number: int, source: _Source) -> None:
        """Do what is to be done where a source has no more samples."""
        # One that has no sample (an empty share, perhaps) would be iterated forever.
        if self._strategy == "repeat" and source.taken:
            source.load([0, False, None])  # from its start
            return
        source.ended = True
        self._ended = self._strategy == "first_exhausted" or self._all_ended()
        # By "first_exhausted" a shard without a sample of it has no epoch at all.
        lost = self._strategy == "first_exhausted" and self._shards > 1 and not source.taken
        if self._strategy == "repeat" or lost:
            self._warn_of_nothing(self._timeline.names[number])

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
        elif self._shards == 1 or text not in _WARNED:  # no batch comes that could carry it
            _WARNED.add(text)
            warnings.warn(f"lit_loader: {text}", stacklevel=program_stacklevel())

    def _all_ended(self) -> bool:
        return not any(
            self._timeline.needs(number, self._draws)
            for number, source in enumerate(self._sources)
            if source is None or not source.ended
        )

    @property
    def must_be_read_again(self) -> bool:
        """Whether a source has been begun that has no state."""
        return any(source.must_be_read_again for source in self._sources if source)

    def state_dict(self) -> dict[str, Any]:
        """Return the draws, and the state of each source."""
        untouched = [0, False, None]  # of a source that is not there any more
        return {
            "draws": self._draws,
            "given": self._given,
            "ended": self._ended,
            "sources": [source.state() if source else untouched for source in self._sources],
            **self._timeline.to_state(),
            **({} if self._measure is None else {"tokens": [self._part, [*self._tokens]]}),
            **({} if self._until is None else {_UNTIL: self._until}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken; a StateError if it is something else."""
        self._draws, self._given, self._ended, sources = _checked(state)
        timeline = Timeline.from_state("mixture", state, self._own.seed)
        if len(sources) != len(timeline.names):
            raise damaged("sources must be those that are named", sources)
        self._sources = []
        self._draw_by(timeline)
        for source, theirs in zip(self._sources, sources, strict=True):
            if source is not None:
                source.load(theirs)
        self._part, self._tokens = _checked_tokens(state, len(sources))
        self._until = state.get(_UNTIL)
        if self._until is None:
            self._draw_by_own()
        # Else it would be drawn on and on, and nothing found.
        self._ended = self._ended or self._all_ended()


class _Measure:
    def __init__(self, tokens: str | Callable[[Any], int]) -> None:
        self._tokens = tokens

    def __call__(self, sample: Any) -> int:
        if not isinstance(self._tokens, str):
            found = self._tokens(sample)
        elif isinstance(sample, Mapping) and self._tokens in sample:
            found = len(sample[self._tokens])
        else:
            has = f"which has {short_repr([*sample])[1:-1]}" if isinstance(sample, Mapping) else ""
            raise OptionError(
                f"tokens={self._tokens!r} is no entry of a sample, "
                f"{has or f'which is no mapping but a {type(sample).__name__}'}: name one, or pass "
                "a function from a sample to its number of tokens"
            )
        if not is_count(found):
            raise OptionError(f"tokens must count a sample's tokens, got {found!r}")
        return int(found)


_KEY, _ROLE = "dataset", "source"


class _Source:
    """One source of a stream: its iterator, opened at its first sample, and where that is."""

    def __init__(self, dataset: Any, number: int) -> None:
        self._dataset, self._number = dataset, number
        self._opened: OpenStream | None = None
        self._loaded: Any = None  # its state, until it has yielded a sample from there
        self.taken, self.ended = 0, False

    def next(self) -> Any:
        """Return the next sample; StopIteration at the end."""
        if self._opened is None:
            # In whichever batch it begins: generators are as before the epoch's first sample.
            with reading().beginning(self._number):
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

    def state(self) -> list[Any]:
        """Return the samples taken, whether none is left, and the source's own state."""
        own = self._loaded
        if own is None and self._opened is not None and not self.ended:
            own = self._opened.state()
        return [self.taken, self.ended, own]

    def load(self, state: Sequence[Any]) -> None:
        """Continue where `state` was called."""
        self.taken, self.ended, self._loaded = state
        self._opened = None
        if self.taken and not self.ended:
            # Now, and not at its next sample: no batch draws from what it draws as it begins.
            with reading().beginning(self._number):
                self._opened = open_stream(self._dataset, _KEY, self._loaded, role=_ROLE)
            if not self._loaded:
                for _ in zip(range(self.taken), self._opened.iterator, strict=False):
                    pass


def _checked(state: Any) -> tuple[int, int, bool, list[list[Any]]]:
    """Return the draws, given, ended and sources of `_Mixing.state_dict`; or a StateError."""
    if not isinstance(state, Mapping):
        raise damaged("mixture must be a dict", state)
    draws, given, ended = (state.get(name) for name in ("draws", "given", "ended"))
    if not (is_count(draws) and is_count(given) and given <= draws and type(ended) is bool):
        raise damaged("draws, given and ended must be two numbers and a bool", [draws, given])
    if not is_count(state.get(_UNTIL, 0)):
        raise damaged("until must be a number of samples", state[_UNTIL])
    sources: Any = state.get("sources")
    if not is_list(sources):
        raise damaged("sources must be a list", sources)
    parts = []
    for number, part in enumerate(sources):
        whole = is_list(part) and len(part) == 3 and type(part[1]) is bool
        # A sample that was given was taken from a source.
        if not (whole and is_count(part[0]) and part[0] <= given):
            raise damaged(f"sources[{number}] must be [taken, ended, the source's state]", part)
        parts.append([*part[:2], checked_parts(f"sources[{number}][2]", part[2], _KEY)])
    return draws, given, ended, parts


def _checked_tokens(state: Mapping[str, Any], sources: int) -> tuple[int, list[int]]:
    """Return the tokens of each source by the weights of a part; or a StateError."""
    found = state.get("tokens", (-1, ()))
    if is_list(found) and len(found) == 2 and type(found[0]) is int and is_list(found[1]):
        part, tokens = found
        if all(map(is_count, tokens)) and len(tokens) in (0, sources):
            return part, [*tokens]
    raise damaged("tokens must be those of each source", found)
