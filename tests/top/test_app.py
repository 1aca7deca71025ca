"""What surrounds the looking: arguments, messages, sentences, the JSON's keys, what is imported."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import lit_loader
from lit_loader.statistics.sentences import duration
from lit_loader.top import app, discovery, processes, snapshot, stacks
from lit_loader.top.findings import findings
from lit_loader.top.picture import picture
from lit_loader.top.snapshot import Event, Frame, Loader, Rank, Training, Worker

README = Path(lit_loader.__file__).parent / "top" / "README.md"


def training(*loaders: Loader, ranks: int = 1) -> Training:
    return Training(7, "python train.py", "ann", [Rank(7 + n, n, ranks, 1.0, 1 << 30, [*loaders])
                                                  for n in range(ranks)])  # fmt: skip


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-0.1, "0 ms"),
        (0.0042, "4.2 ms"),
        (0.3, "300 ms"),
        (4.24, "4.2 s"),
        (42.4, "42 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_pictures_fit(width: int, ranks: int) -> None:
    workers = [Worker(n, 100_000 + n, "idle", seconds=1.0, memory=12 << 30) for n in range(64)]
    workers[50] = dataclasses.replace(hung().workers[1], worker=50)
    loader = hung(workers=workers, length=1_000_000, batches_per_second=1234.5, num_workers=64)
    loader.findings = findings(loader)
    loader.events = [Event(0, "restart", "DataLoader worker 3 was killed by SIGKILL " * 20)]
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(picture([training(loader, ranks=ranks)], width, live=True))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert max(map(len, lines)) <= width
    assert "q quit" in lines[0]
    assert sum("4711" in line and "▲" not in line for line in lines) >= 1
    assert any(line.strip().startswith("and ") and "more" in line for line in lines)


def test_several_trainings_are_a_list() -> None:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        other = Training(
            9, "python \x1b[2Jother.py", "ann", [Rank(9, loaders=[Loader(problem="?!")])]
        )
        told = hung(verdict="workers were busy", age=9.0)
        console.print(picture([training(told), other], 100))
    text = console.export_text()
    assert "so far: workers were busy" in text and "figures of 9.0 s ago; workers are live" in text
    assert "pid 7" in text and "pid 9" in text and "▲ ?!" in text
    assert "\x1b" not in text and "4711" not in text
    assert "lit-loader-top PID shows the workers of one" in text


def test_the_keys_are_documented() -> None:
    text = README.read_text()
    named = set(re.findall(r"`(\w+)`", text[text.index("**Keys of the JSON**") :]))
    for kind in (Training, Rank, Loader, Worker, snapshot.Event, Frame):
        assert {field.name for field in dataclasses.fields(kind)} <= named
    assert set(app._report([])) <= named


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, lit_loader.top.app; "
        "heavy = {'torch', 'numpy', 'rich', 'psutil', 'multiprocessing'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


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
    assert "pip install 'lit_loader[top]' (--json does without)" in capsys.readouterr().err
    assert app.main(["--once", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["trainings"] == [] and report["error"].startswith("no loader found: ")


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("parents", "environments", "commands", "groups"),
    [
        ({5: 1, 6: 5}, {}, {}, [[5, 6]]),  # one has started the other
        ({5: 4, 6: 4}, {}, {}, [[5], [6]]),  # two programs of one shell
        ({5: 4, 6: 4}, {5: TORCHRUN, 6: TORCHRUN}, {}, [[5, 6]]),
        ({5: 4, 6: 4}, {5: TORCHRUN, 6: {**TORCHRUN, "MASTER_PORT": "1"}}, {}, [[5], [6]]),
        ({5: 4, 6: 4}, {}, {n: "python -c from multiprocessing.spawn" for n in (5, 6)}, [[5, 6]]),
        ({5: 4, 6: 4}, {}, {n: "python notebook" for n in (4, 5, 6)}, [[5, 6]]),  # forked
    ],
    ids=range(6),
)
def test_what_belongs_together(
    parents: dict[int, int],
    environments: dict[int, dict[str, str]],
    commands: dict[int, str],
    groups: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def process(pid: int) -> processes.Process:
        return processes.Process(pid, parents.get(pid, 1), "python", "S", 0.0, pid)

    monkeypatch.setattr(processes, "read_process", process)
    monkeypatch.setattr(processes, "environment_of", lambda pid: environments.get(pid, {}))
    monkeypatch.setattr(processes, "command_of", lambda pid: commands.get(pid, f"train {pid}"))
    assert discovery.grouped([6, 5]) == groups


STACKS = """\
Thread 0x1 (most recent call first):
  File "/v/lib/python3.11/threading.py", line 327 in wait
  File "/v/lib/python3.11/site-packages/lit_loader/workers/main.py", line 9 in wait

Current thread 0x2 (most recent call first):
  File "/v/lib/python3.11/socket.py", line 706 in readinto
  File "/v/lib/python3.11/site-packages/datasets/table.py", line 1 in query
{user}  File "/v/lib/python3.11/site-packages/lit_loader/batch/fetch.py", line 3 in fetch
  File "/v/lib/python3.11/site-packages/lit_loader/workers/main.py", line 80 in worker_main
  File "/u/train.py", line 50 in <module>

Extension modules: numpy._core (total: 1)
"""


@pytest.mark.parametrize(
    ("user", "lines", "at"),
    [
        ('  File "/u/data.py", line 12 in __getitem__\n', 3, "/u/data.py"),
        ("", 2, "/v/lib/python3.11/site-packages/datasets/table.py"),
    ],
    ids=["user's", "a library's"],
)
def test_the_line_to_look_at(user: str, lines: int, at: str) -> None:
    frames = stacks.parse(STACKS.format(user=user), 1)
    assert len(frames) == lines
    assert [frame.file for frame in frames if frame.user] == [at]


def test_a_worker_that_waits_for_work_has_no_line() -> None:
    text = STACKS.format(user="").replace("batch/fetch", "workers/main")
    lines = text.splitlines(keepends=True)
    frames = stacks.parse(
        "".join(line for line in lines if "/socket" not in line and "/table" not in line), 1
    )
    assert not [frame for frame in frames if frame.user]
