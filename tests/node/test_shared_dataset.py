"""A dataset that one process builds and others map."""

import builtins
import contextlib
import functools
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader import DataLoader, LoaderError, OptionError, TransportError, shared_dataset
from lit_loader.data import memory_files as files
from lit_loader.data import shared_dataset as module
from tests.support.bulk import Bulk, Child, builders, inode_of, is_whole
from tests.support.killing import Killer
from tests.support.samples import uncollated


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "built"


@pytest.fixture
def factory(notes: Path) -> Callable[[], Any]:
    return functools.partial(Bulk, notes)


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of what this test's processes have published or locked."""
    label = f"lit_loader dataset of {os.getpid()}"
    monkeypatch.setattr(module, "_LABEL", label)
    yield
    gc.collect()
    assert not [link for link in links() if label in link]
    assert label not in Path("/proc/net/unix").read_text()


def links() -> Iterator[str]:
    """What the descriptors of all processes stand for."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for number in os.listdir(folder):
                with contextlib.suppress(OSError):
                    yield os.readlink(folder / number)


def shares(factory: Callable[[], Any], key: str = "v1") -> Callable[[object], tuple[Any, Any]]:
    def do(say: object) -> tuple[Any, Any]:
        data = shared_dataset(factory, key)
        return (is_whole(data), inode_of(data.array)), data

    return do


def test_one_builds_and_all_have_it(factory: Any, notes: Path) -> None:
    children = [Child(shares(factory)) for _ in range(3)]
    [line] = {child.line() for child in children}
    mine = shared_dataset(factory, "v1")
    assert line == str((True, inode_of(mine.array)))
    [builder] = builders(notes)
    [first] = [child for child in children if child.pid == builder]
    first.kill()
    mine.array[0] = 7  # seen by nobody else, also of this process
    again = shared_dataset(factory, "v1")
    assert is_whole(again) and inode_of(again.array) == inode_of(mine.array)
    late = Child(shares(factory))
    assert late.line() == line
    for child in (*children, late):
        if child is not first:
            child.end()
    del mine, again
    gc.collect()
    assert is_whole(shared_dataset(factory, "v1"))
    assert builders(notes) == [builder, os.getpid()]


def killer(at: int) -> Killer:
    # What the files beside it do depends on what runs on the machine.
    return Killer("data/shared_dataset.py", at)


def under(killer: Killer, factory: Any) -> Any:
    return killer.during(lambda: shared_dataset(factory, "v1"))


@pytest.mark.parametrize("at_once", [False, True], ids=["first", "while others wait"])
@pytest.mark.parametrize("cells", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_at_any_instruction(cells: int, at_once: bool, factory: Any, notes: Path) -> None:
    counting = killer(0)
    under(counting, factory)
    assert counting.count > 2 * cells
    notes.unlink()
    for at in range(1, counting.count, counting.count // cells):
        struck = Child(lambda say, at=at: under(killer(at), factory))  # type: ignore[misc]
        if not at_once:
            assert os.WIFSIGNALED(struck.end())
        other = Child(shares(factory))
        assert other.line().startswith("(True, ")
        if at_once:  # who was first depends on the machine
            struck.end()
        assert other.end() == 0
        assert 1 <= len(builders(notes)) <= 2
        notes.unlink()


class Stuck:
    """Says that it is being built, and waits."""

    def __init__(self, say: Callable[[str], object], until: int) -> None:
        say("builds")
        os.read(until, 1)

    def __getitem__(self, index: int) -> int:
        return index


def test_who_builds_is_killed_and_another_takes_over(factory: Any, notes: Path) -> None:
    """One that waits: its factory is the same, but what the first one's calls is not."""
    until, go = os.pipe()

    def stuck(say: Any) -> Any:
        builtins.open = lambda *_: Stuck(say, until)  # type: ignore[assignment]
        return shared_dataset(functools.partial(_bulk, notes), "v1")

    builds = Child(stuck)
    assert builds.line() == "builds"
    with pytest.raises(LoaderError, match=rf"process {builds.pid} .* has not finished building"):
        shared_dataset(functools.partial(_bulk, notes), "v1", timeout=0)
    children = [Child(shares(functools.partial(_bulk, notes))) for _ in range(2)]
    builds.kill()
    [line] = {child.line() for child in children}
    assert line.startswith("(True, ")
    for child in children:
        child.end()
    assert len(builders(notes)) == 1
    os.close(until)
    os.close(go)


def _bulk(notes: Path) -> Bulk:
    return Bulk(notes)


def test_a_factory_that_raises(tmp_path: Path) -> None:
    """Each process has the error, or tries anew."""
    broken = tmp_path / "broken"
    broken.touch()
    make = functools.partial(_unless, broken, tmp_path / "built")
    children = [Child(shares(make)) for _ in range(2)]
    assert [child.line() for child in children] == ["PermissionError: [Errno 13] not yet"] * 2
    assert all(os.WEXITSTATUS(child.end()) for child in children)
    broken.unlink()
    assert is_whole(shared_dataset(make, "v1"))


