"""Every reach into what torch, NumPy, Lightning or Python do not document has a mark with a reason.

A reach is: a private name (one underscore) that the package defines nowhere, as an attribute, a
text (for `getattr`, say) or imported; `ctypes`, `dis`; frames; what `gc` knows of objects. A mark
is a comment ``# reach: LIBRARY: why`` on the statement's line or above it; above a function or
class it is for all in there. `reaches.md` lists the marks.

If an upgrade moves one, tests of the code that is named fail. The last ones here hold what would
fail silently: generators that nobody seeds.
"""

from __future__ import annotations

import ast
import functools
import random
import re
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from lit_loader.seeding import find_generators

PACKAGE = Path(__file__).parents[2] / "lit_loader"
TABLE = Path(__file__).with_name("reaches.md")

DOCUMENTED = {"_asdict", "_exit", "_fields", "_make", "_replace", "_thread",
              "_target_", "_convert_", "_dataloader"}  # fmt: skip
FRAMES = {"_getframe", "_current_frames", "currentframe", "f_back", "f_code", "f_globals",
          "f_locals", "gi_frame", "tb_frame"}  # fmt: skip
MODULES = {"ctypes", "dis", "opcode"}
VERSIONS = {
    "datasets": "any: without it, taken at its word",
    "lightning": "2.5 to 2.6",
    "numpy": "1.25 to 2.x; checked at run time",
    "python": "3.10 to 3.14",
    "spdl": "any: without it, left to its own end",
    "torch": "2.6 to 2.14",
}


class Reach(NamedTuple):
    file: str
    line: int
    what: str
    places: set[int]  # lines on which its mark may stand


class Mark(NamedTuple):
    file: str
    line: int
    library: str
    why: str


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in {"_", *DOCUMENTED}


def defined(tree: ast.AST) -> Iterator[str]:
    """All names that a module gives to something of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Assign) and "__slots__" in map(ast.unparse, node.targets):
            yield from (n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant))


def what_of(node: ast.AST, own: set[str]) -> Iterator[str]:
    """What a node reaches for, if it does."""
    if isinstance(node, ast.Attribute):
        inherited = ast.unparse(node.value) == "super()" and node.attr == "_bootstrap"
        foreign = inherited or (private(node.attr) and node.attr not in own)
        objects = node.attr.startswith("get_") and ast.unparse(node.value) == "gc"
        if foreign or objects or node.attr in FRAMES:
            yield f"{ast.unparse(node.value)}.{node.attr}"[-60:]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value.isidentifier() and private(node.value) and node.value not in own:
            yield node.value
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name in MODULES or any(map(private, alias.name.split("."))):
                yield alias.name
    elif isinstance(node, ast.ImportFrom) and not str(node.module).startswith("lit_loader"):
        for name in (f"{node.module}.{alias.name}" for alias in node.names):
            if node.module in MODULES or any(map(private, name.split("."))):
                yield name


def reaches(file: str, tree: ast.AST, own: set[str]) -> Iterator[Reach]:
    def walk(node: ast.AST, heads: set[int], here: set[int]) -> Iterator[Reach]:
        if isinstance(node, ast.stmt):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            body = getattr(node, "body", None)  # of a compound statement only its head counts
            last = (node.end_lineno or first) if body is None else body[0].lineno - 1
            here = {*range(first - 1, max(last, first) + 1)}
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                heads = heads | {first - 1, first}
        for what in what_of(node, own):
            yield Reach(file, node.lineno, what, heads | here)  # type: ignore[attr-defined]
        for child in ast.iter_child_nodes(node):
            yield from walk(child, heads, here)

    return walk(tree, set(), set())


@functools.cache
def found() -> tuple[list[Reach], list[Mark]]:
    """All reaches of the package, and all marks."""
    paths = sorted(PACKAGE.rglob("*.py"))
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in paths}
    trees = {file: ast.parse(text) for file, text in sources.items()}
    own = {name for tree in trees.values() for name in defined(tree)}
    marks = [
        Mark(file, number, *mark.groups())
        for file, text in sources.items()
        for number, line in enumerate(text.splitlines(), 1)
        if (mark := re.search(r"# reach: (\w+): (.+)", line))
    ]
    return [r for file, tree in trees.items() for r in reaches(file, tree, own)], marks


def table() -> str:
    """What the marks say, as Markdown."""
    lines = [
        "Where the package reaches into what others do not document; written by "
        "`python -m tests.project.test_reaches`.",
        "",
        "| file | what | why | versions |",
        "| --- | --- | --- | --- |",
    ]
    all_reaches, marks = found()
    for mark in marks:
        held = (r.what for r in all_reaches if r.file == mark.file and mark.line in r.places)
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(held))
        lines.append(f"| {mark.file} | {names} | {mark.why} | {VERSIONS[mark.library]} |")
    return "\n".join(lines) + "\n"


def test_every_reach_is_marked_and_every_mark_is_of_one() -> None:
    all_reaches, marks = found()
    marked = {(mark.file, mark.line) for mark in marks}
    held = {(reach.file, line) for reach in all_reaches for line in reach.places}
    bare = [r for r in all_reaches if marked.isdisjoint((r.file, line) for line in r.places)]
    assert not bare, "say '# reach: LIBRARY: why' there, or above it"
    assert marked <= held, "marks of nothing"


def test_the_table() -> None:
    assert TABLE.read_text() == table(), "python -m tests.project.test_reaches writes it"


def uses_torch() -> object:
    return torch.utils.data


def test_instructions_that_load_a_global() -> None:
    """seeding/find_generators.py: the names that `dis` has for them."""
    assert find_generators._loads(uses_torch.__code__, "torch")
    assert not find_generators._loads(uses_torch.__code__, "default_collate")


def test_what_the_fork_server_imports() -> None:
    """workers/process_start.py: ForkServer._preload_modules, and what it is if none has set it."""
    server = forkserver.ForkServer()
    assert server._preload_modules == ["__main__"]
    server.set_forkserver_preload(["a"])
    assert server._preload_modules == ["a"]
    assert isinstance(forkserver._forkserver, forkserver.ForkServer)
    assert server._forkserver_pid is None  # until it runs


def test_the_global_generators_of_numpy_and_python() -> None:
    """seeding/find_generators.py: the objects behind the functions of random and numpy.random."""
    assert np.random.rand.__self__ is np.random.mtrand._rand is find_generators._GLOBALS[1]
    assert isinstance(random.seed.__self__, random.Random)
    assert random.random.__self__ is random.seed.__self__ is find_generators._GLOBALS[0]


if __name__ == "__main__":
    TABLE.write_text(table())
