"""The READMEs say what is so: options, names, modules, links, error texts.

``python tests/project/test_readme.py`` writes the table of options in conf/README.md anew. The
commands in the READMEs are the matter of test_readme_commands.py.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import lit_loader
from lit_loader.config.loader_config import LoaderConfig
from tests.project.readmes import (
    GUARANTEES,
    INSIDE,
    OPTIONS,
    PACKAGE,
    PAGES,
    READMES,
    ROOT,
    TOP,
    TROUBLESHOOTING,
    anchors,
    documented,
    fenced,
    links,
    rows,
    section,
    sections,
    text_of,
)
from tests.project.test_layers import below, modules

BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"


# --- the table of options ---


def options_table() -> str:
    """The table as `LoaderConfig` and the loader's docstring have it."""
    meaning = documented(lit_loader.DataLoader)
    fields = dataclasses.fields(LoaderConfig)
    assert list(meaning) == ["dataset", *(field.name for field in fields)], "one has no docstring"
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


# --- links, names ---


def test_links_lead_somewhere() -> None:
    for name, link in ((page, link) for page in PAGES for link in links(PAGES[page])):
        page = PAGES[name]
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name} links to {link}"


def test_public_names_are_mentioned() -> None:
    names = section(GUARANTEES, "Public names")
    assert not [name for name in lit_loader.__all__ if not re.search(rf"\b{name}\b", names)]


def test_extras_are_those_of_the_package() -> None:
    project = text_of(ROOT / "pyproject.toml")
    extras = project.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    (table,) = re.findall(r"^\| extra \|(?:.*\n)+?(?=\n)", text_of(TOP), flags=re.MULTILINE)
    assert {row[0].strip("`") for row in rows(table)} == set(
        re.findall(r"^(\w+) = \[", extras, flags=re.MULTILINE)
    )


# --- the table of packages ---


def test_packages_import_those_above_them() -> None:
    cells = [row[0] for row in rows(section(INSIDE, "Packages"))]
    named = [re.sub(r"\[(\w+)\].*|`(\w+)\.py`", r"\1\2", cell) for cell in cells]
    beside = {"context", "describe", "errors"}
    used = {name: names for name, names in below(modules()).items() if name not in beside}
    assert sorted(named) == sorted(used)
    above = {name: beside.union(named[:place]) for place, name in enumerate(named)}
    assert {name: used[name] - above[name] for name in named if used[name] - above[name]} == {}


def test_a_package_s_page_lists_its_files() -> None:
    for page in PACKAGE.glob("*/*.md"):
        (listed, *_) = fenced(page, "")
        files = {path.name for path in page.parent.glob("*.py")} - {"__init__.py"}
        assert set(re.findall(r"^(\w+\.py)\b", listed, flags=re.MULTILINE)) == files, page


# --- modules that are named anywhere ---

NAMED_MODULE = re.compile(r"(?<![\w./])lit_loader((?:\.[a-zA-Z]\w*)+)")

LOGGERS = {"cache", "sample_errors", "share", "generator_lock", "generator_watch", "node", "tuning"}
"""Names below ``lit_loader`` under which is logged."""


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


NAMED_FILE = re.compile(r"(?<![\w./-])(\w+)/(\w+\.py)\b")


def test_files_exist_that_are_named() -> None:
    """As ``transport/arena.py``; a folder of the tests may have the name of a package, too."""
    missing = [
        f"{path.relative_to(ROOT)} names {folder}/{file}"
        for path in (*READMES.values(), *sources())
        for folder, file in NAMED_FILE.findall(prose(path))
        if (PACKAGE / folder).is_dir()
        and not any((place / folder / file).is_file() for place in (PACKAGE, ROOT / "tests"))
    ]
    assert not missing, "\n".join(missing)


def test_loggers_are_those_of_the_code() -> None:
    code = "\n".join(text_of(path) for path in PACKAGE.rglob("*.py"))
    assert set(re.findall(r'getLogger\("lit_loader\.(\w+)"\)', code)) == LOGGERS


# --- the messages in TROUBLESHOOTING.md ---


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


def entries() -> dict[str, list[list[str]]]:
    """By section the rows of its table."""
    return {title: rows(text) for title, text in sections(TROUBLESHOOTING).items()}


def quoted() -> list[str]:
    ours = [row for title, table in entries().items() if title != "No message" for row in table]
    return [message for row in ours for message in re.findall(r"`([^`]+)`", row[0])]


def test_messages_occur_in_the_source() -> None:
    for message in quoted():
        fixed = [part for whole in message.split("…") if (part := whole.strip(" ,.;:"))]
        assert max(map(len, fixed)) >= 12, f"{message} is too short to be told from others"
        assert any(all(part in module for part in fixed) for module in strings()), message


if __name__ == "__main__":
    OPTIONS.write_text(with_options(text_of(OPTIONS)), encoding="utf-8")