def _unless(broken: Path, notes: Path) -> Bulk:
    if broken.exists():
        raise PermissionError(13, "not yet")
    return Bulk(notes)


class Other(Bulk):
    """The same by another name."""


def test_what_counts_as_the_same(notes: Path) -> None:
    first = shared_dataset(functools.partial(Bulk, notes), "v1")
    same = shared_dataset(functools.partial(Bulk, Path(notes)), "v1")
    assert inode_of(first.array) == inode_of(same.array)
    others = [
        shared_dataset(functools.partial(Bulk, notes), "v2"),
        shared_dataset(functools.partial(Bulk, notes, start=1), "v1"),
        shared_dataset(functools.partial(Other, notes), "v1"),
        shared_dataset(lambda: Bulk(notes), "v1"),  # by cloudpickle
        shared_dataset(lambda: Bulk(notes, 0), "v1"),
    ]
    assert others[1].array[0] == 1 and type(others[2]) is Other
    assert len({inode_of(data.array) for data in (first, *others)}) == 6
    assert len(builders(notes)) == 6


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_have_the_same_memory(method: str, factory: Any) -> None:
    data = shared_dataset(factory, "v1")
    inode, names = inode_of(data.array), inode_of(data.names._data)
    assert inode == names != 0
    with DataLoader(
        data, 2, num_workers=2, multiprocessing_context=method, collate_fn=uncollated
    ) as loader:
        samples = [sample for batch in loader for sample in batch]
    assert [sample[0] for sample in samples] == list(range(6))
    assert samples[5][1] == "sample 5 of 32768"
    assert os.getpid() not in {sample[2] for sample in samples}
    [seen] = {sample[3] for sample in samples}
    assert seen != 0 and (seen == inode) == (method == "fork")  # else a copy, one for all workers


@pytest.mark.parametrize(
    ("what", "place"),
    [
        (threading.Lock, r"dataset\[0\]: <.*lock.* cannot be pickled"),
        (functools.partial(open, os.devnull), r"dataset\[0\]: <_io.TextIOWrapper"),
        (lambda: torch.zeros(99999).share_memory_(), "leave share_memory_"),
    ],
    ids=["lock", "file", "tensor"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_cannot_be_shared(what: Any, place: str) -> None:
    with pytest.raises(TransportError, match=place):
        shared_dataset(lambda: [what()], "v1")


def test_random_numbers_are_refused() -> None:
    with pytest.raises(OptionError, match=r"draws from \(or seeds\) numpy\.random, and"):
        shared_dataset(lambda: [np.random.random(4)], "v1")
    generator = np.random.default_rng(3)
    with pytest.raises(OptionError, match="draws from"):
        shared_dataset(functools.partial(lambda rng: [rng.random()], generator), "v1")
    assert len(shared_dataset(lambda: [np.random.default_rng(3).random()], "v1")) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], "v1"), "factory must make the dataset when it is called"),
        (("my.Dataset", "v1"), "factory must make the dataset when it is called"),
        ((dict, ""), "key must be a string that is not empty"),
        ((dict, "v1", -1), "timeout must be a finite number of seconds"),
        ((lambda: 5, "v1"), "must return an object with __getitem__ or __iter__, got 5"),
    ],
    ids=range(5),
)
def test_refused(arguments: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        shared_dataset(*arguments)


def test_a_factory_that_cannot_be_pickled() -> None:
    factory = functools.partial(dict, a=threading.Lock())
    with pytest.raises(TransportError, match=r"factory\[2\]\['a'\]: .*lock.* the same dataset"):
        shared_dataset(factory, "v1")


def asks_for_itself() -> Any:
    return shared_dataset(asks_for_itself, "v1", timeout=60)


def test_a_factory_that_asks_for_itself() -> None:
    for _ in range(2):  # nothing is left of the first
        with pytest.raises(OptionError, match="would wait for itself"):
            asks_for_itself()


def refuse(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_where_it_cannot_be_shared(
    factory: Any, notes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each process has its own, and says so."""
    cases: list[tuple[Any, str, Any, str]] = [
        (module, "memory_left", lambda: 1 << 28, "and 268 MB are left"),
        (files, "new", refuse, "No space left on device"),
        (files, "lock", refuse, "No space left on device"),
    ]
    for where, name, value, text in cases:
        with monkeypatch.context() as patched:
            patched.setattr(where, name, value)
            data = shared_dataset(factory, "v1")
        assert is_whole(data) and inode_of(data.array) == 0
        assert text in caplog.messages[-1]
    assert len(builders(notes)) == len(cases) == len(caplog.messages)
    mine = shared_dataset(factory, "v1")
    monkeypatch.setattr(module, "thaw", refuse)  # as where a class of it is not found
    assert inode_of(shared_dataset(factory, "v1").array) == 0
    assert "another one's cannot be read here" in caplog.messages[-1]
    assert is_whole(mine)
