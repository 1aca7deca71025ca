"""The pages of the repository, taken apart for the tests."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lit_loader"
TOP = ROOT / "README.md"
INSIDE = PACKAGE / "README.md"
GUARANTEES = PACKAGE / "GUARANTEES.md"
TROUBLESHOOTING = PACKAGE / "TROUBLESHOOTING.md"
OPTIONS = ROOT / "conf" / "README.md"

README_FILES = sorted(
    path
    for folder in ("conf", "examples", "lit_loader", "tests")
    for path in (ROOT / folder).rglob("*.md")
    if path.name != "CHANGELOG.md"  # which names what is gone
)
READMES = {path.relative_to(ROOT).as_posix(): path for path in (TOP, *README_FILES)}
"""Path below the repository to file."""

PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in (
        *(*READMES.values(), PACKAGE / "CHANGELOG.md"),
        *(*sorted(ROOT.glob(".agents/**/*.md")), *sorted(ROOT.glob(".github/*.md"))),
    )
}
"""These too, which name what is gone, or what is not the package's."""


_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", flags=re.MULTILINE | re.DOTALL)


def text_of(path: Path) -> str:
    """A file as text."""
    return path.read_text(encoding="utf-8")


def fenced(path: Path, language: str) -> list[str]:
    """The code blocks of a language, also those inside of lists, without their indentation."""
    found = _FENCED.findall(text_of(path))
    return [textwrap.dedent(code).strip("\n") + "\n" for _, kind, code in found if kind == language]


def indented(path: Path) -> list[str]:
    """The code blocks that are marked by four spaces."""
    blocks = re.findall(r"(?<=\n\n)(?: {4}.*\n)+", without_fenced(path))
    return [re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in blocks]


def without_fenced(path: Path) -> str:
    """All but the fenced code blocks."""
    return _FENCED.sub("", text_of(path))


def spans(path: Path) -> list[str]:
    """What stands between backticks, outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", without_fenced(path))


def sections(path: Path) -> dict[str, str]:
    """By each heading of the second level what stands up to the next."""
    parts = re.split(r"^## (.+)$", text_of(path), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def section(path: Path, title: str) -> str:
    """What stands between one heading of the second level and the next."""
    return sections(path)[title]


def rows(table: str) -> list[list[str]]:
    """The cells of a table's rows, its heading left out."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def links(path: Path) -> list[str]:
    """Where a page's links lead, as they are written."""
    return re.findall(r"\]\(([^)\s]+)\)", without_fenced(path))


def anchors(path: Path) -> set[str]:
    """The names by which a page's headings can be linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_fenced(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def documented(thing: object) -> dict[str, str]:
    """What a docstring says of each argument or attribute, on one line each."""
    (listed, *_) = re.findall(
        r"^(?:Args|Attributes):\n((?: {4}.*\n?|\n)+)", inspect.getdoc(thing) or "", re.MULTILINE
    ) or [""]
    entries = re.findall(r"^    \*{0,2}(\w+): (.*(?:\n     .*)*)", listed, flags=re.MULTILINE)
    return {name: " ".join(entry.split()) for name, entry in entries}
