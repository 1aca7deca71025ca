"""Worker threads: the batches that worker processes yield, faults reported, nothing left behind."""

import functools
import gc
import os
import random
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

import lit_loader
from lit_loader import DataLoader
from lit_loader.core.transport import viewer_page
from lit_loader.top.look import NotFound, Viewer
from tests.support.programs import start_program
from tests.support.samples import Call, OfLength, Rows, until

THREADS: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}
PROCESSES: dict[str, Any] = {"num_workers": 2, "worker_method": "multiprocessing"}


def workers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("lit_loader worker")]


# --- exactness ---


class Drawing(OfLength):
    """Draws from all that may be drawn from in threads."""

    length = 37

    def __getitem__(self, index: int) -> list[float]:
        find: Any = getattr(torch, "thread_safe_generator", lambda: None)
        own: Any = getattr(get_worker_info(), "rng", None)  # None without workers, before 2.13
        return [
            *(index, lit_loader.get_epoch(), lit_loader.get_rng().random()),
            *(lit_loader.get_rng().random(), lit_loader.get_rng("a key").random()),
            torch.rand((), generator=find()).item() if find() or not workers() else 0.0,
            torch.initial_seed() % 2**31,
            own.random_generator.random() if own else -1.0,
            torch.rand((), generator=own.torch_generator).item() if own else -1.0,
        ]


class Failing(OfLength):
    length = 37

    def __getitem__(self, index: int) -> list[float]:
        drawn = lit_loader.get_rng().random()
        if index % 5 == 3:
            raise OSError(f"{index} is bad")
        return [index, drawn]


class Told(OfLength):
    """Counts how often it was told its epoch."""

    def __init__(self) -> None:
        super().__init__(37)
        self.told: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def __getitem__(self, index: int) -> list[int]:
        return [index, self.told[-1]]


def noisy(samples: list[Any]) -> torch.Tensor:
    batch = torch.tensor(samples, dtype=torch.float64)
    return batch + lit_loader.get_rng().random()


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "by batch": (Drawing, {}),
    "by sample": (Drawing, {"seeding": "sample"}),
    "collate_fn": (Drawing, {"collate_fn": noisy}),
    "sampler": (Drawing, {"sampler": [*range(36, -1, -1)], "shuffle": None}),
    "ranks": (Drawing, {"num_replicas": 2, "rank": 1}),
    "skip": (Failing, {"on_sample_error": "skip"}),
    "replace": (Failing, {"on_sample_error": "replace"}),
    "retries": (Failing, {"on_sample_error": "skip", "sample_retries": {"times": 1, "backoff": 0}}),
    "pinned": (Drawing, {"pin_memory": True}),
    "told": (Told, {}),
}


def loader_of(case: str, **options: Any) -> DataLoader[Any]:
    make, given = CASES[case]
    return DataLoader(make(), **{"batch_size": 4, "shuffle": True, "seed": 5, **given, **options})


def plain(batches: Any) -> Any:
    """What does not depend on whether there are workers."""
    return [torch.stack([torch.as_tensor(each) for each in batch]).tolist() for batch in batches]


def two_epochs(loader: DataLoader[Any]) -> Any:
    loader.set_epoch(3)
    return [plain(loader), plain(loader)]


@pytest.mark.filterwarnings("ignore:.*pin_memory")
@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_processes(case: str) -> None:
    with loader_of(case, **PROCESSES) as processes:
        expected = two_epochs(processes)
    assert two_epochs(loader_of(case, **THREADS)) == expected
    assert two_epochs(loader_of(case, **THREADS | {"num_workers": 3})) == expected


@pytest.mark.parametrize("case", ["by batch", "by sample", "skip"])
def test_resumes_by_the_other_kind_of_workers(case: str) -> None:
    whole = plain(loader_of(case, **THREADS))
    for first, second in ((THREADS, PROCESSES), (PROCESSES, THREADS)):
        with loader_of(case, **first) as loader, loader_of(case, **second) as resumed:
            batches = iter(loader)
            begun = [next(batches) for _ in range(3)]
            resumed.load_state_dict(loader.state_dict())
            assert plain(begun) + plain(resumed) == whole


def test_threads_share_the_dataset_and_its_samples() -> None:
    kept = [object() for _ in range(8)]
    loader = DataLoader(Call(kept.__getitem__, 8), collate_fn=lambda batch: batch, **THREADS)
    assert [each for (each,) in loader] == kept


def test_the_dataset_is_told_its_epoch_once_for_each_pass() -> None:
    dataset = Told()
    loader = DataLoader(dataset, **THREADS | {"num_workers": 4})
    for epoch in (3, 4):
        loader.set_epoch(epoch)
        assert {int(told) for _, told in loader} == {epoch}
    assert dataset.told == [3, 4]


