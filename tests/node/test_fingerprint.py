"""What makes another dataset of a factory: its arguments, its code, and the file it is in."""

import copy
import functools
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader.data import fingerprint as module
from lit_loader.data.fingerprint import environment
from tests.support.programs import run_python


def fingerprint(thing: Any) -> str:
    return module.fingerprint(thing)[0]


MODULE = """
import functools

SIZE = 64

def decode(index):
    return index * SIZE

@functools.lru_cache
def cached():
    return [decode(1)]

class Data:
    def __init__(self, root="here"):
        self.root = root

    @classmethod
    def made(cls):
        return cls()

def one(): return Data("there")
def two(): return Data("where")
"""

FACTORIES = {
    "class": lambda module: module.Data,
    "partial": lambda module: functools.partial(module.Data, root="there"),
    "classmethod": lambda module: module.Data.made,
    "method": lambda module: functools.partial(getattr, module.Data(), "root"),
    "one": lambda module: module.one,
    "two": lambda module: module.two,
    "cached": lambda module: module.cached,
}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def make(text: str) -> Any:
        (tmp_path / "case_module.py").write_text(text)
        sys.modules.pop("case_module", None)
        importlib.invalidate_caches()
        return importlib.import_module("case_module")

    yield make
    sys.modules.pop("case_module", None)


def test_the_file_that_defines_it_counts(made: Any) -> None:
    def of(text: str) -> dict[str, str]:
        module = made(text)
        return {name: fingerprint(make(module)) for name, make in FACTORIES.items()}

    first = of(MODULE)
    assert len(set(first.values())) == len(FACTORIES)
    assert of(MODULE) == first
    for before, after in {"SIZE = 64": "SIZE = 128", "index * SIZE": "index + SIZE"}.items():
        changed = of(MODULE.replace(before, after))
        assert not set(changed.values()) & set(first.values())


PROGRAM = """
import functools, sys, types, numpy, torch
from lit_loader.data.fingerprint import fingerprint
for cases in {cases!r}:
    for source, make in cases:
        names = {{**globals(), "__name__": "notebook"}}
        exec(source, names)
        print(fingerprint(eval(make, names))[0])
"""

CASES = {
    ("def A(n=3): return n", "def A(n=4): return n"): "A",
    ("def A(*, n=3): return n", "def A(*, n=4): return n"): "A",
    ("class A:\n  def f(self): return 1", "class A:\n  def f(self): return 2"): "A",
    ("x = {'b', 'a'}", "x = {'b', 'c'}"): "functools.partial(list, x)",
    ("x = {('b', 1), 'a'}", "x = {('b', 2), 'a'}"): "[x]",
    ("x = {frozenset('abc'), 'a', len}", "x = {frozenset('abd'), 'a', len}"): "x",
    ("def f(): return 1\nx = {f, 2}", "def f(): return 3\nx = {f, 2}"): "x",
    ("x = [torch.ones(3), {'t': numpy.ones(3)}]", "x = [torch.ones(3), torch.ones(3)]"): "x",
    ("x = types.SimpleNamespace(size=64)", "x = types.SimpleNamespace(size=65)"): "x",
    ("def A(): return 5 in {1, 2, 'a'}", "def A(): return 5 in {1, 2, 'b'}"): "A",
    ("x = [str(n) for n in range(5000)]", "x = [str(n + 1) for n in range(5000)]"): "x",
}


def test_it_is_the_same_in_all_processes(tmp_path: Path) -> None:
    """Also of what no file defines, as in a notebook."""
    cases = [[(source, make) for source in sources] for sources, make in CASES.items()]
    program, root = PROGRAM.format(cases=cases), str(Path(__file__).parents[2])
    first, second = (
        run_python(tmp_path, "-c", program, PYTHONPATH=root, PYTHONHASHSEED=seed).split()
        for seed in ("1", "2")
    )
    assert first == second
    assert len(set(first)) == 2 * len(CASES)


class Holder:
    """Of anything."""

    def __init__(self, *held: Any) -> None:
        self.held: Any = held


def test_what_is_in_itself_counts_by_what_it_holds() -> None:
    circles = [Holder(number) for number in (1, 1, 2)]
    for circle in circles:
        circle.held = circle, *circle.held
    first, same, other = map(fingerprint, circles)
    assert first == same != other


VALUES: list[tuple[Any, Any]] = [
    (torch.ones(3), torch.ones(4)),
    (torch.ones(3), torch.zeros(3)),
    (torch.ones(3), torch.nn.Parameter(torch.ones(3))),
    (torch.arange(6).view(2, 3), torch.arange(6).view(3, 2)),
    (torch.tensor([1j]), torch.tensor([1j]).conj()),
    (torch.tensor(3.0), torch.tensor(3)),
    (torch.eye(3).to_sparse(), (2 * torch.eye(3)).to_sparse()),
    (np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2)),
    (np.arange(6)[::2], np.arange(3)),
    (np.zeros(3, "i8"), np.zeros(3, "f8")),
    (np.array(["a", None]), np.array(["b", None])),
    (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 1])),
    (np.zeros(2, [("a", "i4")]), np.zeros(2, [("b", "i4")])),
    (np.array(["2026-01-01"], "M8[D]"), np.array(["2026-01-02"], "M8[D]")),
    (np.float64(0), np.int64(0)),
]


@pytest.mark.parametrize(("value", "other"), VALUES, ids=range(len(VALUES)))
def test_tensors_and_arrays_count_by_their_values(value: Any, other: Any) -> None:
    for wrap in (Holder, lambda value: value):
        same = fingerprint(wrap(copy.copy(value)))
        assert fingerprint(wrap(value)) == same != fingerprint(wrap(other))


@pytest.mark.parametrize("what", ["__version__", "torch.__version__", "np.__version__"])
def test_what_another_version_has_pickled_is_not_read(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = environment()
    monkeypatch.setattr(f"lit_loader.data.fingerprint.{what}", "0.0")
    assert environment() != before
