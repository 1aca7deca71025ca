"""The pages of the repository, taken apart for the tests."""

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
GUIDE = ROOT / "examples" / "guide"
WORKERS = GUIDE / "workers.md"
OPTIONS = ROOT / "conf" / "README.md"
SKILL = ROOT / ".agents" / "skills" / "lit-loader" / "SKILL.md"

FOLDERS = ("conf", "examples", "lit_loader", "tests", ".agents", ".github")
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in (TOP, *(page for name in FOLDERS for page in sorted((ROOT / name).rglob("*.md"))))
}
"""Path below the repository to file."""

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", flags=re.MULTILINE | re.DOTALL)


def text_of(path: Path) -> str:
    """A file as text."""
    return path.read_text(encoding="utf-8")


def fenced(path: Path, language: str) -> list[str]:
    """The code blocks of a language, also those inside of lists, without their indentation."""
    found = _FENCED.findall(text_of(path))
    return [textwrap.dedent(code).strip("\n") + "\n" for _, kind, code in found if kind == language]


def without_fenced(path: Path) -> str:
    """All but the fenced code blocks."""
    return _FENCED.sub("", text_of(path))


def sections(path: Path) -> dict[str, str]:
    """By each heading of the second level what stands up to the next."""
    parts = re.split(r"^## (.+)$", text_of(path), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(table: str) -> list[list[str]]:
    """The cells of a table's rows, its heading left out."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def documented(thing: object) -> dict[str, str]:
    """What a docstring says of each argument or attribute, on one line each."""
    (listed, *_) = re.findall(
        r"^(?:Args|Attributes):\n((?: {4}.*\n?|\n)+)", inspect.getdoc(thing) or "", re.MULTILINE
    ) or [""]
    entries = re.findall(r"^    \*{0,2}(\w+): (.*(?:\n     .*)*)", listed, flags=re.MULTILINE)
    return {name: " ".join(entry.split()) for name, entry in entries}
