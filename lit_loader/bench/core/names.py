"""The cases and the loaders by name, and the packages they need; checks the names users give.

Used by `bench/core/settings.py` and everything that names a case or loader. Imports nothing heavy.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lit_loader.errors import OptionError

__all__ = ["CASES", "LOADERS", "OURS", "REFERENCE", "choose", "installed", "require_packages"]

OURS: Final = "lit_loader"
REFERENCE: Final = "torch"
"""Whose time the others' are compared with."""


@dataclass(frozen=True)
class CaseInfo:
    """What is known of a case before it is imported.

    Attributes:
        title: What it shows, for the table's head.
        modules: Packages it imports beyond those of every run.
    """

    title: str
    modules: tuple[str, ...] = ()


CASES: Final[Mapping[str, CaseInfo]] = {
    "transport": CaseInfo("handing over batches whose samples cost next to nothing"),
    "decoding": CaseInfo("real decoding", ("PIL", "pyarrow")),
    "stragglers": CaseInfo("1 % of the samples take 50 times as long, 4 workers, in order"),
    "start": CaseInfo("time from making a loader to its first batch"),
    "edge": CaseInfo("the wait at the edge of an epoch over the median wait"),
    "in_memory": CaseInfo("data in memory, shuffled, against slicing it by hand"),
    "busy": CaseInfo("a consumer that holds the GIL for 5 ms at a time"),
    "memory": CaseInfo("memory of all processes together (PSS) with a list, with an array"),
    "cache": CaseInfo("samples kept from epoch to epoch", ("PIL",)),
    "growth": CaseInfo("cost of a batch against bytes, tensors, workers, dataset length"),
    "workers": CaseInfo('num_workers="auto" beside fixed numbers, from a start at nothing'),
    "exactness": CaseInfo("what checkpoints, resuming and seeding cost"),
}

LOADERS: Final[Mapping[str, tuple[str, str]]] = {
    OURS: ("lit_loader", "lit_loader"),
    REFERENCE: ("torch", "torch"),
    "torchdata": ("torchdata", "torchdata"),
    "spdl": ("spdl", "spdl"),
    "grain": ("grain", "grain"),
}
"""Loader to the package it is imported from, and the distribution that has its version."""

_PACKAGES: Final = {"PIL": "pillow"}
_ALWAYS: Final = ("rich", "matplotlib", "psutil")


def choose(kind: str, wanted: str | Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """Check names against those there are.

    Args:
        kind: What they name, for the message: "case", "loader".
        wanted: A name or several; None: all.
        known: The names there are, in their order.

    Returns:
        The chosen names in the order asked for, each once.

    Raises:
        OptionError: A name is unknown, or none was given.
    """
    names = list(known)
    if wanted is None:
        return names
    asked = [wanted] if isinstance(wanted, str) else [str(name) for name in wanted]
    for name in asked:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise OptionError(f"unknown {kind} {name!r}: {advice}")
    if not asked:
        raise OptionError(f"no {kind} was chosen: name one of {', '.join(names)}, or null for all")
    return list(dict.fromkeys(asked))


def installed(module: str) -> bool:
    """Whether a package can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def require_packages(cases: Iterable[str]) -> None:
    """Make sure that what reports and cases import is installed.

    Raises:
        OptionError: A package is missing; names it, and how to install it.
    """
    modules = [*_ALWAYS, *(module for case in cases for module in CASES[case].modules)]
    missing = [_PACKAGES.get(m, m) for m in dict.fromkeys(modules) if not installed(m)]
    if missing:
        raise OptionError(
            f"the benchmark needs {', '.join(missing)}: pip install 'lit_loader[bench]'"
        )
