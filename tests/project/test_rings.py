"""Two rings: what one must understand, and what hangs on it (`lit_loader/README.md`)."""

import graphlib
import json
import re
import subprocess
import sys
from pathlib import Path

from tests.project.test_layers import imports, modules

BESIDE = {
    "__init__", "context", "describe", "errors", "loader", "old_names", "replacement", "sentences",
}  # fmt: skip
"""Files beside the packages; all that is in ``core`` belongs to the first ring, too."""

ASSEMBLED = {"loader", "__init__"}
"""What puts the rings together."""

MOST_LINES = 20_500
MOST_MODULES = 92
MOST_FILES = {
    "remote": (r"remote", 23),
    "reads": (r"reads?_ahead|\breads\b|read_stream", 28),
    "shards": (r"num_shards|uneven_ranks", 8),
    "auto": (r"\bauto\b|AutoWorkers", 6),
    "cache": (r"[Cc]ached?_?[Dd]ataset", 1),
}
"""Add-ons: how the first ring names them, and in how many of its files at most."""

PLAIN_RUN = """
import json, sys, torch
import lit_loader

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index

def made():
    return lit_loader.DataLoader(Numbers(), 4, shuffle=True, seed=1, num_workers=2)

if __name__ == "__main__":
    with made() as loader, made() as other:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        other.load_state_dict(loader.state_dict())
        assert [b[1].tolist() for b in other] == [b[1].tolist() for b in batches]
    print(json.dumps([name for name in sys.modules if name.startswith("lit_loader.")]))
"""


def first_ring() -> dict[str, str]:
    """The modules of the first ring: path without its ending, and text."""
    found = {path.removesuffix(".py"): text for path, text in modules().items()}
    return {name: text for name, text in found.items() if is_first(name)}


def is_first(name: str) -> bool:
    """Whether a module, as ``core/epoch/epoch``, belongs to the first ring."""
    return name.startswith("core/") or name in BESIDE


def used(source: str) -> set[str]:
    """The modules of the package that a module imports, as ``core/epoch/epoch``."""
    known = {path.removesuffix(".py") for path in modules()}
    parts = [dotted.split(".")[1:] for dotted in imports(source) if dotted.startswith("lit_loader")]
    paths = {"/".join(each[:end]) for each in parts for end in (len(each), len(each) - 1)}
    return paths & known


def test_the_first_ring_imports_nothing_of_the_second() -> None:
    outward = {
        name: found
        for name, text in first_ring().items()
        if name not in ASSEMBLED and (found := {m for m in used(text) if not is_first(m)})
    }
    assert outward == {}


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {
        path.removesuffix(".py"): used(text) - ASSEMBLED
        for path, text in modules().items()
        if path.removesuffix(".py") not in ASSEMBLED
    }
    graphlib.TopologicalSorter(graph).prepare()


def test_the_first_ring_does_not_grow() -> None:
    ring = first_ring()
    lines = sum(text.count("\n") for name, text in ring.items() if name not in ASSEMBLED)
    assert lines <= MOST_LINES
    for add_on, (pattern, most) in MOST_FILES.items():
        naming = [n for n, text in ring.items() if n != "loader" and re.search(pattern, text)]
        assert len(naming) <= most, f"{add_on} is named in {naming}"


def test_a_plain_run_loads_the_first_ring_alone(tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text(PLAIN_RUN)
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=100, check=True
    )
    loaded = [
        name.removeprefix("lit_loader.").replace(".", "/") for name in json.loads(done.stdout)
    ]
    packages = {path.removesuffix("/__init__.py") for path in modules()}
    assert [n for n in loaded if not is_first(n) and n not in packages] == []
    assert len(loaded) + 1 <= MOST_MODULES
