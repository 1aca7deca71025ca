"""What the tests leave behind for one another."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TextIO

import pytest
from torch.utils.data import DataLoader as TorchLoader

from lit_loader import DataLoader
from tests.support.turns import Turns


class HookError(Exception):
    pass


@pytest.mark.parametrize("turn", [0, 1])
def test_a_hook_that_raised_leaves_the_classes_as_they_were(turn: int) -> None:
    """Lightning wraps the constructors of loaders, and does not unwrap them after an error."""
    data = pytest.importorskip("lightning.fabric.utilities.data")
    for kind in (TorchLoader, DataLoader):
        assert not [name for name in vars(kind([1])) if name.startswith("__pl")], kind
    for _ in range(2):
        with pytest.raises(HookError), data._replace_dunder_methods(TorchLoader, "dataset"):
            raise HookError
    with data._replace_dunder_methods(TorchLoader, "dataset"):
        pass


TESTS = """
import os, signal, pytest

def test_ctrl_c():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)

def test_unit_with_a_process():
    os.waitpid(os.posix_spawnp("true", ["true"], os.environ), 0)

@pytest.mark.process
def test_process():
    os.waitpid(os.posix_spawnp("true", ["true"], os.environ), 0)
"""


def unusual() -> None:
    """Ignore Ctrl-C, as after ``nohup pytest &``, and hold back signals; a group without rights."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGINT})
    os.umask(0o077)
    os.close(0)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """How tests end that were started in the background by something odd."""
    folder = tmp_path_factory.mktemp("tests")
    test = folder / "test_some.py"
    test.write_text(TESTS)
    root = Path(__file__).parents[2]
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-rA", "-n", "0", "-p", "tests.conftest"),
        *("-m", "unit or process"),
        *("--confcutdir", str(folder), "-c", str(root / "pyproject.toml"), str(test)),
    ]
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=100, preexec_fn=unusual,
        env={**os.environ, "PYTHONPATH": str(root)}, check=False,
    )  # fmt: skip
    found = re.findall(r"^(PASSED|FAILED|ERROR) \S*::(\w+)", done.stdout, re.MULTILINE)
    assert found, done.stdout + done.stderr
    return {name: outcome for outcome, name in found}


def test_ctrl_c_reaches_tests_that_were_started_in_the_background(
    outcomes: dict[str, str],
) -> None:
    assert outcomes["test_ctrl_c"] == "PASSED"


def test_a_unit_test_may_start_no_process(outcomes: dict[str, str]) -> None:
    assert outcomes["test_unit_with_a_process"] == "ERROR"  # found when it is over
    assert outcomes["test_process"] == "PASSED"


def test_who_measures_time_is_alone_and_is_not_passed(tmp_path: Path) -> None:
    one, other, third = Turns(tmp_path), Turns(tmp_path), Turns(tmp_path)
    seen: list[str] = []

    def measure() -> None:
        with other.turn(alone=True):
            seen.append("alone")

    def come_later() -> None:
        with third.turn(alone=False):
            seen.append("later")

    threads = [threading.Thread(target=measure), threading.Thread(target=come_later)]
    with one.turn(alone=False), (tmp_path / "turns-gate").open() as gate:
        with third.turn(alone=False):  # side by side
            seen.append("beside")
        threads[0].start()
        while not is_locked(gate):  # by who waits to be alone
            os.sched_yield()
        threads[1].start()
        assert seen == ["beside"]
    for thread in threads:
        thread.join()
    assert seen == ["beside", "alone", "later"]
    for each in (one, other, third):
        each.close()


def is_locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False
