"""What surrounds the looking: arguments, messages, sentences, the JSON's keys."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lit_loader
from lit_loader.top import app, processes, snapshot
from lit_loader.top.snapshot import Frame, Loader, Rank, Training, Worker, findings

README = Path(lit_loader.__file__).parent / "top" / "README.md"


def hung(**options: Any) -> Loader:
    slow = Worker(
        1, 12, "fetch", batch=31, sample=2, index=4711, seconds=42.0, stalled=True, doing="asleep"
    )
    slow.stack = [Frame("/u/data.py", 9, "caption", "return file.read()", user=True)]
    given: dict[str, Any] = {
        "state": "waiting", "state_seconds": 40.0, "batches": 31, "ready": 3, "ahead": 4,
        "workers": [Worker(0, 11, "idle", seconds=40.0), slow],
    }  # fmt: skip
    return Loader("train", "Images", **{**given, **options})


@pytest.mark.parametrize(
    ("loader", "texts"),
    [
        (
            hung(),
            ["worker 1 has been fetching index 4711 (sample 2 of batch 31) for 42 s, asleep, in "
             "caption (/u/data.py:9); the training has waited for this batch for 40 s"],
        ),
        (hung(batches=30), ["the training has waited for batch 30 for 40 s"]),
        (hung(state="computing"), ["the training does not wait for it yet (3 batches are ready)"]),
        (
            Loader(state="waiting", state_seconds=3.0, batches=5),
            ["the training has waited for batch 5 for 3.0 s, and the workers get on: samples are"],
        ),
        (
            Loader(state="computing", state_seconds=200.0, ready=4),
            ["its own step for 3 min 20 s, and 4 batches are ready: it does not wait for the load"],
        ),
        (Loader(state="computing", wait_share=0.01, state_seconds=0.1), []),
        (
            hung(workers=[Worker(0, 11, "dead", batch=3), *hung().workers[1:]]),
            ["worker 0 (pid 11) has died", "worker 1 has been fetching index 4711"],
        ),
    ],
    ids=range(7),
)  # fmt: skip
def test_findings(loader: Loader, texts: list[str]) -> None:
    found = findings(loader)
    assert len(found) == len(texts)
    assert all(text in sentence for text, sentence in zip(texts, found, strict=True))


def test_the_keys_are_documented() -> None:
    text = README.read_text()
    named = set(re.findall(r"`(\w+)`", text[text.index("**Keys of the JSON**") :]))
    for kind in (Training, Rank, Loader, Worker, snapshot.Event, Frame):
        assert {field.name for field in dataclasses.fields(kind)} <= named
    assert set(app._report([])) <= named


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--json"], "--json goes with --once"),
        (["--stacks"], "--stacks goes with --once; while it runs, press s"),
        (["--interval", "0"], "--interval must be above 0 and at most 3600 seconds, got 0.0"),
        (["some"], "invalid int value: 'some'"),
    ],
)
def test_arguments_are_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        app.main(arguments)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_without_rich(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(processes, "own_pids", lambda: iter(()))
    assert app.main(["--once"]) == 2
    assert "pip install rich (--json does without)" in capsys.readouterr().err
    assert app.main(["--once", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["trainings"] == [] and report["error"].startswith("no loader found: ")


def test_whoever_reads_it_may_have_seen_enough() -> None:
    command = [sys.executable, "-m", "lit_loader.top", "--once", "--json", "--interval", "0.1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait() == 0
