"""The READMEs say what is so: options, names, files, links, error texts, commands, programs.

``python tests/project/test_readme.py`` writes the tables of options in conf/README.md.
"""

import contextlib
import dataclasses
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import pytest
from hydra import __version__ as HYDRA
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

import lit_loader
from lit_loader.core.options.loader_config import LoaderConfig
from tests.project.readmes import (
    GUARANTEES,
    GUIDE,
    INSIDE,
    OPTIONS,
    PACKAGE,
    PAGES,
    ROOT,
    SKILL,
    TOP,
    TROUBLESHOOTING,
    WORKERS,
    documented,
    fenced,
    rows,
    sections,
    text_of,
    without_fenced,
)
from tests.project.test_layers import below, modules
from tests.support.programs import run_python

BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"


THEMES = {
    "What most programs need": "batch_size shuffle sampler batch_sampler drop_last collate_fn "
    "num_workers persistent_workers prefetch_factor pin_memory seed timeout num_replicas rank "
    "num_shards on_sample_error",
    "Workers": "worker_method read_threads multiprocessing_context worker_init_fn in_order "
    "pin_memory_device remote",
    "Randomness": "generator seeding",
    "Errors and ranks": "max_worker_restarts stall_warning max_sample_errors sample_retries "
    "uneven_ranks",
}
"""The options, by what they are about; each stands in one theme."""


def options_table() -> str:
    """A table for each theme, as `LoaderConfig` and the loader's docstring have the options."""
    meaning = documented(lit_loader.DataLoader)
    fields = {field.name: field for field in dataclasses.fields(LoaderConfig)}
    assert list(meaning) == ["dataset", *fields], "one has no docstring"
    assert sorted(fields) == sorted(" ".join(THEMES.values()).split()), "one has no theme, or two"
    lines = []
    for theme, names in THEMES.items():
        lines += [f"### {theme}", "", "| option | default | meaning |", "| --- | --- | --- |"]
        for name in names.split():
            # Outside of code, a single star or bar would be Markdown's.
            said = meaning[name].replace("``", "`").replace("|", "\\|")
            said = re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or "\\*", said)
            lines.append(f"| `{name}` | `{fields[name].default!r}` | {said} |")
        lines.append("")
    return "\n".join(lines[:-1])


def with_options(readme: str) -> str:
    """A page with the tables put between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{options_table()}\n\n{END}{after}"


def test_options_are_those_of_the_code() -> None:
    text = text_of(OPTIONS)
    same = text == with_options(text)
    assert same, "the options differ from LoaderConfig; run python tests/project/test_readme.py"


def anchors(path: Path) -> set[str]:
    """The names by which a page's headings can be linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_fenced(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for name, page in PAGES.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", without_fenced(page)):
            path, _, anchor = link.partition("#")
            if "://" not in link:
                target = (page.parent / path).resolve() if path else page
                assert target.exists(), f"{name} links to {link}"
                assert not anchor or anchor in anchors(target), f"{name} links to {link}"


def test_public_names_are_mentioned() -> None:
    names = sections(GUARANTEES)["Public names"]
    assert not [name for name in lit_loader.__all__ if not re.search(rf"\b{name}\b", names)]


def test_packages_import_those_above_them() -> None:
    cells = [row[0] for row in rows(sections(INSIDE)["Packages"])]
    named = [cell.strip("`").removesuffix(".py") for cell in cells]
    beside = {"context", "describe", "errors"}
    used = {name: names for name, names in below(modules()).items() if name not in beside}
    assert sorted(named) == sorted(used)
    above = {name: beside.union(named[:place]) for place, name in enumerate(named)}
    assert {name: used[name] - above[name] for name in named if used[name] - above[name]} == {}


def test_files_exist_that_are_named() -> None:
    """As ``core/transport/arena.py``; a folder of the tests may have the name of a package, too."""
    for name, page in PAGES.items():
        for file in re.findall(r"(?<![\w./-])(?:\w+/)+\w+\.py\b", text_of(page)):
            if (PACKAGE / file).parent.is_dir() and not name.endswith("CHANGELOG.md"):
                assert any((place / file).is_file() for place in (PACKAGE, ROOT / "tests")), (
                    f"{name} names {file}"
                )


def test_each_id_of_a_message_has_its_place_on_the_troubleshooting_page() -> None:
    """Which says more than the message; all other messages have none."""
    found = {one for path in PACKAGE.rglob("*.py") for one in re.findall(r"LL\d{3}", text_of(path))}
    listed = re.findall(r"^### (LL\d{3})$", text_of(TROUBLESHOOTING), flags=re.MULTILINE)
    assert sorted(listed) == sorted(found) and len(listed) <= 110


# --- commands and code: what they name is there, and what can be run is run ---

# The two marked commands of the top page are run by .ci/run, the recipes by tests/examples.

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


