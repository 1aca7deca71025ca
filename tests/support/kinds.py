"""What kind of test one is, found in what it is written in: ``unit`` or ``process``.

A test is of the kind ``process`` if its text, or that of the fixtures, helpers and constants that
it uses, starts workers, programs or a Trainer. If the number of workers is a parameter, that
decides for each cell. What cannot be seen so is in a table, or has the marker. Of the others, those
that neither measure time nor are left out of a default run are ``unit``, and ``tests/conftest.py``
watches that they start no process.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import tokenize
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

_STARTS: Final = re.compile(
    r"num_workers['\"]?\s*[=:]\s*(?!0\b)[\w\"'(]"  # a number of workers that is not 0, or not known
    r"|\bThreadWorkers\(|\bsubprocess\.|\bos\.fork\b|\.Process\(|\bPool\(|run_path\(|\bWorkerPool\("
    r"|\bTrainer\(|\bquiet_trainer\("  # which starts none by itself, and takes as long
)
_UNSEEN: Final = (
    "bench/test_bench_app.py::test_check_of_ratios",
    "bench/test_bench_app.py::test_every_case_measures",
    "bench/test_bench_app.py::test_grid",
    "bench/test_bench_app.py::test_reports_agree",
    "exactness/test_exactness.py::test_stopped_and_resumed_twice",
    "exactness/test_resume.py::test_every_kind_of_sampler_at_every_position",
    "hydra/test_hydra.py::test_fragile_data",
    "hydra/test_hydra.py::test_preset_loads",
    "hydra/test_hydra.py::test_reproducible",
    "lightning/test_cli.py::test_a_file_describes_the_data",
    "lightning/test_cli.py::test_the_checkpoint_is_safe_to_load",
    "lightning/test_cli.py::test_the_command_line_goes_before_the_file",
    "mixture/test_mixture.py::test_resume_in_mid_epoch",
    "sampling/test_token_budget.py::test_resume_in_mid_epoch",
)
"""Tests that start processes without a word of it: a configuration has the number, say."""

_NOT_UNIT: Final = ("process", "time", "slow", "clients", "gpu")


def mark_kinds(items: Iterable[pytest.Item]) -> None:
    """Mark each test with its kind."""
    for item in items:
        if item.get_closest_marker("process") is None and _starts_processes(item):
            item.add_marker("process")
        if not any(item.get_closest_marker(name) for name in _NOT_UNIT):
            item.add_marker("unit")


def _starts_processes(item: pytest.Item) -> bool:
    if item.nodeid.partition("[")[0].removeprefix("tests/") in _UNSEEN:
        return True
    values = getattr(item, "callspec", None)
    given = dict(values.params) if values else {}
    numbers = {value for name, value in given.items() if "workers" in name and _is_number(value)}
    if numbers:
        return numbers != {0}
    if any(map(_asks_for_workers, given.values())):
        return True
    return any(map(_function_starts, _functions(item)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _asks_for_workers(value: Any, depth: int = 3) -> bool:
    """Whether a value is or holds options with a number of workers, or a program's text."""
    if isinstance(value, str):
        return bool(_STARTS.search(value[:20_000]))
    if depth == 0 or not isinstance(value, (dict, list, tuple)) or len(value) > 100:
        return False
    if isinstance(value, dict):
        if value.get("num_workers") or value.get("workers"):
            return True
        value = list(value.values())
    return any(_asks_for_workers(each, depth - 1) for each in value)


def _functions(item: pytest.Item) -> Iterator[Any]:
    """The test's function, and those of its fixtures."""
    yield getattr(item, "function", None)
    fixtures = getattr(item, "_fixtureinfo", None)
    for definitions in (fixtures.name2fixturedefs if fixtures else {}).values():
        for definition in definitions:
            yield definition.func


@functools.cache
def _function_starts(function: Any) -> bool:
    """Whether the text of a function, or of what it uses, starts a process."""
    seen: set[Any] = set()
    waiting = [function]
    while waiting:
        each = inspect.unwrap(waiting.pop())
        module = getattr(each, "__module__", None) or ""
        if each in seen or not module.startswith("tests.") or module == "tests.conftest":
            continue
        seen.add(each)
        text, used, constants = _read(each)
        if _STARTS.search(text) or any(map(_asks_for_workers, constants)):
            return True
        waiting += used
    return False


@functools.cache
def _read(of: Any) -> tuple[str, list[Any], list[Any]]:
    """The text of a function or class; functions and classes, and constants, that it names."""
    module = sys.modules[of.__module__]
    functions = [of] if isinstance(of, types.FunctionType) else list(vars(of).values())
    text = "".join(map(_text, (f for f in functions if isinstance(f, types.FunctionType))))
    words = set(re.findall(r"\b[A-Za-z_]\w*", text))
    used, constants = [], []
    for name in words & set(vars(module)):
        value = vars(module)[name]
        if isinstance(value, (types.FunctionType, type)):
            used.append(value)
        elif isinstance(value, (dict, list, tuple)):
            constants.append(value)
    return text, used, constants


def _text(function: types.FunctionType) -> str:
    code = function.__code__
    if not code.co_filename.endswith(".py"):  # a dataclass's, say
        return ""
    try:
        return "".join(inspect.getblock(_lines(code.co_filename)[code.co_firstlineno - 1 :]))
    except (SyntaxError, tokenize.TokenError):
        return ""


@functools.cache
def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines(keepends=True)