class Asking(OfLength):
    def __getitem__(self, index: int) -> list[int]:
        info: Any = get_worker_info()
        assert info.id == int(threading.current_thread().name.rpartition(" ")[2])
        assert info.dataset is self
        assert getattr(info, "worker_method", "thread") == "thread"
        return [index, info.num_workers]


def test_each_thread_has_its_worker_info() -> None:
    called: list[int] = []

    def initialise(worker: int) -> None:
        info: Any = get_worker_info()
        assert info.id == worker
        called.append(worker)

    for batch in DataLoader(Asking(), batch_size=2, worker_init_fn=initialise, **THREADS):
        assert batch[1].tolist() == [2, 2]
    assert sorted(called) == [0, 1]
    assert get_worker_info() is None


def test_grad_mode_is_the_program_s() -> None:
    with torch.no_grad():
        assert not any(DataLoader(Call(lambda _: torch.is_grad_enabled()), **THREADS))


# --- generators that threads share ---


class Holding(OfLength):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)

    def __getitem__(self, index: int) -> float:
        return float(self.rng.random())


def drawing(name: str) -> Any:
    if name == "Holding.rng":
        return Holding()
    draws = {"random": random.random, "numpy.random": np.random.rand}
    return Call(lambda _: draws.get(name, lambda: torch.rand(()).item())())


@pytest.mark.parametrize("name", ["random", "numpy.random", "torch's", "Holding.rng"])
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_a_draw_from_a_shared_generator_is_reported_once(name: str, pinned: bool) -> None:
    loader = DataLoader(drawing(name), batch_size=2, pin_memory=pinned, **THREADS)
    with pytest.warns(lit_loader.ExactnessWarning, match=f"(?s){name}.*get_rng.*LL418") as found:
        for _ in range(2):
            list(loader)
    assert len([each for each in found if each.category is lit_loader.ExactnessWarning]) == 1


