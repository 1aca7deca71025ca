"""Records in shared memory: a read-only list that costs its bytes once."""

import gc
import os
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil
import pytest

from lit_loader import DataLoader, SharedSequence
from tests.support.samples import METHODS, ints

RECORDS = [0, "one", b"two", (3, [4.0]), {"five": np.arange(6)}, None, "x" * 3_000_000, ""]


def test_a_sequence() -> None:
    sequence = SharedSequence(range(10))
    assert isinstance(sequence, Sequence)
    assert len(sequence) == 10
    assert list(sequence) == list(range(10))
    assert sequence[-1] == 9
    assert sequence[np.int64(3)] == 3
    assert sequence[2:9:3] == [2, 5, 8]
    assert sequence[::-1] == list(range(10))[::-1]
    assert 7 in sequence
    assert sequence.index(7) == 7
    assert list(reversed(sequence)) == list(range(9, -1, -1))
    for index in (10, -11):
        with pytest.raises(
            IndexError, match=f"index {index} is out of range for a SharedSequence of 10"
        ):
            sequence[index]
    with pytest.raises(TypeError):
        sequence["a"]  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        sequence[0] = 1  # type: ignore[index]
    none = SharedSequence([])
    assert (len(none), list(none)) == (0, [])
    with pytest.raises(IndexError):
        none[0]


def test_any_record() -> None:
    sequence = SharedSequence(iter(RECORDS))
    assert repr(list(sequence)) == repr(RECORDS)
    assert sequence.nbytes >= 3_000_000
    assert repr(sequence) == f"SharedSequence(8 records, {sequence.nbytes / 2**20:.1f} MiB)"


@pytest.mark.parametrize("kind", ["U20", "S20", object])
def test_a_column_of_strings(kind: Any) -> None:
    column = np.array([f"file {n}" for n in range(10_000)], dtype=kind)
    sequence = SharedSequence(column)
    assert list(sequence) == column.tolist()
    assert type(sequence[9_999]) in (str, bytes)
    assert sequence.nbytes < 40 * len(column)
    assert list(SharedSequence(column[::-5000])) == [column[-1], column[4999]]


def test_records_are_the_readers_own() -> None:
    sequence = SharedSequence([[1, 2]])
    sequence[0].append(3)
    assert sequence[0] == [1, 2]


def test_nothing_is_left() -> None:
    """Also of one that cannot be made."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Exception, match="pickle|local object"):
        SharedSequence([1, lambda: 0])
    assert len(os.listdir("/proc/self/fd")) == before
    sequences = [SharedSequence(range(100)) for _ in range(5)]
    again = pickle.loads(pickle.dumps(sequences))
    assert [list(each) for each in again] == [list(range(100))] * 5
    del sequences, again
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def numbers(length: int) -> Any:
    return SharedSequence({"number": n} for n in range(length))


@pytest.mark.parametrize("method", METHODS)
def test_in_workers(method: str) -> None:
    loader = DataLoader(numbers(20), batch_size=3, num_workers=2, multiprocessing_context=method)
    assert ints(batch["number"] for batch in loader) == list(range(20))


def written_to(pid: int) -> int:
    """Bytes that a process has for itself alone: made there, or copied by writing to them."""
    return sum(part.anonymous for part in psutil.Process(pid).memory_maps())


def test_workers_do_not_copy_it() -> None:
    """What is private to a worker stays far below the records' size, after all have been read."""
    records = numbers(200_000)
    with DataLoader(records, batch_size=500, num_workers=1, persistent_workers=True) as loader:
        iterator = iter(loader)
        next(iterator)
        [worker] = iterator.workers.workers.pids  # type: ignore[attr-defined]
        before = written_to(worker)
        assert sum(len(batch["number"]) for batch in iterator) == 200_000 - 500
        grown = written_to(worker) - before
    assert records.nbytes > 4_000_000
    assert grown < records.nbytes / 4
