"""What imports what: no circles, two rings (`lit_loader/README.md`), and what is light stays so."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import run_program
from tests.support.sources import PACKAGE, below, imports, modules

WITH_FRAMEWORKS = {"lightning", "hydra", "omegaconf"}
LIGHT = [
    {  # one after another, in one process
        "lit_loader.top.app": {"torch", "numpy", "rich", "psutil", "multiprocessing"},
        "lit_loader; dir(lit_loader); lit_loader.LoaderConfig; lit_loader.OptionError": {
            *("torch", "numpy"), *WITH_FRAMEWORKS,
        },
        # What Hydra's plugins and other programs import without using a loader.
        "lit_loader.core.options.loader_config, lit_loader.context, lit_loader.errors": {"torch"},
        "lit_loader.lightning.trainer_plugin": {"torch"},
        "lit_loader.hydra.schema, lit_loader.hydra.searchpath_plugin": {"torch"},
    },
    {"lit_loader; lit_loader.DataLoader([1]); lit_loader.RayWorkers()": {
        *WITH_FRAMEWORKS, "ray", "cloudpickle", "lit_loader.remote.ray_engine",
    }},
]  # fmt: skip
"""What is imported, and what does not come with it."""

ABOVE = {"bench", "hydra"}
"""Programs on top of the package, and what asks where it lies: they may import all of it."""

BESIDE = {
    "__init__", "context", "describe", "errors", "loader",
}  # fmt: skip
"""Files beside the packages; all that is in ``core`` belongs to the first ring, too."""

ASSEMBLED = {"loader", "__init__"}
"""What puts the rings together."""


MOST_MODULES = 76
MOST_FILES = {
    "remote": (r"remote", 13),
    "shards": (r"num_shards|uneven_ranks", 9),
    "auto": (r"\bauto\b|AutoWorkers", 5),
    "viewer": (r"viewer_page|ViewerPage|\bpage\b", 8),
    "lightning": (r"[Ll]ightning", 4),
    "bad samples": (r"on_sample_error|max_sample_errors|sample_retries", 5),
    "cache": (r"[Cc]ached?_?[Dd]ataset", 1),
}
"""Add-ons: how the first ring names them, and in how many of its files at most."""


def is_first(name: str) -> bool:
    """Whether a module, as ``core/epoch/epoch``, belongs to the first ring."""
    return name.startswith("core/") or name in BESIDE


def used(source: str) -> set[str]:
    """The modules of the package that a module imports, as ``core/epoch/epoch``."""
    parts = [dotted.split(".")[1:] for dotted in imports(source) if dotted.startswith("lit_loader")]
    paths = {"/".join(each[:end]) for each in parts for end in (len(each), len(each) - 1)}
    return paths & SOURCES.keys()


SOURCES = {path.removesuffix(".py"): text for path, text in modules().items()}
RING = {name: text for name, text in SOURCES.items() if is_first(name)}


def test_there_is_no_circle() -> None:
    graphlib.TopologicalSorter(below()).prepare()  # of packages
    files = {n: used(text) - ASSEMBLED for n, text in SOURCES.items() if n not in ASSEMBLED}
    graphlib.TopologicalSorter(files).prepare()


def test_the_first_ring_imports_nothing_of_the_second() -> None:
    ring = RING.keys() - ASSEMBLED
    outward = {name: {m for m in used(RING[name]) if not is_first(m)} for name in ring}
    assert {name: found for name, found in outward.items() if found} == {}


def test_the_first_ring_does_not_grow() -> None:
    for add_on, (pattern, most) in MOST_FILES.items():
        naming = [n for n, text in RING.items() if n != "loader" and re.search(pattern, text)]
        assert len(naming) <= most, f"{add_on} is named in {naming}"


def test_nothing_imports_a_program() -> None:
    users = {name: used & ABOVE for name, used in below().items() if name not in ABOVE}
    assert {name: used for name, used in users.items() if used} == {}


def test_a_package_itself_holds_a_docstring_only() -> None:
    """Re-exports would import torch where Hydra looks for plugins, and make circles."""
    for path in PACKAGE.glob("*/**/__init__.py"):
        tree = ast.parse(path.read_text())
        assert len(tree.body) == 1 and ast.get_docstring(tree), path


@pytest.mark.parametrize("imports", LIGHT, ids=range(len(LIGHT)))
def test_what_is_light_stays_light(imports: dict[str, set[str]]) -> None:
    code = "import sys"
    for imported, heavy in imports.items():
        code += f"\nimport {imported}\nassert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=200)


ALONE = """
import os, signal, sys, warnings

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("lit_loader.") and name.split(".")[1] in GONE:
            raise ImportError(f"{name} is of the second ring")

GONE = {GONE!r}
sys.meta_path.insert(0, Gone())

import torch
import lit_loader, lit_loader.core.transport.viewer_page, lit_loader.loader
from lit_loader.core.epoch.seams import Seams

# What takes seconds, on a busy machine, is told by the second ring; and why a worker died.
lit_loader.core.transport.viewer_page.EVERY = 1 << 62
lit_loader.loader._AddOns.explain = Seams.explain
lit_loader.loader._AddOns.fewer_workers = Seams.fewer_workers

class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return index + torch.rand(3), index

class Mine(torch.utils.data.Sampler):
    def __len__(self):
        return 48

    def __iter__(self):
        return iter(torch.randperm(48).tolist())

def made(workers=0, **options):
    options = {"stall_warning": 0, **options} if workers else options
    return lit_loader.DataLoader(Noisy(), 4, seed=1, num_workers=workers, **options)

def same(ours, theirs):
    return all(torch.equal(a[0], b[0]) for a, b in zip(ours, theirs, strict=True))

if __name__ == "__main__":
    with made(2, shuffle=True) as loader, made(2, shuffle=True) as other:
        batches = iter(loader)
        next(batches)
        other.load_state_dict(loader.state_dict())
        assert same(other, batches)
    print(sum(name.startswith("lit_loader.") for name in sys.modules))
    expected = list(made(shuffle=True))
    with made(2, shuffle=True, persistent_workers=True) as loader:
        assert same(loader, expected)
        batches = iter(loader)
        next(batches)
        [victim, _] = loader._core.keeper.pool.workers.pids
        os.kill(victim, signal.SIGKILL)
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            first = [next(batches) for _ in range(3)]
            loader.resize(1)
            state = loader.state_dict()
            rest = list(batches)
    with made(shuffle=True) as other:
        other.load_state_dict(state)
        assert same(other, rest)
    torch.manual_seed(0)
    found = [batch[1].tolist() for batch in made(2, sampler=Mine())]
    torch.manual_seed(0)
    assert found == [batch[1].tolist() for batch in made(sampler=Mine())]
"""


def test_the_first_ring_works_without_the_second(tmp_path: Path) -> None:
    """A shuffle, a user's sampler, a kill, a resize, a resume; a plain run is of few modules."""
    program = tmp_path / "alone.py"
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    program.write_text(ALONE.replace("{GONE!r}", repr(sorted(folders - {"core", "__pycache__"}))))
    assert int(run_program(program)) < MOST_MODULES
