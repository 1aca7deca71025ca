"""What goes wrong in workers: said at once, with all that is known; and the next next() goes on.

Deaths and hangs here are those that may not be healed (``max_worker_restarts=0``, or the budget is
used up); how they are healed is in test_recovery.py and test_fault_matrix.py.
"""

import pytest

from lit_loader import DataLoader
from lit_loader.errors import WorkerError, WorkerTimeoutError
from tests.support.samples import BrokenArrival, Call, Counting, ints, uncollated, worker_pids
from tests.support.tools import Gate, wait_gone

PERSISTENT = pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, StopIteration, SystemExit])
def test_exceptions_that_mean_something_else_here(kind: type[BaseException]) -> None:
    def sample(index: int) -> int:
        if index == 1:
            raise kind("odd")
        return index

    iterator = iter(DataLoader(Call(sample, 3), num_workers=2))
    assert int(next(iterator)) == 0
    with pytest.raises(WorkerError, match=f"{kind.__name__}: odd\n.*indices \\[1\\]"):
        next(iterator)
    assert ints(iterator) == [2]


# Time ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("by_fork")
def test_a_timeout_names_worker_sample_and_duration(gate: Gate) -> None:
    def sample(index: int) -> int:
        if index == 3:
            gate.wait()
        return index

    loader = DataLoader(
        Call(sample, 12), batch_size=2, num_workers=1, timeout=0.6, max_worker_restarts=0
    )
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    pids = worker_pids(iterator)
    with pytest.raises(WorkerTimeoutError) as caught:
        next(iterator)
    assert isinstance(caught.value, (TimeoutError, RuntimeError))
    said = str(caught.value)
    assert f"Worker 0 (pid {pids[0]}) made no progress for" in said and "LL010" in said
    assert "It was fetching index 3 (sample 1 of batch 1, indices [2, 3])" in said
    assert "in sample\n" in said  # the stack
    assert "or raise timeout." in said.splitlines()[-1]
    assert "num_workers=0" not in said
    wait_gone(pids)
    gate.open()
    assert ints(iterator) == list(range(2, 12))
    assert ints(loader) == list(range(12))


# Beginnings ------------------------------------------------------------------------------------


@PERSISTENT
def test_an_error_in_worker_init_fn_reaches_the_consumer(persistent: bool) -> None:
    def init(worker: int) -> None:
        if worker == 1:
            raise LookupError("no such file for worker 1")

    with DataLoader(
        Counting(8), num_workers=2, worker_init_fn=init, persistent_workers=persistent
    ) as loader:
        iterator = iter(loader)
        assert int(next(iterator)) == 0
        with pytest.raises(LookupError, match="no such file for worker 1") as caught:
            next(iterator)
        assert "in worker 1" in str(caught.value)
        assert "in worker_init_fn" in str(caught.value)


def test_a_dataset_that_cannot_be_unpickled() -> None:
    """The worker lives to tell it."""
    loader = DataLoader(BrokenArrival(), num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(LookupError, match="no way to unpack this") as caught:
        next(iter(loader))
    assert "while its dataset was unpickled" in str(caught.value)
    assert "in __setstate__" in str(caught.value)


# Exceptions of user code -----------------------------------------------------------------------


def test_indices_that_cannot_be_pickled_are_an_error() -> None:
    loader = DataLoader(
        Call(str), sampler=[lambda: 0], num_workers=1, batch_size=None, collate_fn=uncollated
    )
    with pytest.raises(Exception, match="[Pp]ickle.*lambda"):
        next(iter(loader))
