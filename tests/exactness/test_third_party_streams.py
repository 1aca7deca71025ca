"""Streams of other libraries with ``num_shards``: stopped, resumed with other workers and ranks.

They take their share by ``torch.utils.data.get_worker_info()``, and know nothing of this loader.
"""

from __future__ import annotations

import io
import itertools
import tarfile
from pathlib import Path
from typing import Any

import pytest

import lit_loader
from lit_loader import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

SHARDS, FILES, ROWS, SIZE = 4, 8, 10, 3


def ids(batch: Any) -> list[int]:
    return [int(value) for value in (batch["id"] if isinstance(batch, dict) else batch)]


def read(
    dataset: Any,
    workers: int,
    taken: int | None = None,
    state: Any = None,
    ranks: int = 1,
    rank: int = 0,
) -> tuple[list[list[int]], Any]:
    options: dict[str, Any] = {"num_shards": SHARDS, "seed": 1, "shard_tail": "keep"}
    options |= {"num_replicas": ranks, "rank": rank}
    with DataLoader(dataset, SIZE, num_workers=workers, **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        batches = [ids(batch) for batch in itertools.islice(loader, taken)]
        return batches, loader.state_dict()


def check(dataset: Any) -> None:
    expected, _ = read(dataset, 0)
    assert sorted(itertools.chain(*expected)) == [*range(FILES * ROWS)]
    assert read(dataset, 2)[0] == expected
    for taken in (1, 5, 13, 20):
        before, state = read(dataset, 2, taken)
        assert before + read(dataset, 3, state=state)[0] == expected
    parts = [read(dataset, rank, 3, None, 2, rank) for rank in range(2)]
    merged = lit_loader.merge_states([state for _, state in parts])
    assert [batch for pair in zip(parts[0][0], parts[1][0], strict=True) for batch in pair] == (
        expected[:6]
    )
    assert read(dataset, 1, None, merged)[0] == expected[6:]


def test_hugging_face_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    datasets = pytest.importorskip("datasets")
    for file in range(FILES):
        numbers = [*range(file * ROWS, (file + 1) * ROWS)]
        parquet.write_table(
            arrow.table({"id": numbers}), tmp_path / f"{file}.parquet", row_group_size=4
        )
    files = sorted(map(str, tmp_path.glob("*.parquet")))
    check(
        datasets.load_dataset(
            "parquet", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path)
        )
    )


def number_of(sample: Any) -> int:
    return int(sample["__key__"])


def test_web_dataset_tars(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    for file in range(FILES):
        with tarfile.open(tmp_path / f"{file}.tar", "w") as tar:
            for number in range(file * ROWS, (file + 1) * ROWS):
                entry = tarfile.TarInfo(f"{number:04}.txt")
                entry.size = 1
                tar.addfile(entry, io.BytesIO(b"x"))
    urls = sorted(map(str, tmp_path.glob("*.tar")))
    check(webdataset.WebDataset(urls, shardshuffle=False).map(number_of))


def test_torch_data_pipes() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(range(FILES * ROWS)).filter(takes)
    check(pipe)


def takes(number: int) -> bool:
    """Whether it is this reader's."""
    shard, shards = lit_loader.get_shard()
    return number % shards == shard