def test_what_the_program_draws_meanwhile_is_not_reported() -> None:
    dataset = Holding()
    loader = DataLoader(Call(lambda index: [index, dataset]), collate_fn=len, **THREADS)
    inline = iter(DataLoader(Call(lambda _: np.random.rand(), 64), seed=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.start()
        for _ in loader:
            torch.rand(3), random.random(), np.random.rand(), dataset.rng.random()
            next(inline)


def test_a_draw_of_the_program_after_an_exception_is_not_reported() -> None:
    reached, gate = threading.Event(), threading.Event()

    def sample(index: int) -> int:
        if index == 1:
            reached.set()
            assert gate.wait(60)
        return 1 // index

    batches = iter(DataLoader(Call(sample, 2), **THREADS))
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert reached.wait(60)
    np.random.rand()
    gate.set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert next(batches).tolist() == [1]


# --- faults ---


def test_an_exception_is_the_user_s_own_with_its_place() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(DataLoader(Call(lambda index: 1 // (index - 5)), batch_size=4, **THREADS))
    assert "(a thread), batch 1, at index 5" in "".join(caught.value.__notes__)
    assert "test_threads.py" in str(caught.traceback[-1].path)


def test_the_epoch_goes_on_after_an_exception() -> None:
    batches, found = iter(DataLoader(Failing(8), batch_size=None, **THREADS)), []
    for _ in range(8):
        try:
            found.append(next(batches)[0])
        except OSError:
            found.append(-1)
    assert found == [0, 1, 2, -1, 4, 5, 6, 7]


def test_an_exception_of_worker_init_fn_is_that_of_each_batch() -> None:
    def fail(number: int) -> None:
        raise KeyError(f"worker {number}")

    batches = iter(DataLoader(Rows(), worker_init_fn=fail, **THREADS))
    for _ in range(3):
        with pytest.raises(KeyError, match="worker"):
            next(batches)


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_a_sample_neither_ends_nor_interrupts_the_program(raised: Any) -> None:
    def leave(index: int) -> int:
        if index == 5:
            raise raised(3)
        return index

    batches = iter(DataLoader(Call(leave), batch_size=4, **THREADS))
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(lit_loader.WorkerError, match=f"{raised.__name__}: 3"):
        next(batches)


@pytest.mark.parametrize("where", ["a sample", "worker_init_fn"])
def test_a_thread_that_hangs_is_reported_with_its_stack(where: str) -> None:
    gate, hanging = threading.Event(), threading.Event()

    def wait_at_the_gate(index: int) -> int:
        if (index == 5 or where != "a sample") and not hanging.is_set():
            hanging.set()
            gate.wait()
        return index

    options: dict[str, Any] = {"batch_size": 4, "timeout": 0.3, **THREADS}
    if where != "a sample":
        options |= {"worker_init_fn": wait_at_the_gate, "num_workers": 1}
    batches = iter(DataLoader(Call(wait_at_the_gate), **options))
    found = []
    try:
        with pytest.raises(lit_loader.WorkerTimeoutError, match=r"timeout=0\.3.*LL037") as caught:
            while True:
                found.append(next(batches).tolist())
        expected = {"a sample": "fetching index 5 (sample 1 of batch 1, indices [4, 5, 6, 7])"}
        assert expected.get(where, where) in str(caught.value)
        assert "in wait_at_the_gate" in str(caught.value)
        found += [batch.tolist() for batch in batches]
    finally:
        gate.set()
        until(lambda: not workers())
    assert found == [[n, n + 1, n + 2, n + 3] for n in range(0, 16, 4)]


def test_a_stall_is_reported_with_stacks() -> None:
    gate = threading.Event()

    def wait_at_the_gate(index: int) -> int:
        gate.wait()
        return index

    def open_it(message: Any, *_: Any, **__: Any) -> None:
        told.append(str(message))
        gate.set()

    told: list[str] = []
    loader = DataLoader(Call(wait_at_the_gate), batch_size=4, stall_warning=0.2, **THREADS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", open_it)
        assert len([*loader]) == 4
    assert "fetching index 4 (sample 0 of batch 1, indices [4, 5, 6, 7])" in told[0]
    assert "in wait_at_the_gate" in told[0]


@pytest.mark.parametrize(
    "options",
    [
        {"multiprocessing_context": "spawn"},
        {"max_worker_restarts": 1},
        {"memory_budget": "1 GB"},
        {"num_remote_workers": 1},
        {"reseed_fn": lambda dataset, seed: None},
    ],
)
def test_what_means_nothing_in_threads_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(lit_loader.OptionError, match=f"{[*options][0]} is for worker processes"):
        DataLoader(Rows(), **THREADS | options)


class Records(OfLength):
    """Reads records from one open file."""

    def __init__(self, path: Path) -> None:
        super().__init__(64)
        self.file = path.open("rb")

    def __getitem__(self, index: int) -> int:
        self.file.seek(8 * index)
        return int.from_bytes(self.file.read(8), "little")


class Locked(Records):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> int:
        with self.lock:
            return super().__getitem__(index)


@pytest.mark.parametrize("options", [THREADS, {"read_threads": 4}], ids=["workers", "readers"])
def test_a_file_at_one_position_for_all_threads_is_reported(
    options: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "numbers.bin"
    np.arange(64, dtype=np.int64).tofile(path)
    with (dataset := Locked(path)).file:
        found = torch.cat([*DataLoader(dataset, batch_size=8, **options)])
    assert found.tolist() == [*range(64)]
    with (
        (dataset := Records(path)).file,
        pytest.warns(UserWarning, match=r"(?s)Records\.file.*LL021"),
    ):
        list(DataLoader(dataset, batch_size=8, **options))


# --- ends ---


def test_no_thread_is_left_by_break_exception_garbage_or_close() -> None:
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


def test_start_makes_the_first_batches() -> None:
    read = threading.Event()
    loader = DataLoader(Call(lambda index: read.set() or index), **THREADS)  # type: ignore[func-returns-value]
    loader.start()
    assert read.wait(60)
    assert [int(batch) for batch in loader] == [*range(16)]


def test_an_iterator_that_is_dropped_during_a_sample_harms_no_other() -> None:
    gate, reached = threading.Event(), threading.Event()

    def sample(index: int) -> int:
        if index == 5 and not reached.is_set():
            reached.set()
            gate.wait()
        return index

    loader = DataLoader(Call(sample), 4, **THREADS)
    try:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1, 2, 3]
        assert reached.wait(60)
        del batches
        assert [batch.tolist()[0] for batch in loader] == [0, 4, 8, 12]
    finally:
        gate.set()
        until(lambda: not workers())


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
    assert not workers()


def test_auto_sets_the_number_of_threads() -> None:
    waits = threading.Event()  # which nobody sets: latency

    def sample(index: int) -> int:
        waits.wait(0.005)
        return index

    make = functools.partial(DataLoader, Call(sample, 120), seed=1, shuffle=True)
    loader: Any = make(num_workers="auto", worker_method="thread")
    found = [[int(batch) for batch in loader] for _ in range(2)]
    with DataLoader(range(120), shuffle=True, seed=1) as plain:
        assert found == [[int(batch) for batch in plain] for _ in range(2)]
    assert loader.num_workers > 2


# --- forks and signals ---


def test_forked_copies_of_the_program_read_on() -> None:
    """Also where the fork comes while a thread is at a sample."""
    gate, reached = threading.Event(), threading.Event()

    def sample(index: int) -> int:
        if os.getpid() == parent and index == 5:
            reached.set()
            gate.wait()
        return index

    parent = os.getpid()
    loader = DataLoader(Call(sample), 4, **THREADS)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2, 3]
    assert reached.wait(60)
    for of in (batches, loader):
        pid = os.fork()
        if pid == 0:
            os._exit(len([*of]))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (3 if of is batches else 4)
    gate.set()
    assert len([*batches]) == 3


class Interrupted(BaseException):
    pass


@pytest.fixture
def interrupts() -> Iterator[None]:
    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("options", [THREADS, {"read_threads": 4}], ids=["workers", "readers"])
def test_an_exception_of_a_signal_handler_loses_nothing(options: dict[str, Any]) -> None:
    gate, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def sample(index: int) -> list[float]:
        if index == 5 and not gate.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)
            gate.wait()
        return [index, lit_loader.get_rng().random(), lit_loader.get_rng().random()]

    batches, found = iter(DataLoader(Call(sample), 4, seed=1, **options)), []
    try:
        with pytest.raises(Interrupted):
            while True:
                found.append(plain([next(batches)]))
    finally:
        gate.set()
    found += [plain([batch]) for batch in batches]
    assert found == [plain([batch]) for batch in DataLoader(Call(sample), 4, seed=1)]


PROGRAM = """
import signal, sys, threading
from torch.utils.data import Dataset
from lit_loader import DataLoader


reached = threading.Event()


def make():  # a local class: nothing of it can be pickled
    class Slow(Dataset):
        lock = threading.Lock()

        def __len__(self):
            return 100

        def __getitem__(self, index):
            if index == 7:
                print("at 7", flush=True)
                reached.set()
                threading.Event().wait()
            return index

    return Slow()


def leave(*_):
    sys.exit(7)


if sys.argv[1] == "handled":
    signal.signal(signal.SIGTERM, leave)
for number, batch in enumerate(DataLoader(make(), 4, num_workers=2, worker_method="thread")):
    if sys.argv[1] == "exits":
        reached.wait()
        sys.exit(3)
"""


@pytest.mark.parametrize(
    ("number", "how", "code"),
    [
        (signal.SIGINT, "plain", -signal.SIGINT),
        (signal.SIGTERM, "plain", -signal.SIGTERM),
        (signal.SIGTERM, "handled", 7),
        (None, "exits", 3),
    ],
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


# --- what is seen of them ---


def test_a_viewer_and_statistics_see_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer_page, "EVERY", 0)
    loader = DataLoader(Rows(), batch_size=4, shuffle=True, **THREADS)
    for number, _ in enumerate(loader, 1):
        [seen] = Viewer(os.getpid()).look()
        assert (seen["dataset"], seen["num_workers"], seen["batches"]) == ("Rows", 2, number)
        assert [(each["worker"], each["pid"]) for each in seen["workers"]] == [
            (0, os.getpid()),
            (1, os.getpid()),
        ]
    with pytest.raises(NotFound):
        Viewer(os.getpid()).look()
    assert (loader.statistics().batches, loader.statistics().samples) == (16, 64)


class Seen(lightning.LightningModule):
    """Notes what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.seen.append([each.tolist() for each in batch])
        loss: torch.Tensor = self.layer(batch[1].float().reshape(-1, 1)).sum()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.0)


def fit(folder: Path, state: Any = None, **options: Any) -> tuple[Any, Any]:
    module, steps = Seen(), options.pop("steps", -1)
    trainer = lightning.Trainer(
        default_root_dir=folder, max_epochs=2, max_steps=steps, accelerator="cpu", logger=False,
        callbacks=[lit_loader.LoaderStateCallback()], enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(module, loader_of("skip", **options), ckpt_path=state)
    path = folder / "last.ckpt"
    trainer.save_checkpoint(path)
    return module.seen, path


def test_a_fit_is_resumed_by_the_other_kind_of_workers(tmp_path: Path) -> None:
    whole, _ = fit(tmp_path, **THREADS)
    for first, second in ((THREADS, PROCESSES), (PROCESSES, THREADS)):
        begun, path = fit(tmp_path, steps=7, **first)
        rest, _ = fit(tmp_path, path, **second)
        assert begun + rest == whole
