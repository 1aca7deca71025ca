"""Taking in a state from outside: what may stand in it, and the users' own parts handed on.

A checkpoint may be damaged, of another program, or made to do harm. Whatever it holds, it is loaded
or refused by a `StateError`: nothing of it is computed with, compared or written out before it is
known to be what it should, and nothing that is done for it takes longer than the state is large.

What a sampler or a dataset of the user's has put into a state is its own. It is copied, handed to
its ``load_state_dict``, and whatever that raises becomes the `__cause__` of a `StateError`.

A state holds a position, and names what that position is a position in (`Fingerprint`), so that it
is not loaded where it means other data. Of a user's sampler the
loader sees its class alone; what else its order depends on the sampler names itself, by a method
that the loader calls whenever a state is taken or loaded::

    class ByDifficulty(Sampler[int]):
        def state_fingerprint(self) -> dict[str, int | float | str | bool | None]:
            return {"seed": self.seed, "hardest": self.hardest}

A batch sampler, the ``sampler`` inside of one, and a dataset may have the method too. What it gives
is part of the state. A loader whose sampler gives anything else refuses that state, and names what
differs: ``state was taken with sampler.seed=1, but this loader has sampler.seed=2``. The epoch and
the place in it do not belong there, nor does what may change between two runs of the same data.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeGuard

from lit_loader.describe import message_of, short_repr
from lit_loader.errors import OptionError, StateError

MAX_COUNT: Final = 2**62
"""Epochs and samples are below it, so that sums of them are numbers of 64 bits."""

MAX_BATCHES: Final = 2**40
"""Batches of an epoch are below it: their numbers travel to the workers in 40 bits."""

MAX_PACKED: Final = 1 << 16
"""Bytes of a generator's state. torch's largest has 5,056, Python's 7,000 as text."""

PRIMITIVES: Final = (int, float, str, bool, type(None))

_SHOWN = 80


def is_count(value: object, below: int = MAX_COUNT) -> TypeGuard[int]:
    """Whether this is a whole number of at least 0, of Python's own type, and not too large."""
    return type(value) is int and 0 <= value < below


def is_epoch(value: object) -> TypeGuard[int]:
    """Whether this is a whole number of Python's own type that an epoch may have: below 0, too."""
    return type(value) is int and -MAX_COUNT <= value < MAX_COUNT


def brief(value: object) -> str:
    """Write anything on one line of bounded length, in bounded time."""
    text = repr(value[: _SHOWN + 1]) if isinstance(value, (str, bytes)) else short_repr(value)
    return _cut(text, _SHOWN)


def _cut(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def damaged(constraint: str, value: object) -> StateError:
    """Return the error for a state that holds what none does, and what is wanted instead."""
    return StateError(
        f"state's {constraint}, got {brief(value)}. Resume with an unchanged result of state_dict()"
    )


def own_part(name: str, value: object) -> Any:
    """Copy a part of a state from outside, which may contain itself; or a StateError."""
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise StateError(
            f"state's {name} cannot be copied ({_told(error)}). Resume with an unchanged result "
            "of state_dict()"
        ) from error


@contextmanager
def resuming(thing: object, role: str) -> Iterator[None]:
    """Turn what an object raises while it takes up its state into a StateError that names it."""
    try:
        yield
    except StateError:
        raise
    except Exception as error:
        raise StateError(
            f"{role} {type(thing).__name__} cannot load its part of the state "
            f"({_told(error)}). Resume with the {role} of the state"
        ) from error


def _told(error: Exception) -> str:
    message = _cut(message_of(error), 2 * _SHOWN)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


Fingerprint = dict[str, int | float | str | bool | None]


def fingerprint_of(name: str, thing: object) -> Fingerprint:
    """Ask a sampler or dataset what its data depends on: fields "name.field", or an OptionError."""
    method = getattr(thing, "state_fingerprint", None)
    if not callable(method):
        return {}
    fields = method()
    # Exact types: NumPy's numbers are subclasses that torch.load(weights_only=True) refuses.
    if not isinstance(fields, Mapping) or not all(
        type(field) is str and type(value) in PRIMITIVES for field, value in fields.items()
    ):
        raise OptionError(
            f"{type(thing).__name__}.state_fingerprint() must give a dict from names to int, "
            f"float, str, bool or None, got {' '.join(repr(fields).split())}"
        )
    return {f"{name}.{field}": value for field, value in fields.items()}


def has_methods(stream: object) -> bool:
    """Whether there are methods ``state_dict`` and ``load_state_dict``, whatever they take."""
    methods = (getattr(stream, name, None) for name in ("state_dict", "load_state_dict"))
    return all(map(callable, methods))
