"""Worker threads: the same batches as worker processes give, nothing left behind, faults told."""

import contextlib
import functools
import gc
import io
import itertools
import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import lightning
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, get_worker_info

import lit_loader
from lit_loader import DataLoader
from lit_loader.core.transport import viewer_page
from lit_loader.top.look import NotFound, Viewer
from tests.support.samples import Call, OfLength, Rows

THREADS = {"num_workers": 2, "worker_method": "thread"}
PROCESSES = {"num_workers": 2, "worker_method": "multiprocessing"}


def workers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("lit_loader worker")]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    for each in workers():
        each.join(2)
    assert not workers()


# --- the ordinary program ---


class Photos(Dataset[Any]):
    """JPEG files, decoded by Pillow, flipped by chance."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        with Image.open(self.files[index]) as image:
            pixels = np.asarray(image.resize((16, 16)))
        if lit_loader.get_rng().random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.copy()), index


def test_photos_are_decoded_in_threads(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(70):
        pixels = np.random.default_rng(number).integers(0, 255, (24, 24, 3), np.uint8)
        image.fromarray(pixels).save(tmp_path / f"{number:03}.jpg")
    images = Photos(tmp_path)

    def epoch(**options: Any) -> list[Any]:
        return [*DataLoader(images, batch_size=32, shuffle=True, seed=1, **options)]

    found = epoch(num_workers=2, worker_method="thread")
    for (ours, labels), (theirs, others) in zip(found, epoch(num_workers=2), strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(labels, others)


# --- exactness ---


class Drawing(OfLength):
    """Draws by all that may be drawn by in threads, and from generators of its own."""

    def __init__(self) -> None:
        super().__init__(37)
        self.rng, self.python = np.random.default_rng(), random.Random()
        self.torch = torch.Generator()

    def __getitem__(self, index: int) -> Any:
        safe = getattr(torch, "thread_safe_generator", lambda: None)()
        return [
            *(index, self.rng.random(), self.python.random(), lit_loader.get_epoch()),
            *(lit_loader.get_rng().random(), torch.rand((), generator=self.torch).item()),
            torch.rand((), generator=safe).item() if safe or not workers() else 0.0,
        ]


class Late(OfLength):
    """Makes its generator on first use."""

    def __getitem__(self, index: int) -> Any:
        if not hasattr(self, "rng"):
            self.rng = np.random.default_rng()
        return [index, self.rng.random()]


class Failing(OfLength):
    length = 37

    def __getitem__(self, index: int) -> Any:
        if index % 5 == 3:
            raise ValueError(f"{index} is bad")
        return [index, lit_loader.get_rng().random()]


class Told(OfLength):
    """Keeps the epoch that it was told: one thread's is not another's."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        return [index, self.epoch]


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "batch": (Drawing, {}),
    "sample": (Drawing, {"seeding": "sample"}),
    "out of order": (Drawing, {"sampler": [*range(36, -1, -1)], "shuffle": None}),
    "ranks": (Drawing, {"num_replicas": 2, "rank": 1}),
    "late": (Late, {}),
    "skip": (Failing, {"on_sample_error": "skip"}),
    "replace": (Failing, {"on_sample_error": "replace"}),
    "retried": (Failing, {"on_sample_error": "skip", "sample_retries": 1, "retry_backoff": 0,
                          "transient_errors": [ValueError]}),
    "pinned": (Drawing, {"pin_memory": False, "persistent_workers": True}),
    "told": (Told, {}),
}  # fmt: skip


def loader_of(case: str, **options: Any) -> DataLoader[Any]:
    make, given = CASES[case]
    options = {"batch_size": 4, "shuffle": True, "seed": 5, **given, **options}
    if not options.get("num_workers"):
        options.pop("persistent_workers", None)
    return DataLoader(make(), **options)


def plain(batches: Any) -> Any:
    return [torch.stack([each.double() for each in batch]).tolist() for batch in batches]


