"""What a position depends on, so that a state is not loaded where it means other data.

A state holds a position, and names what that position is a position in. Of a user's sampler the
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

from collections.abc import Mapping
from typing import Any

from lit_loader.core.state.state_validation import PRIMITIVES
from lit_loader.errors import OptionError

Fingerprint = dict[str, int | float | str | bool | None]


def fingerprint_of(name: str, thing: Any) -> Fingerprint:
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


def has_methods(stream: Any) -> bool:
    """Whether there are methods ``state_dict`` and ``load_state_dict``, whatever they take."""
    methods = (getattr(stream, name, None) for name in ("state_dict", "load_state_dict"))
    return all(map(callable, methods))
