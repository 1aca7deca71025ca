"""The READMEs say what is so: options, names, files, rooms, links, error texts.

``python tests/project/test_readme.py`` writes the table of options in conf/README.md anew. The
commands in the READMEs are the matter of test_readme_commands.py.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import lit_loader
from lit_loader.config.loader_config import LoaderConfig
from tests.project.readmes import (
    INSIDE,
    OPTIONS,
    PACKAGE,
    READMES,
    ROOT,
    TOP,
    anchors,
    label,
    links,
    rows,
    section,
    text_of,
    tree,
)
from tests.project.test_layers import MAY_IMPORT

BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"
ROOMS = [name for name in MAY_IMPORT if (PACKAGE / name).is_dir()]
TOP_LINES = 150
ROOM_LINES = 60


# --- the table of options ---


def options_table() -> str:
    """The table as `LoaderConfig` and its docstring have it."""
    attributes = inspect.getdoc(LoaderConfig).split("Attributes:\n")[1].split("\nRaises:")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", attributes, flags=re.MULTILINE)
    meaning = {name: " ".join(entry.split()) for name, entry in entries}
    fields = dataclasses.fields(LoaderConfig)
    assert list(meaning) == [field.name for field in fields], "an option without its docstring"
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    for field in fields:
        # Outside of code, a single star or bar would be Markdown's.
        said = meaning[field.name].replace("``", "`").replace("|", "\\|")
        said = re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or "\\*", said)
        lines.append(f"| `{field.name}` | `{field.default!r}` | {said} |")
    return "\n".join(lines)


def with_options(readme: str) -> str:
    """A README with the table put between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{options_table()}\n{END}{after}"


def test_options_are_those_of_the_code() -> None:
    text = text_of(OPTIONS)
    assert text.count(BEGIN) == text.count(END) == 1
    same = text == with_options(text)
    assert same, (
        "conf/README.md: the options differ from LoaderConfig; "
        "run python tests/project/test_readme.py"
    )


# --- length, links, names ---


def test_the_top_page_is_short() -> None:
    assert len(text_of(TOP).splitlines()) <= TOP_LINES


@pytest.mark.parametrize("name", READMES, ids=label)
def test_links_lead_somewhere(name: str) -> None:
    page = READMES[name]
    for link in links(page):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name} links to {link}"


def test_every_page_is_reached_from_the_top() -> None:
    reached, waiting = set(), [TOP]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
        waiting += [target for target in targets if target in READMES.values()]
    assert reached == set(READMES.values())


def test_public_names_are_mentioned() -> None:
    names = section(INSIDE, "Public names") + section(INSIDE, "Faults")
    assert not [name for name in lit_loader.__all__ if not re.search(rf"\b{name}\b", names)]


def test_extras_are_those_of_the_package() -> None:
    project = text_of(ROOT / "pyproject.toml")
    extras = project.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    (table,) = re.findall(r"^\| extra \|(?:.*\n)+?(?=\n)", text_of(TOP), flags=re.MULTILINE)
    assert {row[0].strip("`") for row in rows(table)} == set(
        re.findall(r"^(\w+) = \[", extras, flags=re.MULTILINE)
    )


# --- rooms ---


def test_the_table_of_rooms_is_that_of_the_layers() -> None:
    table = rows(section(INSIDE, "Rooms"))
    named = [re.sub(r"\[(\w+)\].*|`(\w+)\.py`", r"\1\2", row[0]) for row in table]
    assert named == list(MAY_IMPORT)
    for name, (_, _, below) in zip(named, table, strict=True):
        assert below == (", ".join(MAY_IMPORT[name]) or "–"), name


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_s_page_names_its_files_and_no_other(room: str) -> None:
    folder = PACKAGE / room
    page = folder / "README.md"
    assert len(text_of(page).splitlines()) <= ROOM_LINES
    files = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"
    }
    shown = tree(page)
    assert set(shown) == files
    assert not [name for name, said in shown.items() if not said], "a file without a word on it"
    assert f"`pytest tests/{room}" in text_of(page), "which tests to run"


def test_ten_questions_are_answered() -> None:
    table = rows(section(INSIDE, "Ten questions"))
    assert len(table) == 10
    for question, answer in table:
        named = re.findall(r"`([\w./]+/[\w./]+)`", answer)
        assert named, question
        missing = [path for path in named if not is_there(path, INSIDE)]
        assert not missing, f"{question} {missing}"
        for path, name in re.findall(r"`(\w+/\w+\.py)`: `(\w+)`", answer):
            assert re.search(rf"\b{name}\b", text_of(PACKAGE / path)), f"{question} {path}: {name}"


# --- files and modules that are named anywhere ---

NAMED_FILE = re.compile(r"(?<![\w/.<-])((?:[\w.-]+/)+[\w-]+\.(?:py|ya?ml|md|png|toml|txt))(?!\w)")
NAMED_MODULE = re.compile(r"(?<![\w./])lit_loader((?:\.[a-zA-Z]\w*)+)")
PLACES = ("", "lit_loader", "conf", "conf/lit_loader", "examples", "tests")

ELSEWHERE = {
    "conf/config.yaml",  # an application's own
    "csv/metrics.csv",  # what a run writes
    "hydra_plugins/lit_loader_searchpath.py",  # where files lie once installed
}
LOGGERS = {"cache", "sample_errors", "share", "generator_lock", "generator_watch", "node", "tuning"}
"""Names below ``lit_loader`` under which is logged."""