def two_epochs(loader: DataLoader[Any]) -> Any:
    loader.set_epoch(3)
    return [plain(loader), plain(loader)]


@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_processes(case: str) -> None:
    found = two_epochs(loader_of(case, **THREADS))
    assert found == two_epochs(loader_of(case, **PROCESSES))
    assert found == two_epochs(loader_of(case, num_workers=0))
    assert found == two_epochs(loader_of(case, **THREADS | {"num_workers": 3}))


@pytest.mark.parametrize("case", ["batch", "sample", "skip"])
@pytest.mark.parametrize("others", [PROCESSES, {"num_workers": 0}], ids=["processes", "inline"])
def test_resumes_by_another_kind_of_workers(case: str, others: dict[str, Any]) -> None:
    whole = plain(loader_of(case, **THREADS))
    for first, second in ((THREADS, others), (others, THREADS)):
        loader = loader_of(case, **first)
        batches = iter(loader)
        begun = [next(batches) for _ in range(3)]
        state = loader.state_dict()
        del batches
        loader.close()
        resumed = loader_of(case, **second)
        resumed.load_state_dict(state)
        assert plain(begun) + plain(resumed) == whole


class Asking(OfLength):
    def __getitem__(self, index: int) -> Any:
        info: Any = get_worker_info()
        number = int(threading.current_thread().name.rpartition(" ")[2])
        assert info.id == number
        assert info.dataset is self
        assert getattr(info, "worker_method", "thread") == "thread"
        return [index, info.num_workers]


def test_each_thread_has_its_worker_info() -> None:
    dataset = Asking()
    for batch in DataLoader(dataset, batch_size=2, **THREADS):
        assert batch[1].tolist() == [2, 2]
    assert get_worker_info() is None


def test_the_dataset_and_its_samples_are_the_program_s_own_objects() -> None:
    kept = [object() for _ in range(8)]
    loader = DataLoader(Call(kept.__getitem__, 8), collate_fn=lambda batch: batch, **THREADS)
    assert [each for (each,) in loader] == kept


