"""lit-loader-top: what is seen of loaders in this process, and of a training whose worker hangs.

The tests at the end share one training, which waits at sample 37, index 1 of batch 9, until the
last of them lets it continue.
"""

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch.utils.data import Subset

from lit_loader import DataLoader
from lit_loader.core.transport import viewer_page
from lit_loader.errors import WorkerRestartWarning
from lit_loader.top import app, look
from lit_loader.top.look import NotFound, Viewer
from lit_loader.top.picture import findings, picture
from tests.support.exact import digests
from tests.support.programs import ROOT, start_program
from tests.support.samples import Call
from tests.top.samples import SLOW, Samples, loader_of

PROGRAM = Path(__file__).with_name("samples.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"}

Seen = dict[str, Any]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is written with every batch."""
    monkeypatch.setattr(viewer_page, "EVERY", 0)


@pytest.fixture
def loader(tmp_path: Path) -> Iterator[DataLoader[Any]]:
    (tmp_path / "survived").touch()
    data = Subset(Samples(tmp_path), range(10, 58))
    with DataLoader(data, 4, num_workers=2, seed=5, persistent_workers=True) as loader:
        yield loader


def seen() -> Seen:
    [found] = Viewer(os.getpid()).look()
    return found


def until(true: Callable[[Seen], bool]) -> Seen:
    deadline = time.monotonic() + 100
    while not true(found := seen()):
        assert time.monotonic() < deadline, found
    return found


def full(found: Seen) -> bool:
    """As many are ready as may be, about, and no worker has anything to do.

    A worker that has counted a batch and not sent it yet, when the page is written, makes it one
    less.
    """
    return found["ready"] in (3, 4) and all(each["stage"] == "idle" for each in found["workers"])


def test_batches_are_counted(loader: DataLoader[Any]) -> None:
    with pytest.raises(NotFound, match="no lit_loader DataLoader of this version has workers"):
        seen()
    iterator = iter(loader)
    for given in range(1, 13):
        next(iterator)
        found = until(full)  # at the epoch's end, with the next one's
        assert (found["epoch"], found["batches"], found["length"]) == (0, given, 12)
        assert found["state"] == "computing"
    assert found["dataset"] == "Subset of Samples"
    assert found["verdict"].startswith("Limit: ")
    assert 0 <= found["wait_share"] <= 1 and found["batches_per_second"] > 0
    assert next(iterator, None) is None
    assert seen()["state"] == "idle"
    iterator = iter(loader)
    next(iterator)
    found = until(full)
    assert (found["epoch"], found["batches"]) == (1, 1)


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
        [worker] = until(lambda found: found["workers"][0]["batch"] == 9)["workers"]
        assert (worker["sample"], worker["index"]) in ((None, None), (17, 593))
        os.write(end, b"x")
        assert [int(batch[17]) for batch in batches] == [529, 1]
    os.close(gate)
    os.close(end)


def test_a_worker_that_has_died(loader: DataLoader[Any]) -> None:
    iterator = iter(loader)
    next(iterator)
    victim = until(full)["workers"][1]["pid"]
    pidfd = os.pidfd_open(victim)
    os.kill(victim, signal.SIGKILL)
    assert select.select([pidfd], [], [], 20)[0]
    os.close(pidfd)
    found = seen()
    assert (found["workers"][1]["stage"], found["workers"][1]["pid"]) == ("dead", victim)
    assert f"worker 1 (pid {victim}) has died" in next(findings(found))
    with pytest.warns(WorkerRestartWarning):
        while not (found := seen())["restarts"]:
            list(loader)
            iterator = iter(loader)
            next(iterator)
    assert found["events"][-1][1] == "restart" and "SIGKILL" in found["events"][-1][2]


def test_workers_that_end_with_their_epoch_have_not_died() -> None:
    """A plain loop, looked at all the while."""
    ended, found = threading.Event(), []

    def watch() -> None:
        while not ended.is_set():
            with contextlib.suppress(NotFound):
                for loader in Viewer(os.getpid()).look():
                    found.extend(worker["stage"] for worker in loader["workers"])

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
    assert found and "dead" not in found


def hung(**fields: Any) -> Seen:
    slow = {
        "worker": 1, "pid": 12, "stage": "fetch", "batch": 31, "index": 4711, "seconds": 42.0,
        "stalled": True, "at": "a read of /data",
    }  # fmt: skip
    known = {"state": "waiting", "state_seconds": 40.0, "batches": 31, "ready": 3}
    return {**known, "workers": [slow], **fields}


@pytest.mark.parametrize(
    ("loader", "texts"),
    [
        (hung(), ["worker 1 has been at fetch, batch 31, index 4711, for 42 s (a "
                  "read of /data); the training has waited for batch 31 for 40 s"]),
        (hung(state="computing"), ["(a read of /data); 3 batches are ready", "the training step"]),
        (hung(workers=[]), ["and the workers make progress: samples are slow"]),
        (hung(workers=[], state="computing"), ["the training step has taken 40 s so far"]),
        (hung(workers=[], state="idle", state_seconds=None), []),
    ],
    ids=range(5),
)  # fmt: skip
def test_findings(loader: Seen, texts: list[str]) -> None:
    found = [*findings(loader)]
    assert len(found) == len(texts)
    assert all(text in sentence for text, sentence in zip(texts, found, strict=True))


def test_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--json"], ["--stacks"], ["some"]):
        with pytest.raises(SystemExit) as ended:
            app.main(arguments)
        assert ended.value.code == 2
    assert "invalid int value: 'some'" in capsys.readouterr().err


def test_without_rich(
    loader: DataLoader[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    iterator = iter(loader)
    next(iterator)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    options = [str(os.getpid()), "--once", "--interval", "0"]
    assert app.main(options) == 2
    assert "pip install rich" in capsys.readouterr().err
    assert app.main([*options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loaders"][0]["batches"] == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hung")
    os.mkfifo(folder / "gate")
    return folder


@pytest.fixture(scope="module")
def training(folder: Path) -> Iterator[Any]:
    with start_program(PROGRAM, folder) as program:
        try:
            assert program.stdout.readline() == "waiting\n"
            yield program
        finally:
            program.kill()


def looked(training: Any) -> Seen:
    """Look until the training waits for the batch, and the worker shows where it hangs."""
    view, deadline = Viewer(training.pid), time.monotonic() + 100
    while time.monotonic() < deadline:
        [found] = view.look()
        slow = [worker for worker in found["workers"] if worker["index"] == SLOW]
        waits = found["state"] == "waiting" and found["state_seconds"] >= 1
        stack = slow[0]["stack"] if slow else None
        # How many are ready is known "about": a second copy of a task may count.
        there = waits and found["batches"] == 9 and found["ready"] in (2, 3)
        if there and "in wait_for_storage" in (stack or ""):
            return found
        view.stacks.clear()
        view.asked = {worker["pid"] for worker in slow}
    raise AssertionError(found)


def test_what_is_seen(training: Any) -> None:
    found = looked(training)
    assert (found["pid"], found["dataset"], found["role"], found["epoch"]) == (
        training.pid, "Samples", "", 0,
    )  # fmt: skip
    assert (found["batches"], found["length"], found["batch_size"]) == (9, 16, 4)
    assert (found["num_workers"], found["ahead"]) == (2, 4)
    assert (found["restarts"], found["bad_samples"]) == (1, 1)
    kinds = {kind: text for _, kind, text in found["events"]}
    assert "exited by itself with code 3" in kinds["restart"] and "index 3" in kinds["bad sample"]
    [slow] = [worker for worker in found["workers"] if worker["stage"] == "fetch"]
    assert (slow["batch"], slow["sample"], slow["index"]) == (9, 1, 37)
    assert slow["memory"] and slow["seconds"] < 600


@pytest.mark.parametrize("width", [80, 140])
def test_the_picture(training: Any, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "STALLED", 0.0)
    console = Console(width=width, height=60, record=True, file=io.StringIO())
    seen = looked(training)
    console.print(picture([seen], live=True))
    text = console.export_text()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for shown in (
        "9/16",
        f"{seen['ready']}/4",
        "37",
        "in wait_for_storage",
        "q quit",
        "Limit: ",
        "▲ worker",
    ):
        assert shown in " ".join(text.split()), shown  # a long path wraps the line


def test_any_process_of_it_leads_to_it_and_nothing_is_left_open(training: Any) -> None:
    def files() -> list[str]:
        pids = [training.pid, *(worker["pid"] for worker in found["workers"])]
        return [f"{pid} {fd}" for pid in pids for fd in sorted(os.listdir(f"/proc/{pid}/fd"))]

    found = looked(training)
    before, mine = files(), os.listdir("/proc/self/fd")
    looked(training)
    for pid in (os.getpid(), *(worker["pid"] for worker in found["workers"])):
        assert training.pid in [each["pid"] for each in Viewer(pid).look()]
    assert files() == before
    assert os.listdir("/proc/self/fd") == mine


def test_as_json(training: Any) -> None:
    command = [sys.executable, "-m", "lit_loader.top", str(training.pid), "--once", "--json"]
    out = subprocess.run(
        [*command, "--interval", "0.05"], check=True, timeout=200, capture_output=True,
        env=ENVIRONMENT,
    ).stdout  # fmt: skip
    [found] = json.loads(out)["loaders"]
    assert 37 in [worker["index"] for worker in found["workers"]]
    assert {worker["cpu"] for worker in found["workers"]} <= {0.0, None}


def test_in_a_terminal(training: Any) -> None:
    main, terminal = os.openpty()
    command = [sys.executable, "-m", "lit_loader.top", str(training.pid), "--interval", "0.05"]
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=ENVIRONMENT
    ) as viewer:
        try:
            os.close(terminal)
            shown = b""
            for wanted, key in ((b"9/16", b"s"), (b"in wait_for_storage", b"\x1b[Bq")):
                while wanted not in shown:
                    shown += os.read(main, 65536)
                os.write(main, key)
            with contextlib.suppress(OSError):  # the terminal has no program any more
                while os.read(main, 65536):
                    pass
            assert viewer.wait(30) == 0
        finally:
            viewer.kill()
            os.close(main)


def test_the_training_continues_as_without(
    training: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Last in this file: all that was looked at, and asked for, has changed nothing."""
    looked(training)
    (folder / "gate").write_text("go on")
    out, _ = training.communicate(timeout=200)
    assert training.returncode == 0
    (folder / "gate").unlink()
    with loader_of(folder, num_workers=0) as loader:
        assert out.split()[-1] == "".join(digests(loader))
    assert app.main([str(training.pid), "--once", "--interval", "0"]) == 1
    assert "no lit_loader DataLoader" in capsys.readouterr().err
