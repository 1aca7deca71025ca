"""`read_stream`: what a stream of keys names, read ahead and given in the keys' order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar, overload

from lit_loader.batch.reads_ahead import ReadAhead
from lit_loader.batch.reads_background import Call, read_now
from lit_loader.context import reading
from lit_loader.describe import public
from lit_loader.errors import OptionError
from lit_loader.seeding.draws import Draws

__all__ = ["read_stream"]

_K = TypeVar("_K")
_R = TypeVar("_R")


@overload
def read_stream(
    keys: Iterable[_K], read: Callable[[_K], Coroutine[Any, Any, _R]]
) -> Iterator[tuple[_K, _R]]: ...
@overload
def read_stream(keys: Iterable[_K], read: Callable[[_K], _R]) -> Iterator[tuple[_K, _R]]: ...
@public
def read_stream(keys: Iterable[Any], read: Call) -> Iterator[tuple[Any, Any]]:
    """Give ``(key, read(key))`` for each key, read ahead; for the ``__iter__`` of a dataset.

    In a `DataLoader` up to ``reads`` keys are read at a time, divided among the readers that a
    worker serves; elsewhere one after the other. The order is the keys'::

        def __iter__(self):
            index, count = lit_loader.get_shard()
            for key, data in lit_loader.read_stream(self.keys[index::count], client.get):
                yield decode(data)

    What holds of `reads_ahead` methods holds of ``read``. An exception of it is raised in its
    key's place; the next call of ``next()`` goes on behind that, or reads the key again if it is
    one of ``sample_retries``. Taking the next key must draw no random number, for it is taken
    early: shuffle a list of keys.

    Args:
        keys: What to read.
        read: Called with a key; a function, or an ``async def``.

    Raises:
        OptionError: Taking a key, other than the first, has drawn random numbers.
    """
    ahead = getattr(reading.maker, "reads", None)
    return _Stream(iter(keys), read, ahead)


class _Stream:
    """No generator, which an exception of a read would finish."""

    def __init__(self, keys: Iterator[Any], read: Call, ahead: ReadAhead | None) -> None:
        self._keys, self._read, self._ahead = keys, read, ahead
        self._coming: deque[tuple[Any, Future[Any]]] = deque()
        self._failed: list[Any] = []  # the key whose read has raised an exception just now
        self._begun = self._ended = False

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self

    def __next__(self) -> tuple[Any, Any]:
        ahead = self._ahead
        again = bool(self._failed) and reading.again
        if again or ahead is None or not ahead.reads:
            key = self._failed[0] if again else next(self._keys)
            return self._given(key, read_now, self._read, (key,))
        if not self._begun:
            self._begun = True
            key = next(self._keys)  # which may shuffle them
            return self._given(key, self._first, ahead, key)
        # The one that is given next is among those that are under way.
        most = max(1, -(-ahead.reads // max(1, len(ahead.sharing))))
        while len(self._coming) < most and self._take_key(early=bool(self._coming)):
            pass
        if not self._coming:
            raise StopIteration
        key, future = self._coming.popleft()
        return self._given(key, ahead.outcome, future, self._read, (key,))

    def _take_key(self, early: bool) -> bool:
        """Take the next key and begin its read; returns whether there was one."""
        if self._ended:
            return False
        before = reading.drawn() if early else None
        try:
            key = next(self._keys)
        except StopIteration:
            self._ended = True
            return False
        if early and reading.drawn() != before:
            raise OptionError(
                "the keys of read_stream draw random numbers as they are taken, and are taken "
                "early: give it a list that is shuffled already, or set reads=0"
            )
        assert self._ahead is not None
        self._coming.append((key, self._ahead.background.start(self._read, (key,))))
        return True

    def _first(self, ahead: ReadAhead, key: Any) -> Any:
        """Read the first key here, and see whether that draws."""
        draws = ahead.draws = Draws(self._read)
        marks = draws.mark()
        try:
            return read_now(self._read, (key,))
        finally:
            drawn = draws.drawn(marks)
            if drawn is not None:
                self._ahead = None
                ahead.warn_of_draws(self._read, drawn, key)

    def _given(self, key: Any, call: Call, *arguments: Any) -> tuple[Any, Any]:
        began = time.monotonic_ns()
        self._failed = [key]
        try:
            data = call(*arguments)
            self._failed = []
            return key, data
        finally:
            if self._ahead is not None:
                self._ahead.waited += time.monotonic_ns() - began

    def __del__(self) -> None:
        for _, future in self._coming:
            future.cancel()
