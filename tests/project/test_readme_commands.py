"""The commands and the code in the READMEs: parsed, and compared with what there is to be run.

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
    READMES,
    ROOT,
    TOP,
    fenced,
    indented,
    rows,
    section,
    spans,
    text_of,
)
from tests.support.commands import run_python

EXAMPLES = ROOT / "examples"
PROGRAMS = ("bash", "lit-loader-bench", "pip", "pytest", "python", "python3", "torchrun", "srun")
PROJECT = text_of(ROOT / "pyproject.toml")


def is_command(line: str) -> bool:
    """Whether a line or a code span is for a shell."""
    return line.split(" ")[0] in PROGRAMS and " " in line and "…" not in line


def scripts(page: Path) -> list[str]:
    """What a page's blocks give to a shell."""
    blocks = [block for block in indented(page) if is_command(block.splitlines()[0])]
    return [*fenced(page, "sh"), *blocks]


def commands(page: Path) -> Iterator[list[str]]:
    """Each command of a page, also those inside of a line of text, as a shell splits it."""
    for script in scripts(page):
        for line in script.replace("\\\n", " ").splitlines():
            for command in line.split(" && "):
                yield shlex.split(command, comments=True)
    for span in spans(page):
        if is_command(span):
            yield shlex.split(span)
    if page.is_relative_to(EXAMPLES):  # its tables leave out what is the same in all rows
        for span in spans(page):
            if re.match(r"(?!examples/)[\w/]+\.py\b", span):
                yield ["python", *shlex.split(f"examples/{span}")]


ALL = [
    command
    for page in READMES.values()
    for command in commands(page)
    if command and command[0] in PROGRAMS
]


def test_what_a_command_names_is_there() -> None:
    for command in ALL:
        try:
            look_for_what_it_names(*command)
        except (AssertionError, ValueError, IndexError) as error:
            raise AssertionError(" ".join(command)) from error


def look_for_what_it_names(program: str, *given: str) -> None:
    arguments = list(given)
    if program == "srun":  # its own options come first
        start = next(n for n, word in enumerate(arguments) if word in {*PROGRAMS, "ray"})
        program, *arguments = arguments[start:]
    if program == "ray":  # not ours
        return
    if program == "pip":
        extras = re.findall(r"^(\w+) = \[", PROJECT, flags=re.MULTILINE)
        asked = [
            extra
            for argument in arguments
            for extra in re.findall(r"^(?:\.|/path/to/this/directory)\[(\w+)\]", argument)
        ]
        assert set(asked) <= set(extras)
        assert "-c" not in arguments or (ROOT / arguments[arguments.index("-c") + 1]).exists()
    elif program == "pytest":
        paths = [argument for argument in arguments if argument.startswith("tests/")]
        assert not [path for path in paths if not (ROOT / path.partition("::")[0]).exists()]
        if "-m" in arguments:
            markers = re.findall(r"\w+", arguments[arguments.index("-m") + 1])
            missing = [name for name in markers if f'"{name}:' not in PROJECT]
            assert set(missing) <= {"and", "or", "not"}
    elif program in ("python", "python3", "torchrun", "bash"):
        if "-m" in arguments:
            module = Path(*arguments[arguments.index("-m") + 1].split("."))
            own = module.parts[0] == "lit_loader"
            there = (ROOT / module / "__main__.py", (ROOT / module).with_suffix(".py"))
            assert not own or any(path.exists() for path in there)
        else:
            (script, *_) = [word for word in arguments if re.search(r"\.py$|^\.ci/|^-c$", word)]
            assert script in ("app.py", "-c") or (ROOT / script).exists()
    else:
        assert f"{program} = " in PROJECT


# --- what Hydra is told ---


@pytest.fixture
def hydra() -> Iterator[None]:
    GlobalHydra.instance().clear()
    yield
    GlobalHydra.instance().clear()


def overrides(arguments: list[str]) -> list[str]:
    """Those words of a command line that change the configuration."""
    return [word for word in arguments if re.match(r"[+~]*[\w./@]+=", word)]


def test_overrides_of_the_example_compose(hydra: None) -> None:
    of_train = [
        command[command.index("examples/train.py") + 1 :]
        for command in ALL
        if "examples/train.py" in command and "--multirun" not in command
        if "+hparams_search=optuna" not in command  # needs a plugin that no extra brings
    ]
    assert of_train
    with initialize_config_dir(str(EXAMPLES / "conf"), version_base="1.3"):
        for arguments in of_train:
            assert compose("train", overrides(arguments)).data, arguments


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
        config = compose("config")
    assert config.data.train.batch_size == 64 and config.loader.num_workers in (2, "auto")


def on_the_command_line() -> list[str]:
    table = rows(section(OPTIONS, "On the command line"))
    return [row[0].strip("`") for row in table if not row[0].startswith(("`--", "`eval"))]


def test_what_is_said_on_the_command_line_composes(tmp_path: Path, hydra: None) -> None:
    (application,) = fenced(OPTIONS, "yaml")
    (tmp_path / "config.yaml").write_text(application)
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        plain = compose("config")
        for line in on_the_command_line():
            assert compose("config", line.split(" ")) != plain, line


# --- Python ---


def test_python_compiles() -> None:
    for name, page in READMES.items():
        for code in fenced(page, "python"):
            compile(code, f"{name}, a Python block", "exec")


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_top_page_s_programs_run(number: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(fenced(TOP, "python")[number])
    run_python(tmp_path, "program.py", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
