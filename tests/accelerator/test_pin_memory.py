"""The pin-memory thread, through its seam: a marking copy stands for pinning, without a GPU."""

import dataclasses
import multiprocessing
import threading
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
import torch

from lit_loader import DataLoader
from lit_loader.accelerator import pin_memory as pinning
from lit_loader.accelerator.pin_memory import pin_batch
from lit_loader.core.executors.pipes import Pipes
from lit_loader.errors import LoaderError, PinMemoryError
from tests.support.faults import outcomes, plain
from tests.support.samples import Call, Rows, hang, ints, uncollated

has_accelerator = torch.accelerator.is_available()


def marked(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that says which thread made it."""
    copy = tensor.clone()
    copy.pinned_in = threading.current_thread().name  # type: ignore[attr-defined]
    return copy


def is_marked(tensor: torch.Tensor) -> bool:
    return tensor.pinned_in == "lit_loader pin memory"  # type: ignore[attr-defined]


@pytest.fixture
def pinned_for(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pretend there is an accelerator; the devices that threads have made current."""
    devices: list[int] = []
    monkeypatch.setattr(pinning, "find_accelerator", lambda device="": 3)
    monkeypatch.setattr(pinning, "pin_tensor", marked)
    monkeypatch.setattr(torch.accelerator, "set_device_index", devices.append)
    return devices


def pin_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lit_loader pin memory"]


# Containers ------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "x label")


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    label: str


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    label: str


@dataclasses.dataclass
class Sparse:
    x: torch.Tensor
    unset: int = dataclasses.field(init=False)


class Custom:
    def __init__(self, x: Any) -> None:
        self.x = x

    def pin_memory(self) -> "Custom":
        return Custom(pinning.pin_tensor(self.x))


class Named(dict):
    def __init__(self, name: str, **items: Any) -> None:
        super().__init__(items)
        self.name = name


class Tagged(list):
    tag = "none"


@pytest.fixture
def marking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinning, "pin_tensor", lambda tensor: tensor + 100)


X = torch.tensor([1])


@pytest.mark.parametrize(
    ("batch", "reach"),
    [
        (X, lambda b: b),
        ([X], lambda b: b[0]),
        ((X, "a"), lambda b: b[0]),
        ({"x": X}, lambda b: b["x"]),
        (OrderedDict(x=X), lambda b: b["x"]),
        (defaultdict(list, x=X), lambda b: b["x"]),
        (UserDict(x=X), lambda b: b["x"]),
        (deque([X]), lambda b: b[0]),
        (Pair(X, "a"), lambda b: b.x),
        (Record(X, "a"), lambda b: b.x),
        (Frozen(X, "a"), lambda b: b.x),
        (Sparse(X), lambda b: b.x),
        (Custom(X), lambda b: b.x),
        (Named("n", x=X), lambda b: b["x"]),
        (Tagged([X]), lambda b: b[0]),
        ([{"deep": Pair((Record(X, "a"),), 2)}], lambda b: b[0]["deep"].x[0].x),
    ],
    ids=lambda value: type(value).__name__ if not callable(value) or value is X else "",
)
def test_containers_keep_their_type(marking: None, batch: Any, reach: Any) -> None:
    pinned = pin_batch(batch)
    assert type(pinned) is type(batch)
    assert int(reach(pinned)) == 101
    assert int(reach(batch)) == 1  # the original is left as it was


def test_a_batch_that_contains_itself_is_refused(marking: None) -> None:
    batch: Any = {"x": [X], "pair": Record(X, "a")}
    batch["pair"].x = [batch]
    with pytest.raises(
        LoaderError, match=r"^lit_loader: a batch that contains itself cannot be pinned .*: "
    ):
        pin_batch(batch)


# Through the loader ----------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_batch_is_pinned(pinned_for: list[int], num_workers: int) -> None:
    loader = DataLoader(Rows(40), batch_size=4, num_workers=num_workers, pin_memory=True)
    batches = list(loader)
    assert [batch[:, 0].tolist() for batch in batches] == [
        list(range(start, start + 4)) for start in range(0, 40, 4)
    ]
    assert all(hasattr(batch, "pinned_in") for batch in batches)
    if num_workers:
        assert all(is_marked(batch) for batch in batches)
        assert pinned_for == [3]
    assert not pin_threads()
    data = Call(lambda index: [torch.tensor([index]), "a"], 6)
    for samples in DataLoader(data, 2, num_workers=2, collate_fn=uncollated, pin_memory=True):
        assert all(is_marked(sample[0]) and sample[1] == "a" for sample in samples)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_an_accelerator_batches_are_left_as_they_are(num_workers: int) -> None:
    loader = DataLoader(Rows(8), batch_size=4, num_workers=num_workers, pin_memory=True)
    with pytest.warns(UserWarning, match="pin_memory=True has no effect: there is no accelerator"):
        batches = list(loader)
    assert [batch[:, 0].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True], ids=["fresh", "persistent"])
