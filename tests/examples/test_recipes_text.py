"""The recipes text, text_buckets, mixture and imbalanced as a user runs them, shortened."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.programs import run_with_lightning
from tests.support.recipes import EXAMPLES, TRAIN

SHORT = ("trainer.max_epochs=1", "trainer.limit_val_batches=2", "trainer.limit_test_batches=2")
SMALL = ("model.width=32", "model.layers=1")
BRIEF = "callbacks.writes.count=30"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the recipes run, one after the other: the corpus is written once."""
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture
def text_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the examples' own modules importable, for this test alone."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("text", "mixture", "imbalanced", "digits"):
            del sys.modules[name]


def run(directory: Path, recipe: str, *overrides: str) -> tuple[str, dict[str, Any], Path]:
    """Runs a recipe; returns what it printed, its metrics and its run directory."""
    run_dir = directory / recipe
    printed = run_with_lightning(
        directory, TRAIN, f"experiment={recipe}", *overrides, f"hydra.run.dir={run_dir}"
    )
    for word in ("Warning", "Traceback"):
        assert word not in printed
    assert "Epoch " in printed
    assert printed.count(f"written to {run_dir}:") == 1
    figures = json.loads((run_dir / "metrics.json").read_text())
    return printed, figures, run_dir


def assert_picture(path: Path) -> None:
    assert path.read_bytes().startswith(b"\x89PNG")


def test_text(elsewhere: Path) -> None:
    printed, figures, directory = run(
        elsewhere, "text", *SHORT, *SMALL, "trainer.limit_train_batches=40", BRIEF
    )
    assert figures["steps"] == 40
    # It has learnt something: at the beginning a byte costs 8 bits.
    assert figures["test/bits"] < 6
    assert 1 < figures["baseline/zlib_bits"] < figures["baseline/unigram_bits"] < 6
    assert f"test/bits                 {figures['test/bits']:.3f}" in printed
    assert "  | def read(self, " in printed
    assert_picture(directory / "training.png")
    (corpus,) = (elsewhere / "outputs" / "data" / "text").glob("files-*")
    assert len(np.load(corpus / "train.npy", mmap_mode="r")) > 1_000_000


def test_text_buckets(elsewhere: Path) -> None:
    printed, figures, directory = run(
        elsewhere, "text_buckets", *SHORT, *SMALL, "trainer.limit_train_batches=40", BRIEF
    )
    assert figures["padding_of_an_epoch"] < 0.1
    assert figures["padding"] < 0.1 < min(figures["padding_otherwise"].values())
    assert figures["largest_batch_tokens"] <= 2048
    assert f"padding: {100 * figures['padding']:.1f} % with the token budget" in printed
    assert_picture(directory / "padding.png")


def test_mixture(elsewhere: Path) -> None:
    printed, figures, directory = run(
        elsewhere, "mixture", *SHORT, *SMALL, "callbacks.resume_check.batches=30"
    )
    assert figures["weights"] == {"python": 0.5, "english": 0.3, "cpp": 0.2}
    for name, weight in figures["weights"].items():
        assert abs(figures["shares"][name] - weight) < 0.03
        assert figures[f"test/{name}/bits"] < 8
    assert figures["resumed_batches_equal"] == figures["resumed_batches"] == 30
    assert "checkpoint of step 30: 30 of 30 batches equal, byte for byte" in printed
    assert_picture(directory / "mixture.png")


def test_text_stream(elsewhere: Path) -> None:
    printed, figures, directory = run(
        elsewhere, "text_stream", *SHORT, *SMALL, "callbacks.resume_check.batches=30"
    )
    for name, weight in figures["weights"].items():
        assert abs(figures["shares"][name] - weight) < 0.03
    assert "checkpoint of step 30: 30 of 30 batches equal, byte for byte" in printed
    assert_picture(directory / "mixture.png")


def test_imbalanced(elsewhere: Path) -> None:
    """Two processes; the frequencies are pooled over both."""
    printed, figures, directory = run(elsewhere, "imbalanced", "trainer.max_epochs=3")
    assert (figures["processes"], figures["samples"]) == (2, 3 * 1280)
    assert figures["steps"] == 3 * 1280 // 64
    expected = np.full(10, 0.1)
    deviation = (expected * (1 - expected) / figures["samples"]) ** 0.5
    assert (np.abs(np.array(figures["frequencies"]) - expected) < 4 * deviation).all()
    assert max(figures["frequencies_in_data"]) > 10 * min(figures["frequencies_in_data"])
    assert "samples that 2 processes trained on" in printed
    assert_picture(directory / "frequencies.png")


@pytest.mark.usefixtures("text_package")
def test_the_corpus_is_written_once_and_whole(elsewhere: Path, tmp_path: Path) -> None:
    from text import corpus
    from text.data import Documents, Packed, PadTokens

    first = corpus.write(tmp_path, "headers")
    stamps = {path: path.stat().st_mtime_ns for path in first.iterdir()}
    assert corpus.write(tmp_path, "headers") == first
    assert {path: path.stat().st_mtime_ns for path in first.iterdir()} == stamps
    assert [path.name for path in tmp_path.iterdir()] == [first.name]  # nothing unfinished

    documents = Documents(str(tmp_path), "headers", "val", longest=3000)
    assert 0 < documents.lengths.max() <= 3000
    samples = [documents[index] for index in (0, 1, len(documents) - 1)]
    assert all(sample["tokens"][-1] == 0 and sample["tokens"][:-1].all() for sample in samples)
    batch = PadTokens()(samples)
    assert batch["tokens"].shape == (3, batch["lengths"].max())

    packed = Packed(str(tmp_path), "headers", "val", length=64, source=1)
    whole = torch.from_numpy(np.load(first / "val.npy"))
    assert torch.equal(packed[5]["tokens"], whole[5 * 64 : 6 * 64 + 1])
    assert len(packed[len(packed) - 1]["tokens"]) == 65
    assert packed[0]["source"] == 1


@pytest.mark.usefixtures("text_package")
def test_padding_does_not_count(tmp_path: Path) -> None:
    """The loss of a padded batch is that of its bytes alone."""
    from text.model import ByteModel

    torch.manual_seed(0)
    model = ByteModel(width=16, layers=1, heads=2, context=32)
    model.log = lambda *_, **__: None  # type: ignore[method-assign]
    rows = [torch.randint(1, 255, (length,), dtype=torch.uint8) for length in (20, 7)]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    together = model._step({"tokens": padded, "lengths": torch.tensor([20, 7])}, "train")
    alone = [model._step({"tokens": row[None]}, "train") * (len(row) - 1) for row in rows]
    assert torch.allclose(together, sum(alone) / 25, atol=1e-5)