class Opening(OfLength):
    """Has what worker_init_fn opens, and large parts."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.file = torch.arange(100), io.BytesIO()
        self.opened = -1

    def __getitem__(self, index: int) -> Any:
        info: Any = get_worker_info()
        return [index, self.opened == info.id, self.table.data_ptr()]


def opened(number: int) -> None:
    info: Any = get_worker_info()
    assert info.id == number
    info.dataset.opened = number


def test_worker_init_fn_has_a_copy_whose_large_parts_are_shared() -> None:
    dataset = Opening()
    for _, own, place in DataLoader(dataset, worker_init_fn=opened, **THREADS):
        assert own.item() is True
        assert place.item() == dataset.table.data_ptr()
    assert dataset.opened == -1


class Lazy(OfLength):
    """Opens its file with the first sample, keeps what it is at in ``self``, and remembers."""

    def __init__(self, path: Path, length: int) -> None:
        super().__init__(length)
        self.path, self.file, self.known = path, None, dict[int, int]()

    def __getitem__(self, index: int) -> int:
        if self.file is None:
            self.base = sqlite3.connect(":memory:")  # may be used by the thread that opens it
            self.file = self.path.open("rb", buffering=0)  # type: ignore[assignment]
        self.index = index
        self.file.seek(8 * index)  # type: ignore[attr-defined]
        found = int.from_bytes(self.file.read(8), "little")  # type: ignore[attr-defined]
        self.known[self.index] = found + self.base.execute("select 0").fetchone()[0]
        return self.known[index]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_what_a_sample_sets_in_self_is_its_thread_s_own(wrapped: bool, tmp_path: Path) -> None:
    numbers = np.arange(2000, dtype=np.int64)
    path = tmp_path / "numbers.bin"
    numbers.tofile(path)
    dataset = Lazy(path, len(numbers))
    given: Any = Subset(ConcatDataset([dataset]), range(2000)) if wrapped else dataset
    found = [batch for batch in DataLoader(given, batch_size=50, **THREADS)]
    assert torch.cat(found).tolist() == numbers.tolist()
    assert dataset.file is None and not hasattr(dataset, "index")
    assert len(dataset.known) == len(numbers)  # what an attribute refers to is shared


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


def test_a_file_at_one_position_for_all_threads_is_told(tmp_path: Path) -> None:
    path = tmp_path / "numbers.bin"
    np.arange(64, dtype=np.int64).tofile(path)
    for dataset, options in (
        (Locked(path), THREADS),
        (Records(path), THREADS | {"num_workers": 1}),
    ):
        with dataset.file:
            found = torch.cat([*DataLoader(dataset, batch_size=8, **options)])
        assert found.tolist() == [*range(64)]
    with (dataset := Records(path)).file:
        text = r"(?s)Records.file is open, and .* one position for all worker threads: .*LL021"
        with pytest.warns(UserWarning, match=text):
            list(DataLoader(dataset, batch_size=8, **THREADS))
        with pytest.raises(lit_loader.LoaderError, match=text):
            list(DataLoader(dataset, batch_size=8, check_determinism=2, **THREADS))


class Closing(OfLength):
    """Its end closes what it holds."""

    closed = False

    def __init__(self) -> None:
        super().__init__()
        self.held = [0]

    def __getitem__(self, index: int) -> int:
        return self.held[0] + index

    def __del__(self) -> None:
        self.held.clear()


class Remembering(OfLength):
    @functools.lru_cache  # noqa: B019
    def __getitem__(self, index: int) -> int:
        return self.calls.append(index) or index  # type: ignore[func-returns-value]

    calls: ClassVar[list[int]] = []


@pytest.mark.parametrize("kind", [Closing, Remembering])
def test_what_ends_or_remembers_as_one_object_is_one(kind: Any) -> None:
    dataset = kind()
    for _ in range(2):
        found = [number for batch in DataLoader(dataset, **THREADS) for number in batch.tolist()]
        assert found == [*range(16)]
    assert len(Remembering.calls) in (0, 16)


# --- global generators ---


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(()).item()])
def test_a_draw_from_a_global_generator_is_told_once(draw: Callable[[], float]) -> None:
    loader = DataLoader(Call(lambda _: draw()), batch_size=2, **THREADS)
    with pytest.warns(UserWarning, match=r"Call: a sample .* global generator.*get_rng") as told:
        list(loader)
    assert len(told) == 1
    assert len([*loader]) == 8


def test_a_draw_from_a_global_generator_is_an_error_of_check_determinism() -> None:
    loader = DataLoader(Call(lambda _: random.random()), check_determinism=2, **THREADS)
    with pytest.raises(lit_loader.LoaderError, match="check_determinism: Call: a sample"):
        list(loader)


RNG = np.random.default_rng()


def test_a_generator_that_no_copy_has_for_itself_is_told() -> None:
    dataset = Call(lambda _: RNG.random())
    with pytest.warns(UserWarning, match="<global RNG> is a random generator, which threads share"):
        list(DataLoader(dataset, batch_size=2, **THREADS))
    with pytest.raises(lit_loader.LoaderError, match="check_determinism: .*<global RNG>"):
        list(DataLoader(dataset, check_determinism=2, **THREADS))


def test_what_the_program_draws_meanwhile_is_its_own() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    for _ in DataLoader(Drawing(), batch_size=2, seed=0, **THREADS):
        torch.rand(3)
        random.random()
    torch.manual_seed(0)
    assert before[1] == np.random.get_state()[1].tolist()  # type: ignore[index]


def test_check_determinism_finds_what_is_no_function_of_the_index() -> None:
    count = iter(range(100))
    loader = DataLoader(Call(lambda _: next(count)), check_determinism=3, **THREADS)
    with pytest.warns(lit_loader.ExactnessWarning, match="came out otherwise"):
        list(loader)


# --- faults ---


def test_an_exception_is_the_user_s_own_with_its_place() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(DataLoader(Call(lambda index: 1 // (index - 5)), batch_size=4, **THREADS))
    assert "(a thread), batch 1, at index 5" in "".join(caught.value.__notes__)
    assert "test_threads.py" in str(caught.traceback[-1].path)


def test_the_epoch_goes_on_behind_an_exception() -> None:
    batches = iter(DataLoader(Failing(8), batch_size=None, **THREADS))
    found = []
    for _ in range(8):
        try:
            found.append(next(batches)[0])
        except ValueError:
            found.append(-1)
    assert found == [0, 1, 2, -1, 4, 5, 6, 7]


def test_an_exception_of_worker_init_fn_is_that_of_each_batch() -> None:
    def fail(number: int) -> None:
        raise KeyError(f"worker {number}")

    with pytest.raises(KeyError, match="worker"):
        list(DataLoader(Rows(), worker_init_fn=fail, **THREADS))


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("kind", [THREADS, PROCESSES], ids=["threads", "processes"])
def test_a_sample_neither_ends_nor_interrupts_the_program(raised: Any, kind: Any) -> None:
    def leave(index: int) -> int:
        if index == 5:
            raise raised(3)
        return index

    batches = iter(DataLoader(Call(leave), batch_size=4, **kind))
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(lit_loader.WorkerError) as caught:
        next(batches)
    told = f"{caught.value}{getattr(caught.value, '__notes__', '')}"
    assert f"{raised.__name__}: 3" in told and "batch 1, at index 5" in told


def test_a_thread_that_hangs_is_told_with_its_stack() -> None:
    gate = threading.Event()
    hanging = threading.Event()

    def wait_at_the_gate(index: int) -> int:
        if index == 5 and not hanging.is_set():
            hanging.set()
            gate.wait()
        return index

    loader = DataLoader(Call(wait_at_the_gate), batch_size=4, timeout=0.3, **THREADS)
    batches = iter(loader)
    try:
        assert next(batches).tolist() == [0, 1, 2, 3]
        with pytest.raises(lit_loader.WorkerTimeoutError) as caught:
            next(batches)
        assert "timeout=0.3" in str(caught.value)
        assert "fetching index 5 (sample 1 of batch 1, indices [4, 5, 6, 7])" in str(caught.value)
        assert "in wait_at_the_gate" in str(caught.value)
        assert [batch.tolist()[0] for batch in batches] == [4, 8, 12]
    finally:
        gate.set()


def test_a_stall_is_told_with_stacks() -> None:
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
    assert (
        "Worker thread 1: fetching index 4 (sample 0 of batch 1, indices [4, 5, 6, 7])" in told[0]
    )
    assert "in wait_at_the_gate" in told[0]


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
    batches = iter(loader)
    next(batches)
    del batches
    assert not workers()
    with pytest.raises(ValueError, match="bad"):
        list(DataLoader(Failing(), **THREADS))
    gc.collect()
    assert not workers()


def test_resizes_while_it_runs() -> None:
    loader = DataLoader(Rows(), shuffle=True, seed=1, **THREADS)
    found = []
    for number, batch in enumerate(loader):
        found.append(batch.tolist())
        if number == 5:
            loader.resize(4)
        if number == 20:
            assert len(workers()) == 4
            loader.resize(1)
    assert found == [batch.tolist() for batch in DataLoader(Rows(), shuffle=True, seed=1)]
    assert not workers()


def test_a_forked_child_reads_on_and_ends() -> None:
    loader = DataLoader(Rows(), seed=1, **THREADS)
    batches = iter(loader)
    next(batches)
    pid = os.fork()
    if pid == 0:
        rest = len([*batches])
        loader.close()
        os._exit(rest)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 63
    assert len([*batches]) == 63


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"multiprocessing_context": "spawn"}, "multiprocessing_context is for worker processes"),
        ({"share_lists": True}, "share_lists is for worker processes"),
        ({"max_worker_restarts": 1}, "max_worker_restarts is for worker processes"),
        ({"memory_budget": "1 GB"}, "memory_budget is for worker processes"),
        ({"num_remote_workers": 1}, "num_remote_workers is for worker processes"),
        ({"seeding": "worker"}, "seeding='worker' seeds global generators"),
    ],
)
def test_what_means_nothing_in_threads_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(lit_loader.OptionError, match=text):
        DataLoader(Rows(), **THREADS | options)


# --- streams ---


class Lines(IterableDataset[Any]):
    """Reads its share of some files, in another order each epoch; flips by chance."""

    def __init__(self, files: Any = range(12)) -> None:
        self.files, self.rng = [*files], np.random.default_rng()

    def __iter__(self) -> Iterator[Any]:
        shard, count = lit_loader.get_shard()
        for file in self.rng.permutation(self.files)[shard::count].tolist():
            for line in range(5):
                yield [file, line, lit_loader.get_rng().random(), lit_loader.get_epoch()]


class Placed(Lines):
    """Knows its place."""

    def __init__(self) -> None:
        super().__init__()
        self.place = 0

    def __iter__(self) -> Iterator[Any]:
        for sample in itertools.islice(super().__iter__(), self.place, None):
            self.place += 1
            yield sample
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


@pytest.mark.parametrize("kind", [Lines, Placed])
@pytest.mark.parametrize("options", [{}, {"num_shards": 4}, {"num_shards": 4, "batch_size": None}])
@pytest.mark.filterwarnings("ignore:lit_loader. Lines has no state_dict")
def test_a_stream_s_batches_are_those_of_processes(kind: Any, options: dict[str, Any]) -> None:
    def loader(**more: Any) -> DataLoader[Any]:
        return DataLoader(kind(), **({"batch_size": 3, "seed": 5} | options | more))

    def rows(batches: Any) -> Any:
        return [[torch.as_tensor(each).tolist() for each in batch] for batch in batches]

    whole = rows(loader(**THREADS))
    assert whole == rows(loader(**PROCESSES))
    if options:
        assert whole == rows(loader()) == rows(loader(**THREADS | {"num_workers": 3}))
    for first, second in ((THREADS, PROCESSES), (PROCESSES, THREADS)):
        begun = loader(**first)
        batches = iter(begun)
        given = [next(batches) for _ in range(5)]
        resumed = loader(**second)
        resumed.load_state_dict(begun.state_dict())
        del batches
        assert rows(given) + rows(resumed) == whole


class CountsEpochs(Lines):
    """Counts its epochs itself, as many do."""

    epoch = -1

    def __iter__(self) -> Iterator[Any]:
        lit_loader.get_shard()
        self.epoch += 1
        yield self.epoch


@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_threads_keep_what_a_stream_has_counted(persistent: bool) -> None:
    for kind in (THREADS, PROCESSES):
        dataset = CountsEpochs()
        with DataLoader(dataset, persistent_workers=persistent, **kind) as loader:
            found = [[int(each) for each in loader] for _ in range(3)]
        assert found == ([[0, 0], [1, 1], [2, 2]] if persistent else [[0, 0]] * 3)
        assert dataset.epoch == -1


class Rowwise(Lines):
    """A cursor that may be used by the thread alone that has opened it."""

    def __iter__(self) -> Iterator[Any]:
        index, count = lit_loader.get_shard()
        with contextlib.closing(sqlite3.connect(":memory:")) as base:
            base.execute("create table rows (number)")
            base.executemany("insert into rows values (?)", [(n,) for n in range(40)])
            for (number,) in base.execute(
                "select * from rows where number % ? = ?", (count, index)
            ):
                yield number


@pytest.mark.parametrize("shards", [None, 4])
def test_a_reader_s_thread_opens_reads_and_closes(shards: Any) -> None:
    loader = DataLoader(Rowwise(), batch_size=4, num_shards=shards, **THREADS)
    assert sorted(number for batch in loader for number in batch.tolist()) == [*range(40)]
    for _ in zip(range(3), loader, strict=False):  # left in mid-epoch, they are closed in theirs
        pass


def test_a_stream_that_cannot_be_copied_is_named() -> None:
    dataset = Lines()
    with open(os.devnull) as dataset.file:  # type: ignore[attr-defined]
        text = r"loader\.dataset\.file: .* cannot be copied, and each worker thread reads a stream"
        with pytest.raises(lit_loader.TransportError, match=text):
            next(iter(DataLoader(dataset, **THREADS)))


class ShuffledGlobally(Lines):
    def __iter__(self) -> Iterator[Any]:
        shard, count = lit_loader.get_shard()
        random.shuffle(self.files)
        return iter(self.files[shard::count])


def test_a_stream_that_shuffles_by_a_global_generator_is_told() -> None:
    loader = DataLoader(ShuffledGlobally(), num_shards=2, **THREADS)
    with pytest.warns(UserWarning, match=r"get_rng.* samples are lost, or repeated"):
        list(loader)
    loader = DataLoader(ShuffledGlobally(), num_shards=2, check_determinism=2, **THREADS)
    with pytest.raises(
        lit_loader.LoaderError, match="check_determinism: ShuffledGlobally: a sample"
    ):
        list(loader)


class Uncertain(Lines):
    given = iter(range(1000))

    def __iter__(self) -> Iterator[Any]:
        shard, _ = lit_loader.get_shard()
        return (next(self.given) + shard for _ in range(5))


def test_check_determinism_finds_it_in_streams() -> None:
    [*DataLoader(Lines(), num_shards=2, check_determinism=3, **THREADS)]
    loader = DataLoader(Uncertain(), num_shards=2, check_determinism=3, **THREADS)
    with pytest.warns(lit_loader.ExactnessWarning, match="came out otherwise"):
        list(loader)


class Reading(Lines):
    """Its reads are made ahead, in threads of each reader's."""

    @staticmethod
    def read(file: int) -> Any:
        return [file, *lit_loader.get_shard(), lit_loader.get_epoch()]

    def __iter__(self) -> Iterator[Any]:
        shard, count = lit_loader.get_shard()
        for _, told in lit_loader.read_stream(self.files[shard::count], self.read):
            assert told[1:] == [shard, count, lit_loader.get_epoch()]
            yield told


