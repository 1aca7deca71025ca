"""Who has killed a worker, as the message says it."""

from __future__ import annotations

import pytest

from lit_loader.system.cgroups import MemoryLimits
from lit_loader.workers.healer import _killed

GIB = 1 << 30


@pytest.mark.parametrize(
    ("limits", "by_the_kernel"),
    [
        (MemoryLimits(available=20 * GIB, oom_kills=0), False),
        (MemoryLimits(used=GIB, limit=8 * GIB, available=20 * GIB, oom_kills=0), False),
        (MemoryLimits(available=20 * GIB, oom_kills=1), True),
        (MemoryLimits(available=20 * GIB), True),  # the kernel's kills cannot be counted here
        (MemoryLimits(available=2 * GIB, oom_kills=0), True),
        (MemoryLimits(used=6 * GIB, limit=8 * GIB, available=20 * GIB, oom_kills=0), True),
        (MemoryLimits(), True),
    ],
)
def test_want_of_memory_is_named_unless_there_was_plenty(
    limits: MemoryLimits, by_the_kernel: bool
) -> None:
    text = _killed(2 * GIB, limits)
    assert text.startswith("most likely by the kernel" if by_the_kernel else "by another process")
    assert "(the worker had 2,048 MiB at most; " in text
    assert limits.describe() in text
