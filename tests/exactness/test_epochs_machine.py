"""Iterators, states, seeds, resizes and kills in any order: the batches are those of the model.

Hypothesis chooses what a program does with its loader; `support/epoch_model.py` says which batches
come, in terms of loaders that are read straight through. Only what users have is used.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lit_loader.errors import WorkerRestartWarning
from tests.support.epoch_model import GENERATORS, Model, Pass, Place, source
from tests.support.epoch_oracle import (
    DRAWS,
    KINDS,
    SEEDS,
    Batch,
    Kind,
    Oracle,
    drawn,
    generators,
    seeded_long_ago,
    set_generator,
)
from tests.support.exact import through_file

pytestmark = pytest.mark.timeout(600)  # what fails is to be shrunk, too

SECONDS = 30  # that a step may take
LONGEST = 8  # batches that may be in flight: no batch is to end two workers in a row
END = object()

SAID = (  # what is told on the way, and is not looked at here
    "Stream has no state_dict and load_state_dict",
    "a worker .*",
    "the sampler Drawing begins epoch",
    "a batch was looked at before the loop's first one",
    "the loaded position, batch",
)


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Let what hangs be an error."""

    def raise_timeout(*_: object) -> None:
        raise AssertionError(f"nothing has come of it in {seconds} s")

    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass(eq=False)
class Reader:
    """An iterator, and what the model has of it once it has begun."""

    iterator: Any
    begun: Pass | None = None


NUMBERS = st.integers(0, 3)