@pytest.mark.parametrize("shards", [None, 4])
def test_reads_ahead_are_told_what_their_reader_is(shards: Any) -> None:
    loader = DataLoader(Reading(), num_shards=shards, **THREADS)
    assert sorted(int(each[0]) for each in loader) == [*range(12)]


def test_torch_s_own_functions_answer_each_reader() -> None:
    def asked(**kind: Any) -> list[Any]:
        dataset = Call(lambda index: [index, torch.initial_seed() % 2**31, torch.is_grad_enabled()])
        with torch.no_grad():
            return [[x.tolist() for x in batch] for batch in DataLoader(dataset, seed=3, **kind)]

    found = asked(**THREADS | {"num_workers": 1})
    assert found == asked(**PROCESSES | {"num_workers": 1})
    assert found[0][2] == [False]


# --- how many ---


@pytest.mark.parametrize("data", [Rows, Lines])
def test_auto_sets_the_number_of_threads(data: Any) -> None:
    waits = threading.Event()  # which nobody sets: latency

    def collate(samples: list[Any]) -> Any:
        waits.wait(0.005)
        return torch.as_tensor(samples[0])

    shards = {"num_shards": 12} if data is Lines else {}
    make = functools.partial(DataLoader, data(*[range(60)] * (data is Lines)), seed=1, **shards)
    loader: Any = make(num_workers="auto", worker_method="thread", collate_fn=collate)
    found = [batch.tolist() for _ in range(2) for batch in loader]
    plain: Any = make(collate_fn=lambda samples: torch.as_tensor(samples[0]))
    assert found == [batch.tolist() for _ in range(2) for batch in plain]
    assert loader.num_workers > 2, loader.statistics().verdict


