"""The READMEs say what is so: options, names, files, links, error texts.

``python tests/project/test_readme.py`` writes the table of options in conf/README.md anew. The
commands in the READMEs are the matter of test_readme_commands.py.
"""

from __future__ import annotations

import ast
import dataclasses
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
    ROOT,
    TROUBLESHOOTING,
    documented,
    fenced,
    rows,
    sections,
    text_of,
    without_fenced,
)
from tests.project.test_layers import below, modules

BEGIN, END = "<!-- options: begin -->", "<!-- options: end -->"


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


def test_files_exist_that_are_named() -> None:
    """As ``transport/arena.py``; a folder of the tests may have the name of a package, too."""
    for name, page in PAGES.items():
        for file in re.findall(r"(?<![\w./-])\w+/\w+\.py\b", text_of(page)):
            if (PACKAGE / file).parent.is_dir() and not name.endswith("CHANGELOG.md"):
                assert any((place / file).is_file() for place in (PACKAGE, ROOT / "tests")), (
                    f"{name} names {file}"
                )


def messages(source: str) -> Iterator[str]:
    """A module's strings, each on a line; what is put into them is a NUL."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_messages_of_the_troubleshooting_page_occur_in_the_source() -> None:
    strings = ["\n".join(messages(text_of(path))) for path in PACKAGE.rglob("*.py")]
    tables = [
        rows(text) for title, text in sections(TROUBLESHOOTING).items() if title != "No message"
    ]
    for message in (
        found for table in tables for row in table for found in re.findall(r"`([^`]+)`", row[0])
    ):
        fixed = [part for whole in message.split("…") if (part := whole.strip(" ,.;:"))]
        assert max(map(len, fixed)) >= 12, f"{message} is too short to be told from others"
        assert any(all(part in module for part in fixed) for module in strings), message


if __name__ == "__main__":
    OPTIONS.write_text(with_options(text_of(OPTIONS)), encoding="utf-8")