class Epochs(RuleBasedStateMachine):
    """A program with a loader."""

    kind: Kind
    with_workers: bool
    strike: str
    oracle: Oracle

    def __init__(self) -> None:
        super().__init__()
        self.before = generators()
        seeded_long_ago(100)
        self.seeded: dict[str, set[Any]] = {name: set() for name in GENERATORS}  # where it put them
        self.put_back: dict[str, Any] = {}
        self.readers: list[Reader] = []
        self.states: list[tuple[Any, Place]] = []
        self.known: dict[Any, Any] = {}  # what was drawn, by what it follows from
        self.passes: dict[Any, Any] = {}  # and the other way round
        self.loaders: list[Any] = []
        self.since_kill, self.orders = LONGEST, dict[Any, Any]()
        self.names: dict[Any, Pass] = {}  # those that nobody has asked for by a number

    # --- loaders ---

    @initialize(seed=st.sampled_from([None, None, 1]), workers=NUMBERS, persistent=st.booleans())
    def begin(self, seed: int | None, workers: int, persistent: bool) -> None:
        self.seed = seed
        self.open(workers, persistent)

    def open(self, workers: int, persistent: bool) -> None:
        """Begin with another loader."""
        self.readers.clear()
        for loader in self.loaders:
            loader.close()
        if not self.kind.resizable:
            workers = 2
        workers = workers if self.with_workers else 0
        self.loader = self.kind.loader(
            workers, self.seed, self.strike, persistent_workers=persistent
        )
        self.loaders = [self.loader]
        sampler = self.loader.batch_sampler.place if self.kind.drawing else None
        run = (lambda place: drawn(place)[1]) if self.kind.drawing else None
        self.model = Model(self.seed, sampler, run, looked=generators())
        self.names = {}

    @rule(workers=NUMBERS, persistent=st.booleans(), same=st.booleans())
    def another(self, workers: int, persistent: bool, same: bool) -> None:
        """Begin with another loader, or close this one and go on with it."""
        if not same:
            self.open(workers, persistent)
            return
        for reader in self.readers[::-1]:
            self.drop(reader)
        self.loader.close()

    # --- iterators ---

    @precondition(lambda self: len(self.readers) < 3 and not (self.kind.drawing and self.readers))
    @rule()
    def iterate(self) -> None:
        self.readers.append(Reader(iter(self.loader)))

    @precondition(lambda self: self.readers)
    @rule(which=NUMBERS, batches=st.sampled_from([1, 1, 2, 3, 9]))
    def go_on(self, which: int, batches: int) -> None:
        reader = self.readers[which % len(self.readers)]
        for _ in range(batches):
            self.next(reader)

    @precondition(lambda self: self.readers)
    @rule(which=NUMBERS, batches=st.sampled_from([0, 0, 2]))
    def leave(self, which: int, batches: int) -> None:
        reader = self.readers[which % len(self.readers)]
        for _ in range(batches):
            self.next(reader)
        self.drop(reader)

    @rule()
    def peek(self) -> None:
        if self.kind.drawing and not self.may_peek():
            return
        self.readers.append(reader := Reader(iter(self.loader)))
        self.next(reader)
        self.drop(reader)

    def may_peek(self) -> bool:
        """Whether it is said where a sampler's generator is behind a look: not beside others.

        There it has drawn what workers were asked for ahead.
        """
        return not any(reader.begun and reader.begun.is_midway for reader in self.readers)

    @precondition(lambda self: len(self.readers) < 3 and not (self.kind.drawing and self.readers))
    @rule(
        batches=st.sampled_from([1, 2, 3, 9, 9]),
        at=st.integers(0, 5),
        do=st.sampled_from(["peek", "save", "peek and save", "resize", "kill"]),
        resumes=st.booleans(),
        workers=NUMBERS,
    )
    def loop(self, batches: int, at: int, do: str, resumes: bool, workers: int) -> None:
        """Read all, or break behind a few batches; at one of them do what programs do in a step."""
        self.readers.append(reader := Reader(iter(self.loader)))
        for number in range(batches):
            if not self.next(reader):
                break
            if number == at:
                if "peek" in do:
                    self.peek()
                if "save" in do:
                    self.save()
                elif do == "resize" and self.with_workers and self.kind.resizable:
                    self.resize(workers, True)
                elif do == "kill" and self.with_workers and not self.kind.threads:
                    self.kill()
        self.drop(reader)
        if resumes and self.states:
            self.open(workers, True)
            self.load(0)

    def drop(self, reader: Reader) -> None:
        """Let go of an iterator."""
        self.readers.remove(reader)
        reader.iterator = None
        if reader.begun is not None:
            self.model.drop(reader.begun)

    def next(self, reader: Reader) -> bool:
        """Ask for a batch; returns whether there was one."""
        now, drew, begins = generators(), set[str](), reader.begun is None
        is_loaded = self.model.loaded is not None
        if reader.begun is None:
            bases = self.model.bases
            reader.begun, drew = self.model.begin(now, self.fresh(now))
            if is_loaded or bases != self.model.bases:
                self.names.clear()  # what was there before may come again
            if reader.begun.request is None and not is_loaded:
                name = tuple(self.model.columns(reader.begun.place))
                before = self.names.get(name)  # the first look in an epoch is one into the next
                assert before is None or not (before.counts or before.place.look), "there before"
                self.names[name] = reader.begun
        begun = reader.begun
        self.model.ask(begun)
        with within(SECONDS):
            found = next(reader.iterator, END)
        self.check_generators(now, drew)
        if begins and not is_loaded:
            self.model.looked = generators()
        note(f"  {begun.place._replace(order=(), drawn=(), sampler=None)}")
        if begun.place.ended or begun.place.given == self.length(begun.place):
            assert found is END, f"more than {begun.place.given} batches"
            self.model.end(begun)
            return False
        assert found is not END, f"the end behind {begun.place.given} batches"
        self.check(begun.place, self.kind.split(found))
        self.model.give(begun)
        self.since_kill = 0 if os.path.exists(self.strike) else self.since_kill + 1
        return True

    def length(self, place: Place) -> int:
        if self.kind.drawing:
            return len(drawn(place.sampler)[0])
        return len(self.oracle(("seed", 1), 0, 0))

    def check(self, place: Place, batch: Batch) -> None:
        """Compare a batch with what a loader gives that is read straight through."""
        number = place.given
        columns = self.model.columns(place)
        if self.kind.threads:
            columns = [each for each in columns if each[0] in ("order", "torch")]
        for name, root, epoch, repeats in columns:
            found = getattr(batch, name)
            if self.kind.drawing and name == "order":
                indices = drawn(place.sampler)[0][number]
                assert found == tuple((index, place.epoch) for index in indices), "order"
                continue
            key = name, root, epoch, repeats
            if root[0] not in ("anew", "beside") and epoch >= 0:
                expected = getattr(self.oracle(root, epoch, repeats)[number], name)
                assert found == expected, (
                    f"{name} of batch {number} is {found}, not {expected}: {place}"
                )
            elif (key, number) in self.known:
                assert found == self.known[key, number], f"{name} of batch {number}"
            self.known[key, number] = found
            if name == "order" and self.kind.shuffled and root[0] != "beside":
                whole = (batch.order for batch in self.oracle(root, epoch, 0))
                order = tuple(index for each in whole for index, _ in each)
                assert self.orders.setdefault(order, key) == key, "this order was there before"
            if name != "order":
                one = source(root), epoch, repeats
                other = self.passes.setdefault((name, found[0]), one)
                assert other == one, f"{name} drawn before, {other}"

    # --- positions ---

    @rule(epoch=st.integers(0, 3))
    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)
        self.model.request, self.model.next_epoch = [epoch], epoch

    @rule()
    def save(self) -> None:
        loaded, request = self.model.loaded, self.model.request
        if self.kind.drawing and loaded and request:
            return  # the generator is where it was at the start of what was loaded
        now = generators()
        place, drew = self.model.state(now, self.fresh(now))
        state = self.loader.state_dict()
        self.check_generators(now, drew)
        if drew:
            self.model.looked = generators()
        self.states.append((through_file(state), place))

    @rule(which=NUMBERS, workers=NUMBERS, persistent=st.booleans())
    def resume(self, which: int, workers: int, persistent: bool) -> None:
        """Go on in another loader: where this one is, or where one was before."""
        if not which or not self.states:
            self.save()
        self.open(workers, persistent)
        if self.states:
            self.load(which)

    @precondition(lambda self: self.states and not any(r.begun for r in self.readers))
    @rule(which=NUMBERS)
    def load(self, which: int) -> None:
        now = generators()
        state, place = self.states[-1 - which % len(self.states)]
        self.loader.load_state_dict(state)
        self.model.load(place)
        self.check_generators(now, set())
        self.model.looked = now

    # --- workers ---

    @precondition(lambda self: self.with_workers and self.kind.resizable)
    @rule(workers=NUMBERS, now=st.booleans())
    def resize(self, workers: int, now: bool) -> None:
        if now and workers:
            self.loader.resize(workers)
        elif workers or not self.loader.persistent_workers:
            self.loader.num_workers = workers

    @precondition(lambda self: self.with_workers and not self.kind.threads)
    @rule()
    def kill(self) -> None:
        """Kill the worker that makes the next sample."""
        if self.since_kill >= LONGEST:
            Path(self.strike).touch()

    # --- the program's generators ---

    @rule(name=st.sampled_from(GENERATORS), how=st.sampled_from([0, 1, "draw", "draw", "put back"]))
    def use_generator(self, name: str, how: Any) -> None:
        """Seed a generator, draw from it, or put it back to where it was before."""
        if how == "put back":
            set_generator(name, self.put_back.get(name, generators()[name]))
            return
        self.put_back[name] = generators()[name]
        if how == "draw":
            DRAWS[name]()
        else:
            SEEDS[name](how)
            self.seeded[name].add(generators()[name])

    @precondition(lambda self: self.kind.drawing and not self.readers and not self.model.loaded)
    @rule(number=st.integers(0, 1))
    def seed_sampler(self, number: int) -> None:
        self.loader.batch_sampler.generator.manual_seed(number)
        self.model.sampler = self.loader.batch_sampler.place

    def fresh(self, now: dict[str, Any]) -> set[str]:
        """Give the generators that have not been drawn from since they were seeded."""
        return {name for name, states in self.seeded.items() if now[name] in states}

    def check_generators(self, before: dict[str, Any], drew: set[str]) -> None:
        now = generators()
        assert {name for name in GENERATORS if now[name] != before[name]} == drew

    def teardown(self) -> None:
        self.readers.clear()
        with within(SECONDS):
            for loader in self.loaders:
                loader.close()
        Path(self.strike).unlink(missing_ok=True)
        for name, state in self.before.items():
            set_generator(name, state)


