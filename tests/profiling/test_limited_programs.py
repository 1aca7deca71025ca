"""The verdict names the bottleneck of real programs, and they get faster if one follows it.

They take seconds each, and measure them. What each rule says is in test_verdict.py.
"""

import os
from pathlib import Path

import pytest

from tests.support.limited_programs import CORES, programs, run

pytestmark = [pytest.mark.slow, pytest.mark.time]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning")
@pytest.mark.parametrize("name", programs(Path()))
def test_the_verdict_is_right_and_following_it_helps(name: str, tmp_path: Path) -> None:
    found = ""
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        program = programs(folder)[name]
        statistics, rate = run(program)
        found = statistics.verdict
        _, limit, _, fix = (
            *found.partition("\nEvidence")[0].partition(": ")[::2],
            *found.rpartition("Fix: ")[1:],
        )
        right = program.limit in limit and program.fix in fix
        if right and program.followed is None:
            return
        if right and run(program.fixed())[1] >= program.faster * rate:
            return
    if os.getloadavg()[0] > 1.5 * CORES:
        pytest.skip("other programs use the machine")
    pytest.fail(found)
