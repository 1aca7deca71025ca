"""A worker's exception on its way: written down, shortened, rebuilt."""

import pickle
import sys
import types
from typing import Any

import pytest

from lit_loader.core.transport.worker_exception import WorkerException
from lit_loader.errors import WorkerError

WHERE = "in worker 1 (pid 77), batch 3, indices [6, 7]"
ROOM = 1 << 20


class Slotted(Exception):
    __slots__ = ("field",)

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = field

    def __str__(self) -> str:
        return self.field


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class StuckInArrival:
    def __reduce__(self) -> Any:
        return pickle.loads, (b"nonsense",)


def captured(error: BaseException) -> WorkerException:
    try:
        raise error
    except BaseException as caught:
        return WorkerException.capture(caught, WHERE)


def journey(error: BaseException, room: int = ROOM) -> BaseException:
    """What arrives of ``error`` in the parent."""
    packed = captured(error).pack(room)
    assert len(packed) <= room
    return WorkerException.unpack(packed).error()


@pytest.mark.parametrize(
    "error",
    [Slotted("f"), Mute(), ValueError("x", lambda: 0), ValueError("x", StuckInArrival())],
    ids=["slotted", "mute", "dumps", "loads"],
)
def test_what_cannot_be_raised_again_is_named(error: BaseException) -> None:
    arrived = journey(error)
    assert type(arrived) is WorkerError
    assert type(error).__name__ in str(arrived)
    assert WHERE in str(arrived)


def test_a_class_that_only_the_worker_has() -> None:
    module = types.ModuleType("only_in_the_worker")
    exec("class Odd(Exception): pass", module.__dict__)
    sys.modules[module.__name__] = module
    try:
        packed = captured(module.Odd("strange")).pack(ROOM)
    finally:
        del sys.modules[module.__name__]
    arrived = WorkerException.unpack(packed).error()
    assert type(arrived) is WorkerError
    assert str(arrived).startswith("lit_loader: only_in_the_worker.Odd: strange\n" + WHERE)


@pytest.mark.parametrize("letter", ["x", "é", "漢", "\N{GRINNING FACE}", "\udcff"])
def test_a_huge_message_is_shortened_to_the_room_there_is(letter: str) -> None:
    arrived = journey(ValueError(letter * 200_000), room=1 << 16)
    assert type(arrived) is WorkerError
    assert str(arrived).startswith("lit_loader: ValueError: " + 100 * letter)
    assert WHERE in str(arrived)


def test_notes_are_in_the_traceback_only() -> None:
    error = ValueError("x")
    if not hasattr(error, "add_note"):
        pytest.skip("notes came with Python 3.11")
    error.add_note("look here")
    arrived = journey(error)
    assert str(arrived).count("look here") == 1
    assert not getattr(arrived, "__notes__", None)
