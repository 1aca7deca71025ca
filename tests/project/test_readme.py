"""README.md says what is so: options, names, files, layers, error texts, code.

``python tests/project/test_readme.py`` writes its table of options anew.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lit_loader
from lit_loader.config.loader_config import LoaderConfig

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PACKAGE = ROOT / "lit_loader"
BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"


def text() -> str:
    return README.read_text(encoding="utf-8")


def section(title: str) -> str:
    """What stands between one heading of the second level and the next."""
    parts = re.split(r"^## (.+)$", text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def fenced(language: str) -> list[str]:
    """The code blocks of a language, also those inside of lists, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", text(), flags=re.MULTILINE | re.DOTALL)
    return [inspect.cleandoc(code) + "\n" for _, code in found]


def prose() -> str:
    """All but the code blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", text(), flags=re.MULTILINE | re.DOTALL)


def rows(table: str) -> list[list[str]]:
    """Cells of a table's rows, but for its heading."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


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
        told = meaning[field.name].replace("``", "`").replace("|", "\\|")
        told = re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or "\\*", told)
        lines.append(f"| `{field.name}` | `{field.default!r}` | {told} |")
    return "\n".join(lines)


def with_options(readme: str) -> str:
    """A README with the table put between its marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{options_table()}\n{END}{after}"


def test_options_are_those_of_the_code() -> None:
    assert text().count(BEGIN) == text().count(END) == 1
    same = text() == with_options(text())
    assert same, (
        "README.md: the options differ from LoaderConfig; run python tests/project/test_readme.py"
    )


# --- names, files, commands ---


def test_public_names_are_mentioned() -> None:
    missing = [name for name in lit_loader.__all__ if not re.search(rf"\b{name}\b", text())]
    assert not missing


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose())
    assert links
    headings = re.findall(r"^#+ (.+)$", prose(), flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}
    for link in links:
        path, _, anchor = link.partition("#")
        assert "://" in link or (ROOT / path).exists(), link
        assert path or anchor in anchors, link


def test_files_exist() -> None:
    named = re.findall(r"(?<![\w/.])((?:\.ci|conf|examples|lit_loader|tests)/[\w./-]*\w)", text())
    assert len(named) > 10
    named.remove("conf/config.yaml")  # an application's own
    places = (ROOT, ROOT / "conf")  # groups of Hydra's are named as it does, lit_loader/loader
    assert not [name for name in named if not any((place / name).exists() for place in places)]


def test_modules_that_are_run_exist() -> None:
    for module in re.findall(r"python -m (lit_loader[\w.]*)", text()):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@pytest.mark.parametrize("name", ["example", "test"])
def test_marked_commands_are_one_line(name: str) -> None:
    (command,) = re.findall(rf"<!-- command: {name} -->\n```sh\n(.*?)```\n", text(), re.DOTALL)
    assert command.startswith("python3 -m venv .venv && ")
    assert command.count("\n") == 1


def test_extras_are_those_of_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = project.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    (table,) = re.findall(r"^\| extra \|(?:.*\n)+?(?=\n)", text(), flags=re.MULTILINE)
    assert {row[0].strip("`") for row in rows(table)} == set(
        re.findall(r"^(\w+) = \[", extras, flags=re.MULTILINE)
    )


@pytest.mark.parametrize("number", range(len(fenced("python"))))
def test_python_compiles(number: int) -> None:
    compile(fenced("python")[number], f"README.md, Python block {number}", "exec")


def test_layers_are_those_of_the_test() -> None:
    from tests.project.test_layers import LAYERS

    (table,) = re.findall(r"^\| layer \|(?:.*\n)+?(?=\n)", text(), flags=re.MULTILINE)
    layers = [part for row in rows(table) for part in row[1].split(", then ")]
    assert [sorted(re.findall(r"`(\w+)`", part)) for part in layers] == [
        sorted(layer) for layer in LAYERS
    ]


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
def sources() -> dict[str, str]:
    """Module to all of its strings, one a line."""
    return {
        path.name: "\n".join(messages(path.read_text(encoding="utf-8")))
        for path in PACKAGE.rglob("*.py")
    }


def quoted() -> list[str]:
    table = section("Troubleshooting").split("\n\n")[2]
    return [row[0].strip("`") for row in rows(table)]


def test_troubleshooting_has_much_to_tell() -> None:
    assert len(quoted()) >= 10
    assert all(len(row) == 3 for row in rows(section("Troubleshooting").split("\n\n")[2]))


@pytest.mark.parametrize("message", quoted())
def test_messages_occur_in_the_source(message: str) -> None:
    fixed = [part for whole in message.split("…") if (part := whole.strip(" ,.;:"))]
    assert max(map(len, fixed)) >= 12, "too short to be told from others"
    assert any(all(part in strings for part in fixed) for strings in sources().values())


def test_a_message_that_is_not_there_is_not_found() -> None:
    assert not any("was eaten by the kernel" in strings for strings in sources().values())


if __name__ == "__main__":
    README.write_text(with_options(text()), encoding="utf-8")
