"""``num_workers="auto"`` beside remote workers: the same bytes, and those count for nobody here."""

import dataclasses
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import lit_loader
from lit_loader.errors import WorkerRestartWarning
from lit_loader.profiling.auto_workers import AutoWorkers
from tests.remote.test_remote_loader import Drawn
from tests.support.by_chance import Endless, by_chance
from tests.support.faults import plain
from tests.support.remote_threads import ThreadWorkers


def auto(dataset: Any, remote: Any, there: int = 2, **options: Any) -> Any:
    options = {"batch_size": 4, "seed": 3, "persistent_workers": True, **options}
    return lit_loader.DataLoader(
        dataset,
        num_workers="auto",
        remote=dataclasses.replace(remote, num_workers=there),
        **options,
    )


def compare_while_resized(
    dataset: Any,
    remote: Any,
    happened: Callable[[Any], bool],
    monkeypatch: pytest.MonkeyPatch,
    **options: Any,
) -> None:
    """Resize by chance, every few batches; compare until something has happened, and twice so."""
    sampler = Endless(96)
    alone = lit_loader.DataLoader(dataset, 4, seed=3, sampler=Endless(96))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestartWarning)
        with auto(dataset, remote, sampler=sampler, **options) as loader:
            controller = by_chance(loader, monkeypatch, most=3)
            sampler.decided = controller.loads
            numbers: set[int] = set()
            while not (happened(loader) and len(numbers) > 1 and sampler.epoch > 1):
                found = []
                for batch in loader:
                    found.append(plain(batch))
                    numbers.add(loader.num_workers)
                assert found == [plain(batch) for batch in islice(alone, len(found))]
            assert loader.statistics().evidence.remote_batches > 0
    for load, bounds in controller.loads:
        assert load.processor > 0 and 0 <= load.remote < 1 and bounds.most >= 1


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
