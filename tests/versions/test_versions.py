"""The core of the tests with other versions of Python, torch, lightning and the rest.

``pytest -m versions -n 0 -s -o timeout=0``; takes minutes and gigabytes for each, and prints a
row of the table in README.md: versions, and tests that passed, were skipped and failed.
"""

import os
from pathlib import Path

import pytest

from tests.versions.environments import ENVIRONMENTS, FOLDERS, ROOT, build, python_of, run


@pytest.mark.versions
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_core_passes(name: str, tmp_path: Path) -> None:
    versions = ENVIRONMENTS[name]
    if python_of(versions.python) is None:
        pytest.skip(f"there is no Python {versions.python} on this machine")
    kept = Path(os.environ.get("LIT_LOADER_ENVIRONMENTS", tmp_path))
    outcome = run(versions, build(versions, kept / name), tmp_path / "report.xml")
    figures = [outcome.passed, outcome.skipped, len(outcome.failed)]
    print(f"\n| {name}", *outcome.versions.values(), *figures, "|", sep=" | ")
    for failed in outcome.failed:
        print(f"{name}: failed: {failed}")
    assert not outcome.failed, outcome.log[-20_000:]
    assert outcome.passed > 1000


def test_the_folders_of_the_core_are_there() -> None:
    assert not [folder for folder in FOLDERS if not (ROOT / "tests" / folder).is_dir()]
