"""Datasets and samplers whose place can be saved and restored: torchdata's Stateful protocol.

Datasets and samplers are asked in the same way, as torchdata's ``StatefulDataLoader`` does it:

- *Whose methods are called.* Those of the iterator that ``iter(source)`` returns, and of the source
  itself, each if it has both; a source that is its own iterator is called once, as the iterator.
- *In which order they are restored.* The source, then ``iter(source)``, then the iterator. So one
  that begins in its ``__iter__`` begins first and is brought to its place afterwards.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Final

from lit_loader.core.state.state_validation import damaged, has_methods, resuming
from lit_loader.errors import StateError

ITERATOR: Final = "iterator"
"""The key of an iterator's part of a state."""


def is_stateful(thing: Any) -> bool:
    """Whether this has ``state_dict()`` and ``load_state_dict(state)``, without more arguments."""
    if not has_methods(thing):
        return False
    for method, arguments in ((thing.state_dict, ()), (thing.load_state_dict, ({},))):
        try:
            inspect.signature(method).bind(*arguments)
        except ValueError:  # it is written in C, and does not say
            continue
        except TypeError:
            return False
    return True


def checked_parts(place: str, value: object, name: str) -> dict[str, object] | None:
    """Check a state that `OpenStream.state` may have given; ``place`` is for messages."""
    if value is None:
        return None
    if not (isinstance(value, dict) and value.keys() <= {name, ITERATOR}):
        raise damaged(
            f"{place} must be a dict of what the {name} and its iterator must remember, or None",
            value,
        )
    return value


class OpenStream:
    """A dataset or sampler that is iterated, from its start or from where a state says.

    ``name`` is the key of its own part of a ``state``, as :meth:`state` returned it, and ``role``
    what messages call it. ``trusts`` says whether an object's state leads to where it was. A
    StateError if an object cannot take its part.
    """

    def __init__(
        self,
        source: Any,
        name: str,
        state: Mapping[str, object] | None = None,
        role: str | None = None,
        trusts: Callable[[object], bool] = is_stateful,
    ) -> None:
        self._source, self._name, self._role = source, name, role or name
        self._state = state or {}
        if name in self._state:
            self._restore(source, name)
        with resuming(source, self._role) if self._state else nullcontext():
            self.iterator: Any = iter(source)
        if ITERATOR in self._state:
            self._restore(self.iterator, ITERATOR)
        asked = {ITERATOR: self.iterator}
        if source is not self.iterator:
            asked[name] = source
        self.asked = {part: thing for part, thing in asked.items() if trusts(thing)}

    def _restore(self, thing: Any, part: str) -> None:
        if not is_stateful(thing):
            raise StateError(
                f"the state is of a {self._role} with state_dict and load_state_dict (of the {part}"
                f"), which {type(self._source).__name__} does not have. Resume with the "
                f"{self._role} of the state"
            )
        with resuming(thing, self._role if part == self._name else f"{self._role}'s {part}"):
            thing.load_state_dict(copy.deepcopy(self._state[part]))

    @property
    def stateful(self) -> bool:
        """Whether a state of source or iterator leads here; one made of others may say it has none.

        That is an attribute ``must_be_read_again``.
        """
        return bool(self.asked) and not any(
            getattr(thing, "must_be_read_again", False) for thing in self.asked.values()
        )

    def state(self) -> dict[str, object] | None:
        """Return what is needed to continue from here, by part; None: it must be replayed."""
        return copy.deepcopy(self.state_now())

    def state_now(self) -> dict[str, object] | None:
        """Return the same, which may change as soon as reading continues."""
        if not self.stateful:
            return None
        return {part: each.state_dict() for part, each in self.asked.items()}
