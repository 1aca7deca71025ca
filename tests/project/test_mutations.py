"""Behaviours that are broken on purpose, one at a time: the default tests must notice each.

Each has a fault in mutations.txt, which is one replacement of text in a copy of the package. The
tests that are named for it run there, and one must fail; ``pytest -m slow -n 0 -s`` of this file
prints which.
Where a text is not found any more, the code has changed: write a fault that breaks the same
behaviour into the new code.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]


class Mutation(NamedTuple):
    """A behaviour that a user can rely on, and a fault that breaks it: ``new`` in place of ``old``.

    ``file`` is below ``lit_loader``, where ``old`` occurs once. Each of ``tests``, a file below
    ``tests`` or a function in one, is asked whether it notices.
    """

    behaviour: str
    old: str
    new: str
    file: str
    tests: list[str]


def mutations() -> Iterator[Mutation]:
    """Read the list: paragraphs of a behaviour, lines with - and with +, and file and tests."""
    for paragraph in Path(__file__).with_name("mutations.txt").read_text().split("\n\n"):
        if not paragraph.startswith("#"):
            behaviour, *fault, where = paragraph.strip("\n").split("\n")
            old, new = ("\n".join(x[1:] for x in fault if x[0] == sign) for sign in "-+")
            file, *tests = where.split()
            yield Mutation(behaviour, old, new, file, tests)


MUTATIONS: Final = [*mutations()]


def test_the_list_fits_the_package_and_the_tests() -> None:
    wrong = []
    for each in MUTATIONS:
        count = (ROOT / "lit_loader" / each.file).read_text().count(each.old)
        if count != 1:
            wrong.append(f"{each.behaviour}: {each.old!r} is {count} times in {each.file}")
        for name in each.tests:
            file, _, function = name.partition("::")
            path = ROOT / "tests" / file
            if not path.exists() or (function and f"def {function}(" not in path.read_text()):
                wrong.append(f"{each.behaviour}: there is no {name}")
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, as far as tests need it."""
    where = tmp_path_factory.mktemp("mutated")
    for name in ("lit_loader", "conf", "tests", "examples"):
        shutil.copytree(ROOT / name, where / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("*.txt")):
        shutil.copy(path, where)
    return where


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.behaviour.replace(" ", "_"))
def test_it_is_noticed(mutation: Mutation, copy: Path) -> None:
    path = copy / "lit_loader" / mutation.file
    source = path.read_text()
    path.write_text(source.replace(mutation.old, mutation.new))
    try:
        ended, output = run(mutation.tests, copy)
    finally:
        path.write_text(source)
    failed = re.findall(r"^(?:FAILED|ERROR) tests/(\S+)", output, re.MULTILINE)
    if "+ Timeout +" in output:  # it hangs: the last one that was begun
        failed = re.findall(r"^tests/(\S+::.*?)(?: PASSED| \+|$)", output, re.MULTILINE)[-1:]
    print(f"\n{mutation.behaviour}: {failed[0] if failed else output[-400:]}")
    assert ended == 1 and failed, output[-4000:]


def run(tests: list[str], copy: Path) -> tuple[int, str]:
    """Run tests of the copy until one fails; a fault may keep processes from ending."""
    with tempfile.TemporaryFile("w+") as output:  # not a pipe, which such processes would keep open
        program = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-n", "0", "-x", "-v", "-p", "no:cacheprovider"),
                *("--timeout", "60", "-o", "faulthandler_timeout=0"),
                *(f"tests/{each}" for each in tests),
            ],
            cwd=copy, env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            program.wait(400)
        finally:
            with contextlib.suppress(ProcessLookupError):  # whatever is left of it
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        output.seek(0)
        return program.returncode, output.read()
