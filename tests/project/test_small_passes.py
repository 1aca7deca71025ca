"""What a short pass costs, without a clock: Python calls and system calls.

``pytest -n 0 -s tests/project/test_small_passes.py`` prints the counts. A pass is that of
``tests/support/small_pass.py``: a new loader, four batches, the end of its workers. The least of
three passes counts, because a process that waits may wake more than once.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import small_pass
from tests.support.programs import default_environment, run_program

PROGRAM = Path(small_pass.__file__)
pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="counted with forked workers")

# Counted with Python 3.11, plus 10 %.
# Of torch 2.13's loader: 273 and 273, 1,833 and 6,544 Python calls; 0 and 0, 510 and 1,850 system
# calls.
MOST_PYTHON_CALLS = {0: (550, 550), 2: (1_480, 2_750)}
MOST_SYSTEM_CALLS = {0: (7, 7), 2: (190, 440)}
"""By the number of workers: calls in this process, and in all processes."""


def test_python_calls() -> None:
    lines = run_program(PROGRAM, "lit_loader", "0,2", "calls").splitlines()
    counts = [tuple(map(int, line.split())) for line in lines]
    for (workers, most), first in zip(
        MOST_PYTHON_CALLS.items(), (0, small_pass.PASSES), strict=True
    ):
        here, everywhere = zip(*counts[first : first + small_pass.PASSES], strict=True)
        print(f"Python calls, {workers} workers: {min(here)} here, {min(everywhere)} in all")
        assert min(here) <= most[0] and min(everywhere) <= most[1]


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_system_calls(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", trace, sys.executable, PROGRAM, "lit_loader", "0,2", "marks"]
    subprocess.run(list(map(str, command)), env=default_environment(), check=True, timeout=200)
    # A call that another process interrupts has two lines. The second one begins with "<...".
    text = trace.read_text(errors="replace")
    lines = [line for line in text.splitlines() if re.match(r"\d+ +\w+\(", line)]
    marks = [number for number, line in enumerate(lines) if small_pass.MARK in line]
    process = lines[marks[0]].split()[0]
    passes = [lines[begin + 1 : end] for begin, end in zip(marks[::2], marks[1::2], strict=True)]
    assert len(passes) == 2 * small_pass.PASSES
    for (workers, most), first in zip(
        MOST_SYSTEM_CALLS.items(), (0, small_pass.PASSES), strict=True
    ):
        those = passes[first : first + small_pass.PASSES]
        here = min(sum(line.split()[0] == process for line in each) for each in those)
        everywhere = min(map(len, those))
        print(f"system calls, {workers} workers: {here} here, {everywhere} in all")
        assert here <= most[0] and everywhere <= most[1]
