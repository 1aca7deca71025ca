"""Exceptions out of signal handlers: at every instruction of ``next()`` and ``close()``.

Each comes out as itself, nothing is left open, and the data is right: a batch that an interrupted
``next()`` did not give is given by the next one.
"""

import functools
import gc
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import lit_loader
from lit_loader import DataLoader
from lit_loader.core.seeding import generator_lock
from lit_loader.core.system.interrupts import HeldBack
from lit_loader.core.transport import viewer_page
from tests.support.exact import EveryOther, SharedWithState
from tests.support.samples import Call, Counting, OfLength, own_generators, reads_ended, usage
from tests.support.striking import Strike, Struck, StruckHard

pytestmark = pytest.mark.usefixtures("pinned")

LENGTH = 8


def noisy(index: int) -> torch.Tensor:
    """Sample ``index`` is ``index`` and a number drawn for it."""
    return torch.stack([torch.tensor(float(index)), torch.rand(())])


class Unreadable(Exception):
    pass


def damaged(index: int) -> torch.Tensor:
    """One sample cannot be read: batch 3 is an exception, given once."""
    if index == 3:
        raise Unreadable
    return noisy(index)


sampler = functools.partial(EveryOther, LENGTH)
"""Its iterator is a generator, which an exception ends."""

stateful = functools.partial(SharedWithState, LENGTH)


class Rich:
    """A batch that is unpickled by code in Python."""

    def __init__(self, batch: torch.Tensor) -> None:
        self.batch = batch

    def __setstate__(self, state: Any) -> None:
        try:
            self.__dict__.update(state)
        except ValueError:
            raise AssertionError from None

    def tolist(self) -> list[float]:
        return self.batch.tolist()  # type: ignore[no-any-return]


def rich(samples: list[torch.Tensor]) -> Rich:
    return Rich(torch.stack(samples))


class ReadAhead(OfLength):
    length = LENGTH

    @lit_loader.reads_ahead
    def read(self, index: int) -> int:
        return index

    def __getitem__(self, index: int) -> torch.Tensor:
        return noisy(self.read(index))


class StreamReadAhead(Counting):
    def __iter__(self) -> Any:
        return (noisy(value) for _, value in lit_loader.read_stream(range(LENGTH), int))


