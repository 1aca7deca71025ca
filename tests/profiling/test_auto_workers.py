"""``num_workers="auto"`` with real workers: the same bytes, the current number, copies."""

import copy
import logging
import pickle
import types
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset

from lit_loader import DataLoader, LoaderDataModule
from lit_loader.profiling import auto_workers, resources
from lit_loader.profiling.auto_workers import AutoWorkers
from tests.support.by_chance import Endless, Random, by_chance
from tests.support.exact import Augmented
from tests.support.lightning_runs import quiet_trainer


def batches(loader: DataLoader[Any]) -> list[bytes]:
    return [batch.numpy().tobytes() for batch in loader]


@pytest.mark.parametrize(
    "options",
    [
        {"persistent_workers": True},
        {},
        {"seeding": "sample", "prefetch_factor": 1},
        pytest.param({"multiprocessing_context": "spawn"}, marks=pytest.mark.slow),
    ],
    ids=["persistent", "each epoch", "by the sample", "spawn"],
)
def test_resized_at_any_moment_with_the_bytes_of_one_process(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    common: dict[str, Any] = {"batch_size": 4, "seed": 5}
    alone = DataLoader(
        Augmented(240), **common, sampler=Endless(), seeding=options.get("seeding", "batch")
    )
    sampler = Endless()
    with DataLoader(
        Augmented(240), num_workers="auto", sampler=sampler, **common, **options
    ) as loader:
        # Spawned workers take seconds to start.
        spawned = "multiprocessing_context" in options
        controller = by_chance(loader, monkeypatch, most=3 if spawned else 5)
        sampler.decided = controller.loads
        numbers = set()
        for _ in range(1 if spawned else 3):
            found = []
            for batch in loader:
                found.append(batch.numpy().tobytes())
                numbers.add(loader.num_workers)
            assert found == [batch.numpy().tobytes() for batch in islice(alone, len(found))]
        assert len(controller.loads) >= 2 * sampler.epoch and len(numbers) > 1
    for load, bounds in controller.loads:
        assert load.processor > 0 and load.worker > 0 and load.step > 0
        assert bounds.processors > 0 and bounds.most >= 1


def test_it_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lit_loader.tuning")
    sampler = Endless()
    with DataLoader(Augmented(240), 4, num_workers="auto", sampler=sampler) as loader:
        sampler.decided = by_chance(loader, monkeypatch).loads
        batches(loader)
        evidence = loader.statistics().evidence
        assert (evidence.auto.workers, evidence.auto.reason) == (loader.num_workers, "by chance")
        assert evidence.computing > 0 and 0 <= evidence.queued <= 1
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
    monkeypatch.setattr(auto_workers, "processors_of_this_rank", lambda: 2.0)
    pool = types.SimpleNamespace(num_workers=2, processes=[])
    auto = AutoWorkers(5)
    auto.cap_workers(cap)
    bounds = auto._bounds(pool, 10_000, tasks)
    assert (bounds.most, bounds.why) == (most, why)
    assert auto.setting.workers == min(cap, 5)


class Seen(BoringModel):
    validation_step = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[bytes] = []

    def training_step(self, batch: Any, index: int) -> Any:
        self.batches.append(batch.numpy().tobytes())
        return super().training_step(batch, index)


def test_in_lightning_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is no part of a checkpoint; it changes by chance, and the batches do not."""

    samples = RandomDataset(32, 240)

    def fit(epochs: int, num_workers: Any, **options: Any) -> tuple[Any, list[bytes]]:
        trainer = quiet_trainer(tmp_path, max_epochs=epochs, limit_val_batches=0)
        model = Seen()
        common = {"batch_size": 4, "seed": 1, "num_workers": num_workers}
        data = LoaderDataModule({"train": samples}, common)
        trainer.fit(model, datamodule=data, **options)
        return trainer, model.batches

    _, alone = fit(2, 0)
    monkeypatch.setattr(auto_workers, "LEAST", 0)
    monkeypatch.setattr(auto_workers, "Controller", Random)
    trainer, first = fit(1, "auto")
    trainer.save_checkpoint(tmp_path / "auto.ckpt")
    _, second = fit(2, "auto", ckpt_path=tmp_path / "auto.ckpt")
    assert first + second == alone
    assert resources.ranks_here == 1
