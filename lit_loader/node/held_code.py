"""`held_code`: the user's functions and classes that an object works with.

Those of a dataset that wraps another one, say, with a list of transforms: what it does is their
code. `node/parts.py` describes each.
"""

from __future__ import annotations

import types
from collections.abc import Collection
from typing import Any, Final

from lit_loader.node.code import behind, code_of, home, is_foreign
from lit_loader.seeding.plain_data import (
    CLOSED,
    PLAIN,
    instance_dict,
    is_leaf,
    root_of,
    slot_readers,
)

__all__ = ["held_code"]

_SEVERAL: Final = 1000
"""Of more items than these only one of each type is looked at."""

_MOST: Final = 100_000  # objects that are looked at
_WORKING: Final = frozenset({"torch", "lit_loader"})
"""Of what is not the user's, and no other library's: whose objects call the user's code."""


def held_code(thing: Any) -> list[Any]:
    """Give the user's functions and classes that an object, or what it holds, is made of.

    In the order of their names, so that equal objects give equal lists in all processes.
    """
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}  # which are held, so that an id stays its object's
    waiting = [thing]
    while waiting and len(seen) < _MOST:
        each = waiting.pop()
        if type(each) in PLAIN or id(each) in seen or is_leaf(each):
            continue
        seen[id(each)] = each
        code = each if isinstance(each, (types.FunctionType, type)) else type(each)
        if not is_foreign(root_of(code)):
            found[id(code)] = code
        waiting += _inside(each)
    return sorted(found.values(), key=_order)


def _order(code: Any) -> tuple[str, str]:
    return home(code), "" if isinstance(code, type) else str(code_of(code.__code__))


def _inside(thing: Any) -> list[Any]:
    kind = type(thing)
    if isinstance(thing, (types.FunctionType, type)):
        return []
    items = list(behind(thing) or ())
    if isinstance(thing, (list, tuple, set, frozenset)):
        items = _some(thing)
    elif isinstance(thing, dict):  # another mapping may read each value from a disk
        items = _some(dict.values(thing))
    if root_of(kind) in CLOSED and root_of(kind) not in _WORKING:
        return items
    items += (instance_dict(thing, kind) or {}).values()
    return items + [read() for _, read in slot_readers(thing, kind)]


def _some(items: Collection[Any]) -> list[Any]:
    if len(items) > _SEVERAL:
        return [*{type(each): each for each in items}.values()]
    return list(items)