class Case:
    """A loader, the batches given before (of ``epochs`` epochs), and what is interrupted then.

    With ``shown`` a page for viewers is written with every batch, not with the first alone.
    """

    def __init__(
        self, dataset: Any = None, given: int = 3, epochs: int = 0, what: str = "next",
        shown: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        self.given, self.epochs, self.what, self.shown = given, epochs, what, shown
        self.dataset = dataset or functools.partial(Call, noisy, LENGTH)
        self.options = {"num_workers": 1, "seed": 4, **options}

    def loader(self) -> DataLoader[Any]:
        options = dict(self.options)
        if "sampler" in options:
            options["sampler"] = options["sampler"]()  # of the loader's own
        return DataLoader(self.dataset(), **options)

    def run(self, strike: Strike) -> tuple[list[Any], BaseException | None]:
        """Two epochs after those before, with a strike in the first; what was given and raised."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(viewer_page, "EVERY", 0 if self.shown else 1 << 62)
            return self._run(strike)

    def _run(self, strike: Strike) -> tuple[list[Any], BaseException | None]:
        loader, own = self.loader(), own_generators()
        found: list[Any] = []
        for _ in range(self.epochs):
            found += [batch.tolist() for batch in loader]
        iterator: Any = iter(loader)
        for _ in range(self.given):
            found.append(next(iterator).tolist())
        with strike.handling():
            raised = self.act(strike, loader, [iterator], found)
            assert signal.getsignal(signal.SIGINT) == strike._handle
        assert HeldBack.active is None
        assert is_free(loader._core.lock)
        assert is_free(generator_lock.lock)
        # Not converted before: that, too, could be interrupted.
        found = [item if isinstance(item, list) else item.tolist() for item in found]
        if self.what == "next":
            found += drained(iterator)
        del iterator
        if self.what == "close":
            loader.close()  # or does nothing
        found += drained(iter(loader))
        loader.close()
        assert own_generators() == own
        return found, raised

    def act(
        self, strike: Strike, loader: Any, iterators: list[Any], found: list[Any]
    ) -> BaseException | None:
        """Do what is interrupted; returns what came out."""
        try:
            strike.begin()
            if self.what == "next":
                try:
                    for batch in iterators[0]:
                        found.append(batch)
                        break
                except Unreadable:
                    found.append(UNREADABLE)
            elif self.what == "close":
                loader.close()
            else:  # by a finalizer, which cannot raise: the handler is called when it is over
                iterators.clear()
            strike.end()
            if self.what == "drop" and strike.at >= 0:
                threading.Event().wait(0 if strike.struck else 2)
        except BaseException as error:
            strike.end()
            return error
        return None


UNREADABLE = ["unreadable"]


def drained(iterator: Any) -> list[Any]:
    """What is left, and the exceptions in it."""
    found = []
    while True:
        try:
            found.append(next(iterator).tolist())
        except Unreadable:
            found.append(UNREADABLE)
        except StopIteration:
            return found


def is_free(lock: Any) -> bool:
    """Whether another thread can have a lock."""
    with ThreadPoolExecutor(1) as pool:
        if pool.submit(lock.acquire, timeout=5).result():
            pool.submit(lock.release).result()
            return True
    return False


CASES = {
    "in process": Case(num_workers=0),
    "in process, first": Case(num_workers=0, given=0),
    "in process, a sampler's": Case(num_workers=0, sampler=sampler),
    "in process, a sampler's first": Case(num_workers=0, given=0, sampler=sampler),
    "in process, a sampler's end": Case(num_workers=0, given=LENGTH, sampler=sampler),
    "in process, last": Case(num_workers=0, given=LENGTH - 1),
    "in process, end": Case(num_workers=0, given=LENGTH),
    "in process, failing": Case(functools.partial(Call, damaged, LENGTH), num_workers=0),
    "in process, a table": Case(functools.partial(torch.arange, LENGTH), num_workers=0),
    "in process, reads ahead, first": Case(ReadAhead, 0, num_workers=0, concurrent_reads=2),
    "in process, reads ahead": Case(ReadAhead, num_workers=0, concurrent_reads=2),
    "in process, a stream's reads ahead": Case(
        StreamReadAhead, 1, num_workers=0, concurrent_reads=2
    ),
    "in process, iterable": Case(Counting, num_workers=0),
    "in process, iterable's end": Case(functools.partial(Counting, LENGTH), 8, num_workers=0),
    "in process, stateful": Case(stateful, num_workers=0),
    "first": Case(given=0),
    "middle": Case(),
    "middle, shown": Case(shown=True),
    "last": Case(given=LENGTH - 1),
    "end": Case(given=LENGTH),
    "failing": Case(functools.partial(Call, damaged, LENGTH)),
    "decoding": Case(collate_fn=rich),
    "unordered": Case(in_order=False, num_workers=2),
    "a sampler's": Case(sampler=sampler),
    "iterable": Case(functools.partial(Counting, LENGTH)),
    "stateful": Case(stateful),
    "persistent, first": Case(given=0, persistent_workers=True),
    "persistent, second epoch": Case(given=0, epochs=1, persistent_workers=True),
    "next epoch's": Case(given=0, epochs=1, persistent_workers=True, prefetch_next_epoch=True),
    "next epoch's begun": Case(given=7, persistent_workers=True, prefetch_next_epoch=True),
    "pinned": Case(pin_memory=True),
    "pinned, first": Case(given=0, pin_memory=True),
    "closing": Case(what="close"),
    "closing, in process": Case(what="close", num_workers=0),
    "closing, persistent": Case(what="close", persistent_workers=True),
    "closing, pinned": Case(what="close", pin_memory=True, persistent_workers=True),
    "dropping": Case(what="drop"),
    "dropping, persistent": Case(what="drop", persistent_workers=True),
}

SPAWNED = {
    "spawn, first": Case(given=0, multiprocessing_context="spawn"),
    "spawn, closing": Case(what="close", multiprocessing_context="spawn"),
    "forkserver, first": Case(given=0, multiprocessing_context="forkserver"),
}

HELD_POINTS = 25
"""Of the many instructions at which exceptions are held back, so many are struck at."""


def sweep(case: Case, most: int | None, last: int = 0) -> None:
    """Strike at every instruction, or at so many of them, evenly distributed; or at the last."""
    case.run(Strike(-1))  # all is imported
    gc.collect()
    reads_ended()
    before = usage()
    count = Strike(-1)
    expected, _ = case.run(count)
    assert len(expected) >= LENGTH
    assert count.exposed
    held = sorted(set(range(count.instructions)) - set(count.exposed))
    points = count.exposed[:: -(-len(count.exposed) // most) if most else 1]
    some = HELD_POINTS if most is None else 1
    points += held[len(held) // (2 * some) :: -(-len(held) // some) or 1]
    if last:
        points = count.exposed[-last:]
    failures = []
    for turn, at in enumerate(points):
        kind = (Struck, StruckHard)[turn % 2]
        strike = Strike(at, kind)
        found, raised = case.run(strike)
        wrong = []
        in_order = case.what != "drop" and case.options.get("in_order", True)
        if (found if in_order else sorted(found)) != (expected if in_order else sorted(expected)):
            wrong.append(f"data {found}")
        if strike.struck and not strike.lost and case.what != "drop" and type(raised) is not kind:
            wrong.append(f"raised {raised!r}")
        if raised is not None and type(raised) is not kind:
            wrong.append(f"raised {raised!r}")
        raised = None
        if usage() != before:
            gc.collect()
            reads_ended()
        if usage() != before:
            wrong.append(f"left {before} {usage()}")
            before = usage()
        if wrong:
            failures.append(f"at {at} of {count.instructions}: {'; '.join(wrong)}")
        assert len(failures) < 10, "\n".join(failures)
    assert not failures, "\n".join(failures)


def test_handlers_of_several_signals_are_put_back() -> None:
    """Wherever an exception comes: also where Python goes from one handler to the next."""
    others = {n: signal.signal(n, lambda *_: None) for n in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        before = [signal.getsignal(number) for number in others]

        def held_back(strike: Strike) -> BaseException | None:
            with strike.handling():
                try:
                    strike.begin()
                    with HeldBack():
                        pass
                    strike.end()
                except BaseException as error:
                    strike.end()
                    return error
                finally:
                    assert signal.getsignal(signal.SIGINT) == strike._handle
            return None

        count = Strike(-1)
        held_back(count)
        assert len(count.exposed) > 100
        for at in count.exposed:
            strike = Strike(at)
            raised = held_back(strike)
            assert not strike.struck or type(raised) is Struck
            assert HeldBack.active is None
            assert [signal.getsignal(number) for number in others] == before
    finally:
        for number, handler in others.items():
            signal.signal(number, handler)


def auto() -> Any:
    loader = DataLoader(Call(noisy, LENGTH), num_workers="auto")
    return loader, lambda: loader.resize(1), lambda: isinstance(loader.num_workers, int)


def saved(options: Any, load: bool) -> Any:
    loader = DataLoader(stateful(), num_workers=0, **options)
    next(iter(loader))
    state = loader.state_dict()
    call = functools.partial(loader.load_state_dict, state) if load else loader.state_dict
    return loader, call, lambda: {*loader.state_dict()} == {*state}


CALLS: dict[str, Any] = {
    "resize of auto": auto,
    "state_dict": functools.partial(saved, {}, False),
    "load_state_dict": functools.partial(saved, {}, True),
    "load_state_dict, shards": functools.partial(saved, {"num_shards": 2}, True),
}


@pytest.mark.parametrize("name", CALLS)
def test_other_calls(name: str) -> None:
    """What is raised is what comes out, and the loader is of use."""

    def struck(strike: Strike) -> BaseException | None:
        loader, call, is_well = CALLS[name]()
        with strike.handling():
            try:
                strike.begin()
                call()
                strike.end()
            except BaseException as error:
                strike.end()
                return error
            finally:
                assert is_well()
                loader.close()
        return None

    struck(Strike(-1))
    count = Strike(-1)
    struck(count)
    for at in count.exposed[:: max(1, len(count.exposed) // 400)]:
        strike = Strike(at)
        raised = struck(strike)
        came_out = strike.struck and not strike.lost
        assert type(raised) is (Struck if came_out else type(None)), (at, raised)


@pytest.mark.parametrize("name", CASES)
def test_some_instructions(name: str) -> None:
    sweep(CASES[name], 3)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("in process")])
def test_on_the_way_out(name: str) -> None:
    """When the batch is there, the generators and the lock are still to be given back."""
    sweep(CASES[name], None, last=80)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", CASES)
def test_every_instruction(name: str) -> None:
    sweep(CASES[name], None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SPAWNED)
def test_other_start_methods(name: str) -> None:
    sweep(SPAWNED[name], 60)