def test_the_application_composes(tmp_path: Path, hydra: None) -> None:
    (application,) = fenced(OPTIONS, "yaml")
    (tmp_path / "config.yaml").write_text(application)
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        plain = compose("config")
        assert plain.data.train.batch_size == 64 and plain.loader.num_workers in (2, "auto")
        table = rows(sections(OPTIONS)["On the command line"])
        for line in (row[0].strip("`") for row in table):
            if not line.startswith(("--", "eval")):
                assert compose("config", line.split(" ")) != plain, line


def test_the_application_runs(tmp_path: Path) -> None:
    """As it is shown; for Hydra 1.4 changed as the page says: Hydra warns of nothing."""
    (tmp_path / "conf").mkdir()
    (application,) = fenced(OPTIONS, "yaml")
    (tmp_path / "conf" / "config.yaml").write_text(application)
    (program,) = fenced(OPTIONS, "python")
    base = 'version_base="1.3"'
    (admitted,) = re.findall(r"`(execution_whitelist=\[.*?\])`", OPTIONS.read_text())
    assert base in program
    if not HYDRA.startswith("1.3"):
        program = program.replace(base, admitted)
    (tmp_path / "app.py").write_text(program)
    said = run_python(tmp_path, "-W", "default", "app.py", PYTHONPATH=str(ROOT))
    assert "`Trainer.fit` stopped" in said
    assert not re.findall(r".*Warning: .*hydra.*|.*hydra.*Warning: .*", said), said


def test_python_compiles() -> None:
    for name, page in PAGES.items():
        for code in fenced(page, "python"):
            compile(code, f"{name}, a Python block", "exec")


def run(page: Path, number: int, folder: Path) -> str:
    """Run a Python block of a page, as a program in a folder."""
    (folder / "program.py").write_text(fenced(page, "python")[number])
    return run_python(folder, "program.py", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))


@pytest.mark.parametrize(
    ("page", "number"),
    [
        (GUIDE / "quickstart.md", 0),
        (TOP, 0),
        pytest.param(GUIDE / "lightning.md", 2, marks=pytest.mark.slow),
    ],
)
def test_programs_of_the_first_pages_run(page: Path, number: int, tmp_path: Path) -> None:
    run(page, number, tmp_path)


def test_a_killed_worker_changes_nothing(tmp_path: Path) -> None:
    """The page shows what its program prints, and a part of the warning."""
    said = run(WORKERS, -1, tmp_path)
    (shown,) = fenced(WORKERS, "text")
    assert [line for line in said.splitlines() if line in shown] == shown.splitlines()
    assert "was killed by SIGKILL" in said and not (tmp_path / "kill").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_trainer_that_is_killed_resumes(tmp_path: Path) -> None:
    """As lightning.md says: twenty steps are done, and the progress bar starts there."""
    program = fenced(GUIDE / "lightning.md", "python")[1]
    assert "every_n_train_steps=20" in program
    ends = {}
    for name, stops in {"whole": [False], "resumed": [True, False]}.items():
        (tmp_path / name).mkdir()
        for stop in stops:
            dies = "        import os; self.trainer.global_step == 30 and os._exit(0)\n"
            begin = "def training_step(self, batch, batch_idx):\n"
            text = program.replace(begin, begin + dies * stop)
            text += "    print('ended at', trainer.global_step, trainer.callback_metrics)\n"
            text += "    print([p.sum().item() for p in trainer.model.parameters()])\n"
            (tmp_path / name / "program.py").write_text(
                text.replace("    checkpoint =", "    torch.manual_seed(1)\n    checkpoint =")
            )
            ends[name] = run_python(tmp_path / name, "program.py", PYTHONPATH=str(ROOT))
    assert ends["whole"].splitlines()[-2:] == ends["resumed"].splitlines()[-2:]
    assert "Restored all states from the checkpoint" in ends["resumed"]


def test_a_training_loop_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped between two checkpoints, and run again, it ends as if it had been left alone."""
    program = fenced(GUIDE / "resume.md", "python")[0]
    stopped, places = re.subn(r"( +)step \+= 1.*\n", r"\g<0>\1assert step < 77\n", program)
    assert places == 1
    ends = []
    for name, texts in {"whole": [program], "resumed": [stopped, program]}.items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        for text in texts:
            Path("program.py").write_text(text)
            fails = pytest.raises(AssertionError) if text is stopped else contextlib.nullcontext()
            with fails:
                runpy.run_path("program.py", run_name="__main__")
        ends.append(capsys.readouterr().out)
    assert ends[0] == ends[1] and ends[0].startswith("96 ")


def test_what_agents_are_told_to_do_works(tmp_path: Path) -> None:
    """The programs in the skill, as one."""
    (tmp_path / "program.py").write_text("\n".join(fenced(SKILL, "python")))
    said = run_python(tmp_path, "program.py", PYTHONPATH=str(ROOT))
    assert "20 batches (640 samples)" in said and "of the time" in said
    head = re.search(r"^name: lit-loader\ndescription: (.+)$", SKILL.read_text(), re.MULTILINE)
    assert head and 100 < len(head[1]) <= 1024


if __name__ == "__main__":
    OPTIONS.write_text(with_options(text_of(OPTIONS)), encoding="utf-8")
