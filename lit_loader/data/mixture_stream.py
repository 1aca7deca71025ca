"""`MixtureStream`: several iterable datasets, mixed by weights, resumed exactly.

::

    Timeline: draw number ─▶ source ─▶ the next sample of its iterator
                              └─ at its end: stop, drop it, or iterate it again

Where weights count tokens, the source is that which has given the fewest for its weight.

The state is the number of draws and the place of each source: its own state, where it has one. Once
one without a state has been begun, `lit_loader.DataLoader` reads all of them again instead.

A state of other weights is gone on from with this mixture's: not before the samples that were given
out behind it, which the loader reads again (`adapt_state` is told how many).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from fractions import Fraction
from typing import Any, Final

from torch.utils.data import IterableDataset

from lit_loader.context import reading, share
from lit_loader.core.options.checks import known_keywords, one_of, whole_number
from lit_loader.core.seeding.generator_state import preserved
from lit_loader.core.seeding.seeds import derive
from lit_loader.core.state.fingerprint import Fingerprint
from lit_loader.core.state.state_validation import damaged, is_count
from lit_loader.core.state.stateful import OpenStream, checked_parts
from lit_loader.data.mixture import announce_epoch, named_sources
from lit_loader.data.weights import (
    Changes,
    History,
    Timeline,
    Weights,
    named_changes,
    shares_of,
    summary,
)
from lit_loader.describe import program_stacklevel, public, short_repr
from lit_loader.errors import OptionError, StateError

__all__ = ["MixtureStream"]

_TOLD: Final[set[str]] = set()  # by this process

STRATEGIES: Final = ("first_exhausted", "all_exhausted_without_replacement", "repeat")


@public
class MixtureStream(IterableDataset[Any]):
    """Several iterable datasets, mixed by weights.

    Each reader (one of ``num_shards``; without, each worker of each rank) mixes what it gets of
    every source, so each source asks `lit_loader.get_shard` for its share. The stream is resumed
    exactly: from the sources' own ``state_dict`` and ``load_state_dict`` (those of the iterator and
    of the dataset). If one that has been begun has none, all of the mixture is read again from the
    epoch's start, each batch with the seeds that it had.

    Loaders that are not of this package know only the mixture's own state. From that a source
    without a state is read again alone, and random generators are then put back (not those that
    only ``reseed_fn`` knows): there it must not draw its order between samples, as a shuffle buffer
    does.

    Args:
        datasets: The sources, in a list, or by name; factories without arguments are called.
        weights: Relative frequency of each, alike a list or by name; None: all alike. Weights that
            change are a list of pairs, ``[(0, {"web": 3, "books": 1}), (5000, {"web": 1, "books":
            1})]``: from which draw on they count, of all readers together. With ``epoch_length``
            that is counted over all epochs, without it in each epoch.
        epoch_length: Samples of an epoch, over all readers; None: until sources are exhausted.
        stopping_strategy: What happens where a source has no more samples. "first_exhausted" ends
            the epoch (of this reader). "all_exhausted_without_replacement" goes on with the others
            until none has more. Both are named, and mean, as in Hugging Face's
            ``interleave_datasets``. "repeat" iterates the source again, as their "all_exhausted"
            does, but the epoch ends by ``epoch_length``; give each source at least as many samples
            as there are readers.
        seed: Seed of the mixture.
        tokens: What weights count, of each reader: None: samples; else tokens: the name of a
            sample's entry, whose length is their number, or a function from a sample to that.
            Samples then come in an order that follows from their tokens alone.

    Raises:
        OptionError: The weights or options are refused; "repeat" without ``epoch_length`` would
            never end; a source that has a state is there twice.
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
            raise OptionError(
                "tokens must be the name of an entry, or a function from a sample to a number, got "
                f"tokens={tokens!r}"
                " [LL648]"
            )
        stopping_strategy = one_of("stopping_strategy", stopping_strategy, STRATEGIES)
        if epoch_length is not None:
            epoch_length = whole_number("epoch_length", epoch_length, low=1)
        seed = whole_number("seed", seed)
        if epoch_length is None and stopping_strategy == "repeat":
            raise OptionError(
                "stopping_strategy='repeat' never ends an epoch: set epoch_length, got "
                "epoch_length=None"
                " [LL647]"
            )
        self.names, self.datasets = named_sources(datasets)
        _check_distinct(self.names, self.datasets)
        self.changes: Changes = [(0, [1] * len(self.names))]
        if weights is not None:
            self.changes = named_changes(weights, self.names)
        self.weights = self.changes[0][1]
        # Made here, too, so that bad weights are refused before a worker has them.
        Timeline(self.changes, seed)
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
        """Let an iterator's state, of other weights, go on by these.

        Args:
            state: What the iterator's ``state_dict`` gave, in a mixture with other weights.
            again: Samples that were given behind it, which are read again.

        Raises:
            StateError: It is something else, or has just been adapted already.
        """
        _, given, _, _, history = _checked(state)
        if history is None or UNTIL in state:
            raise StateError(
                "the state of a MixtureStream with other weights cannot be gone on from, for it "
                + ("has no weights" if history is None else "was taken right behind another change")
                + ": resume with the weights as they were, and change them with a later state "
                "[LL361]"
            )
        return {**state, UNTIL: given + again}


