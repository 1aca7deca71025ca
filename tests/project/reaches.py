"""Finds where the package reaches into what others do not document, and the marks that say why.

A reach is: a private name (one underscore) that the package defines nowhere, as an attribute, a
text (for `getattr`, say) or imported; `ctypes`, `dis`; frames; what `gc` knows of objects.

A mark is a comment ``# reach: LIBRARY: why``, on the statement's line or above it. Above a function
or class it is for all in there.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "lit_loader"

DOCUMENTED = {"_asdict", "_exit", "_fields", "_make", "_replace", "_thread",
              "_target_", "_convert_", "_dataloader"}  # fmt: skip
FRAMES = {"_getframe", "_current_frames", "currentframe", "f_back", "f_code", "f_globals",
          "f_locals", "gi_frame", "tb_frame"}  # fmt: skip
MODULES = {"ctypes", "dis", "opcode"}
NAME = re.compile(r"_[A-Za-z]\w*")
VERSIONS = {
    "datasets": "any: without it, taken at its word",
    "lightning": "2.5 to 2.6",
    "numpy": "1.25 to 2.x; checked at run time",
    "python": "3.10 to 3.14",
    "spdl": "any: without it, left to its own end",
    "torch": "2.6 to 2.14",
}
MARK = re.compile(r"# reach: (\w+): (.+)")
OURS = {"self", "cls"}


class Reach(NamedTuple):
    """One, with the lines on which its mark may stand."""

    file: str
    line: int
    what: str
    lines: frozenset[int]


class Mark(NamedTuple):
    file: str
    line: int
    library: str
    why: str


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in {"_", *DOCUMENTED}


def sources() -> dict[str, str]:
    return {p.relative_to(PACKAGE).as_posix(): p.read_text() for p in sorted(PACKAGE.rglob("*.py"))}


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
            if isinstance(node.value, ast.Name) and node.value.id in OURS:
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
        if NAME.fullmatch(node.value) and private(node.value) and node.value not in own:
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
    def walk(node: ast.AST, lines: frozenset[int]) -> Iterator[Reach]:
        if isinstance(node, ast.stmt):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            body = getattr(node, "body", None)  # of a compound statement only its head counts
            last = (node.end_lineno or first) if body is None else body[0].lineno - 1
            named = isinstance(node, ast.FunctionDef | ast.ClassDef)
            here = frozenset(range(first - 1, max(last, first) + 1))
            outer = lines if named else lines & _heads
            _heads.update({first - 1, first} if named else ())
            lines = outer | here
        for what in what_of(node, own):
            yield Reach(file, node.lineno, what, lines)  # type: ignore[attr-defined]
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lines)

    _heads: set[int] = set()
    yield from walk(tree, frozenset())


def marks(file: str) -> Iterator[Mark]:
    with tokenize.open(PACKAGE / file) as text:
        for token in tokenize.generate_tokens(text.readline):
            if token.type == tokenize.COMMENT and (found := MARK.match(token.string)):
                yield Mark(file, token.start[0], found[1], found[2])


def all_reaches() -> list[Reach]:
    trees = {file: ast.parse(text) for file, text in sources().items()}
    own = {name for tree in trees.values() for name in defined(tree)}
    return [reach for file, tree in trees.items() for reach in reaches(file, tree, own)]


def all_marks() -> list[Mark]:
    return [mark for file in sources() for mark in marks(file)]
