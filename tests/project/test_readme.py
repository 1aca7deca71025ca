"""The READMEs say what is so: options, names, files, links, error texts, commands, programs.

``python tests/project/test_readme.py`` writes the tables of options in conf/README.md.
"""

import dataclasses
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

import lit_loader
from lit_loader.core.options.loader_config import LoaderConfig
from tests.project.readmes import (
    GUARANTEES,
    INSIDE,
    OPTIONS,
    PACKAGE,
    PAGES,
    ROOT,
    TROUBLESHOOTING,
    documented,
    fenced,
    rows,
    sections,
    text_of,
    without_fenced,
)
from tests.support.sources import below

BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"

THEMES = {
    "What most programs need": "batch_size shuffle sampler batch_sampler drop_last collate_fn "
    "num_workers persistent_workers prefetch_factor pin_memory seed timeout num_replicas rank "
    "num_shards on_sample_error",
    "Workers": "worker_method read_threads multiprocessing_context worker_init_fn in_order "
    "pin_memory_device remote",
    "Randomness": "generator seeding reseed_fn",
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
    used = {name: names for name, names in below().items() if name not in beside}
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


@pytest.mark.pages
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


@pytest.mark.pages
def test_overrides_of_the_benchmark_compose(hydra: None) -> None:
    of_bench = [command[1:] for command in ALL if command[0] == "lit-loader-bench"]
    assert of_bench
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for arguments in of_bench:
            assert compose("lit_loader/bench/default", overrides(arguments)).rounds, arguments


@pytest.mark.pages
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


def test_python_compiles() -> None:
    for name, page in PAGES.items():
        for code in fenced(page, "python"):
            compile(code, f"{name}, a Python block", "exec")


if __name__ == "__main__":
    OPTIONS.write_text(with_options(text_of(OPTIONS)), encoding="utf-8")
