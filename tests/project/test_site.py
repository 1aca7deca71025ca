"""The documentation as a site: its pages, links and search index.

The site is built here where mkdocs is installed, ``pip install -c constraints.txt -r
.docs/requirements.txt``, or is the one at LIT_LOADER_SITE.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import lit_loader
from lit_loader import LoaderConfig
from tests.project.readmes import PAGES, ROOT

pytestmark = pytest.mark.slow

NAMES = sorted({*lit_loader.__all__} - {"__version__", "default_convert", "get_worker_info"})


class Parsed(HTMLParser):
    """A page's title, headings, names of places, and what it refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places, self.links, self.fetched = set[str](), set[str](), set[str]()
        self.texts: dict[str, str] = defaultdict(str)
        self.open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.places.add(said.get("id", ""))
        self.open = [tag] if tag in ("title", "h1") else self.open
        if tag == "a" and "href" in said:
            self.links.add(said["href"])
        if tag in ("img", "script") and "src" in said:
            self.fetched.add(said["src"])
        if tag == "link" and said.get("rel") in ("stylesheet", "icon"):
            self.fetched.add(said["href"])

    def handle_endtag(self, tag: str) -> None:
        self.open = [each for each in self.open if each != tag]

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.texts[tag] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("LIT_LOADER_SITE"):
        return Path(given)
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", ".docs/mkdocs.yml",
         "-d", target],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return target


@pytest.fixture(scope="module")
def parsed(site: Path) -> dict[Path, Parsed]:
    return {path: Parsed(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_is_there_with_its_title(site: Path, parsed: dict[Path, Parsed]) -> None:
    own = {site / uri.removesuffix(".md") for uri in PAGES}
    own = {path.with_name("index") if path.name == "README" else path for path in own}
    assert {path.with_suffix(".html") for path in own} <= {*parsed}
    for path, page in parsed.items():
        assert page.texts["h1"].strip() and "lit_loader" in page.texts["title"], path


def test_no_link_is_broken(site: Path, parsed: dict[Path, Parsed]) -> None:
    broken = []
    for path, page in parsed.items():
        for link in page.links | page.fetched:
            target, _, place = unquote(link).partition("#")
            if "://" in link or link.startswith("data:"):
                assert link not in page.fetched, f"{path} fetches {link}"
                continue
            file = (path.parent / target).resolve() if target else path
            file = file / "index.html" if file.is_dir() else file
            known = file in parsed and place not in {*parsed[file].places, "", "__skip"}
            if not file.is_file() or known:
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken


def test_the_search_index_has_every_name_and_option(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    entries = {entry["location"]: entry["text"] for entry in index["docs"]}
    places = {place.partition("#")[2] for place in entries}
    assert {f"lit_loader.{name}" for name in NAMES} <= places
    loader = entries["api/DataLoader.html#lit_loader.DataLoader"]
    table = entries["conf/index.html#options"]
    for name in LoaderConfig.__dataclass_fields__:
        assert name in loader and name in table
