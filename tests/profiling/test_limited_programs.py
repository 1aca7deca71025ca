"""The verdict of programs whose bottleneck is known, for they are made so.

Those that also run on the simulated machine of test_simulated_loops.py are slow here, but for some.
"""

import os

import pytest

from tests.support.limited_programs import CORES, LEAVE, PROGRAMS, run

pytestmark = pytest.mark.time

OTHERS = "workers waited for a processor"

SOME = (
    *("samples sleep, two workers", "a lock, asleep", "worker threads share a lock, asleep"),
    *("worker threads hold the interpreter", "a dataset that opens lazily"),
)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    "name",
    [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS],
)
def test_the_verdict_names_the_bottleneck(name: str) -> None:
    program, found = PROGRAMS[name], ""
    for _ in range(3):
        statistics = run(program)
        found = statistics.verdict
        assert found in str(statistics) and "\n" not in found
        # Where nothing is waited for, nothing is advised; and no program has a device to pin for.
        assert not (LEAVE in found and ("raise" in found or "add workers" in found)), found
        assert "pin_memory" not in found
        if all(words in found for words in program.says) and not any(
            words in found for words in program.never
        ):
            return
        crowded = os.getloadavg()[0] > 1.5 * CORES
        if crowded and found.partition("; ")[2].startswith(OTHERS):
            return  # which is the bottleneck, then
    if crowded:
        pytest.skip("other programs have the processors")
    pytest.fail(f"{name}: {found}")
