"""Every reach into what torch, NumPy, Lightning or Python do not document has a mark with a reason.

A reach is: a private name (one underscore) that the package gives to nothing of its own; `ctypes`,
`dis`; frames; what `gc` knows of objects. A mark is a comment ``# reach: LIBRARY: why`` in the same
function or statement, or above it; above a class it is for all in there.

If an upgrade moves one, tests of the code that is named fail. The last ones here hold what would
fail silently: generators that nobody seeds.
"""

import ast
import random
import re
from collections.abc import Iterable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import numpy as np

from lit_loader.core.seeding import held_generators

PACKAGE = Path(__file__).parents[2] / "lit_loader"
SOURCES = {path.relative_to(PACKAGE).as_posix(): path.read_text()
           for path in sorted(PACKAGE.rglob("*.py"))}  # fmt: skip

DOCUMENTED = {"_asdict", "_exit", "_fields", "_make", "_replace", "_thread",
              "_target_", "_convert_", "_names_", "_dataloader", "_inherit"}  # fmt: skip
OTHERS = {"_getframe", "_current_frames", "currentframe", "f_back", "f_code", "f_globals",
          "f_locals", "gi_frame", "tb_frame", "get_objects", "get_referents", "get_referrers",
          "import ctypes", "import dis", "import opcode"}  # fmt: skip
LIBRARIES = {"botocore", "datasets", "lightning", "numpy", "python", "spdl", "torch", "webdataset"}


def given(tree: ast.AST) -> Iterator[str]:
    """All names that a module gives to something of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.alias) or isinstance(getattr(node, "ctx", None), ast.Load):
            continue
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
            yield node.attr
        yield str(getattr(node, "name", getattr(node, "id", getattr(node, "arg", ""))))


def named(tree: ast.AST) -> Iterator[str]:
    """All names that a statement mentions, as attributes, imported, or as texts (for `getattr`)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and re.match(r"_\w+$", str(node.value)):
            yield str(node.value)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            yield from ".".join(names).split(".")
            yield from (f"import {name}" for name in names)


def statements(body: Iterable[ast.AST], marks: dict[int, str]) -> Iterator[tuple[ast.AST, range]]:
    """Functions and what stands outside of any, each with the lines on which its mark may stand."""
    for node in body:
        decorators = [each.lineno for each in getattr(node, "decorator_list", ())]
        first = min([node.lineno, *decorators])  # type: ignore[attr-defined]
        if isinstance(node, ast.ClassDef) and first - 1 not in marks:
            yield from statements([*node.bases, *node.body], marks)
        else:
            yield node, range(first - 1, node.end_lineno + 1)  # type: ignore[attr-defined]


def marks_of(source: str) -> dict[int, str]:
    """The libraries that a file's marks name, by their lines."""
    lines = enumerate(source.splitlines(), 1)
    found = ((number, re.search(r"# reach: (\w+): .+", line)) for number, line in lines)
    return {number: mark[1] for number, mark in found if mark}


def test_every_reach_is_marked_and_every_mark_is_of_one() -> None:
    trees = {file: ast.parse(source) for file, source in SOURCES.items()}
    own = DOCUMENTED.union(*map(given, trees.values())) - {"_bootstrap"}  # which is extended
    for file, tree in trees.items():
        left = marks_of(SOURCES[file])
        for statement, lines in statements(tree.body, {**left}):
            names = {*named(statement)}
            reaches = {n for n in names if re.match("_[^_]", n)} - own | names & OTHERS
            marked = [left.pop(line) for line in lines if line in left]
            assert LIBRARIES.issuperset(marked)
            assert bool(reaches) == bool(marked), f"{file}:{lines[1]}: {reaches or 'none'}"
        assert not left, f"{file}: marks of nothing"


def test_what_the_fork_server_imports() -> None:
    """ForkServer._preload_modules, and what it is if none has set it."""
    server = forkserver.ForkServer()
    assert server._preload_modules == ["__main__"]
    server.set_forkserver_preload(["a"])
    assert server._preload_modules == ["a"]
    assert isinstance(forkserver._forkserver, forkserver.ForkServer)
    assert server._forkserver_pid is None  # until it runs


def test_the_global_generators_of_numpy_and_python() -> None:
    """core/seeding/held_generators.py: what is behind the functions of random and numpy.random."""
    assert np.random.rand.__self__ is np.random.mtrand._rand is held_generators.GLOBAL_GENERATORS[1]
    assert isinstance(random.seed.__self__, random.Random)
    assert random.random.__self__ is random.seed.__self__ is held_generators.GLOBAL_GENERATORS[0]
