"""The packages import each other without a circle, and what must be light stays light."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "lit_loader"

WITH_FRAMEWORKS = {"lightning", "hydra", "omegaconf"}
LIGHT = {
    # What Hydra's plugins and other programs import without using a loader.
    "lit_loader.core.options.loader_config, lit_loader.context, lit_loader.errors": {"torch"},
    "lit_loader.hydra.schema, lit_loader.hydra.searchpath_plugin": {"torch"},
    "lit_loader.lightning.trainer_plugin": {"torch"},
    "lit_loader; dir(lit_loader); lit_loader.LoaderConfig; lit_loader.OptionError": {
        *("torch", "numpy"), *WITH_FRAMEWORKS,
    },
    "lit_loader; lit_loader.DataLoader": WITH_FRAMEWORKS,
    "lit_loader.top.app": {"torch", "numpy", "rich", "psutil", "multiprocessing"},
}  # fmt: skip
"""What is imported, and what does not come with it."""

ABOVE = {"bench", "hydra"}
"""Programs on top of the package, and what asks where it lies: they may import all of it."""


ADD_ONS = {
    "accelerator",
    "compat",
    "data",
    "early",
    "diagnostics",
    "profiling",
    "lightning",
    "remote",
    "storage",
    "streams",
    "threads",
}
"""The second ring, as far as a loader's options lead to it."""


def modules() -> dict[str, str]:
    """Path below the package to source text."""
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text()
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def imports(source: str) -> Iterator[str]:
    """All that a module imports, wherever in it, as dotted names; not what is only for types."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def below(sources: dict[str, str]) -> dict[str, set[str]]:
    """Each package with those that it imports from."""
    found: dict[str, set[str]] = {}
    for path, source in sources.items():
        here = package_of(path.removesuffix(".py").split("/"))
        if here == "__init__":  # its imports are lazy
            continue
        used = found.setdefault(here, set())
        for dotted in imports(source):
            root, *rest = dotted.split(".")
            if root == PACKAGE.name and rest and rest[0] != "__version__":
                used.add(package_of(rest))
        used.discard(here)
    found["loader"] -= ADD_ONS  # which it imports when an option asks for them
    return {name: used for name, used in found.items() if name != "core"}


def package_of(parts: list[str]) -> str:
    """The folder that a module lies in; its own name, beside the packages."""
    return "/".join(parts[:2]) if parts[0] == "core" and len(parts) > 2 else parts[0]


def test_there_is_no_circle() -> None:
    graphlib.TopologicalSorter(below(modules())).prepare()


def test_nothing_imports_a_program() -> None:
    users = {name: used & ABOVE for name, used in below(modules()).items() if name not in ABOVE}
    assert {name: used for name, used in users.items() if used} == {}


def test_a_package_itself_holds_a_docstring_only() -> None:
    """Re-exports would import torch where Hydra looks for plugins, and make circles."""
    for path in PACKAGE.glob("*/**/__init__.py"):
        tree = ast.parse(path.read_text())
        assert len(tree.body) == 1 and ast.get_docstring(tree), path


@pytest.mark.parametrize("imported", LIGHT, ids=range(len(LIGHT)))
def test_what_is_light_stays_light(imported: str) -> None:
    heavy = f"{LIGHT[imported]} & set(sys.modules)"
    code = f"import sys, {imported}; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=200)