def _check_distinct(names: Sequence[str], datasets: Sequence[Any]) -> None:
    """Refuse an object that is two sources and has a state of its own: it could be in one place."""
    first: dict[int, str] = {}
    for name, dataset in zip(names, datasets, strict=True):
        other = first.setdefault(id(dataset), name)
        if other != name and callable(getattr(dataset, "load_state_dict", None)):
            raise OptionError(
                "datasets must be different objects where they have a state, got the same "
                f"{type(dataset).__name__} as {other} and {name}: make it twice, or deepcopy it"
                " [LL646]"
            )


class _Mixing(Iterator[Any]):
    def __init__(self, stream: MixtureStream) -> None:
        # Not get_shard(): that would count as if the sources had asked for their shares.
        index, count = share()
        length = stream.epoch_length
        self._left = math.inf if length is None else -((index - length) // count)
        # Draws of this reader, in this epoch.
        before = index + (0 if length is None else reading().epoch * length)
        changes = {max(0, (draw - before + count - 1) // count): w for draw, w in stream.changes}
        self._own = History(stream.names, [*changes.items()])
        self._datasets = dict(zip(stream.names, stream.datasets, strict=True))
        self._seed = derive(stream.seed, reading().epoch, index)
        self._strategy = stream.stopping_strategy
        self._draws, self._given, self._ended = 0, 0, False
        self._of, self._readers = summary(stream.changes), count
        self._until: int | None = None  # samples, after which other weights count
        self._measure = None if stream.tokens is None else _Measure(stream.tokens)
        self._begin_by(self._own)

    def _begin_by(self, history: History, known: Sequence[_Source | None] = ()) -> None:
        """Draw by a history; its sources beyond those that are known have not been begun."""
        self._history, self._timeline = history, Timeline(history.changes, self._seed)
        self._counts: tuple[int, list[int]] = (-1, [])  # tokens of each source, by weights so far
        self._weights: tuple[int, list[Fraction]] = (-1, [])  # those of now
        self._sources = [*known]
        for number, name in enumerate(history.names[len(known) :], len(known)):
            dataset = self._datasets.get(name)
            self._sources.append(None if dataset is None else _Source(dataset, number))

    def _go_on_by_own(self) -> None:
        self._until = None
        self._begin_by(self._history.going_on(self._own, self._draws), self._sources)

    def __next__(self) -> Any:
        while not self._ended and self._given < self._left:
            if self._until is not None and self._given >= self._until:
                self._go_on_by_own()
            number = self._next_source()
            source = self._sources[number]
            if source is None:
                raise StateError(
                    f"the mixture's source {self._history.names[number]!r} was drawn from shortly "
                    "before the state was taken, and that is read again: resume with the source, "
                    "with weight 0, and take it out with a later state"
                    " [LL359]"
                )
            if source.ended:
                self._draws += 1
                continue
            try:
                sample = source.next()
            except StopIteration:
                # One that has nothing to give (an empty share, perhaps) would be asked for ever.
                if self._strategy == "repeat" and source.taken:
                    source.load((0, False, None, source.draws))  # from its start
                else:
                    source.ended = True
                self._ended = self._strategy == "first_exhausted" or self._all_ended()
                # By "first_exhausted" a reader without a share of it has no epoch at all.
                unequal = self._strategy == "first_exhausted" and self._readers > 1
                if source.ended and (self._strategy == "repeat" or (unequal and not source.taken)):
                    self._tell_of_nothing(self._history.names[number])
                continue
            self._draws += 1
            self._given += 1
            if self._measure is not None:
                self._counts[1][number] += self._measure(sample)
            return sample
        raise StopIteration

    def _next_source(self) -> int:
        if self._measure is None:
            return self._timeline.source(self._draws)
        changes = self._history.changes
        part = sum(at <= self._draws for at, _ in changes) - 1
        if self._counts[0] != part:
            self._counts = part, [0] * len(self._sources)
        if self._weights[0] != part:
            self._weights = part, shares_of(changes[part][1])
        weighed = [
            (count / weight, number)
            for number, (count, weight) in enumerate(
                zip(self._counts[1], self._weights[1], strict=True)
            )
            if weight and not ((source := self._sources[number]) and source.ended)
        ]
        # None is left for these weights: as without tokens, a draw that gives nothing.
        return min(weighed)[1] if weighed else self._timeline.source(self._draws)

    def _tell_of_nothing(self, name: str) -> None:
        """Warn of a source that has nothing here: its weight is not kept, or the epoch ends."""
        readers, whom = self._readers, ""
        if readers > 1:
            whom = f" for one or more of the {readers} readers"
        what = (
            "has nothing to repeat: the source comes less often than its weight says, and the "
            "epoch may be shorter than epoch_length"
        )
        if self._strategy != "repeat":
            what = "ends the epoch of such a reader: what it has of the other sources is left out"
        text = (
            f"source {name!r} has no sample{whom}, so stopping_strategy={self._strategy!r} {what}; "
            "leave it out, give it more samples or files, or use fewer readers (num_shards; "
            "without it, workers × ranks) [LL312]"
        )
        if not self._ended:
            reading().warn(text)
        elif self._readers == 1 or text not in _TOLD:  # no batch comes to go with, to be told once
            _TOLD.add(text)
            warnings.warn(f"lit_loader: {text}", stacklevel=program_stacklevel())

    def _all_ended(self) -> bool:
        return not any(
            self._history.needs(number, self._draws)
            for number, source in enumerate(self._sources)
            if source is None or not source.ended
        )

    @property
    def must_be_read_again(self) -> bool:
        """Whether a source has been begun that could come in another order if read by itself."""
        return any(source.must_be_read_again for source in self._sources if source)

    @property
    def unproven(self) -> bool:
        """Whether a source that draws where it begins has not been gone on with yet."""
        return any(source.unproven for source in self._sources if source)

    def state_dict(self) -> dict[str, Any]:
        """Give the place, with that of each source."""
        untouched = [0, False, None]  # of a source that is not there any more
        state = {
            "draws": self._draws,
            "given": self._given,
            "ended": self._ended,
            "sources": [source.state() if source else untouched for source in self._sources],
        }
        if self._measure is not None:
            state["counts"] = [self._counts[0], [*self._counts[1]]]
        if (history := self._history.to_state()) is not None:
            state |= {**history, "of": self._of}
        return state if self._until is None else {**state, "of": "", UNTIL: self._until}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; sources are opened when they are drawn from.

        Raises:
            StateError: The state is of another number of sources, or of something else.
        """
        draws, given, ended, sources, history = _checked(state)
        if history is not None:
            self._begin_by(history)
        if len(sources) != len(self._sources):
            raise StateError(
                f"the state is of a mixture of {len(sources)} sources, but this one has "
                f"{len(self._sources)}: resume with the datasets that it was taken with"
                " [LL358]"
            )
        self._draws, self._given = draws, given
        for source, theirs in zip(self._sources, sources, strict=True):
            if source is not None:
                source.load(theirs)
        part, counts = state.get("counts", (-1, []))
        self._counts = part, [*counts]
        self._until = state.get(UNTIL)
        if history is not None and self._until is None and state.get("of") != self._of:
            self._go_on_by_own()
        # Else it would be drawn on and on, and nothing found.
        self._ended = ended or self._all_ended()


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
                f"{has or f'which is no mapping but a {type(sample).__name__}'}: name one, or give "
                "a function from a sample to its number of tokens"
                " [LL645]"
            )
        if not is_count(found):
            raise OptionError(f"tokens must count a sample's tokens, got {found!r} [LL644]")
        return int(found)


_KEY, _ROLE = "dataset", "source"

UNTIL: Final = "until"
"""Key of a state that was adapted: the samples after which other weights count."""


class _Source:
    """One source of a stream: its iterator, opened at its first sample, and where that is."""

    def __init__(self, dataset: Any, number: int) -> None:
        self._dataset, self._number = dataset, number
        self._opened: OpenStream | None = None
        self._loaded: Any = None
        self._again = 0
        self.draws = False  # with its first sample, or before it
        self._began_otherwise = False  # from its state, it has drawn other numbers in iter()
        self.taken, self.ended = 0, False

    def next(self) -> Any:
        """Give the next sample; StopIteration at the end."""
        if self._opened is None and not self.taken:
            with (beginning := reading().beginning(self._number)):
                before = reading().drawn()
                self._opened = OpenStream(self._dataset, _KEY, role=_ROLE)
                if not isinstance(beginning, nullcontext):  # iter() draws alike after a resume
                    before = reading().drawn()
                sample = next(self._opened.iterator)
                self.draws = reading().drawn() != before
        else:
            if self._opened is None:
                self._open_again()
            assert self._opened is not None
            if self._again:
                self._read_again(self._opened)
            sample = next(self._opened.iterator)
        self.taken += 1
        return sample

    @property
    def must_be_read_again(self) -> bool:
        """Whether it is in the midst of what no state of its own leads to."""
        if not self.taken or self.ended:
            return False
        return not self._loaded if self._opened is None else self._opened.must_be_read_again

    @property
    def unproven(self) -> bool:
        """Whether nobody knows yet that its state leads to where it was."""
        if self._opened is not None:
            return self._began_otherwise or self._opened.unproven
        return bool(self._loaded) and self.draws and not self.ended

    def state(self) -> list[Any]:
        """Give the samples taken, whether none is left, the source's own state, and if it draws."""
        own = self._loaded if self._opened is None else self._opened.state()
        return [self.taken, self.ended, own, *([True] if self.draws else [])]

    def load(self, state: Sequence[Any]) -> None:
        """Go on where `state` was asked for."""
        self.taken, self.ended, self._loaded, self.draws = state
        self._opened, self._again, self._began_otherwise = None, 0, False

    def _open_again(self) -> None:
        # In the run that is resumed, this batch was made without any of what follows.
        beginning = reading().beginning(self._number)
        with preserved(), reading().aside(), beginning:
            before = reading().drawn()
            self._opened = OpenStream(self._dataset, _KEY, self._loaded, role=_ROLE)
            if self._loaded:
                # It began in another batch; what a buffer has in reserve would hide that.
                drew = reading().drawn() != before
                self._began_otherwise = drew and isinstance(beginning, nullcontext)
            else:
                self._again = self.taken
                self._read_one_again(self._opened)
        self._loaded = None  # not sooner: a source that refuses it is asked again

    def _read_again(self, opened: OpenStream) -> None:
        """Read what has been given before; a sample that raised then may raise again."""
        with preserved(), reading().aside():
            while self._again:
                self._read_one_again(opened)

    def _read_one_again(self, opened: OpenStream) -> None:
        try:
            next(opened.iterator)
        except StopIteration:
            self._again = 0  # there are fewer now
            raise
        self._again -= 1


def _checked(state: Any) -> tuple[int, int, bool, list[list[Any]], History | None]:
    """Give what `_Mixing.state_dict` gave: draws, given, ended, sources, history; or StateError."""
    if not isinstance(state, Mapping):
        raise damaged("mixture must be a dict", state)
    draws, given, ended = (state.get(name) for name in ("draws", "given", "ended"))
    if not (is_count(draws) and is_count(given) and given <= draws):
        raise damaged("draws and given must be how many there were of each", [draws, given])
    if type(ended) is not bool:
        raise damaged("ended must be True or False", ended)
    sources = state.get("sources")
    if not isinstance(sources, (list, tuple)):
        raise damaged("sources must be a list", sources)
    parts = []
    for number, part in enumerate(sources):
        whole = isinstance(part, (list, tuple)) and len(part) in (3, 4)
        # A sample that was given was taken from a source.
        if not (
            (whole and is_count(part[0]) and part[0] <= given)
            and all(type(flag) is bool for flag in (part[1], *part[3:]))
        ):
            raise damaged(f"sources[{number}] must be [taken, ended, the source's state]", part)
        own = checked_parts(f"sources[{number}][2]", part[2], _KEY)
        parts.append([part[0], part[1], own, any(part[3:])])
    counts = state.get("counts", (-1, []))
    if not (
        isinstance(counts, (list, tuple))
        and len(counts) == 2
        and type(counts[0]) is int
        and isinstance(counts[1], (list, tuple))
        and all(map(is_count, counts[1]))
        and len(counts[1]) in (0, len(parts))
    ):
        raise damaged("counts must be the tokens of each source", counts)
    if not is_count(state.get(UNTIL, 0)):
        raise damaged("until must be a number of samples", state[UNTIL])
    history = History.from_state("mixture", state) if "names" in state else None
    return draws, given, ended, parts, history