def test_statistics_are_those_of_threads() -> None:
    loader = DataLoader(Rows(), batch_size=4, **THREADS)
    list(loader)
    found = loader.statistics()
    assert (found.batches, found.samples) == (16, 64)
    assert found.seconds > 0
    assert "worker" in str(found)


# --- after a fork, in mid-epoch ---


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("data", [Rows, Lines])
def test_a_fork_beside_a_thread_in_a_sample_waits_for_nobody(data: Any, persistent: bool) -> None:
    gate, reached = threading.Event(), threading.Event()

    def collate(samples: list[Any]) -> int:
        if os.getpid() == parent:
            reached.set()
            gate.wait()
        return len(samples)

    parent = os.getpid()
    shards: Any = {"num_shards": 2} if data is Lines else {}
    loader: Any = DataLoader(
        data(), 4, collate_fn=collate, persistent_workers=persistent, **shards, **THREADS
    )
    batches = iter(loader)
    asking = threading.Thread(target=next, args=(batches,))
    asking.start()
    assert reached.wait(20)
    pid = os.fork()
    if pid == 0:
        other: Any = DataLoader(data(), 4, collate_fn=collate, **shards, **THREADS)
        os._exit(len([*other]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) > 10
    gate.set()
    asking.join()
    assert len([*batches]) > 10
    pid = os.fork()
    if pid == 0:
        os._exit(len([*loader]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) > 10
    loader.close()


def test_a_thread_that_hangs_in_worker_init_fn_is_told() -> None:
    gate = threading.Event()

    def wait_for_the_gate(_: int) -> None:
        gate.wait()

    loader = DataLoader(Rows(), worker_init_fn=wait_for_the_gate, timeout=0.3, **THREADS)
    try:
        with pytest.raises(lit_loader.WorkerTimeoutError, match="in wait_for_the_gate"):
            next(iter(loader))
    finally:
        gate.set()


def test_a_viewer_sees_threads(monkeypatch: pytest.MonkeyPatch) -> None:
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


# --- programs, Lightning ---

ENDS = """
import sys, threading, time
import torch
from lit_loader import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, index):
        if index > 4: threading.Event().wait()
        return torch.ones(3) * index

for number, batch in enumerate(DataLoader(Slow(), num_workers=2, worker_method="thread")):
    if number == 4:
        break_out = True
        {how}
"""


@pytest.mark.parametrize(("how", "code"), [("sys.exit(3)", 3), ("1 / 0", 1)])
def test_a_program_ends_at_once_in_the_midst_of_an_epoch(
    how: str, code: int, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(ENDS.replace("{how}", how))
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=200)
    assert ended.returncode == code, ended.stderr
    assert ("ZeroDivisionError" in ended.stderr) == (code == 1)
    assert "Fatal" not in ended.stderr


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
    loader = loader_of("skip", **options)
    trainer = lightning.Trainer(
        default_root_dir=folder, max_epochs=2, max_steps=steps, accelerator="cpu", logger=False,
        callbacks=[lit_loader.LoaderStateCallback()], enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(module, loader, ckpt_path=state)
    path = folder / "last.ckpt"
    trainer.save_checkpoint(path)
    return module.seen, path


def test_a_fit_is_resumed_by_another_kind_of_workers(tmp_path: Path) -> None:
    whole, _ = fit(tmp_path, **THREADS)
    begun, path = fit(tmp_path, steps=7, **THREADS)
    rest, _ = fit(tmp_path, path, **PROCESSES)
    assert begun + rest == whole
    begun, path = fit(tmp_path, steps=7, **PROCESSES)
    rest, _ = fit(tmp_path, path, **THREADS)
    assert begun + rest == whole
