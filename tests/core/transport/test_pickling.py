"""What spawn and forkserver carry to a worker: lambdas, closures, local classes, whole sessions."""

import functools
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.errors import TransportError
from tests.support.samples import Call, ints, uncollated
from tests.support.tools import ROOT, finish_script, refused, start_script


@pytest.fixture(scope="module", autouse=True)
def helper_processes() -> None:
    """Have multiprocessing's own processes up, which a test that is over at once would seem to
    leave behind: for a moment they cannot be told from others."""
    process = multiprocessing.get_context("forkserver").Process(target=int)
    process.start()
    process.join()
    process.close()


@pytest.fixture
def without_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)


def give(data: Any, **options: Any) -> list[Any]:
    """All batches, uncollated unless told otherwise."""
    options = {"num_workers": 1, "collate_fn": uncollated, **options}
    return list(DataLoader(data, multiprocessing_context="forkserver", **options))


def refusal(data: Any, **options: Any) -> str:
    """The message with which a loader refuses."""
    return refused(lambda: give(data, **options), TransportError)


class Steps:
    """Functions, one after the other, as torchvision's Compose."""

    def __init__(self, *steps: Callable[[Any], Any]) -> None:
        self.steps = list(steps)

    def __call__(self, value: Any) -> Any:
        for step in self.steps:
            value = step(value)
        return value

    def first(self, value: Any) -> Any:
        """Take the first step alone."""
        return self.steps[0](value)


# By value ----------------------------------------------------------------------------------------


def closure(offset: int) -> Callable[[int], int]:
    def add(value: int) -> int:
        return value + offset

    return add


def local_object() -> Callable[[int], int]:
    class Adder:
        def __call__(self, value: int) -> int:
            return value + 1

    return Adder()


def local_method() -> Callable[[int], int]:
    class Adder:
        add = lambda self, value: value + 1  # noqa: E731

    return Adder().add


def recursive(value: int) -> Callable[[int], int]:
    def count(left: int) -> int:
        return value if left == 0 else 1 + count(left - 1)

    return lambda index: count(1) - value + index


def test_functions_and_classes_that_no_worker_can_import() -> None:
    functions = [
        lambda value: value + 1,
        closure(1),
        local_object(),
        local_method(),
        recursive(7),
        Steps(abs, Steps(lambda value: value + 1)),
        Steps(lambda value: value + 1).first,
        functools.partial(lambda offset, value: value + offset, 1),
    ]

    def every(index: int) -> list[int]:
        return [function(index) for function in functions]

    seen = multiprocessing.get_context("forkserver").Array("i", 2)

    def begin(worker: int) -> None:
        seen[worker] = 10 + worker

    batches = give(
        Call(every, 3), num_workers=2, worker_init_fn=begin, collate_fn=lambda samples: samples[0]
    )
    assert batches == [[index + 1] * len(functions) for index in range(3)]
    assert list(seen) == [10, 11]


def test_beside_what_only_a_processs_start_can_carry() -> None:
    """Locks, shared memory and tensors stay the same ones, not copies."""
    context = multiprocessing.get_context("forkserver")
    rows = torch.zeros(6).share_memory_()

    class Everything(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.lock = context.Lock()
            self.count = context.Value("i", 0)
            self.queue = context.SimpleQueue()
            self.rows = rows
            self.views = list(rows)  # all of one storage
            self.generator = torch.Generator().manual_seed(5)
            self.scale = lambda value: value * 10

        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> tuple[int, float]:
            with self.lock:
                self.count.value += 1
            self.rows[index] = self.scale(index)
            assert self.views[index] == self.rows[index]
            self.queue.put(index)
            return index, torch.rand(1, generator=self.generator).item()

    data = Everything()
    batches = give(data, num_workers=2)
    assert [index for [(index, _)] in batches] == list(range(6))
    assert data.count.value == 6
    assert rows.tolist() == [0, 10, 20, 30, 40, 50]
    assert sorted(data.queue.get() for _ in range(6)) == list(range(6))
    assert len({draw for [(_, draw)] in batches}) == 6
    data.queue.close()


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_cloudpickle")
@pytest.mark.parametrize(
    ("data", "options", "place"),
    [
        (Call(lambda index: index), {}, "dataset.function: <function <lambda> at 0x"),
        (Call(Steps(abs, Steps(lambda value: value))), {}, "dataset.function.steps[1].steps[0]: <"),
        (Call(functools.partial(closure(1))), {}, "dataset.function.func: <function closure"),
        (Call(Steps(closure(1)).first), {}, "dataset.function.__self__.steps[0]: <function c"),
        (Call(local_object()), {}, "dataset.function: <tests.core.transport.test_pickling.local_"),
        (range(2), {"collate_fn": lambda samples: samples}, "collate_fn: <function <lambda> at 0x"),
        (range(2), {"worker_init_fn": closure(1)}, "worker_init_fn: <function closure.<loca"),
    ],
    ids=range(7),
)
def test_without_cloudpickle(data: Any, options: dict[str, Any], place: str) -> None:
    text = refusal(data, **options)
    assert text.startswith(f"lit_loader: {place}")
    assert text.endswith(
        "; define it at the top level of a module, pip install cloudpickle (which carries lambdas, "
        "closures, local classes and those of notebooks), or use multiprocessing_context='fork' "
        "[LL024]"
    )
    assert "cannot be pickled, as every start method but 'fork' needs (" in text


def with_variable(guard: Any) -> Callable[[int], int]:
    def guarded(index: int) -> int:
        with guard:
            return index

    return guarded


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (Call(Steps(abs, threading.Lock())), "dataset.function.steps[1]: "),  # type: ignore[arg-type]
        (Call(with_variable(threading.Lock())), "dataset.function (its variable 'guard'): "),
    ],
    ids=["object", "variable"],
)
def test_what_cloudpickle_cannot_carry_either(data: Any, place: str) -> None:
    text = refusal(data)
    assert text.startswith(f"lit_loader: {place}<unlocked _thread.lock object at 0x")
    assert "cannot be pickled, not by cloudpickle either, as every start method but " in text
    assert text.endswith(
        "; open or make it on first use (in __getitem__), and drop it in __getstate__ [LL024]"
    )


