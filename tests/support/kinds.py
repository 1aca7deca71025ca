"""What kind of test one is, found in what it is written in: ``unit`` or ``process``.

A test is of the kind ``process`` if its text, or that of the fixtures, helpers and constants that
it names, starts workers, programs or a Trainer. If the number of workers is a parameter, that
decides for each cell. What cannot be seen so is in a table, or has the marker. Of the others, those
that neither measure time nor are left out of a default run are ``unit``.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

_STARTS: Final = re.compile(
    r"num_workers['\"]?\s*[=:]\s*(?!0\b)[\w\"'(]"  # a number of workers that is not 0, or not known
    r"|\bThreadWorkers\(|\bsubprocess\.|\bos\.fork\b|\.Process\(|\bPool\(|run_path\(|\bWorkerPool\("
    r"|\bTrainer\(|\bquiet_trainer\("  # which starts none by itself, and takes as long
)
UNSEEN: Final = (
    "hydra/test_hydra.py::test_reproducible",
    "lightning/test_cli.py::test_a_file_describes_the_data",
    "lightning/test_cli.py::test_the_command_line_goes_before_the_file",
)
"""Tests that start processes without a word of it: a configuration has the number, say."""

_NOT_UNIT: Final = ("process", "time", "slow", "clients", "gpu")


def mark_kinds(items: Iterable[pytest.Function]) -> None:
    """Mark each test with its kind."""
    for item in items:
        if item.get_closest_marker("process") is None and _starts_processes(item):
            item.add_marker("process")
        if not any(item.get_closest_marker(name) for name in _NOT_UNIT):
            item.add_marker("unit")


def _starts_processes(item: pytest.Function) -> bool:
    if item.nodeid.partition("[")[0].removeprefix("tests/") in UNSEEN:
        return True
    given = item.callspec.params if hasattr(item, "callspec") else {}
    numbers = {value for name, value in given.items() if "workers" in name and type(value) is int}
    if numbers:
        return numbers != {0}
    used = [(item.module.__name__, item.cls.__name__ if item.cls else item.originalname)]
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        used += [(each.func.__module__, each.func.__name__) for each in definitions]
    return any(_starts(*each) for each in used)


@functools.cache
def _starts(module: str, name: str) -> bool:
    """Whether the text of something in a module, or of what that names, starts a process."""
    return any(_STARTS.search(text) for text in _reached(module, name, set()))


def _reached(module: str, name: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    if (module, name) in seen or not module.startswith("tests.") or module == "tests.conftest":
        return
    seen.add((module, name))
    texts = _texts(module)
    if name not in texts:  # it is another module's
        module = getattr(vars(sys.modules[module]).get(name), "__module__", None) or ""
        yield from _reached(module, name, seen) if module else ()
        return
    yield texts[name]
    for word in set(re.findall(r"\b[A-Za-z_]\w*", texts[name])) & set(vars(sys.modules[module])):
        yield from _reached(module, word, seen)


@functools.cache
def _texts(module: str) -> dict[str, str]:
    """The text of each function, class and constant of a module."""
    source = Path(sys.modules[module].__file__ or "").read_text()
    lines, found = source.splitlines(), {}
    for node in ast.parse(source).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        text = "\n".join(lines[first - 1 : node.end_lineno])
        targets = getattr(node, "targets", [getattr(node, "target", node)])
        for target in targets:
            found[getattr(target, "id", getattr(target, "name", ""))] = text
    return found
