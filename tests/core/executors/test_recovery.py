"""Healing: what is replaced and what is told, what it costs, and when it is given up.

That the bytes are right wherever a fault strikes is in test_fault_matrix.py.
"""

import re
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import lit_loader
from lit_loader import DataLoader
from lit_loader.errors import WorkerDiedError, WorkerRestartWarning, WorkerTimeoutError
from tests.support.exact import loaded
from tests.support.faults import (
    FAULTS,
    Faults,
    Noisy,
    NoisyStream,
    StatefulStream,
    Strike,
    outcomes,
    told,
)
from tests.support.samples import Call, Counting, StatefulCounting, hang, ints, pool_of
from tests.support.tools import Gate

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("by_fork")]  # for pipes and gates


def dying(indices: list[int], folder: Path, how: str = "SIGKILL", always: bool = False) -> Any:
    """A sample function that ends its process at each of the indices, once or always."""

    def sample(index: int) -> int:
        if index in indices:
            mark = folder / str(index)
            if always or not mark.exists():
                mark.touch()
                FAULTS[how]()
                hang()
        return index

    return sample


# The budget ------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, 1, 3])
@pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])
def test_when_the_budget_is_used_up(budget: int, persistent: bool, tmp_path: Path) -> None:
    """The death after the last that may be healed is an error; the next next() goes on."""
    with DataLoader(
        Call(dying([1, 3, 5, 7], tmp_path), 12), num_workers=1, max_worker_restarts=budget,
        persistent_workers=persistent,
    ) as loader:  # fmt: skip
        found: list[Any] = []
        iterator = iter(loader)
        with told(budget) as texts:
            while len(found) < 12 + 4 - budget:
                try:
                    found.append(int(next(iterator)))
                except WorkerDiedError as error:
                    found.append(str(error))
        errors = [entry for entry in found if isinstance(entry, str)]
        assert [entry for entry in found if entry not in errors] == list(range(12))
        assert len(errors) == 4 - budget
        for number, text in enumerate(texts, start=1):
            assert f"nothing is lost (restart {number} of at most max_worker_restarts=" in text
        for error in errors:
            used_up = f"max_worker_restarts={budget} for this epoch is used up" in error
            assert used_up == (budget > 0)
            assert "num_workers=0 shows errors in place" in error
        assert list(iterator) == []


# What is not tried again -----------------------------------------------------------------------


@pytest.mark.parametrize("in_order", [True, False], ids=["", "unordered"])
@pytest.mark.parametrize(
    ("how", "budget"), [("SIGKILL", 1), ("SIGKILL", 3), ("SIGSEGV", 3), ("loop", 1)]
)
def test_a_batch_that_ends_two_workers(
    how: str, in_order: bool, budget: int, tmp_path: Path
) -> None:
    """It is told with its indices, in its turn, and the epoch goes on without it."""
    loader = DataLoader(
        Call(dying([9], tmp_path, how, always=True), 24), batch_size=2, num_workers=2,
        max_worker_restarts=budget, in_order=in_order, timeout=0.5 if how == "loop" else 0,
    )  # fmt: skip
    iterator, found, states = iter(loader), [], []
    kind = WorkerTimeoutError if how == "loop" else WorkerDiedError
    with told(1):
        for _ in range(12):
            try:
                found.append(next(iterator).tolist())
            except kind as error:
                found.append(str(error))
            states.append(loader.state_dict())
    [(at, error)] = [(at, entry) for at, entry in enumerate(found) if isinstance(entry, str)]
    assert "fetching index 9 (sample 1 of batch 4, indices [8, 9])" in error
    assert "Batch 4 has ended 2 workers in a row and is not tried again" in error
    assert ("num_workers=0" in error) == (how != "loop")
    expected = [[start, start + 1] for start in range(0, 24, 2)]
    batches = found[:at] + found[at + 1 :]
    assert (batches if in_order else sorted(batches)) == expected[:4] + expected[5:]
    assert list(iterator) == []
    assert not in_order or at == 4
    # A state taken behind it passes over it.
    resumed = loaded(DataLoader(Call(int, 24), batch_size=2), states[at])
    rest = [batch.tolist() for batch in resumed]
    assert rest == [batch for batch in expected if batch not in [*batches[:at], [8, 9]]]


def test_a_stream_cannot_pass_over_such_a_batch(tmp_path: Path) -> None:
    sample = dying([4], tmp_path, always=True)
    iterator = iter(DataLoader(Counting(8, sample), num_workers=1))
    with told(1):
        assert [int(next(iterator)) for _ in range(4)] == [0, 1, 2, 3]
        for _ in range(2):
            with pytest.raises(WorkerDiedError, match="Batch 4 has ended 2 workers in a row"):
                next(iterator)


