"""The documentation as a site: its pages and its search index. Broken links are mkdocs's errors.

The site is built here where mkdocs is installed, ``pip install -c constraints.txt -r
.docs/requirements.txt``, or is the one at LIT_LOADER_SITE.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lit_loader
from lit_loader import LoaderConfig
from tests.project.readmes import PAGES, ROOT

pytestmark = pytest.mark.slow

NAMES = sorted({*lit_loader.__all__} - {"__version__", "default_convert", "get_worker_info"})
FETCHED = re.compile(
    r"""<(?:img|script)\b[^>]*\bsrc="?https?:|<link\b[^>]*\b(?:stylesheet|icon)\b[^>]*"https?:"""
)


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


def test_every_page_is_there_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    own = {site / uri.removesuffix(".md") for uri in PAGES}
    own = {path.with_name("index") if path.name == "README" else path for path in own}
    texts = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    for uri, page in PAGES.items():
        if "<!-- tabs -->" in page.read_text(encoding="utf-8"):
            assert 'class="tabbed-set' in texts[site / uri.replace(".md", ".html")], uri
    assert {path.with_suffix(".html") for path in own} <= {*texts}
    for path, text in texts.items():
        assert re.search(r"<title>[^<]*lit_loader", text), path
        assert not FETCHED.search(text), path


def test_the_search_index_has_every_name_and_option(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    entries = {entry["location"]: entry["text"] for entry in index["docs"]}
    places = {place.partition("#")[2] for place in entries}
    assert {f"lit_loader.{name}" for name in NAMES} <= places
    loader = entries["api/loader.html#lit_loader.DataLoader"]
    table = " ".join(text for place, text in entries.items() if place.startswith("conf/index"))
    assert not [place for place in entries if re.match(r"tests/|lit_loader/(index|\w+/)", place)]
    words = " ".join(entries.values()).lower()
    for word in ("mixup", "threads", "throughput", "skip", "document", "tokens"):
        assert word in words, word
    for name in LoaderConfig.__dataclass_fields__:
        assert name in loader and name in table