def test_exceptions_of_pinning_are_handed_on(
    pinned_for: list[int], monkeypatch: pytest.MonkeyPatch, num_workers: int, persistent: bool
) -> None:
    def pin(tensor: torch.Tensor) -> torch.Tensor:
        if 3 in tensor:
            raise RuntimeError("no page-locked memory")
        return tensor.clone()

    monkeypatch.setattr(pinning, "pin_tensor", pin)
    options: Any = {"persistent_workers": True} if persistent and num_workers else {}
    with DataLoader(range(6), num_workers=num_workers, pin_memory=True, **options) as loader:
        expected = [plain(torch.tensor([number])) for number in range(6)]
        expected[3] = RuntimeError
        for _ in range(2):
            assert outcomes(loader) == expected


@pytest.mark.parametrize("death", [SystemExit, KeyboardInterrupt])
def test_the_threads_own_death_is_an_error_and_not_a_hang(
    pinned_for: list[int], monkeypatch: pytest.MonkeyPatch, death: type[BaseException]
) -> None:
    deaths = [death]

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        if 3 in tensor and deaths:
            raise deaths.pop()
        return tensor.clone()

    monkeypatch.setattr(pinning, "pin_tensor", pin)
    # Of one worker: batches are pinned as they arrive.
    with DataLoader(range(8), num_workers=1, pin_memory=True, persistent_workers=True) as loader:
        iterator = iter(loader)
        assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(PinMemoryError, match=rf"ended by {death.__name__}"):
            next(iterator)
        assert ints(iterator) == [3, 4, 5, 6, 7]
        assert ints(loader) == list(range(8))


def test_a_device_that_cannot_be_set(
    pinned_for: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "set_device_index", {}.__getitem__)
    iterator = iter(DataLoader(range(4), num_workers=1, pin_memory=True))
    with pytest.raises(KeyError, match="3"):
        next(iterator)
    assert not pin_threads()


@pytest.mark.gpu
@pytest.mark.skipif(not has_accelerator, reason="needs an accelerator")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_real_pinning(num_workers: int) -> None:
    loader = DataLoader(
        Rows(40, width=1_000), batch_size=4, num_workers=num_workers, pin_memory=True
    )
    for number, batch in enumerate(loader):
        assert batch.is_pinned()
        moved = batch.to(torch.accelerator.current_accelerator(), non_blocking=True)
        assert moved[:, 0].tolist() == list(range(4 * number, 4 * number + 4))


@pytest.mark.timeout(60)
def test_no_batch_is_queued_behind_one_that_is_asked_for_meanwhile(
    pinned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread finds worker 0 idle, and the consumer gives it another task just then."""
    begun, gate = multiprocessing.Event(), multiprocessing.Event()
    found_idle, asked, copied = threading.Event(), threading.Event(), threading.Event()

    def sample(index: int) -> int:
        if index == 3:  # worker 1, with 5 behind it
            begun.set()
            gate.wait()
        elif index >= 7:
            hang()
        return index

    wait = Pipes.wait

    def waiting(pipes: Pipes, timeout: float) -> bool | None:
        if asked.is_set():
            copied.set()
        came = wait(pipes, timeout)
        if came is None and begun.is_set() and not found_idle.is_set():
            found_idle.set()  # nothing has come for a moment: those that are idle are looked for
            asked.wait()
        return came

    monkeypatch.setattr(Pipes, "wait", waiting)
    options: Any = {"num_workers": 2, "prefetch_factor": 3, "pin_memory": True}
    with DataLoader(Call(sample), **options) as loader:
        iterator = iter(loader)
        first = int(next(iterator))
        assert found_idle.wait(30)
        assert [first, int(next(iterator))] == [0, 1]  # and 7 is asked for
        asked.set()
        assert copied.wait(30)
        assert int(next(iterator)) == 2  # and 8: neither worker will be idle again
        gate.set()
        assert [int(next(iterator)) for _ in range(3)] == [3, 4, 5]
