"""Loaders of the test's own process, looked at: counts, deaths, other formats, who is whose."""

import contextlib
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Subset

from lit_loader import DataLoader
from lit_loader.core.transport import viewer_page
from lit_loader.core.transport.status_board import ROW_BYTES
from lit_loader.core.transport.viewer_page import FORMAT, MAGIC
from lit_loader.errors import WorkerRestartWarning
from lit_loader.top import app, discovery
from lit_loader.top.discovery import NotFound
from lit_loader.top.processes import files_of
from lit_loader.top.snapshot import Loader
from lit_loader.top.watch import Watch
from tests.support.programs import start_program
from tests.support.samples import Call
from tests.top.samples import Samples

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is written with every batch."""
    monkeypatch.setattr(viewer_page, "EVERY", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "survived").touch()
    return tmp_path


@pytest.fixture
def loader(folder: Path) -> Iterator[DataLoader[Any]]:
    with DataLoader(
        Subset(Samples(folder), range(10, 58)), batch_size=4, num_workers=2, seed=5,
        persistent_workers=True,
    ) as loader:  # fmt: skip
        yield loader


def seen() -> Loader:
    [training] = Watch(os.getpid()).look()
    [rank] = [rank for rank in training.ranks if rank.pid == os.getpid()]
    [loader] = rank.loaders
    return loader


def until(true: Callable[[Loader], bool]) -> Loader:
    deadline = time.monotonic() + 100
    while not true(found := seen()):
        assert time.monotonic() < deadline, found
    return found


def full(found: Loader) -> bool:
    """As many are ready as may be, and no worker has anything to do."""
    return found.ready == 4 and all(worker.stage == "idle" for worker in found.workers)


def test_batches_are_counted(loader: DataLoader[Any]) -> None:
    with pytest.raises(NotFound, match="has no lit_loader DataLoader with workers at"):
        seen()
    iterator = iter(loader)
    for given in range(1, 13):
        next(iterator)
        found = until(full)  # at the epoch's end, with the next one's
        assert (found.epoch, found.batches, found.length) == (0, given, 12)
        assert found.state == "computing"
    assert found.dataset == "Subset of Samples"
    assert next(iterator, None) is None
    assert seen().state == "idle"
    iterator = iter(loader)
    next(iterator)
    found = until(full)
    assert (found.epoch, found.batches) == (1, 1)


def test_rates_are_of_what_has_changed(loader: DataLoader[Any]) -> None:
    iterator = iter(loader)
    next(iterator)
    view = Watch(os.getpid())
    [first] = view.look()[0].loaders()
    assert first.workers[0].cpu is None
    for _ in range(5):
        next(iterator)
    [second] = view.look()[0].loaders()
    assert second.batches_per_second is not None and second.batches_per_second > 0
    assert second.wait_share is not None and 0 <= second.wait_share <= 1
    assert second.workers[0].cpu is not None
    assert 0 <= second.age <= second.state_seconds + 1
    assert second.verdict and second.statistics.startswith("6 batches (24 samples) in ")


def test_after_a_short_epoch_it_does_not_say_that_nothing_was_loaded(
    loader: DataLoader[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(viewer_page, "EVERY", 1 << 62)
    for _ in loader:
        pass
    app.main(["--once", str(os.getpid())])
    shown = capsys.readouterr().out
    assert "12/12" in shown and "no batch was loaded" not in shown


def test_a_loader_without_workers_is_not_seen() -> None:
    with (
        DataLoader(range(8), batch_size=4) as loader,
        pytest.raises(NotFound, match="makes the batches itself, py-spy dump --pid shows what"),
    ):
        for _ in loader:
            seen()
    assert files_of(os.getpid()) == {}


@pytest.mark.usefixtures("by_fork")  # for the gate
def test_no_other_sample_is_named_than_that_which_hangs() -> None:
    """Quick samples are not announced; then it is not known which one a batch is at."""
    gate, end = os.pipe()

    def quick(index: int) -> int:
        return len(os.read(gate, 1)) if index == 593 else index

    with DataLoader(Call(quick, 640), batch_size=64, num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(8):
            next(batches)
        [worker] = until(lambda found: found.workers[0].batch == 9).workers
        assert (worker.sample, worker.index) in ((None, None), (17, 593))
        os.write(end, b"x")
        assert [int(batch[17]) for batch in batches] == [529, 1]
    os.close(gate)
    os.close(end)


def test_a_worker_that_has_died(loader: DataLoader[Any]) -> None:
    iterator = iter(loader)
    next(iterator)
    dying = until(full).workers[1]
    victim = dying.pid
    assert victim is not None
    pidfd = os.pidfd_open(victim)
    os.kill(victim, signal.SIGKILL)
    assert select.select([pidfd], [], [], 20)[0]
    os.close(pidfd)
    found = seen()
    assert (found.workers[1].stage, found.workers[1].pid) == ("dead", victim)
    assert found.findings[0].startswith(f"worker 1 (pid {victim}) has died; another one takes its")
    with pytest.warns(WorkerRestartWarning):
        # Not missed as long as the other one's results come in; its successor has to come up.
        while not (found := seen()).restarts or found.workers[1].made == dying.made:
            assert len(list(loader)) == 12
        iterator = iter(loader)
        next(iterator)
    found = until(lambda found: all(worker.stage == "idle" for worker in found.workers))
    assert found.workers[1].pid != victim and found.restarts == 1
    assert found.events[-1].kind == "restart" and "SIGKILL" in found.events[-1].text


def test_workers_that_end_with_their_epoch_have_not_died() -> None:
    """A plain loop, looked at all the while."""
    ended, found = threading.Event(), []

    def watch() -> None:
        while not ended.is_set():
            with contextlib.suppress(NotFound):
                for training in Watch(os.getpid()).look():
                    for loader in training.loaders():
                        found.extend(worker.stage for worker in loader.workers)
                        found.extend(loader.findings)

    viewer = threading.Thread(target=watch)
    viewer.start()
    try:
        loader = DataLoader(range(8), batch_size=4, num_workers=2)
        for epoch in range(1000):
            assert len(list(loader)) == 2
            if found and epoch >= 10:  # on a busy machine a look takes many epochs
                break
    finally:
        ended.set()
        viewer.join()
    assert found
    assert not [text for text in found if text == "dead" or "died" in text]


def test_other_formats(loader: DataLoader[Any]) -> None:
    iterator = iter(loader)
    next(iterator)
    [path] = files_of(os.getpid()).values()
    fd = os.open(path, os.O_RDWR)

    def problem(magic: int) -> str:
        os.pwrite(fd, struct.pack("=q", magic), ROW_BYTES - 8)
        return seen().problem or ""

    try:
        assert problem(MAGIC | FORMAT) == ""
        assert "of another version of lit_loader (board format 9)" in problem(MAGIC | 9)
        assert f"-m lit_loader.top {os.getpid()}" in problem(MAGIC | 9)
        assert "has given no batch yet, or is of a lit_loader from before" in problem(0)
    finally:
        problem(MAGIC | FORMAT)
        os.close(fd)


def test_ranks_are_found_together(
    loader: DataLoader[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is a process below this one, as ranks are that the first one starts."""
    iterator = iter(loader)
    next(iterator)
    os.mkfifo(folder / "gate")
    with start_program(Path(__file__).with_name("samples.py"), folder) as other:
        assert other.stdout is not None and other.stdout.readline() == "waiting\n"
        [training] = Watch(other.pid).look()
        assert {rank.pid for rank in training.ranks} == {os.getpid(), other.pid}
        monkeypatch.setattr(discovery, "_links", lambda pid: (set(), set()))
        assert len(Watch().look()) >= 2
        other.kill()
