"""Each seam with a toy add-on of a few lines: that is how one writes the next (`core/epoch`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader
from lit_loader.accelerator.pin_memory import PinMemoryThread
from lit_loader.core.batch import timings
from lit_loader.core.batch.batch_builder import BatchBuilder, maker_of
from lit_loader.core.batch.progress import Progress
from lit_loader.core.epoch.seams import Seams
from lit_loader.errors import WorkerRestartWarning
from lit_loader.loader import _AddOns
from tests.support.faults import Faults, Strike
from tests.support.samples import Call, Rows, ints
from tests.support.tools import Gate

EXPECTED: list[Any] = list(DataLoader(Rows(12), 4))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


def with_seams(seams: Seams, **options: Any) -> DataLoader[Any]:
    """A loader that has nothing but a toy."""
    loader: DataLoader[Any] = DataLoader(Rows(12), 4, **options)
    loader._core.seams = seams
    return loader


@pytest.mark.parametrize("workers", [0, 2])
def test_without_any_add_on_it_loads(workers: int) -> None:
    with with_seams(Seams(), num_workers=workers) as loader:
        assert [*map(torch.Tensor.tolist, loader)] == [*map(torch.Tensor.tolist, EXPECTED)]


def test_an_observer_is_shown_each_batch_until_it_is_done() -> None:
    class Sums(Seams):
        done = False

        def __init__(self) -> None:
            self.seen: list[float] = []

        def observer(self, core: Any, in_process: bool) -> Any:
            return self

        def note(self, start: Any, number: int, indices: Any, batch: Any) -> None:
            self.seen.append(float(batch.sum()))
            self.done = number == 1

        def finish(self) -> None:
            raise AssertionError("it was done before the end")

    sums = Sums()
    with with_seams(sums, num_workers=1) as loader:
        batches = list(loader)
    assert sums.seen == [float(batch.sum()) for batch in batches[:2]]


def test_a_stream_s_end_may_be_decided_elsewhere() -> None:
    class AtMost(_AddOns):
        """Ends each pass after two batches."""

        given_out = 0

        def end_policy(self, core: Any, start: Any) -> Any:
            return self

        def admits(self, position: Any) -> bool:
            return self.given_out < 2

        def given(self, position: Any) -> None:
            self.given_out += 1

        def begins_again(self, position: Any) -> bool:
            return False

        def end(self) -> None:
            self.given_out = 0

    with DataLoader[Any](Stream(), 4) as loader:
        loader._core.seams = AtMost()
        assert [len(list(loader)) for _ in range(2)] == [2, 2]


def test_batches_may_be_staged_on_their_way() -> None:
    class Doubled(Seams):
        def device_copy(self, core: Any) -> Any:
            return self

        def source(self, batch: Any) -> Any:
            return batch

        def stage(self, batch: Any) -> Any:
            return batch

        def take(self, staged: Any) -> Any:
            return 2 * staged

    with with_seams(Doubled(), num_workers=1) as loader:
        assert all(torch.equal(batch, 2 * one) for batch, one in zip(loader, EXPECTED, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_may_be_pinned_on_their_way(workers: int) -> None:
    class Doubled(Seams):
        def pin_memory(self, core: Any) -> Any:
            return self

        def __call__(self, batch: Any) -> Any:
            return 2 * batch

        def thread(self, source: Any, pinned: Any) -> Any:
            return PinMemoryThread(source, pinned)

    with with_seams(Doubled(), num_workers=workers) as loader:
        assert all(torch.equal(batch, 2 * one) for batch, one in zip(loader, EXPECTED, strict=True))


def test_programs_may_ask_an_iterator_for_what_torchs_has() -> None:
    class Named(Seams):
        def torch_habits(self) -> Any:
            return self

        def attribute(self, iterator: Any, name: str) -> str:
            return name

    plain, named = with_seams(Seams()), with_seams(Named())
    assert not hasattr(iter(plain), "_rcvd_idx")
    assert iter(named)._rcvd_idx == "_rcvd_idx"


class Reversed:
    """Makes batches another way, as readers of a stream are."""

    def begin_worker(self) -> None:
        """Begin in a worker process."""

    def maker(self, spec: Any, worker: int, num_workers: int) -> Any:
        return _Reversed(spec, worker, num_workers)


class _Reversed(BatchBuilder):
    def load(self, indices: Any, number: int, epoch: int, seeds: Any, progress: Progress) -> Any:
        return super().load(indices[::-1], number, epoch, seeds, progress)

    def take(self, indices: Any, progress: Progress) -> Any:
        return None


@pytest.mark.parametrize("workers", [0, 1])
def test_what_makes_batches_comes_with_the_spec(workers: int) -> None:
    class OfMine(Seams):
        def spec_parts(self, core: Any) -> dict[str, Any]:
            return {"streams": Reversed()}

    with with_seams(OfMine(), num_workers=workers) as loader:
        assert all(
            torch.equal(batch.flip(0), one) for batch, one in zip(loader, EXPECTED, strict=True)
        )
    assert isinstance(maker_of(loader._core.spec()), _Reversed)


def test_advice_is_told_once_before_an_epoch() -> None:
    class Words(Seams):
        def advice(self, core: Any) -> Any:
            return [f"{len(core.dataset)} rows are few"]

        def idle(self, core: Any) -> str | None:
            return "nobody needs workers"

    with with_seams(Words()) as loader:
        with pytest.warns(UserWarning):
            list(loader)
        list(loader)  # warnings are errors here
    assert loader._core._warnings_given == {"12 rows are few", "nobody needs workers"}


def test_what_forked_workers_share_is_told_before_they_are() -> None:
    class Shared(Seams):
        def shared_by_fork(self, core: Any, num_workers: int) -> Any:
            return [f"{num_workers} workers share {len(core.dataset)} rows"]

    told = pytest.warns(RuntimeWarning, match="^2 workers share 12 rows$")
    with with_seams(Shared(), num_workers=2, multiprocessing_context="fork") as loader, told:
        list(loader)
    with with_seams(Shared(), num_workers=1, multiprocessing_context="spawn") as loader:
        list(loader)  # warnings are errors here


def test_workers_are_looked_at_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class Looks(Seams):
        def __init__(self) -> None:
            self.found: list[int] = []

        def look_at_workers(self, core: Any, pool: Any, now: float) -> None:
            self.found.append(len(pool.workers.pids))

    monkeypatch.setattr("lit_loader.core.transport.viewer_page.EVERY", 0)
    looks = Looks()
    with with_seams(looks, num_workers=2, multiprocessing_context="fork") as loader:
        list(loader)
    assert set(looks.found) <= {1, 2} and looks.found


class Said(Seams):
    def explain(self, pool: Any, death: Any, task: Any, waited: Any = None) -> str:
        return f"Batch {task.number} has ended a worker by signal {-death.exitcode}."


@pytest.mark.parametrize(
    ("seams", "text"),
    [(Said(), "Batch 2 has ended a worker by signal 9"), (Seams(), "exit code -9")],
    ids=["toy", "none"],
)
def test_why_a_worker_died_may_be_told_otherwise(seams: Seams, text: str, tmp_path: Path) -> None:
    faults = Faults(tmp_path, Strike("SIGKILL", "collating", 2))
    told = pytest.warns(WorkerRestartWarning, match=text)
    with with_seams(seams, num_workers=1, worker_init_fn=faults) as loader, told:
        assert [*map(torch.Tensor.tolist, loader)] == [*map(torch.Tensor.tolist, EXPECTED)]


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_a_stall_may_be_told_otherwise(gate: Gate, method: Any) -> None:
    class Opens(_AddOns):
        told: tuple[str, ...] = ()

        def stall(self, workers: Any) -> Any:
            self.told += ("begins",)
            return self

        def tell(self, workers: Any, seconds: float) -> None:
            self.told += ("lasts",)
            gate.open()

    def sample(index: int) -> int:
        gate.wait()
        return index

    loader = DataLoader(Call(sample, 2), num_workers=1, worker_method=method, stall_warning=0.2)
    opens = loader._core.seams = Opens()
    assert ints(loader) == [0, 1]
    assert opens.told[:2] == ("begins", "lasts")


def test_timings_are_summed_up_when_the_log_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slowest(Seams):
        slowest = 0

        def sum_up(self, core: Any) -> None:
            self.slowest = max([self.slowest, *(record.fetch for record in core.log.records)])
            core.log.records.clear()

        def statistics(self, core: Any, memory: bool) -> Any:
            return {"slowest": self.slowest}

    monkeypatch.setattr("lit_loader.core.epoch.loader_core.WINDOW", 2)
    assert timings.WINDOW > 2
    with with_seams(Slowest()) as loader:
        list(loader)
        assert loader.statistics()["slowest"] > 0  # type: ignore[index]
        assert len(loader._core.log.records) == 1


def test_auto_is_a_listener_that_gives_a_size() -> None:
    class Three(Seams):
        """Two workers at first, and three from the second batch on."""

        class setting:
            workers, prefetch, reason = 2, 2, ""

        def auto(self, core: Any) -> Any:
            return self

        def cap_workers(self, workers: int) -> None:
            raise AssertionError

        def add(self, record: Any, again: bool) -> bool:
            return bool(record.number == 1)

        def decide(self, pool: Any, *of_loader: Any) -> bool:
            self.setting.workers = 3
            return True

    with with_seams(Three(), num_workers=2) as loader:
        loader._core.set_auto(True)
        batches = list(loader)
        assert loader.num_workers == 3
    assert all(map(torch.equal, batches, EXPECTED))


def test_bad_samples_may_be_counted_otherwise() -> None:
    class Counts(_AddOns):
        count = 0

        def sample_errors(self, core: Any) -> Any:
            return self

        def note(self, number: int, made: Any) -> None:
            self.count += len(made.errors)

        def end(self, epoch: int, delivered: int) -> None:
            """Note that the epoch is over."""

    counts = Counts()
    with DataLoader(Call(lambda index: 1 // (index % 3), 9), 4, on_sample_error="skip") as loader:
        loader._core.seams = counts
        assert sum(map(len, loader)) == 6 and counts.count == 3


def test_viewers_are_shown_figures_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shown(Seams):
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def figures(self, core: Any, epoch: int, now: int) -> dict[str, Any]:
            self.epochs.append(epoch)
            return {"epoch": epoch}

    monkeypatch.setattr("lit_loader.core.transport.viewer_page.EVERY", 0)
    shown = Shown()
    with with_seams(shown, num_workers=1, multiprocessing_context="fork") as loader:
        list(loader), list(loader)
    assert shown.epochs == [0, 0, 0, 1, 1, 1]


def test_a_promise_that_a_stream_breaks_may_be_told_otherwise() -> None:
    class Promising(Stream):
        def __len__(self) -> int:
            return 5

    class Words(_AddOns):
        def words(self) -> Any:
            return self

        def broken_promise(self, dataset: Any, promised: int, given: int, workers: int) -> str:
            return f"{given} are more than {promised}"

    loader: DataLoader[Any] = DataLoader(Promising(), 4)
    loader._core.seams = Words()
    assert len(loader) == 2  # asks for it
    with pytest.warns(UserWarning, match="8 are more than 5"):
        list(loader)
