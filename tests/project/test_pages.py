"""The pages are short and in plain English: words per page, words that are not used, a tagline."""

import ast
import re

import lit_loader
from tests.project.readmes import PAGES, ROOT, TOP, sections, text_of, without_fenced

BUDGETS = {
    "README.md": 450,
    ".agents/skills/lit-loader/SKILL.md": 650,
    ".github/CONTRIBUTING.md": 280,
    ".github/SECURITY.md": 300,
    "conf/README.md": 1800,
    "examples/benchmark/README.md": 1650,
    "examples/benchmark/jobs/README.md": 800,
    "examples/benchmark/real/README.md": 250,
    "examples/benchmark/small/README.md": 350,
    "lit_loader/CHANGELOG.md": 1300,
    "lit_loader/DESIGN.md": 800,
    "lit_loader/GUARANTEES.md": 930,
    "lit_loader/README.md": 1800,
    "lit_loader/TROUBLESHOOTING.md": 2100,
    "tests/README.md": 500,
    "tests/versions/README.md": 220,
    "examples/README.md": 450,
    "examples/guide/batches.md": 600,
    "examples/guide/clusters.md": 480,
    "examples/guide/lightning.md": 670,
    "examples/guide/memory.md": 580,
    "examples/guide/quickstart.md": 450,
    "examples/guide/random.md": 420,
    "examples/guide/resume.md": 680,
    "examples/guide/storage.md": 440,
    "examples/guide/streams.md": 800,
    "examples/guide/time.md": 630,
    "examples/guide/workers.md": 850,
    "examples/migrate/README.md": 850,
    "examples/migrate/from_elsewhere.md": 700,
}
"""Words that a page may have, as ``wc -w`` counts them."""

TOTAL = 24_000
"""Words that all pages may have together."""

STIFF = re.compile(
    r"\b(anew|midst|likewise|besides|for ever|is told|are told|told of|(?:can|to) be had|"
    r"made again|read again|beside|behind the|a look|get on|want of|so many|gone on (?:with|from)|"
    r"alike|hands? over|handed over|processors?|of yours|of your own|is asked|in mid-epoch|"
    r"control groups?|interpreter's lock|page-locked|as (?:it is|they are) then)\b",
    re.IGNORECASE,
)
"""Phrases that read like a translation; the message says what to use."""

INSTEAD = (
    "CPU core (processor), next to (beside), transfer (hand over), rebuilt (made again), "
    "replayed (read again), reported (told), make progress (get on), "
    "out of memory (want of memory), available (to be had), pinned (page-locked), "
    "GIL (interpreter's lock), your (of yours), "
    "mid-epoch (in mid-epoch), also (likewise), again (anew), forever (for ever), "
    "a peek (a look), the same number of (so many), cgroup (control group)"
)


def test_pages_are_short() -> None:
    words = {name: len(text_of(page).split()) for name, page in PAGES.items()}
    long = {name: f"{words[name]} words" for name in BUDGETS if words[name] > BUDGETS[name]}
    assert not long
    assert sum(words.values()) <= TOTAL, sorted(words.items(), key=lambda each: -each[1])[:5]
    assert len(text_of(TOP).splitlines()) <= 90


def test_pages_are_in_plain_english() -> None:
    for name in BUDGETS:
        text = re.sub(r"`[^`]*`", "", without_fenced(PAGES[name]))
        assert not STIFF.findall(text), f"{name}; use: {INSTEAD}"


def test_there_is_one_tagline() -> None:
    tagline = (lit_loader.__doc__ or "").splitlines()[0].rstrip(".")
    for place in ("README.md", "pyproject.toml", ".docs/mkdocs.yml"):
        assert tagline in (ROOT / place).read_text(encoding="utf-8"), place


def test_each_package_of_the_page_has_a_program() -> None:
    """With the version that the page names. fastai keeps its own loader, and is no part of it."""
    folder = ROOT / "examples" / "benchmark" / "real"
    pins = "".join(map(text_of, folder.glob("*.txt"))).replace("-", "_")
    versions = dict(re.findall(r"^(\w+)==(\d+\.\d+)", pins, re.MULTILINE))
    files = {path.stem: text_of(path) for path in folder.glob("programs/*.py")}
    titles = {name: ast.get_docstring(ast.parse(text)) or "" for name, text in files.items()}
    page = sections(PAGES["examples/migrate/README.md"])["Real projects"]
    named = dict(re.findall(r"(?:^|, |also )([\w-]+) (\d+\.\d+)", page, re.MULTILINE))
    made = {title.partition(":")[0]: versions[name] for name, title in titles.items()}
    assert made == {**named, "fastai": made["fastai"]}
