"""Every reach into what torch, NumPy, Lightning or Python do not document, with its reason.

They are marked in the code (``tests/project/reaches.py``), and `reaches.md` lists the marks. If an
upgrade moves one, tests of the code that is named fail; the last ones here hold what would fail
silently: generators that nobody seeds.
"""

from __future__ import annotations

import random
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import torch

from lit_loader.seeding import find_generators
from tests.project.reaches import VERSIONS, Reach, all_marks, all_reaches

TABLE = Path(__file__).with_name("reaches.md")


def table() -> str:
    """What the marks say, as Markdown."""
    found, rows = all_reaches(), []
    for mark in all_marks():
        what = dict.fromkeys(r.what for r in found if (mark.file, mark.line) in places(r))
        names = ", ".join(f"`{name}`" for name in what)
        rows.append(f"| {mark.file} | {names} | {mark.why} | {VERSIONS[mark.library]} |")
    head = (
        "Where the package reaches into what others do not document; written by "
        "`python -m tests.project.test_reaches`.\n\n"
        "| file | what | why | versions |\n| --- | --- | --- | --- |\n"
    )
    return head + "\n".join(rows) + "\n"


def places(reach: Reach) -> set[tuple[str, int]]:
    return {(reach.file, line) for line in reach.lines}


def test_every_reach_is_marked() -> None:
    marked = {(mark.file, mark.line) for mark in all_marks()}
    bare = [f"{r.file}:{r.line} {r.what}" for r in all_reaches() if not places(r) & marked]
    assert not bare, "say '# reach: LIBRARY: why' there, or above it"


def test_no_mark_is_stale() -> None:
    held = {place for reach in all_reaches() for place in places(reach)}
    assert [mark for mark in all_marks() if (mark.file, mark.line) not in held] == []


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


def test_numpys_global_generator() -> None:
    """seeding/find_generators.py: the object behind numpy.random's functions."""
    assert np.random.rand.__self__ is np.random.mtrand._rand is find_generators._GLOBALS[1]


def test_pythons_global_generator() -> None:
    """seeding/find_generators.py: random.seed is a method of the generator behind the functions."""
    assert isinstance(random.seed.__self__, random.Random)
    assert random.random.__self__ is random.seed.__self__ is find_generators._GLOBALS[0]


if __name__ == "__main__":
    TABLE.write_text(table())
