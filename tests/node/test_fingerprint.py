"""What makes another dataset of a factory: its arguments, its code, and what that names."""

from __future__ import annotations

import functools
import pickle
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

from lit_loader.node.fingerprint import fingerprint
from tests.support.commands import run_python

MODULE = """
import functools
import json
import helpers

SIZE = 64
TABLE = {"sizes": [1, 2], "kinds": {"b", "a"}}
counter = object()

def decode(index):
    return helpers.scale(index) * SIZE

@functools.lru_cache
def cached(index):
    return index + 1

class Base:
    SHAPE = (3, 4)

    def read(self):
        return decode(0)

class Data(Base):
    def __init__(self, root="here"):
        self.found = [cached(n) for n in range(3)], TABLE, counter, json.dumps(root)

    def __len__(self):
        return 3

    def again(self):  # a circle
        return Data(), decode

    @property
    def shape(self):
        return self.SHAPE

    @classmethod
    def made(cls):
        return cls()
"""
HELPERS = """
FACTOR = 2

def scale(index):
    return index * FACTOR

def unused():
    return 1
"""


def modules(monkeypatch: pytest.MonkeyPatch, text: str = MODULE, helpers: str = HELPERS) -> Any:
    made = {}
    for name, source in (("helpers", helpers), ("dataset_module", text)):
        made[name] = module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(textwrap.dedent(source), vars(module))
    return made["dataset_module"]


FACTORIES = {
    "class": lambda module: module.Data,
    "partial": lambda module: functools.partial(module.Data, root="there"),
    "lambda": lambda module: eval("lambda: Data('there')", vars(module)),
    "classmethod": lambda module: module.Data.made,
}


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SIZE = 64", "SIZE = 128"),
        ("* SIZE", "* SIZE + 1"),
        ("FACTOR = 2", "FACTOR = 3"),
        ("index * FACTOR", "index + FACTOR"),
        ("(3, 4)", "(3, 5)"),
        ("index + 1", "index + 2"),
        ("[1, 2]", "[1, 3]"),
        ('{"b", "a"}', '{"b", "c"}'),
        ('root="here"', 'root="elsewhere"'),
        ("return self.SHAPE", "return self.SHAPE[0]"),
    ],
)
def test_what_code_names_counts(
    factory: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = FACTORIES[factory]
    first = fingerprint(make(modules(monkeypatch)))
    assert before in MODULE + HELPERS
    changed = modules(monkeypatch, MODULE.replace(before, after), HELPERS.replace(before, after))
    assert fingerprint(make(changed)) != first


@pytest.mark.parametrize("factory", FACTORIES)
def test_what_it_does_not_name_does_not_count(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = FACTORIES[factory]
    first = fingerprint(make(modules(monkeypatch)))
    other = modules(
        monkeypatch,
        "# a comment\n" + MODULE + "\nOTHER = 1\n",
        HELPERS.replace("return 1", "return 2"),
    )
    other.counter = object()  # of objects the class counts
    pickle.dumps(other.Base())  # which is noted in the class
    assert fingerprint(make(other)) == first


PROGRAM = """
import functools, helpers_of_it as module
from lit_loader.node.fingerprint import fingerprint
print(fingerprint(functools.partial(module.Data, {"x", "y", "z"})))
"""


def test_it_is_the_same_in_all_processes(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "helpers_of_it.py").write_text(MODULE)
    root = str(Path(__file__).parents[2])
    found = {
        run_python(tmp_path, "-c", PROGRAM, PYTHONPATH=f"{root}:{tmp_path}", PYTHONHASHSEED=seed)
        for seed in ("1", "2")
    }
    assert len(found) == 1