@pytest.mark.usefixtures("without_cloudpickle")
@pytest.mark.parametrize("kind", ["file", "connection", "HDF5"])
def test_the_owner_of_a_handle_is_not_sent_to_fork(kind: str, tmp_path: Path) -> None:
    """Forked workers would share it; nor to cloudpickle, which cannot carry it either."""
    held: Any = open(__file__, "rb")  # noqa: SIM115
    if kind == "connection":
        held.close()
        held = sqlite3.connect(tmp_path / "data.db")
    elif kind == "HDF5":
        held.close()
        held = pytest.importorskip("h5py").File(tmp_path / "data.h5", "w")
    text = refusal(Call(Steps(abs, held)))
    held.close()
    assert "LL024" in text and "fork'" not in text.rpartition(";")[2] and "cloudp" not in text
    assert text.endswith("; open or make it on first use (in __getitem__), and drop it in "
                         "__getstate__ [LL024]")  # fmt: skip


def test_a_loader_goes_on_after_a_refusal() -> None:
    data = Call(threading.Lock())  # type: ignore[arg-type]
    with DataLoader(
        data, num_workers=2, persistent_workers=True, multiprocessing_context="forkserver"
    ) as loader:
        for _ in range(2):
            with pytest.raises(TransportError, match=r"^lit_loader: dataset\.function: "):
                next(iter(loader))
        data.function = abs
        assert ints(loader) == list(range(16))


# Sessions and programs ---------------------------------------------------------------------------

SESSION = """
import collections, sys, threading
import torch

Point = collections.namedtuple("Point", ["x", "y"])
FACTOR = 3

class Odd(Exception):
    pass

class Base(torch.utils.data.Dataset):
    def __len__(self):
        return 4

class Data(Base):
    def __getitem__(self, index):
        if index == 3:
            raise Odd("three")
        return Point(index, scaled(index))

def scaled(index):
    return index * FACTOR
"""

SESSION_RUN = """
from lit_loader import DataLoader
try:
    for batch in DataLoader(Data(), num_workers=1, multiprocessing_context="METHOD", batch_size=2):
        print(type(batch) is Point, batch.y.tolist())
except Odd as error:
    print(str(error).splitlines()[0])
"""

SESSION_SAYS = "True [0, 3]\nthree\n"


def session(source: str, how: str, folder: Path) -> str:
    """Run a program that has no file, and return what it prints."""
    call = [sys.executable, "-W", "error"] + (["-c", source] if how == "-c" else [])
    done = subprocess.run(
        call,
        input=None if how == "-c" else source,
        capture_output=True,
        text=True,
        timeout=200,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


@pytest.mark.parametrize(
    ("how", "method"),
    [pytest.param("-c", "spawn", marks=pytest.mark.slow), ("stdin", "forkserver")],
)
def test_a_session_without_a_file(tmp_path: Path, how: str, method: str) -> None:
    """What is defined there goes along, and comes back as the very same types."""
    source = SESSION + SESSION_RUN.replace("METHOD", method)
    assert session(source, how, tmp_path) == SESSION_SAYS


def test_a_program_with_a_file(tmp_path: Path) -> None:
    """What its workers can import stays what it is; only the lambda goes by value."""
    body = SESSION + (
        'if __name__ == "__main__":\n'
        "    data = Data()\n"
        "    data.unused = lambda: Point\n"
        "    FACTOR = threading.Lock()\n"  # by value, it would have to go along, and could not
        + textwrap.indent(
            SESSION_RUN.replace("Data()", "data").replace("METHOD", "forkserver"), "    "
        )
    )
    out, err, status = finish_script(start_script(body, tmp_path))
    assert (err, status) == ("", 0)
    assert out == SESSION_SAYS
