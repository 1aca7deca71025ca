"""A training whose worker hangs, looked at from outside: what is seen, and that it is not touched.

The tests share one training, which waits at sample 37, index 1 of batch 9, until the last of them
lets it go on.
"""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lit_loader.top import app, watch
from lit_loader.top.picture import picture
from lit_loader.top.snapshot import Training
from lit_loader.top.watch import Watch
from tests.support.exact import digests
from tests.support.programs import ROOT, start_program
from tests.top.samples import SLOW, loader_of

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).with_name("samples.py")


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


def look(training: Any, asked: bool = False) -> list[Training]:
    """Look until the training waits for the batch, and the worker is at its gate."""
    view = Watch(training.pid)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        [seen] = view.look()
        [loader] = seen.loaders()
        slow = [worker for worker in loader.workers if worker.index == SLOW]
        waits = loader.state == "waiting" and loader.state_seconds >= 1  # it is said to stand then
        if waits and loader.batches == 9 and loader.ready == 3 and slow:
            lines = [frame.code for frame in slow[0].stack or () if frame.user]
            if not asked or lines == ["with self.gate.open() as gate:"]:
                return [seen]
        view.clear()
        view.asked = {worker.pid or 0 for worker in slow} if asked else set()
    raise AssertionError(seen)


def test_what_is_seen(training: Any) -> None:
    [seen] = look(training)
    while any(worker.stage == "starting" for worker in seen.loaders()[0].workers):
        [seen] = look(training)  # the one that takes the place of another is not up yet
    assert seen.pid == training.pid and seen.user
    [loader] = seen.loaders()
    assert (loader.dataset, loader.role, loader.epoch) == ("Samples", "", 0)
    assert (loader.batches, loader.length, loader.batch_size) == (9, 16, 4)
    assert (loader.num_workers, loader.ahead, loader.ready) == (2, 4, 3)
    assert (loader.restarts, loader.bad_samples) == (1, 1)
    assert loader.shared_memory > 0
    died, bad = sorted(loader.events, key=lambda event: event.kind != "restart")
    assert died.kind == "restart" and "exited by itself with code 3" in died.text
    assert bad.kind == "bad sample" and "index 3" in bad.text and "no such picture" in bad.text
    [slow, other] = sorted(loader.workers, key=lambda worker: worker.stage)
    assert (slow.stage, slow.batch, slow.sample, slow.index) == ("fetch", 9, 1, 37)
    assert (other.stage, other.batch, other.sample, other.index) == ("idle", None, None, None)
    assert slow.seconds is not None and slow.seconds < 600 and slow.memory
    assert slow.doing not in (None, "computing")
    # What was in flight at the death is sent once more, and may be made twice.
    assert 12 <= slow.made + other.made <= 12 + loader.ahead


def test_why_is_said(training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STALLED", 0.0)
    [seen] = look(training, asked=True)
    [loader] = seen.loaders()
    [finding] = loader.findings
    assert "has been fetching index 37 (sample 1 of batch 9) for" in finding
    assert f"in wait_for_storage ({PROGRAM}:" in finding
    assert "the training" in finding


@pytest.mark.parametrize("width", [80, 140])
def test_the_picture(training: Any, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STALLED", 0.0)
    console = Console(width=width, height=40, record=True, file=io.StringIO())
    console.print(picture(look(training, asked=True), width, live=True))
    styled = console.export_text(styles=True, clear=False)
    text = console.export_text()
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= width
    assert "9/16" in text and "3/4" in text and "37" in text
    at = next(place for place, line in enumerate(lines) if line.startswith("▶ "))
    assert "with self.gate.open() as gate:" in "".join(lines[at : at + 3])
    assert "\x1b[1;7;33m▶ " in styled
    assert "Python stack of worker" in text and "q quit" in text


def test_as_json(training: Any) -> None:
    look(training)
    command = [sys.executable, "-m", "lit_loader.top", str(training.pid), "--once", "--json"]
    out = subprocess.run(
        [*command, "--interval", "0.05"],
        check=True, timeout=200, capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout  # fmt: skip
    report = json.loads(out)
    assert report["format"] == 2 and report["error"] is None
    [loader] = report["trainings"][0]["ranks"][0]["loaders"]
    assert loader["batches_per_second"] == 0 and 0.9 < loader["wait_share"] <= 1
    assert 37 in [worker["index"] for worker in loader["workers"]]
    assert {worker["cpu"] for worker in loader["workers"]} <= {0.0, None}


def test_any_process_of_it_leads_to_it_and_nothing_is_left_open(training: Any) -> None:
    def files() -> list[str]:
        pids = [training.pid, *(worker.pid for worker in seen.loaders()[0].workers)]
        return [f"{pid} {fd}" for pid in pids for fd in sorted(os.listdir(f"/proc/{pid}/fd"))]

    [seen] = look(training)
    before, mine = files(), os.listdir("/proc/self/fd")
    look(training, asked=True)
    for worker in seen.loaders()[0].workers:
        assert [found.pid for found in Watch(worker.pid).look()] == [training.pid]
    assert files() == before
    assert os.listdir("/proc/self/fd") == mine


def test_in_a_terminal(training: Any) -> None:
    look(training)
    main, terminal = os.openpty()
    command = [sys.executable, "-m", "lit_loader.top", str(training.pid), "--interval", "0.05"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, cwd=ROOT
    ) as viewer:
        try:
            os.close(terminal)
            shown = b""
            for wanted, key in ((b"9/16", b"s"), (b"self.gate.open", b"\x1b[Bq")):
                while wanted not in shown:
                    shown += os.read(main, 65536)
                os.write(main, key)
            while True:
                try:
                    if not os.read(main, 65536):
                        break
                except OSError:  # the terminal has no program any more
                    break
            assert viewer.wait(30) == 0
        finally:
            viewer.kill()
            os.close(main)


def test_the_training_goes_on_as_without(
    training: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Last in this file: all that was looked at, and asked for, has changed nothing."""
    look(training, asked=True)
    view = Watch(training.pid)
    view.look()
    (folder / "gate").write_text("go on")
    out, _ = training.communicate(timeout=200)
    assert training.returncode == 0
    (folder / "gate").unlink()
    with loader_of(folder, num_workers=0) as loader:
        assert out.split()[-1] == "".join(digests(loader))
    with pytest.raises(watch.NotFound, match=f"the training has ended \\(pid {training.pid}\\)"):
        view.look()
    assert app.main([str(training.pid), "--once"]) == 1
    assert f"there is no process {training.pid}" in capsys.readouterr().err
