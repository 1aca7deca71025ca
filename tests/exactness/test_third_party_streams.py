"""Streams of other libraries with ``num_shards``: killed, resumed with other workers and ranks.

They take their share by ``torch.utils.data.get_worker_info()``, and know nothing of this loader.
Those of the recipes are in ``tests/examples/test_streams.py``.
"""

from __future__ import annotations

import functools
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

import lit_loader
from lit_loader import MixtureStream
from tests.support.stream_resumes import Stream, check_resumes

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

SHARDS, FILES, ROWS, SIZE = 4, 8, 20, 3


def check(make: Any, folder: Path, times: int = 1) -> None:
    expected = check_resumes(Stream(make, SIZE, SHARDS), folder)
    ids = [int(sample.removeprefix("id=")) for _, samples in expected for sample in samples]
    assert sorted(ids) == sorted([*range(FILES * ROWS)] * times)


def rows(files: list[str], shuffled: bool = False, seed: int = 5) -> Any:
    from datasets import load_dataset

    stream = load_dataset(
        "parquet",
        data_files=files,
        split="train",
        streaming=True,
        cache_dir=str(Path(files[0]).parent),
    )
    if shuffled:
        stream = stream.shuffle(seed=seed, buffer_size=8, max_buffer_input_shards=1)
    return stream


def mixed_rows(files: list[str]) -> Any:
    sources = [rows(files, True, seed) for seed in (5, 6)]
    return MixtureStream(sources, weights=[3, 1], exhausted="drop", seed=2)


@pytest.fixture
def parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("datasets")
    written, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    for file in range(FILES):
        numbers = [*range(file * ROWS, (file + 1) * ROWS)]
        written.write_table(
            arrow.table({"id": numbers}), tmp_path / f"{file}.parquet", row_group_size=6
        )
    return sorted(map(str, tmp_path.glob("*.parquet")))


def test_hugging_face_parquet(parquet: list[str], tmp_path: Path) -> None:
    """Resumed from its own state."""
    check(functools.partial(rows, parquet), tmp_path)


def test_hugging_face_streams_mixed(parquet: list[str], tmp_path: Path) -> None:
    """Each shuffled through a buffer, and begun in the midst of a batch."""
    check(functools.partial(mixed_rows, parquet), tmp_path, times=2)


def number_of(sample: Any) -> int:
    return int(sample["__key__"])


def tars(urls: list[str]) -> Any:
    import webdataset

    return webdataset.WebDataset(urls, shardshuffle=False).map(number_of)


def test_web_dataset_tars(tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    for file in range(FILES):
        with tarfile.open(tmp_path / f"{file}.tar", "w") as tar:
            for number in range(file * ROWS, (file + 1) * ROWS):
                entry = tarfile.TarInfo(f"{number:04}.txt")
                entry.size = 1
                tar.addfile(entry, io.BytesIO(b"x"))
    check(functools.partial(tars, sorted(map(str, tmp_path.glob("*.tar")))), tmp_path)


def pipe() -> Any:
    from torch.utils.data.datapipes.iter import IterableWrapper

    return IterableWrapper(range(FILES * ROWS)).filter(takes)


def test_torch_data_pipes(tmp_path: Path) -> None:
    check(pipe, tmp_path)


def takes(number: int) -> bool:
    """Whether it is this reader's."""
    shard, shards = lit_loader.get_shard()
    return number % shards == shard
