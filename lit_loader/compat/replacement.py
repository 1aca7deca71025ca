"""`replace_torch`: what a program and its libraries make of torch's DataLoader is one of ours.

::

    TorchLoader(dataset, …)       __new__ gives an object of our class, whose constructor follows
    class Theirs(TorchLoader)     __init_subclass__ derives it from our class instead
    TorchLoader.__init__(self, …) of such a class is our constructor

Torch's class itself is patched, and not the places that name it: so it holds in globals, defaults,
closures and attributes, and ``isinstance`` says the same of every loader as before. A name
that is put in torch's place would deny that torch's loaders are loaders, and Lightning would not
shard them.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

from torch.utils.data import DataLoader as TorchLoader

from lit_loader.describe import class_name, program_stacklevel, public
from lit_loader.loader import DataLoader

__all__ = ["Replacement", "replace_torch"]

_STANDING: set[Replacement] = set()


class Replacement:
    """What `replace_torch` has begun: `undo` ends it, or the end of its ``with`` block."""

    def undo(self) -> None:
        """Make torch's class create torch's loaders again; a second call does nothing.

        Loaders made meanwhile, and classes derived meanwhile, stay what they are.
        """
        _STANDING.discard(self)

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


@public
def replace_torch() -> Replacement:
    """Make every ``torch.utils.data.DataLoader(...)`` in this process create a lit_loader one.

    Call it once, at the top of a program, for libraries that make their loaders themselves::

        import lit_loader

        lit_loader.replace_torch()

    or around a part of it, with ``with lit_loader.replace_torch():``. It applies wherever
    the class is named, also in modules that imported it before. Classes derived from torch's
    class afterwards are derived from lit_loader's. ``torch.utils.data.DataLoader`` stays torch's
    class, of which lit_loader's is a subclass, so ``isinstance`` is not affected.

    These stay torch's: loaders made before; classes derived before, which a warning names; and
    those of torchdata.

    Returns:
        An object whose ``undo()`` restores torch's loader.
    """
    _patch()
    replacement = Replacement()
    derived = [class_name(kind) for kind in TorchLoader.__subclasses__() if _is_meant(kind)]
    if derived and not _STANDING:
        warnings.warn(
            "lit_loader: these classes keep torch's engine, since they were derived from torch's "
            f"DataLoader before lit_loader.replace_torch(): {', '.join(sorted(derived))}. Call it "
            "before they are imported",
            stacklevel=program_stacklevel(),
        )
    _STANDING.add(replacement)
    return replacement


def _is_meant(kind: type) -> bool:
    """Whether a class lives on torch's engine; torchdata's does not call torch's constructor."""
    return not issubclass(kind, DataLoader) and not kind.__module__.startswith("torchdata.")


@functools.cache
def _patch() -> None:
    """Make torch's class ask here, from now on: without a `Replacement` it does as before.

    What is assigned to ``__new__`` cannot be taken back: Python refuses arguments from then on.
    """
    theirs = TorchLoader.__init__

    def new(cls: type, *args: object, **options: object) -> object:
        # Copies and pickles pass nothing, and mean the class that they name.
        made = cls is TorchLoader and _STANDING and (args or options)
        return object.__new__(DataLoader if made else cls)

    @functools.wraps(theirs)
    def init(self: Any, *args: Any, **options: Any) -> None:
        (DataLoader.__init__ if isinstance(self, DataLoader) else theirs)(self, *args, **options)

    def init_subclass(cls: Any, /, **options: Any) -> None:
        super(TorchLoader, cls).__init_subclass__(**options)
        if _STANDING and TorchLoader in cls.__bases__ and _is_meant(cls):
            bases = (DataLoader if base is TorchLoader else base for base in cls.__bases__)
            cls.__bases__ = tuple(bases)

    new.__signature__ = inspect.signature(theirs)  # type: ignore[attr-defined]
    patch = {"__new__": new, "__init__": init, "__init_subclass__": classmethod(init_subclass)}
    for name, function in patch.items():
        setattr(TorchLoader, name, function)
