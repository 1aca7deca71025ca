"""Dicts and lists that are read out of shared memory, and refuse to be changed.

Each reading makes a new object, so what is written into it would be gone the next time, and no
other worker would see it. They are dicts and lists to whoever reads them; copies (``copy``, `dict`,
``copy.deepcopy``), and what arrives in another process, are plain ones.
"""

from __future__ import annotations

import copy
from typing import Any, NoReturn

from lit_loader.memory.shared_sequence import SharedSequence

__all__ = ["ReadOnlyDict", "ReadOnlyList", "SharedRecords", "refuse_to_be_changed"]


class SharedRecords(SharedSequence[Any]):
    """Records that have dicts or lists in them."""

    def _record(self, number: int) -> Any:
        return _read_only(super()._record(number))


def refuse_to_be_changed(self: Any, *_: Any, **__: Any) -> NoReturn:
    """Take the place of the methods that write.

    Raises:
        TypeError: Always.
    """
    raise TypeError(
        f"this {self.KIND.__name__} belongs to what all workers share (share=True), and what is "
        "written into it would be lost: change a copy of it, as in copy.deepcopy(record), or leave "
        "share out"
    )


class ReadOnlyDict(dict[Any, Any]):
    """Reads as the dict that it was made of."""

    KIND = dict
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = refuse_to_be_changed
    setdefault = update = refuse_to_be_changed

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """Reads as the list that it was made of."""

    KIND = list
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = refuse_to_be_changed
    extend = insert = pop = remove = reverse = sort = refuse_to_be_changed

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(self),)


def _read_only(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return ReadOnlyDict({key: _read_only(part) for key, part in value.items()})
    if kind is list:
        return ReadOnlyList(map(_read_only, value))
    if kind is tuple:
        return tuple(map(_read_only, value))
    return value
