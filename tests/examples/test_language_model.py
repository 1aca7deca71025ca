"""The program of the page on streams, and what the page says of it."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.project.readmes import ROOT

pytestmark = [pytest.mark.pages, pytest.mark.timeout(200)]


@pytest.fixture
def page() -> Iterator[ModuleType]:
    """The program, as a module that workers can import."""
    path = ROOT / "examples" / "language_model.py"
    spec = importlib.util.spec_from_file_location("language_model", path)
    assert spec and spec.loader
    module = sys.modules["language_model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["language_model"]


@pytest.fixture
def folder(page: Any, tmp_path: Path) -> Path:
    """Documents of two kinds, of different lengths."""
    page.write_documents(tmp_path / "documents")
    return tmp_path / "documents"


def rows(batches: Any) -> list[tuple[int, ...]]:
    return [tuple(row) for batch in batches for row in batch["tokens"].tolist()]


def test_two_ranks_resumed_by_one(page: Any, folder: Path) -> None:
    with page.make_loader(folder, 2) as loader:
        whole = rows(loader)
        assert loader.statistics().tokens_per_second > 0
    assert sorted(rows(page.resumed(folder))) == sorted(whole)
    text = bytes(token for row in whole for token in row).decode()
    assert text.count("web") > 1.5 * text.count("books")


def text_of(batches: Any) -> str:
    return bytes(token for row in rows(batches) for token in row).decode()


def test_documents_are_left_out(page: Any, folder: Path) -> None:
    line, _ = (folder / "web-03.jsonl").read_text().split("\n", 1)
    with page.make_loader(folder, 1, without=["web-03.jsonl:0"]) as loader:
        left = text_of(loader)
    assert len(left) > 1000 and json.loads(line)["text"] not in left


def test_a_bad_line(page: Any, folder: Path) -> None:
    path = folder / "web-03.jsonl"
    good, _, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([good, "{oops\n", *rest]))
    place = f"bad line at web-03.jsonl:{len(good)}, shard 3 of 12: Expecting property name"
    with page.make_loader(folder, 2) as loader, pytest.raises(ValueError, match=place) as caught:
        list(loader)
    *_, frame, _, last = str(caught.value).splitlines()
    assert last.startswith(f"ValueError: {place}") or "raise ValueError" in frame
    with page.make_loader(folder, 2, on_sample_error="skip") as loader:
        assert len(rows(loader)) > 200
        assert loader.statistics().sample_errors == 1
