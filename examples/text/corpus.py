"""Real text that is on every machine with torch, as arrays of bytes, written once.

- ``files``: the source files of Python's standard library.
- ``functions``: each function in them.
- ``docstrings``: the docstrings in them, which are English.
- ``headers``: the C++ headers of torch's core library.

Each kind becomes a directory with two arrays for each split: ``train.npy``, all documents one
after the other (uint8, a zero byte after each), and ``train-starts.npy``, where they begin (int64,
one more than there are documents). A file belongs to one split, with all that is in it.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

Document = tuple[str, bytes]  # the file that it is from, and its text

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
_SHORTEST = 40  # bytes; shorter functions and docstrings say nothing


def write(directory: Path, kind: str) -> Path:
    """Writes one kind of text, unless it has been written; returns the directory it is in."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    target = directory / (kind if kind != "headers" else f"{kind}-torch{torch.__version__}")
    target = target.with_name(f"{target.name}-{version}")
    if target.exists():
        return target
    directory.mkdir(parents=True, exist_ok=True)
    # Renamed when complete: a run that is interrupted leaves nothing that looks whole.
    unfinished = Path(tempfile.mkdtemp(dir=directory, prefix=f".{kind}-"))
    try:
        parts: dict[str, list[bytes]] = {"train": [], "val": [], "test": []}
        for name, text in _DOCUMENTS[kind]():
            parts[_split_of(name)].append(text + b"\0")
        for split, texts in parts.items():
            starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
            np.save(unfinished / f"{split}.npy", np.frombuffer(b"".join(texts), np.uint8))
            np.save(unfinished / f"{split}-starts.npy", starts)
        os.replace(unfinished, target)
    except OSError:
        if not target.exists():  # else another run was quicker
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _split_of(name: str) -> str:
    """One file of twenty is for validation, another one for the test; by name, on all machines."""
    number = hashlib.blake2b(name.encode(), digest_size=2).digest()[0] % 20
    return {0: "val", 1: "test"}.get(number, "train")


def _files() -> Iterator[Document]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not _LEFT_OUT & set(name.parts):
            yield name.as_posix(), path.read_bytes()


def _functions() -> Iterator[Document]:
    for name, source in _files():
        lines = source.splitlines(keepends=True)
        for node in _nodes(source):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                text = b"".join(lines[node.lineno - 1 : node.end_lineno])
                if len(text) >= _SHORTEST:
                    yield name, text


def _docstrings() -> Iterator[Document]:
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for name, source in _files():
        for node in _nodes(source):
            text = ast.get_docstring(node) if isinstance(node, documented) else None
            if text and len(text) >= _SHORTEST:
                yield name, text.encode("utf-8", "replace")


def _headers() -> Iterator[Document]:
    root = Path(torch.__file__).parent / "include" / "c10"
    for path in sorted(root.rglob("*.h")):
        yield path.relative_to(root).as_posix(), path.read_bytes()


def _nodes(source: bytes) -> Iterator[ast.AST]:
    try:
        yield from ast.walk(ast.parse(source))
    except (SyntaxError, ValueError):
        return  # a file that is there to be refused


_DOCUMENTS = {
    "files": _files,
    "functions": _functions,
    "docstrings": _docstrings,
    "headers": _headers,
}
