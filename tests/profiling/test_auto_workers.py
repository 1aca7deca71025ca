"""``num_workers="auto"`` with real workers: the same bytes, the current number, copies."""

import copy
import itertools
import logging
import pickle
import types
from typing import Any

import pytest

from lit_loader import DataLoader
from lit_loader.profiling import auto_workers
from lit_loader.profiling.auto_workers import AutoWorkers
from lit_loader.profiling.controller import Bounds, Load, Setting
from tests.support.exact import Augmented


def batches(loader: DataLoader[Any]) -> list[bytes]:
    return [batch.numpy().tobytes() for batch in loader]


class Scripted:
    """A controller that decides on other numbers in turn, whatever it is asked."""

    window = 3

    def __init__(self) -> None:
        self.numbers, self.setting = itertools.cycle([3, 1, 4, 2]), Setting(2, 2, "a script")
        self.loads: list[Load] = []

    def decide(self, load: Load, bounds: Bounds) -> Setting:
        self.loads.append(load)
        self.setting = Setting(next(self.numbers), 2, "a script")
        return self.setting


def test_a_number_that_changes_is_logged_and_changes_no_byte(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lit_loader.tuning")
    monkeypatch.setattr(auto_workers, "LEAST", 0)
    alone = DataLoader(Augmented(240), 4, shuffle=True, seed=5)
    with DataLoader(
        Augmented(240), 4, True, num_workers="auto", persistent_workers=True, seed=5
    ) as loader:
        controller = loader._core.auto._controller = Scripted()  # type: ignore[union-attr]
        while len(controller.loads) < 4:  # until it has decided; nothing else ends it
            assert batches(loader) == batches(alone)
        evidence = loader.statistics().evidence
        assert (evidence.auto.workers, evidence.auto.reason) == (loader.num_workers, "a script")
        assert evidence.computing > 0 and 0 <= evidence.queued <= 1
    assert all(load.cpu_time > 0 and load.step > 0 for load in controller.loads)
    assert "Augmented: 2 -> " in caplog.text and "workers, 2 -> " in caplog.text


def test_copies_and_rebuilt_loaders_are_auto_again() -> None:
    loader = DataLoader(Augmented(240), 4, num_workers="auto", persistent_workers=True)
    auto: Any = loader._core.auto
    auto.begin_with(3)
    data = pytest.importorskip("lightning.fabric.utilities.data")
    copies = [copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))]
    for again in [*copies, data._update_dataloader(loader, loader.sampler)]:
        assert vars(again)["num_workers"] == "auto"
        assert again._core.auto is not auto
        assert again.num_workers in (2, 3)
    assert [again.num_workers for again in copies] == [3, 3, 3]
    assert "num_workers=auto, now 3" in repr(loader)


def test_a_number_may_take_its_place_and_the_other_way_round() -> None:
    with DataLoader(
        Augmented(240), 4, num_workers="auto", persistent_workers=True, seed=3
    ) as loader:
        iterator = iter(loader)
        first = [next(iterator).numpy().tobytes()]
        loader.resize(1)
        assert (loader.num_workers, loader._core.auto) == (1, None)
        first += [batch.numpy().tobytes() for batch in iterator]
        assert first == batches(DataLoader(Augmented(240), 4, seed=3))
        loader.num_workers = "auto"
        assert len(batches(loader)) == 60
        assert loader.statistics().evidence.auto is not None


@pytest.mark.parametrize(
    ("cap", "left", "tasks", "most", "why"),
    [
        (2, None, 0, 2, "cannot be started"),
        (99, 40_000, 0, 13, "do not fit into the memory that is left"),  # 10 are in flight
        (99, None, 4, 4, "would have nothing to do"),
        (99, None, 0, 32, "are not started on 2 CPU core(s)"),
    ],
)
def test_bounds(
    cap: int, left: int | None, tasks: int, most: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_workers, "memory_left", lambda: left)
    monkeypatch.setattr(auto_workers, "cores_of_this_rank", lambda: 2.0)
    pool = types.SimpleNamespace(num_workers=2, processes=[])
    auto = AutoWorkers(5)
    auto.cap_workers(cap)
    bounds = auto._bounds(pool, 10_000, tasks)
    assert (bounds.most, bounds.why) == (most, why)
    assert auto.setting.workers == min(cap, 5)
