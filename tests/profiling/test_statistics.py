"""What a loader's statistics say: counts, delays found in their stage, the latest batches."""

from pathlib import Path

import pytest

from lit_loader import DataLoader
from lit_loader.core.batch.progress import JUDGED, WINDOW, BatchLog, Timings
from lit_loader.errors import WorkerRestartWarning
from lit_loader.profiling.recorder import ENOUGH, evidence_of, summary_of
from tests.support.delays import DELAY, SAMPLES, STAGES, Collate, Delayed, delay
from tests.support.limited_programs import Hanging
from tests.support.samples import Call, Counting, Rows


def slow_at_13(index: int) -> int:
    if index == 13:
        delay()
    return index


def timings(**given: int) -> Timings:
    """Return what a batch has cost."""
    made = Timings()
    vars(made).update(given)
    return made


@pytest.mark.parametrize("num_workers", [0, 2])
def test_counts_and_the_slowest_sample(num_workers: int) -> None:
    loader = DataLoader(Call(slow_at_13, 50), batch_size=4, shuffle=True, num_workers=num_workers)
    for _ in range(2):
        list(loader)
    found = loader.statistics()
    assert (found.batches, found.samples, found.tokens) == (26, 100, 0)
    assert found.seconds == pytest.approx(found.waited + found.step)
    assert 0 < found.wait_fraction <= 1
    assert found.samples_per_second == pytest.approx(100 / found.seconds)
    assert (found.busy > 0) == (num_workers > 0)
    assert found.fetch >= 2 * DELAY
    index, seconds = found.evidence.slowest[0]
    assert index == "13" and seconds >= DELAY
    assert found.evidence.starts == 2
    assert str(found).startswith("26 batches (100 samples) in ") and found.verdict in str(found)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterable_dataset(num_workers: int) -> None:
    loader = DataLoader(Counting(40, slow_at_13), batch_size=4, num_workers=num_workers)
    list(loader)
    found = loader.statistics()
    assert (found.batches, found.samples, found.evidence.slowest) == (10, 40, ())
    assert found.fetch >= DELAY


def bad_at_3_and_7(index: int) -> int:
    if index in (3, 7):
        raise ValueError(f"sample {index} is bad")
    return index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_sample_errors_are_counted(num_workers: int) -> None:
    loader = DataLoader(
        Call(bad_at_3_and_7, 16), batch_size=4, num_workers=num_workers, on_sample_error="skip"
    )
    list(loader)
    found = loader.statistics()
    assert (found.sample_errors, found.samples) == (2, 14)
    assert "2 bad samples" in str(found)


def test_batches_are_counted_beyond_what_is_kept_of_each() -> None:
    loader = DataLoader(Call(int, WINDOW + 9), None)
    assert sum(1 for _ in loader) == loader.statistics().batches == WINDOW + 9


@pytest.mark.parametrize(
    ("stage", "num_workers"),
    # Nothing is encoded or decoded without workers.
    [(stage, n) for stage in STAGES for n in (0, 2) if n or stage not in ("encode", "decode")],
)
def test_a_delay_is_found_in_its_stage(pinned: None, stage: str, num_workers: int) -> None:
    loader = DataLoader(
        Delayed(stage), SAMPLES, num_workers=num_workers, collate_fn=Collate(stage),
        pin_memory=stage == "pin",
    )  # fmt: skip
    took = sum(batch["cargo"].took for batch in loader) / 1e9
    assert took >= 12 * DELAY
    assert getattr(loader.statistics(), STAGES[stage]) >= took


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_delay_between_batches_is_the_loops(num_workers: int) -> None:
    loader = DataLoader(Rows(24), SAMPLES, num_workers=num_workers)
    took = [delay() for _ in loader]
    assert loader.statistics().step >= sum(took[:-1]) / 1e9


def test_the_verdict_judges_the_latest_batches() -> None:
    """A loop that has waited for long at its beginning, and not since."""
    log, ms, first = BatchLog(), 10**6, 2 * JUDGED
    for number in range(first + JUDGED):
        waited = (100 if number < first else 0) * ms
        log.records.append(timings(worker=0, began=number, fetch=ms, wait=waited, step=10 * ms))
    found = summary_of(log, num_workers=1)
    assert found.wait_fraction > 0.8
    assert found.evidence.batches == JUDGED and found.evidence.waited == 0
    assert found.verdict.startswith("Limit: the training step")


@pytest.mark.parametrize("since", [ENOUGH - 1, ENOUGH])
def test_those_before_a_change_of_the_number_of_workers_are_left_out(since: int) -> None:
    log = BatchLog()
    log.records = [timings(worker=0, began=number, fetch=1, step=1) for number in range(100)]
    log.resized = 100 - since
    found = summary_of(log, num_workers=1).evidence
    assert found.batches == (since if since >= ENOUGH else 100 - since)


def test_while_new_workers_start_those_before_them_are_judged() -> None:
    log = BatchLog()
    made = [(number, number % 2) for number in range(100)] + [(100, 2), (101, 0), (102, 3)]
    log.records = [timings(worker=who, began=began, fetch=1, step=1) for began, who in made]
    log.resized = 100
    found = summary_of(log, num_workers=8).evidence
    assert (found.batches, found.num_workers) == (100, 2)


def test_seconds_lost_to_a_hung_worker_are_named(tmp_path: Path) -> None:
    with DataLoader(Hanging(tmp_path / "mark"), 8, num_workers=2, timeout=0.5) as loader:
        with pytest.warns(WorkerRestartWarning, match="LL010"):
            list(loader)
        found = loader.statistics()
    assert found.worker_restarts == found.evidence.hangs == 1
    assert 0 < found.evidence.hung <= found.waited
    assert "lost to 1 worker that hung" in found.verdict


def test_a_moment_between_two_waits_is_no_hang() -> None:
    records = [timings(asked=100 * n, wait=50, step=50) for n in range(3)]
    assert evidence_of(records, [75]).hangs == 0
    assert evidence_of(records, [125]).hung == pytest.approx(25e-9)
