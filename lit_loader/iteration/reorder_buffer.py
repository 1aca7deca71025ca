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
        in_order: True holds a result back until all before it are out; False never holds back.
    """

    def __init__(self, in_order: bool = True) -> None:
        self._in_order = in_order
        self._expected: deque[int] = deque()
        self._arrived: dict[int, T] = {}

    def __len__(self) -> int:
        """Results that are held at the moment."""
        return len(self._arrived)

    def expect(self, number: int) -> None:
        """Announce that the result ``number`` comes after all that were announced before."""
        if self._in_order:
            self._expected.append(number)

    def restart(self, numbers: list[int]) -> list[int]:
        """Announce anew, in this order, all results that are still wanted.

        Returns:
            Those of ``numbers`` that have not come in. Results that came in and are not among
            ``numbers`` are forgotten.
        """
        self._arrived = {n: self._arrived[n] for n in numbers if n in self._arrived}
        self._expected = deque(numbers if self._in_order else ())
        return [number for number in numbers if number not in self._arrived]

    def put(self, number: int, item: T) -> None:
        """Take in the result ``number``."""
        self._arrived[number] = item

    def pop(self) -> tuple[int, T] | None:
        """Give out the next result, or None if it has not come in yet."""
        if not self._arrived:
            return None
        if self._in_order:
            number = self._expected[0]
            if number not in self._arrived:
                return None
            self._expected.popleft()
        else:
            number = next(iter(self._arrived))
        return number, self._arrived.pop(number)
