"""``worker_method="thread"``: faults are reported, nothing is left, the program's own stays."""

import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import get_worker_info

import lit_loader
from lit_loader import DataLoader
from lit_loader.core.transport import viewer_page
from lit_loader.top.look import Viewer
from tests.support.programs import start_program
from tests.support.samples import Call, Rows, until

THREADS: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}
FOURS = [[n, n + 1, n + 2, n + 3] for n in range(0, 16, 4)]


def workers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("lit_loader worker")]


class Gate:
    """A dataset whose sample 5 waits, the first time, until the gate is opened."""

    def __init__(self) -> None:
        self.reached, self.gate, self.pid = threading.Event(), threading.Event(), os.getpid()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        if index == 5 and not self.reached.is_set() and os.getpid() == self.pid:
            self.reached.set()
            self.gate.wait()
        return index


@pytest.fixture
def data() -> Iterator[Gate]:
    data = Gate()
    yield data
    data.gate.set()
    until(lambda: not workers())


# --- what they share ---


def test_threads_share_the_dataset_and_its_samples() -> None:
    kept = [object() for _ in range(8)]
    loader = DataLoader(Call(kept.__getitem__, 8), collate_fn=lambda batch: batch, **THREADS)
    assert [each for (each,) in loader] == kept


def test_each_thread_has_its_worker_info_and_the_program_s_grad_mode() -> None:
    called, both = list[int](), threading.Barrier(2)

    def initialise(worker: int) -> None:
        info: Any = get_worker_info()
        assert info.id == worker
        called.append(worker)
        both.wait(60)  # else one might build all batches

    def sample(index: int) -> list[int]:
        info: Any = get_worker_info()
        assert info.id == int(threading.current_thread().name.rpartition(" ")[2])
        assert info.dataset is data
        assert getattr(info, "worker_method", "thread") == "thread"
        return [index, info.num_workers, torch.is_grad_enabled()]

    data = Call(sample)
    with torch.no_grad():
        for batch in DataLoader(data, batch_size=2, worker_init_fn=initialise, **THREADS):
            assert [each.tolist() for each in batch[1:]] == [[2, 2], [False, False]]
    assert sorted(called) == [0, 1]
    assert get_worker_info() is None


@pytest.mark.parametrize("options", [THREADS, {"read_threads": 4}], ids=["workers", "readers"])
def test_a_file_at_one_position_for_all_threads_is_reported(
    options: dict[str, Any], tmp_path: Path
) -> None:
    dataset = Rows()
    (tmp_path / "file").write_bytes(b"rows")
    with (tmp_path / "file").open("rb") as file:
        dataset.file = file  # type: ignore[attr-defined]
        with pytest.warns(UserWarning, match=r"(?s)Rows\.file.*share its position"):
            list(DataLoader(dataset, **options))


def test_what_means_nothing_in_threads_is_refused() -> None:
    refused = {"multiprocessing_context": "spawn", "max_worker_restarts": 1, "remote": {}}
    refused["reseed_fn"] = lambda dataset, seed: None
    for name, value in refused.items():
        with pytest.raises(lit_loader.OptionError, match=f"{name} is for worker"):
            DataLoader(Rows(), **THREADS | {name: value})


# --- faults ---