# What is told ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("SIGKILL", ["was killed by SIGKILL, ", "MiB at most", "memory"]),
        ("SIGSEGV", ["was killed by SIGSEGV, by a crash in native", "in string_at", "in sample"]),
        ("SIGSYS", ["was killed by SIGSYS, whose sender"]),
        ("SIGABRT", ["was killed by SIGABRT, by native code"]),
        ("_exit", ["exited by itself with code 7: something in the dataset"]),
        ("_exit 0", ["exited by itself with code 0"]),
        ("loop", ["(timeout=0.5 s)", "LL010", "in _loop", "in sample"]),
        ("SIGSTOP", ["(timeout=0.5 s)", "LL010", "It did not write its stacks"]),
    ],
)
def test_one_warning_says_it_all(how: str, words: list[str], tmp_path: Path) -> None:
    loader = DataLoader(
        Call(dying([9], tmp_path, how), 24), batch_size=2, num_workers=2,
        timeout=0.5 if how in ("loop", "SIGSTOP") else 0,
    )  # fmt: skip
    with told(1) as texts:
        assert ints(loader) == list(range(24))
    words += [
        "fetching index 9 (sample 1 of batch 4, indices [8, 9])",
        "It has been replaced and nothing is lost (restart 1 of at most max_worker_restarts=3",
    ]
    assert [word for word in words if word not in texts[0]] == [], texts[0]
    assert re.match(r"lit_loader: Worker [01] \(pid \d+\) ", texts[0])


@pytest.mark.parametrize("pin", [False, True], ids=["", "pin"])
@pytest.mark.parametrize("kind", ["map", "stream", "stateful"])
def test_a_warning_that_is_an_error_loses_no_batch(
    kind: str, pin: bool, tmp_path: Path, pinned: None
) -> None:
    dataset = {"map": Noisy, "stream": NoisyStream, "stateful": StatefulStream}[kind]()
    expected = outcomes(DataLoader(dataset, batch_size=3, num_workers=2, seed=1))
    strikes = [Strike("SIGKILL", "fetching", number) for number in (3, 5)]
    iterator = iter(
        DataLoader(
            dataset, batch_size=3, num_workers=2, seed=1, pin_memory=pin,
            worker_init_fn=Faults(tmp_path, *strikes),
        )
    )  # fmt: skip
    found = outcomes(iterator)
    # The first one ends all workers, perhaps also one that has died and was not missed yet.
    assert found.count(WorkerRestartWarning) in (1, 2)
    assert [entry for entry in found if entry is not WorkerRestartWarning] == expected


# Hanging ---------------------------------------------------------------------------------------


def _hang_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        hang()


@pytest.mark.parametrize("stage", ["fetching index 4 ", "collating (batch 4,", "in worker_init_fn"])
def test_hanging_in_user_code(stage: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def at(place: str, index: int = 4) -> None:
        if place in stage and index == 4:
            _hang_once(mark)

    def sample(index: int) -> int:
        at("fetching", index)
        return index

    def collate(samples: list[int]) -> list[int]:
        at("collating", samples[0])
        return samples

    loader = DataLoader(
        Call(sample, 12), num_workers=1, timeout=0.5, collate_fn=collate,
        worker_init_fn=lambda _: at("worker_init_fn"),
    )  # fmt: skip
    with told(1) as texts:
        assert ints(loader) == list(range(12))
    assert f"It was {stage}" in texts[0]
    assert re.search(r"Its stacks:\n(.*\n)+.* in _hang_once\n", texts[0])


def test_hanging_when_the_next_epoch_begins(gate: Gate) -> None:
    """The consumer leaves an epoch whose last sample never ends."""

    def sample(index: int) -> int:
        if index == 2 and lit_loader.get_epoch() == 0:
            gate.open()
            hang()
        return index

    with DataLoader(Call(sample, 8), num_workers=2, persistent_workers=True, timeout=0.5) as loader:
        for _ in loader:
            assert gate.wait()
            break
        before = pool_of(loader).workers.pids
        with told(1) as texts:
            assert ints(loader) == list(range(8))
        assert "LL010" in texts[0]
        assert "in hang" in texts[0]
        assert len(set(before) & set(pool_of(loader).workers.pids)) == 1  # the other one lives


def test_slow_is_not_hanging() -> None:
    """A batch may take longer than ``timeout``, if no sample does."""

    def sample(index: int) -> int:
        time.sleep(0.2)
        return index

    with told(0):
        loader = DataLoader(Call(sample, 12), batch_size=6, num_workers=2, timeout=0.7)
        assert ints(loader) == list(range(12))


# Iterable datasets -----------------------------------------------------------------------------


STREAMS = pytest.mark.parametrize(
    "stream", [Counting, StatefulCounting], ids=["generator", "with a state"]
)


@STREAMS
@pytest.mark.parametrize("death", [3, 5])  # right behind the error, and later
def test_an_error_that_was_given_out_is_not_given_out_again(
    stream: type[Counting], death: int, tmp_path: Path
) -> None:
    """A reader that goes on behind an exception, and dies later."""
    mark = tmp_path / "mark"

    def function(number: int) -> int:
        if number == 2:
            raise LookupError("the third")
        if number == death and not mark.exists():
            mark.touch()
            FAULTS["SIGKILL"]()
        return number

    iterator = iter(DataLoader(stream(8, function), num_workers=1, prefetch_factor=1))
    found: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(9):
            try:
                found.append(int(next(iterator)))
            except LookupError:
                found.append("error")
            except StopIteration:
                break
    if stream is Counting:  # a generator is over then
        assert (found, len(caught)) == ([0, 1, "error"], 0)
    else:
        assert (found, len(caught)) == ([0, 1, "error", 3, 4, 5, 6, 7], 1)
