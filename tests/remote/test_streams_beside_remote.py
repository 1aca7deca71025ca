"""Streams beside remote workers: their readers stay on this machine, and the user is told so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lit_loader
from tests.support.remote_threads import ThreadWorkers
from tests.support.shard_data import KINDS


@pytest.mark.parametrize("persistent", [True, False])
def test_a_stream_is_read_here(persistent: bool, tmp_path: Path) -> None:
    remote = ThreadWorkers(str(tmp_path))

    def stream(here: int = 0, **options: Any) -> lit_loader.DataLoader[Any]:
        data = KINDS["iterator"](96, "torch", True)
        return lit_loader.DataLoader(data, 3, num_workers=here, num_shards=4, seed=7, **options)

    alone = stream()
    with (
        stream(1, remote_workers=2, remote=remote, persistent_workers=persistent) as loader,
        pytest.warns(
            UserWarning,
            match="remote_workers=2 make no batches of an IterableDataset: its readers stay on",
        ) as warned,
    ):
        for _ in range(2):
            expected = [batch.numpy().tobytes() for batch in alone]
            assert [batch.numpy().tobytes() for batch in loader] == expected
        assert loader.statistics().remote_batches == 0
    assert len(warned) == 1
    assert not remote.count("joined")
