"""`ReorderBuffer`: results come in as workers finish, and go out as they were asked for.

Used by `iteration/delivery.py`, which puts outcomes in and takes them out.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["ReorderBuffer"]

T = TypeVar("T")


class ReorderBuffer(Generic[T]):
    """Gives items back in the order in which their numbers were expected, or as they come.

    A plain data structure, without processes, threads or locks. :meth:`expect` is called when a
    task goes out, :meth:`put` when its result comes in, :meth:`pop` to take the next result. One
    thread may call :meth:`expect` while another calls :meth:`put` and :meth:`pop`.

    Args:
        in_order: True holds a result back until all before it are out; False never holds back,
            but where there are readers.
        turns: Number ``n`` is one of reader ``n % turns``, whose results come in order in any case;
            0: there are no readers.
    """

    def __init__(self, in_order: bool = True, turns: int = 0) -> None:
        # All numbers of one line come in order: there is one for all, or one for each reader.
        self._lines = 1 if in_order else turns
        self._expected: dict[int, deque[int]] = {}
        self._arrived: dict[int, T] = {}
        self.restart([])

    def __len__(self) -> int:
        """Results that are held at the moment."""
        return len(self._arrived)

    def expect(self, number: int) -> None:
        """Announce that the result ``number`` comes after all that were announced before."""
        if self._lines:
            self._expected[number % self._lines].append(number)

    def restart(self, numbers: list[int]) -> list[int]:
        """Announce anew, in this order, all results that are still wanted.

        Returns:
            Those of ``numbers`` that have not come in. Results that came in and are not among
            ``numbers`` are forgotten.
        """
        self._arrived = {n: self._arrived[n] for n in numbers if n in self._arrived}
        self._expected = {line: deque() for line in range(self._lines)}
        for number in numbers:
            self.expect(number)
        return [number for number in numbers if number not in self._arrived]

    def put(self, number: int, item: T) -> None:
        """Take in the result ``number``."""
        self._arrived[number] = item

    def pop(self) -> tuple[int, T] | None:
        """Give out the next result, or None if it has not come in yet."""
        if not self._arrived:
            return None
        number = self._expected[0][0] if self._lines == 1 else self._first()
        if number is None or number not in self._arrived:
            return None
        if self._lines:
            self._expected[number % self._lines].popleft()
        return number, self._arrived.pop(number)

    def _first(self) -> int | None:
        """The result that came first, of those whose turn it may be."""
        if not self._lines:
            return next(iter(self._arrived))
        heads = (n for n in self._arrived if self._expected[n % self._lines][0] == n)
        return next(heads, None)
