"""``num_workers="auto"`` beside remote workers: the same bytes, and those count for nobody here."""

from pathlib import Path
from typing import Any

import pytest

import lit_loader
from lit_loader.profiling.auto_workers import AutoWorkers
from tests.support.faults import plain
from tests.support.remote_loaders import Drawn, auto, compare_while_resized
from tests.support.remote_threads import ThreadWorkers

pytestmark = pytest.mark.usefixtures("forked_relays")


@pytest.mark.parametrize(
    "fault",
    [
        "dies",
        pytest.param("none", marks=pytest.mark.slow),
        pytest.param("silent", marks=pytest.mark.slow),
        pytest.param("relay", marks=pytest.mark.slow),
    ],
)
def test_the_number_here_changes_with_the_bytes_of_one_process(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = ThreadWorkers(str(tmp_path), patience=1.0 if fault == "silent" else 5.0)
    places = range(7, 400, 31)
    if fault == "dies":
        remote.dies_at = dict.fromkeys(places, 1)
    elif fault == "silent":
        remote.silent_at = tuple(places)
    elif fault == "relay":
        remote.kills_relay_at = (38,)
    name = {"dies": "died", "silent": "silent", "relay": "killed"}.get(fault)

    def happened(loader: Any) -> bool:
        struck = name is None or any(remote.count(f"{name} {place}") for place in places)
        return struck and bool(loader.statistics().evidence.remote_batches > 4)

    compare_while_resized(Drawn(), remote, happened, monkeypatch)


def test_remote_workers_are_nobody_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoWorkers, "add", lambda *args: False)  # three they stay
    remote = ThreadWorkers(str(tmp_path))
    alone = lit_loader.DataLoader(Drawn(), 4, seed=3)
    alone.set_epoch(1000)
    expected = [plain(batch) for batch in alone]
    with auto(Drawn(), remote) as loader:
        loader._core.auto.begin_with(3)
        settled = False
        while not settled:
            for _ in loader:
                pool = loader._core.keeper.pool
                settled = settled or pool.settled
        loader.set_epoch(1000)
        batches = iter(loader)
        found = [plain(next(batches))]
        assert len(pool.workers.pids) == 4  # and the relay
        memory = loader.statistics(memory=True).memory
        assert memory is not None and len(memory.workers) == 4
        found += [plain(batch) for batch in batches]
        assert found == expected