def is_there(named: str, page: Path) -> bool:
    """Whether a file that is named on a page or in a docstring exists."""
    places = (page.parent, *(ROOT / place for place in PLACES))
    return any((place / named).exists() for place in places)


def sources() -> list[Path]:
    """All Python and YAML files of the repository."""
    folders = [ROOT / name for name in ("conf", "examples", "lit_loader", "tests")]
    return sorted(
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in (".py", ".yaml") and "outputs" not in path.parts
    )


@functools.cache
def prose(path: Path) -> str:
    """What a file says to a reader: a page or YAML file whole, of Python the docs and comments."""
    text = text_of(path)
    if path.suffix != ".py":
        return text
    found = re.findall(r"^ *#.*|  # .*", text, flags=re.MULTILINE)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.append(str(node.value.value))  # docstrings, of attributes too
    return "\n".join(found)


@pytest.mark.parametrize(
    "folder", ["README.md", "conf", "examples", "lit_loader", "tests"], ids=label
)
def test_files_exist_that_are_named(folder: str) -> None:
    pages = [path for path in (*READMES.values(), *sources()) if path.is_relative_to(ROOT / folder)]
    missing = [
        f"{path.relative_to(ROOT)} names {named}"
        for path in pages
        for named in NAMED_FILE.findall(prose(path))
        if named not in ELSEWHERE and not is_there(named, path)
    ]
    assert not missing, "\n".join(missing)


def test_a_file_of_a_room_is_named_with_the_room() -> None:
    """`transport/messages.py`, say: a name alone could be any, and is not found when it moves."""
    known = {"lit_loader_trainer_plugin.py"}  # where it lies once installed
    for folder in (PACKAGE, ROOT / "examples", *(ROOT / "tests").rglob("*/")):
        known |= {path.name for path in folder.glob("*.py")}
    found = [
        f"{path.relative_to(ROOT)} names {named}"
        for path in sources()
        for named in re.findall(r"(?<![\w/.<])(\w+\.py)\b", prose(path))
        if named not in known and not (path.parent / named).exists()
    ]
    assert not found, "\n".join(found)


def is_module_or_in_one(dotted: str) -> bool:
    """Whether ``lit_loader.`` and this is a module, a public name, or something in a module."""
    place, module = PACKAGE, lit_loader.__name__
    names = dotted.split(".")
    while names and ((place / names[0]).is_dir() or (place / f"{names[0]}.py").is_file()):
        place, module = place / names[0], f"{module}.{names.pop(0)}"
    return not names or hasattr(importlib.import_module(module), names[0])


def test_modules_exist_that_are_named() -> None:
    missing = [
        f"{path.relative_to(ROOT)} names lit_loader{dotted}"
        for path in (*READMES.values(), *sources())
        for dotted in NAMED_MODULE.findall(prose(path))
        if dotted[1:] not in LOGGERS and not is_module_or_in_one(dotted[1:])
    ]
    assert not missing, "\n".join(missing)


def test_what_is_gone_is_found() -> None:
    (named,) = NAMED_FILE.findall("the arena (`lit_loader/arena.py`) is")
    assert not is_there(named, TOP)
    (dotted,) = NAMED_MODULE.findall("see `lit_loader.memory.places` for")
    assert not is_module_or_in_one(dotted[1:])
    assert is_module_or_in_one("memory.arena.Arena") and is_module_or_in_one("DataLoader.close")


def test_loggers_are_those_of_the_code() -> None:
    code = "\n".join(text_of(path) for path in PACKAGE.rglob("*.py"))
    assert set(re.findall(r'getLogger\("lit_loader\.(\w+)"\)', code)) == LOGGERS


# --- the texts under Troubleshooting ---


def messages(source: str) -> Iterator[str]:
    """A module's strings, docstrings apart; what is put into them is a NUL."""
    tree = ast.parse(source)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            values = (
                part.value if isinstance(part, ast.Constant) else "\0" for part in node.values
            )
            yield "".join(map(str, values))
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        ):
            yield node.value


@functools.cache
def strings() -> list[str]:
    """Of every module all of its strings, one a line."""
    return ["\n".join(messages(text_of(path))) for path in PACKAGE.rglob("*.py")]


def quoted() -> list[str]:
    table = section(INSIDE, "Troubleshooting").split("\n\n")[2]
    return [row[0].strip("`") for row in rows(table)]


def test_troubleshooting_has_much_to_tell() -> None:
    assert len(quoted()) >= 10
    table = section(INSIDE, "Troubleshooting").split("\n\n")[2]
    assert all(len(row) == 3 for row in rows(table))


@pytest.mark.parametrize("message", quoted(), ids=label)
def test_messages_occur_in_the_source(message: str) -> None:
    fixed = [part for whole in message.split("…") if (part := whole.strip(" ,.;:"))]
    assert max(map(len, fixed)) >= 12, "too short to be told from others"
    assert any(all(part in module for part in fixed) for module in strings())


def test_a_message_that_is_not_there_is_not_found() -> None:
    assert not any("was eaten by the kernel" in module for module in strings())


if __name__ == "__main__":
    OPTIONS.write_text(with_options(text_of(OPTIONS)), encoding="utf-8")
