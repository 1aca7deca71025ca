"""What ``LoaderDataModule(datasets={split: …})`` takes: a dataset, a factory, or several of them.

Used by `lightning/datamodule.py`, to tell these kinds apart, to go through several, and to name one
in a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from lit_loader.config.checks import is_dataset, is_list
from lit_loader.describe import short_repr
from lit_loader.errors import OptionError

__all__ = [
    "DatasetSource",
    "SplitFactory",
    "check_is_factory",
    "check_source",
    "describe_source",
    "is_several",
    "map_members",
]

_Source = Dataset[Any] | Callable[[], Dataset[Any]]
DatasetSource = _Source | Sequence[_Source] | Mapping[str, _Source]


def is_several(source: Any) -> bool:
    """Whether this is a list, tuple or dict of nothing but torch Datasets and factories.

    Any other list, tuple or dict is itself a dataset, of what it holds.
    """
    if not (isinstance(source, Mapping) or is_list(source)) or not source:
        return False
    return all(isinstance(member, Dataset) or _is_factory(member) for member in _members(source))


def check_source(split: str, source: Any) -> None:
    """Refuses what is neither a dataset nor a factory; a class's name, for one.

    Raises:
        OptionError: It is none.
    """
    if not (is_dataset(source) or callable(source)):
        raise OptionError(
            f"datasets[{split!r}] must be a dataset or a factory without arguments, got "
            f"{short_repr(source)}: pass a dataset, or a callable that makes it, such as "
            f"functools.partial(Dataset, ...), in Hydra {{_target_: package.module.Dataset}}"
        )


def map_members(several: Any, function: Callable[[Any], Any]) -> Any:
    """Calls `function` with each member; returns its results under the same keys, or in a list."""
    if isinstance(several, Mapping):
        return {name: function(member) for name, member in several.items()}
    return [function(member) for member in several]


def describe_source(source: Any) -> str:
    """Names a dataset by its class, and a factory by its own name, for messages."""
    if is_several(source):
        return f"[{', '.join(map(describe_source, _members(source)))}]"
    if is_dataset(source):
        return type(source).__name__
    inner = getattr(source, "func", source)  # a functools.partial is named by what it calls
    return f"factory {getattr(inner, '__name__', type(inner).__name__)}"


def check_is_factory(split: str, source: Any) -> None:
    """Refuses a dataset that is made already, where it is to be made once for all processes.

    Raises:
        OptionError: It is one.
    """
    if is_several(source):
        for member in _members(source):
            check_is_factory(split, member)
    elif is_dataset(source):
        raise OptionError(
            f"shared_key builds datasets once for all processes, and datasets[{split!r}] is a "
            f"{type(source).__name__} that is built already: pass a factory, such as "
            "functools.partial(Dataset, ...), in Hydra _partial_: true"
        )


class SplitFactory:
    """Makes the dataset of a split, and can be told from that of others by `node/fingerprint.py`.

    Args:
        make: Makes it.
        known_by: What is compared in place of it.
    """

    def __init__(self, make: Callable[[], Any], known_by: object) -> None:
        self._make, self._known_by = make, known_by

    def __call__(self) -> Any:
        """Makes it."""
        return self._make()

    def fingerprint_parts(self) -> object:
        """Names what the dataset depends on."""
        return self._known_by


def _is_factory(member: object) -> bool:
    return callable(member) and not is_dataset(member)


def _members(several: Any) -> Iterable[Any]:
    return several.values() if isinstance(several, Mapping) else several
