"""Workers that the OOM killer ends: called that, and not replaced forever."""

import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest

from lit_loader import DataLoader
from lit_loader.core.transport import viewer_page
from lit_loader.data import memory
from lit_loader.data.memory import MemoryLimits
from lit_loader.diagnostics import death_messages
from tests.support.faults import Faults, Strike
from tests.support.samples import Call, ints

GIB = 1 << 30


@pytest.mark.parametrize(("before", "sure"), [(2, True), (3, False), (None, False)])
def test_who_was_ended_by_the_oom_killer_is_called_that(before: int | None, sure: bool) -> None:
    limits = MemoryLimits(used=7 * GIB, limit=8 * GIB, available=20 * GIB, oom_kills=3)
    text = death_messages._killed(2 * GIB, limits, before)
    assert text.startswith("by the OOM killer" if sure else "most likely by the OOM killer")
    assert "(the worker had 2,048 MiB at most; cgroup memory 7.0 of 8.0 GiB" in text


@pytest.mark.parametrize("persistent", [True, False])
def test_who_is_ended_for_memory_is_not_replaced_forever(
    persistent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the loader continues with a worker less, also in later epochs; nothing is lost."""
    kills = itertools.count(1)
    monkeypatch.setattr("lit_loader.loader._SETTLING", 0.0)
    monkeypatch.setattr(viewer_page, "EVERY", 0)
    monkeypatch.setattr(memory, "memory_limits", lambda: MemoryLimits(oom_kills=0))
    monkeypatch.setattr(
        death_messages, "memory_limits", lambda: MemoryLimits(oom_kills=next(kills))
    )
    strikes = Faults(
        tmp_path,
        Strike("SIGKILL", "collating", 20, times=1),
        Strike("SIGKILL", "collating", 20, epoch=1),
    )
    options: dict[str, Any] = {"worker_init_fn": strikes, "persistent_workers": persistent}
    loader = DataLoader(Call(int, 40), num_workers=3, multiprocessing_context="fork", **options)
    with loader, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            assert ints(loader) == list(range(40))
        left = loader.num_workers
    texts = [str(warning.message) for warning in told]
    assert sum("was killed by SIGKILL" in text for text in texts) == 2
    fewer = [text for text in texts if "LL050" in text]
    assert [text.partition(", so")[0] for text in fewer] == [
        "lit_loader: num_workers goes from 3 to 2", "lit_loader: num_workers goes from 2 to 1"
    ][: len(fewer)]  # fmt: skip
    assert left == 3 - len(fewer) < 3
