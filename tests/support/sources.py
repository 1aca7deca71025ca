"""The source text of the package, and which of its modules import which."""

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "lit_loader"

ADD_ONS = {
    *("accelerator", "compat", "data", "diagnostics", "lightning", "profiling", "remote"),
    *("streams", "threads"),
}
"""The second ring, as far as a loader's options lead to it."""


@functools.cache
def modules() -> dict[str, str]:
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text()
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@functools.cache
def imports(source: str) -> list[str]:
    """All that a module imports, wherever in it, as dotted names; not what is only for types."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@functools.cache
def below() -> dict[str, set[str]]:
    """Each package with those that it imports from."""
    found: dict[str, set[str]] = {}
    for path, source in modules().items():
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
