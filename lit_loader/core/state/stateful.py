"""Datasets and samplers whose place can be saved and restored: torchdata's Stateful protocol.

Datasets and samplers are asked alike, as torchdata's ``StatefulDataLoader`` does it:

- *Who is asked.* The iterator that ``iter(source)`` gives, and the source itself, each if it has
  both methods; a source that is its own iterator is asked once, as the iterator. Nobody else:
  collate functions are not.
- *In which order they are restored.* The source, then ``iter(source)``, then the iterator, each
  once. So one that begins in its ``__iter__`` begins first and is brought to its place afterwards.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from lit_loader.core.state.fingerprint import has_methods
from lit_loader.core.state.state_validation import damaged, own_part, restore, resuming
from lit_loader.errors import StateError

ITERATOR: Final = "iterator"
"""The key of an iterator's part of a state."""

ADAPTERS: Final[list[Any]] = []
"""What is known of streams that do not do what their methods promise (`streams/other_streams`).

Each has ``forgets(stream)``, whether its state is known to leave out samples; ``note_start``,
called before it is given a state; ``begin_at_start``, before it begins without one."""


def wants_arguments(stream: Any) -> bool:
    """Whether these methods cannot be called as ``state_dict()`` and ``load_state_dict(state)``."""
    for name, arguments in (("state_dict", ()), ("load_state_dict", ({},))):
        try:
            signature = inspect.signature(getattr(stream, name))
        except (TypeError, ValueError):  # it is written in C, and does not say
            continue
        try:
            signature.bind(*arguments)
        except TypeError:
            return True
    return False


def is_stateful(thing: Any) -> bool:
    """Whether this has ``state_dict()`` and ``load_state_dict(state)`` that lose nothing."""
    if not has_methods(thing) or wants_arguments(thing):
        return False
    return not any(each.forgets(thing) for each in ADAPTERS)


def checked_parts(place: str, value: Any, name: str) -> dict[str, Any] | None:
    """Copy and check a state that `OpenStream.state` may have given; ``place`` is for messages."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(
        type(key) is str and key in (name, ITERATOR) for key in value
    ):
        raise damaged(
            f"{place} must be a dict of what the {name} and its iterator must remember, or None",
            value,
        )
    return {part: own_part(f"{place}[{part!r}]", each) for part, each in value.items()}


class OpenStream:
    """A dataset or sampler that has been begun, at its start or where a state says.

    ``name`` is the key of its own part of a state, ``state`` what :meth:`state` gave; without parts
    it begins as it is. ``before_iter`` is called before ``iter(source)``, once the source has its
    state; ``restoring`` gives the context of each ``load_state_dict``. A StateError if an object
    cannot take its part, or does not go on from it.
    """

    def __init__(
        self,
        source: Any,
        name: str,
        state: Mapping[str, Any] | None = None,
        before_iter: Callable[[], object] | None = None,
        restoring: Callable[[], AbstractContextManager[object]] = nullcontext,
        role: str | None = None,
    ) -> None:
        self._source, self._name, self._role = source, name, role or name
        self._state, self._restoring = state or {}, restoring
        if name in self._state:
            self._restore(source, name)
        else:
            for each in ADAPTERS:
                each.begin_at_start(source)
        if before_iter is not None:
            before_iter()
        with resuming(source, self._role) if self._state else nullcontext():
            self.iterator: Any = iter(source)
        self._restore(self.iterator, ITERATOR)
        asked = {ITERATOR: self.iterator}
        if source is not self.iterator:
            asked[name] = source
        self.asked = {part: thing for part, thing in asked.items() if is_stateful(thing)}

    def _restore(self, thing: Any, part: str) -> None:
        if part not in self._state:
            return
        if not is_stateful(thing):
            raise StateError(
                f"the state is of a {self._role} with state_dict and load_state_dict (of the {part}"
                f"), which {type(self._source).__name__} has not: resume with the {self._role} "
                "that the state was taken from"
                " [LL353]"
            )
        for each in ADAPTERS:
            each.note_start(thing)
        with self._restoring():
            own = part == self._name
            restore(thing, self._state[part], self._role if own else f"{self._role}'s {part}")

    @property
    def stateful(self) -> bool:
        """Whether source or iterator can be asked for a state."""
        return bool(self.asked)

    @property
    def must_be_read_again(self) -> bool:
        """Whether no state leads here; a stream made of others says so by an attribute so named."""
        return not self.asked or any(
            getattr(thing, "must_be_read_again", False) for thing in self.asked.values()
        )

    @property
    def unproven(self) -> bool:
        """Whether parts of it that draw as they begin have not begun from their states yet."""
        return any(getattr(thing, "unproven", False) for thing in self.asked.values())

    def state(self) -> dict[str, Any] | None:
        """Give what is needed to go on from here, by part; None: it must be read again."""
        return copy.deepcopy(self.state_now())

    def state_now(self) -> dict[str, Any] | None:
        """Give the same, which may change as soon as reading goes on."""
        if self.must_be_read_again:
            return None
        return {part: each.state_dict() for part, each in self.asked.items()}
