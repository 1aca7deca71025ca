"""The commands and the code in the READMEs: what they name is there, and what can be run is run.

The two marked commands of the top page are run by .ci/run, the recipes by tests/examples.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from tests.project.readmes import (
    OPTIONS,
    PAGES,
    ROOT,
    SKILL,
    TOP,
    fenced,
    rows,
    sections,
    without_fenced,
)
from tests.support.programs import run_python

PROGRAMS = ("bash", "lit-loader-bench", "pytest", "python", "python3", "torchrun")


def commands(page: Path) -> Iterator[list[str]]:
    """Each command of a page, also those inside of a line of text, as a shell splits it."""
    spans = re.findall(r"`([^`\n]+)`", without_fenced(page))
    if page.is_relative_to(ROOT / "examples"):  # its tables leave out what is the same in all rows
        spans += [
            f"python examples/{s}" for s in spans if re.match(r"(?!examples/)[\w/]+\.py\b", s)
        ]
    lines = "\n".join(fenced(page, "sh")).replace("\\\n", " ").splitlines()
    for text in (*(part for line in lines for part in line.split(" && ")), *spans):
        if text.split(" ")[0] in PROGRAMS and " " in text and "…" not in text:
            yield shlex.split(text, comments=True)


ALL = [command for page in PAGES.values() for command in commands(page)]


def test_files_and_markers_that_a_command_names_are_there() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    for command in ALL:
        for word in command[1:]:
            if re.match(r"(tests|examples|\.ci)/", word):
                assert (ROOT / word.partition("::")[0]).exists(), command
        if command[0] == "pytest" and "-m" in command:
            words = re.findall(r"\w+", command[command.index("-m") + 1])
            assert all(f'"{w}:' in project for w in words if w not in ("and", "or", "not")), command


@pytest.fixture
def hydra() -> Iterator[None]:
    GlobalHydra.instance().clear()
    yield
    GlobalHydra.instance().clear()


def overrides(arguments: list[str]) -> list[str]:
    """Those words of a command line that change the configuration."""
    return [word for word in arguments if re.match(r"[+~]*[\w./@]+=", word)]


def test_overrides_of_the_example_compose(hydra: None) -> None:
    of_train = {
        tuple(overrides(command[command.index("examples/train.py") + 1 :]))
        for command in ALL
        if "examples/train.py" in command and "--multirun" not in command
        if "+hparams_search=optuna" not in command  # needs a plugin that no extra brings
    }
    assert of_train
    with initialize_config_dir(str(ROOT / "examples" / "conf"), version_base="1.3"):
        for arguments in of_train:
            assert compose("train", [*arguments]).data, arguments


def test_overrides_of_the_benchmark_compose(hydra: None) -> None:
    of_bench = [command[1:] for command in ALL if command[0] == "lit-loader-bench"]
    assert of_bench
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for arguments in of_bench:
            assert compose("lit_loader/bench/default", overrides(arguments)).rounds, arguments


@pytest.mark.parametrize("page", [TOP, OPTIONS], ids=["README.md", "conf/README.md"])
def test_applications_compose(page: Path, tmp_path: Path, hydra: None) -> None:
    (application,) = fenced(page, "yaml")
    (tmp_path / "config.yaml").write_text(application)
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        plain = compose("config")
        assert plain.data.train.batch_size == 64 and plain.loader.num_workers in (2, "auto")
        table = rows(sections(OPTIONS)["On the command line"]) if page == OPTIONS else []
        for line in (row[0].strip("`") for row in table):
            if not line.startswith(("--", "eval")):
                assert compose("config", line.split(" ")) != plain, line


def test_python_compiles() -> None:
    for name, page in PAGES.items():
        for code in fenced(page, "python"):
            compile(code, f"{name}, a Python block", "exec")


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_top_page_s_programs_run(number: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(fenced(TOP, "python")[number])
    run_python(tmp_path, "program.py", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))


def test_what_agents_are_told_to_do_works(tmp_path: Path) -> None:
    """The programs in the skill, as one."""
    (tmp_path / "program.py").write_text("\n".join(fenced(SKILL, "python")))
    said = run_python(tmp_path, "program.py", PYTHONPATH=str(ROOT))
    assert "20 batches (640 samples)" in said and "of the time" in said
    head = re.search(r"^name: lit-loader\ndescription: (.+)$", SKILL.read_text(), re.MULTILINE)
    assert head and 100 < len(head[1]) <= 1024
