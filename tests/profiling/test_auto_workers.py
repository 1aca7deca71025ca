"""``num_workers="auto"`` with real workers: the same bytes, the number of the moment, copies."""

import copy
import logging
import pickle
import random
import types
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
from torch.utils.data import Sampler

from lit_loader import DataLoader
from lit_loader.core.batch.timings import Timings
from lit_loader.core.options.loader_config import LoaderConfig
from lit_loader.profiling import auto_workers
from lit_loader.profiling.auto_workers import AutoWorkers
from lit_loader.profiling.controller import Bounds, Load, Setting
from tests.support.exact import Augmented


class Endless(Sampler[int]):
    """Indices of an epoch that goes on until workers were decided about twice more.

    Workers are up sooner or later: an epoch of so many batches may be over before they are.
    """

    def __init__(self, length: int = 240) -> None:
        self.length = length
        self.decided: Sequence[Any] = ()
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        dice, enough = random.Random(self.epoch), len(self.decided) + 2
        while len(self.decided) < enough:
            yield from (dice.randrange(self.length) for _ in range(4))


class Random:
    """A controller that decides anything, often."""

    def __init__(self, seed: int, most: int = 5) -> None:
        self._dice = random.Random(seed)
        self._most = most
        self.setting = Setting(2, 2, "by chance")
        self.window = 3
        self.loads: list[tuple[Load, Bounds]] = []

    def decide(self, load: Load, bounds: Bounds) -> Setting:
        self.loads.append((load, bounds))
        self.setting = Setting(
            self._dice.randint(1, self._most), self._dice.randint(1, 3), "by chance"
        )
        return self.setting


def by_chance(
    loader: DataLoader[Any], monkeypatch: pytest.MonkeyPatch, seed: int = 0, most: int = 5
) -> Random:
    monkeypatch.setattr(auto_workers, "LEAST", 0)
    controller = Random(seed, most)
    auto = loader._core.auto
    assert auto is not None
    auto._controller = controller  # type: ignore[assignment]
    return controller


def batches(loader: DataLoader[Any], epochs: int = 2) -> list[bytes]:
    return [batch.numpy().tobytes() for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize(
    "options",
    [
        {"persistent_workers": True},
        {},
        {"seeding": "sample", "prefetch_factor": 1},
        {"persistent_workers": True, "memory_budget": 1 << 16},
        {"multiprocessing_context": "spawn", "persistent_workers": True},
    ],
    ids=["persistent", "each epoch", "by the sample", "budget", "spawn"],
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
        # Spawned workers take seconds to be up, of a processor that others want as well.
        spawned = "multiprocessing_context" in options
        controller = by_chance(loader, monkeypatch, most=3 if spawned else 5)
        sampler.decided = controller.loads
        numbers = set()
        for _ in range(1 if spawned else 3):
            found = []
            for batch in loader:
                found.append(batch.numpy().tobytes())
                numbers.add(loader.num_workers)
                assert type(loader.num_workers) is int
            assert found == [batch.numpy().tobytes() for batch in islice(alone, len(found))]
        assert len(controller.loads) >= 2 * sampler.epoch and len(numbers) > 1
    for load, bounds in controller.loads:
        assert load.processor > 0 and load.worker > 0 and load.step > 0
        assert bounds.processors > 0 and bounds.most >= 1


def test_it_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lit_loader.tuning")
    sampler = Endless()
    with DataLoader(Augmented(240), 4, num_workers="auto", sampler=sampler) as loader:
        sampler.decided = by_chance(loader, monkeypatch).loads
        batches(loader, 1)
        told = loader.statistics()
        assert (told.num_workers, told.num_workers_reason) == (loader.num_workers, "by chance")
        assert told.processor_fraction > 0 and 0 <= told.queued_fraction <= 1
    assert "Augmented: 2 -> " in caplog.text and "workers, 2 -> " in caplog.text


def test_copies_and_rebuilt_loaders_are_auto_again() -> None:
    loader = DataLoader(Augmented(240), 4, num_workers="auto", persistent_workers=True)
    assert vars(loader)["num_workers"] == "auto"
    auto = loader._core.auto
    assert auto is not None
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
        assert first == batches(DataLoader(Augmented(240), 4, seed=3), 1)
        loader.num_workers = "auto"
        assert loader._core.auto is not None
        assert len(batches(loader, 1)) == 60
        assert loader.statistics().processor_fraction > 0


def test_a_number_in_text_comes_from_hydra() -> None:
    assert LoaderConfig.from_options(num_workers="3").num_workers == 3
    assert LoaderConfig.from_options(num_workers="auto").num_workers == "auto"


class Two:
    """Workers that are all up."""

    num_workers = 2
    settled = True
    workers = types.SimpleNamespace(pids=())


def test_too_few_workers_that_can_be_started_are_a_bound() -> None:
    auto = AutoWorkers(5)
    auto.cap_workers(2)
    assert auto._bounds(Two(), 0, None, 0).most == 2
    assert (auto.setting.workers, auto.setting.reason) == (2, "more than 2 cannot be started")


@pytest.mark.parametrize(
    ("read", "reads", "workers", "why"),
    [
        (
            18,
            16,
            2,
            "more than 2 are not begun for samples that wait for storage: raise concurrent",
        ),
        (18, 4, 8, ""),
        (18, 0, 20, "so many keep up"),  # one read at a time: only processes bring more
        (4, 16, 20, "so many keep up"),  # they wait for something that is not said
    ],
)
def test_reads_come_before_processes(
    read: int, reads: int, workers: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_workers, "processors_of_this_rank", lambda: 2.0)
    monkeypatch.setattr(auto_workers, "memory_left", lambda: None)
    auto, ms = AutoWorkers(), 1_000_000
    for number in range(100):
        now = number * 11 * ms
        record = Timings(
            **{"worker": number % 2, "number": number, "samples": 16, "nbytes": 1000},
            **{"began": now, "fetch": 20 * ms, "arrived": now + 20 * ms, "asked": now + 11 * ms},
            **{"wait": 10 * ms, "step": ms // 10, "processor": ms // 10, "read": read * ms},
        )
        if auto.add(record) and auto.decide(Two(), "a loader", None, 0, reads):
            break
    assert auto.setting.workers == workers
    assert auto.setting.reason.startswith(why)
