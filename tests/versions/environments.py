"""Builds an environment of other versions, and runs the core of the tests in it.

::

    Versions ─▶ a Python of that version ─▶ venv + pip ─▶ pytest FOLDERS ─▶ Outcome

Used by ``pytest -m versions``. An environment takes up to six gigabytes, for torch comes with CUDA
for most Pythons; ``LIT_LOADER_ENVIRONMENTS`` names a folder that keeps them for the next time.
"""

import glob
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]

FOLDERS: Final = ("core", "data", "exactness", "lightning", "memory", "profiling")
"""The core: the folders whose tests need nothing but the package's own dependencies."""

TOOLS: Final = (
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "psutil", "rich", "cloudpickle"),
    *("matplotlib", "scikit-learn", "setuptools"),
)
"""What the tests need besides; setuptools, because lightning 2.5 asks for ``pkg_resources``."""


class Versions(NamedTuple):
    """What pip is asked for, the rest being the newest that fits."""

    python: str  # as in "3.12"
    packages: tuple[str, ...] = ()
    start_method: str | None = None  # multiprocessing's default; None: Python's own


ENVIRONMENTS: Final = {
    "lowest": Versions(
        "3.10",
        # Lightning 2.5's progress bar does not work with a later rich.
        # Under OmegaConf 2.4 every program of Hydra 1.3.0 prints a warning.
        (
            *("torch==2.6.0", "lightning==2.5.0", "hydra-core==1.3.0", "numpy==1.25.0"),
            *("omegaconf<2.4", "rich<14.1"),
        ),
    ),
    "3.12": Versions("3.12", ("torch==2.13.0",)),
    "3.13": Versions("3.13", ("torch==2.14.1", "torchvision==0.29.1")),
    "3.14": Versions("3.14", ("torch==2.14.1", "torchvision==0.29.1")),
    "newest": Versions("3.11", ("torch==2.14.1", "torchvision==0.29.1")),
    "forkserver": Versions("3.11", ("torch==2.13.0",), "forkserver"),
}


class Outcome(NamedTuple):
    versions: dict[str, str]  # as they are installed
    passed: int
    skipped: int
    failed: tuple[str, ...]  # names, errors included
    log: str


def python_of(version: str) -> str | None:
    """An interpreter of this version: on the path, or one of pyenv's; None: there is none."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    found = shutil.which(f"python{version}")
    if found is not None and not subprocess.run([found, "-c", ""], capture_output=True).returncode:
        return found  # and not one of pyenv's names that do not work
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    installed = sorted(glob.glob(f"{root}/versions/{version}.*/bin/python"))
    return installed[-1] if installed else None


def build(versions: Versions, folder: Path) -> Path:
    """Make an environment, unless there is one already; returns its interpreter.

    Raises:
        LookupError: There is no such Python.
        subprocess.CalledProcessError: Something could not be installed.
    """
    python = folder / "bin" / "python"
    whole = folder / "whole"
    if whole.exists():
        return python
    base = python_of(versions.python)
    if base is None:
        raise LookupError(f"there is no Python {versions.python} on this machine")
    subprocess.run([base, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "-q", *versions.packages, *TOOLS]
    subprocess.run([*pip, "-e", str(ROOT)], check=True)
    whole.touch()
    return python


def run(versions: Versions, python: Path, report: Path) -> Outcome:
    """Run the core of the tests with an interpreter; its report is written to a file."""
    options = [] if versions.start_method is None else ["--start-method", versions.start_method]
    done = subprocess.run(
        [
            *(str(python), "-m", "pytest", "-q", "--junitxml", str(report)),
            *("-p", "no:cacheprovider"),
            *("-o", "filterwarnings=default"),  # what other versions warn of is theirs
            *options,
            *(str(ROOT / "tests" / folder) for folder in FOLDERS),
        ],
        cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    failed = [case for case in cases if {"failure", "error"} & {each.tag for each in case}]
    skipped = [case for case in cases if "skipped" in {each.tag for each in case}]
    return Outcome(
        _installed(python),
        len(cases) - len(failed) - len(skipped),
        len(skipped),
        tuple(f"{case.get('classname')}::{case.get('name')}" for case in failed)
        or (() if cases and done.returncode == 0 else ("pytest itself",)),
        done.stdout,
    )


def _installed(python: Path) -> dict[str, str]:
    command = [str(python), "-c", _VERSIONS]
    done = subprocess.run(command, check=True, text=True, capture_output=True)
    return dict(line.split() for line in done.stdout.splitlines())


_VERSIONS: Final = """
import platform
from importlib.metadata import version
print("python", platform.python_version())
for name in ("torch", "lightning", "hydra-core", "numpy"):
    print(name, version(name))
"""
