"""Who may import whom: the rooms of the package, and what each may import.

``lit_loader/README.md`` shows the same table, and ``test_readme.py`` holds it to this one.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "lit_loader"

WORDS = ("errors", "describe", "context")
"""Files beside the rooms that every room may import; of these only ``describe`` is imported."""

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "system": (),
    "seeding": (),
    "config": (),
    "statistics": (),
    "accelerator": (),
    "checkpoint": ("system",),
    "memory": ("system",),
    "tuning": ("statistics", "system"),
    "hydra": ("config",),
    "transport": ("memory", "system"),
    "ranks": ("checkpoint", "system"),
    "node": ("config", "seeding", "system"),
    "cache": ("transport", "node", "config", "seeding", "system"),
    "batch": ("transport", "checkpoint", "config", "seeding", "system"),
    "sampling": ("checkpoint", "config", "seeding", "system"),
    "mixture": ("sampling", "checkpoint", "config", "seeding"),
    "worker": ("batch", "transport", "memory", "checkpoint", "seeding", "system"),
    "remote": ("worker", "batch", "transport", "memory", "config", "seeding", "system"),
    "pool": ("worker", "batch", "transport", "memory", "system"),
    "iteration": (
        *("pool", "remote", "batch", "sampling", "transport", "checkpoint", "statistics"),
        *("accelerator", "cache", "ranks", "seeding", "system", "tuning"),
    ),
    "loader": (
        *("iteration", "sampling", "checkpoint", "statistics", "accelerator", "config", "seeding"),
        *("system", "tuning"),
    ),
    "lightning": (
        *("loader", "sampling", "checkpoint", "ranks", "statistics", "tuning", "node", "config"),
        "system",
    ),
    "bench": ("loader", "statistics", "hydra", "config", "seeding", "system"),
    "top": ("transport", "system"),
}
"""Each room, and the public face ``loader.py``, with the rooms below that it may import."""

WITHOUT_TORCH = (
    "lit_loader",
    "lit_loader.config.loader_config",
    "lit_loader.context",
    "lit_loader.errors",
    "lit_loader.hydra.schema",
    "lit_loader.hydra.searchpath_plugin",
    "lit_loader.lightning.trainer_plugin",
    "lit_loader.top.app",
    "lit_loader.transport.messages",
    "lit_loader.transport.status_board",
)
"""What Hydra's plugins and other programs import without using a loader."""


def modules() -> dict[str, str]:
    """Path below the package to source text."""
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text()
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def room(path: str) -> str:
    """The room that a file lies in; its own name if it lies beside the rooms."""
    return path.split("/")[0].removesuffix(".py")


def imports(source: str) -> Iterator[str]:
    """All that a module imports, wherever in it, as dotted names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def breaks(path: str, source: str) -> list[str]:
    """What a module imports and may not."""
    here = room(path)
    allowed = {here, "__version__", *WORDS, *MAY_IMPORT.get(here, ())}
    allowed = {"describe"} if here in WORDS else allowed
    found = []
    for dotted in imports(source):
        root, *rest = dotted.split(".")
        # A program on top of the package, and what asks where it lies, may import all of it.
        whole = not rest and here in ("bench", "hydra")
        if root == PACKAGE.name and not whole and (not rest or rest[0] not in allowed):
            found.append(f"{path} imports {dotted}")
    return found


def floors() -> dict[str, int]:
    """How many floors of rooms each room stands on."""
    found: dict[str, int] = {}
    for name, below in MAY_IMPORT.items():
        found[name] = 1 + max((found[other] for other in below), default=0)
    return found


def test_every_file_lies_in_a_room() -> None:
    rooms = {room(path) for path in modules()}
    assert rooms - {"__init__"} == {*WORDS, *MAY_IMPORT}
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "loader.py", "py.typed", "README.md"} | {
        f"{name}.py" for name in WORDS
    }


def test_the_table_has_no_circle_and_nine_floors_at_most() -> None:
    assert max(floors().values()) <= 9  # a room above the one that imports it: KeyError


def test_imports_are_those_of_the_table() -> None:
    found = [
        line
        for path, text in modules().items()
        if path != "__init__.py"
        for line in breaks(path, text)
    ]
    assert not found, "\n".join(found)


def test_the_table_allows_nothing_that_is_not_needed() -> None:
    used = {
        (room(path), dotted.split(".")[1])
        for path, text in modules().items()
        for dotted in imports(text)
        if dotted.startswith(f"{PACKAGE.name}.")
    }
    allowed = {(name, other) for name, below in MAY_IMPORT.items() for other in below}
    assert allowed - used == set()


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("memory/arena.py", "from lit_loader.worker.main import worker_main"),
        ("memory/arena.py", "import lit_loader.transport.codec"),
        ("memory/arena.py", "from lit_loader.transport import codec"),
        ("memory/arena.py", "def f():\n    from lit_loader.loader import DataLoader"),
        ("memory/arena.py", "if TYPE_CHECKING:\n    from lit_loader.pool import worker_pool"),
        ("loader.py", "import lit_loader"),
        ("loader.py", "from lit_loader import DataLoader"),
        ("loader.py", "from lit_loader.lightning import datamodule"),
        ("errors.py", "from lit_loader.transport.messages import SIZE"),
        ("errors.py", "from lit_loader import context"),
    ],
    ids=range(10),
)
def test_a_break_is_found(path: str, source: str) -> None:
    assert len(breaks(path, source)) == 1


def test_what_is_allowed_is_not_found() -> None:
    source = (
        "import os\nfrom lit_loader.errors import LoaderError\nfrom lit_loader.memory import slots"
    )
    assert breaks("memory/arena.py", source) == []
    assert breaks("bench/app.py", "import lit_loader") == []


@pytest.mark.parametrize("path", [path for path in modules() if path.endswith("/__init__.py")])
def test_a_room_itself_holds_a_docstring_only(path: str) -> None:
    """Re-exports would import torch where Hydra looks for plugins, and make circles."""
    if path == "bench/cases/__init__.py":
        return
    tree = ast.parse(modules()[path])
    assert len(tree.body) == 1 and ast.get_docstring(tree)


def test_the_package_imports_nothing_of_itself_at_once() -> None:
    tree = ast.parse(modules()["__init__.py"])
    at_once = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {dotted for node in at_once for dotted in imports(ast.unparse(node))}
    assert not [name for name in names if name.split(".")[0] == PACKAGE.name]


def test_no_file_is_long_and_no_room_large() -> None:
    lines = {path: len(text.splitlines()) for path, text in modules().items()}
    assert {path: count for path, count in lines.items() if count > 400} == {}
    rooms: dict[str, int] = {}
    for path, count in lines.items():
        parent = path.rpartition("/")[0]
        rooms[parent] = rooms.get(parent, 0) + count
    assert {name: count for name, count in rooms.items() if count > 3000} == {}


def test_light_modules_import_no_torch() -> None:
    code = f"import sys, {', '.join(WITHOUT_TORCH)}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