def test_an_exception_is_the_user_s_own_with_its_place_and_the_epoch_goes_on() -> None:
    batches = iter(DataLoader(Call(lambda index: 16 // (index - 5)), batch_size=4, **THREADS))
    assert next(batches).tolist() == [-4, -4, -6, -8]
    with pytest.raises(ZeroDivisionError) as caught:
        next(batches)
    assert "(a thread), batch 1, at index 5" in "".join(caught.value.__notes__)
    assert "test_threads.py" in str(caught.traceback[-1].path)
    assert len([*batches]) == 2


def test_an_exception_of_worker_init_fn_is_that_of_each_batch() -> None:
    def fail(number: int) -> None:
        raise KeyError(f"worker {number}")

    batches = iter(DataLoader(Rows(), worker_init_fn=fail, **THREADS))
    for _ in range(3):
        with pytest.raises(KeyError, match="worker"):
            next(batches)


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("options", [THREADS, {"num_workers": 1, "read_threads": 4}])
def test_a_sample_neither_ends_nor_interrupts_the_program(raised: Any, options: Any) -> None:
    def leave(index: int) -> int:
        raise raised(3)

    with (
        DataLoader(Call(leave), batch_size=4, **options) as loader,
        pytest.raises(lit_loader.WorkerError, match=f"{raised.__name__}: 3"),
    ):
        list(loader)
    with pytest.raises(raised):
        list(DataLoader(Call(leave), 4, read_threads=4))  # in the program's own thread


def test_a_thread_that_hangs_is_reported_with_its_stack(data: Gate) -> None:
    batches, found = iter(DataLoader(data, 4, timeout=0.3, **THREADS)), []
    with pytest.raises(lit_loader.WorkerTimeoutError, match=r"timeout=0\.3.*LL037") as caught:
        while True:
            found.append(next(batches).tolist())
    assert "fetching index 5 (sample 1 of batch 1, indices [4, 5, 6, 7])" in str(caught.value)
    assert "self.gate.wait()" in str(caught.value)
    assert found + [batch.tolist() for batch in batches] == FOURS


def test_a_thread_that_hangs_in_worker_init_fn_is_reported(data: Gate) -> None:
    loader = DataLoader(Rows(), worker_init_fn=lambda _: data[5], timeout=0.3, **THREADS)
    with pytest.raises(lit_loader.WorkerTimeoutError, match=r"(?s)worker_init_fn.*gate\.wait"):
        list(loader)  # whichever thread hangs, and whichever batch it was to build


# --- ends ---


def test_no_thread_is_left_by_break_garbage_or_close(data: Gate) -> None:
    loader = DataLoader(Rows(), **THREADS)
    for _ in loader:
        break
    assert not workers()
    batches = iter(loader)
    next(batches)
    assert len(workers()) == 2
    loader.close()
    assert not workers()
    gc.disable()
    try:
        batches = iter(loader)
        next(batches)
        alive = weakref.ref(batches)
        del batches
        assert alive() is None
    finally:
        gc.enable()
    assert not workers()
    for _ in DataLoader(data, 4, **THREADS):  # one is left at a sample, and harms no other
        assert data.reached.wait(60)
        break
    assert [batch.tolist() for batch in DataLoader(data, 4, **THREADS)] == FOURS


def test_resizes_while_it_runs() -> None:
    loader, found = DataLoader(Rows(), shuffle=True, seed=1, **THREADS), []
    for number, batch in enumerate(loader):
        found.append(batch.tolist())
        if number == 5:
            loader.resize(4)
        if number == 20:
            assert len(workers()) == 4
            loader.resize(1)
    assert found == [batch.tolist() for batch in DataLoader(Rows(), shuffle=True, seed=1)]


def test_auto_sets_the_number_of_threads() -> None:
    waits = threading.Event()  # which nobody sets: latency
    data = Call(lambda index: waits.wait(0.005) or index, 120)
    with DataLoader(data, num_workers="auto", worker_method="thread") as loader:
        assert [[int(batch) for batch in loader] for _ in range(2)] == [[*range(120)]] * 2
        assert loader.num_workers > 2


# --- forks and signals ---


def test_forked_copies_of_the_program_read_on(data: Gate) -> None:
    """The fork comes while a thread is at a sample."""
    loader = DataLoader(data, 4, **THREADS)
    batches = iter(loader)
    assert next(batches).tolist() == FOURS[0]
    assert data.reached.wait(60)
    for of in (batches, loader):
        pid = os.fork()
        if pid == 0:
            os._exit(len([*of]))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (3 if of is batches else 4)
    data.gate.set()
    assert [batch.tolist() for batch in batches] == FOURS[1:]


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("options", [THREADS, {"read_threads": 4}], ids=["workers", "readers"])
def test_an_exception_of_a_signal_handler_loses_nothing(options: dict[str, Any]) -> None:
    gate, begun, main = threading.Event(), threading.Event(), threading.main_thread().ident or 0

    def interrupt(*_: Any) -> None:
        raise Interrupted

    def sample(index: int) -> list[float]:
        if index == 5 and begun.wait() and not gate.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)
            gate.wait()
        return [index, lit_loader.get_rng().random(), lit_loader.get_rng().random()]

    before = signal.signal(signal.SIGUSR1, interrupt)
    batches = iter(DataLoader(Call(sample), 4, seed=1, **options))
    try:
        first = next(batches)
        with pytest.raises(Interrupted):
            begun.set()
            next(batches)
    finally:
        gate.set()
        signal.signal(signal.SIGUSR1, before)
    found = [torch.stack(batch).tolist() for batch in (first, *batches)]
    assert found == [torch.stack(batch).tolist() for batch in DataLoader(Call(sample), 4, seed=1)]


PROGRAM = """
import signal, sys, threading
from lit_loader import DataLoader
from tests.support.samples import Call

reached = threading.Event()


def sample(index):
    if index == 7:
        print("at 7", flush=True)
        reached.set()
        threading.Event().wait()
    return index


if sys.argv[1] == "handled":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
for batch in DataLoader(Call(sample, 100), 4, num_workers=2, worker_method="thread"):
    if sys.argv[1] == "exits":
        reached.wait()
        sys.exit(3)
"""


@pytest.mark.parametrize(
    ("number", "how", "code"),
    [(signal.SIGINT, "plain", -signal.SIGINT), (signal.SIGTERM, "handled", 7), (None, "exits", 3)],
)
def test_a_program_ends_while_a_thread_is_at_a_sample(
    number: Any, how: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with start_program(tmp_path / "program.py", how) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at 7\n"
        if number is not None:
            process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Fatal" not in err


# --- who sees them ---


def test_a_viewer_and_statistics_see_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer_page, "EVERY", 0)
    loader = DataLoader(Rows(), batch_size=4, shuffle=True, **THREADS)
    for number, _ in enumerate(loader, 1):
        [seen] = Viewer(os.getpid()).look()
        assert (seen["dataset"], seen["num_workers"], seen["batches"]) == ("Rows", 2, number)
        assert [each["worker"] for each in seen["workers"]] == [0, 1]
    assert (loader.statistics().batches, loader.statistics().samples) == (16, 64)
