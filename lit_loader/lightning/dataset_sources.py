"""What a data module takes for a dataset, for several, and for a factory of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from lit_loader.config.kinds import is_dataset

__all__ = ["DatasetSource", "described", "for_each", "is_several"]

_Source = Dataset[Any] | Callable[[], Dataset[Any]]
DatasetSource = _Source | Sequence[_Source] | Mapping[str, _Source]


def is_several(source: Any) -> bool:
    """Whether this is a list, tuple or dict of nothing but torch Datasets and factories.

    Any other one is itself a dataset, of whatever it holds.
    """
    if not isinstance(source, (list, tuple, Mapping)) or not source:
        return False
    return all(isinstance(member, Dataset) or _is_factory(member) for member in _members(source))


def for_each(several: Any, function: Callable[[Any], Any]) -> Any:
    """Gives what `function` makes of each member, in a dict with the same keys or in a list."""
    if isinstance(several, Mapping):
        return {name: function(member) for name, member in several.items()}
    return [function(member) for member in several]


def described(source: Any) -> str:
    """Gives the class of a dataset, or the name of a factory, for messages."""
    if is_several(source):
        return f"[{', '.join(map(described, _members(source)))}]"
    if is_dataset(source):
        return type(source).__name__
    inner = getattr(source, "func", source)  # a functools.partial is named by what it calls
    return f"factory {getattr(inner, '__name__', type(inner).__name__)}"


def _is_factory(member: object) -> bool:
    return callable(member) and not is_dataset(member)


def _members(several: Any) -> Iterable[Any]:
    return several.values() if isinstance(several, Mapping) else several