def run(
    name: str, workers: int, strike: str, examples: int, steps: int, threads: bool = False
) -> None:
    kind = KINDS[name]._replace(threads=threads)
    members = {"kind": kind, "with_workers": workers > 0, "strike": strike}
    members["oracle"] = Oracle(kind, workers, strike + " of the oracle")
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestartWarning)
        for text in SAID:
            warnings.filterwarnings("ignore", f".*{text}")
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            type("Epochs", (Epochs,), members), settings=options
        )


@pytest.mark.filterwarnings("ignore::lit_loader.errors.WorkerRestartWarning")
def test_an_iterator_that_has_seen_a_death_is_gone_once_it_is_dropped(tmp_path: Path) -> None:
    """Else it is in mid-epoch, beside those that follow, until it is collected."""
    strike = tmp_path / "strike"
    gc.disable()
    try:
        with KINDS["shuffled"].loader(2, 1, str(strike)) as loader:
            epochs = []
            for number in range(9):
                if number in (2, 5):
                    strike.touch()
                epochs.append(int(next(iter(loader))[1][0]))
        assert epochs == [*range(9)]
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_seed_beside_an_iterator_and_a_look_begins_at_epoch_0(workers: int) -> None:
    before = torch.get_rng_state()
    torch.manual_seed(100)
    torch.rand(1)
    with KINDS["stream"].loader(workers, None, "never") as loader:
        iterator = iter(loader)
        next(iterator)
        next(iter(loader))
        torch.manual_seed(0)
        assert {int(epoch) for batch in loader for epoch in batch[1]} == {0}
    torch.set_rng_state(before)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_model(kind: str, workers: int, tmp_path: Path) -> None:
    run(kind, workers, str(tmp_path / "strike"), *((5, 25) if workers else (25, 40)))


in_threads = pytest.mark.skipif(
    not hasattr(torch, "thread_safe_generator"), reason="torch 2.13 has a generator for threads"
)


@in_threads
@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
def test_batches_by_threads_are_those_of_the_model(kind: str, tmp_path: Path) -> None:
    run(kind, 2, str(tmp_path / "strike"), 5, 20, threads=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_model_at_length(kind: str, workers: int, tmp_path: Path) -> None:
    run(kind, workers, str(tmp_path / "strike"), *((60, 40) if workers else (500, 60)))
