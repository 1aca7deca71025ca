"""Workers whose memory grows until the kernel ends one: told before, and called that after."""

import collections
import functools
import itertools
import re
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from lit_loader import DataLoader
from lit_loader.core.transport import viewer_page
from lit_loader.data.memory import MemoryLimits
from lit_loader.diagnostics import death_messages as faults
from lit_loader.diagnostics import growth
from tests.support.faults import Faults, Strike
from tests.support.samples import Call, OfLength, ints

pytestmark = pytest.mark.skipif(growth.own_bytes(1) == 0, reason="looks into /proc")

BLOCK = 4 << 20


class Cached(OfLength):
    """Keeps what each sample has cost, for ever; or the last few only."""

    def __init__(self, most: int = 100) -> None:
        super().__init__(100)
        self.cache: dict[int, bytes] = {}
        self.most = most

    def __getitem__(self, index: int) -> int:
        self.cache[index % self.most] = b"x" * BLOCK
        return index


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is a look, and the machine is nearly full."""
    monkeypatch.setattr(growth, "EVERY", 0.0)
    monkeypatch.setattr("lit_loader.loader._SETTLING", 0.0)
    monkeypatch.setattr(viewer_page, "EVERY", 0)
    monkeypatch.setattr(growth, "memory_left", lambda: 100 << 20)


@pytest.mark.usefixtures("often")
def test_a_cache_without_a_bound() -> None:
    loader = DataLoader(Cached(), None, num_workers=1)
    with pytest.warns(RuntimeWarning, match="^lit_loader: the workers' memory grows") as caught:
        assert [int(index) for index in loader] == list(range(100))
    [warning] = caught  # once
    text = str(warning.message)
    assert "100 MiB are left" in text
    assert "The largest is worker 0 (pid " in text
    assert "Most likely Cached.cache (dict) grows: bound it" in text
    statistics = loader.statistics()
    assert 2 << 20 < statistics.worker_growth < 8 << 20
    assert re.search(r"workers' memory grew by [3-7][\d.]* MB a batch", statistics.verdict)
    kibibytes = int(text.partition(" KiB a batch")[0].rpartition("(")[2].replace(",", ""))
    assert 2048 < kibibytes < 8192
    assert warning.filename == __file__


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("most", [8, 40])
def test_a_cache_with_a_bound(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "memory_left", lambda: 1 << 40)
    loader = DataLoader(Cached(most), None, num_workers=1)
    assert len([*loader]) == 100
    assert loader.statistics().worker_growth == 0


@functools.cache
def decoded(index: int) -> bytes:
    return b"x" * index


class Transform:
    def __init__(self) -> None:
        self.names = ["a", "b"]
        self.seen: list[int] = []

    def __call__(self, sample: int) -> int:
        assert self.names
        self.seen.append(sample)
        return sample


class Several(OfLength):
    """Lists that are read only, and what samples add to."""

    def __init__(self) -> None:
        super().__init__(10)
        self.files = [f"{number}.jpg" for number in range(10)]
        self.transform = Transform()
        self.sizes: collections.Counter[int] = collections.Counter()
        self.last: deque[int] = deque(maxlen=8)

    def __getitem__(self, index: int) -> Any:
        self.sizes[len(self.files[index])] += 1
        self.last.append(index)
        return self.transform(len(decoded(index)))


def test_what_samples_add_to() -> None:
    assert growth.growing(Several()) == [
        "Several.sizes (Counter)",
        "Several.transform.seen (list)",
        "decoded (a functools.cache without a bound)",
    ]
    assert growth.growing(range(3)) == []


def test_there_is_enough_left(often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "memory_left", lambda: 64 << 30)
    assert len([*DataLoader(Cached(), None, num_workers=1)]) == 100


GIB = 1 << 30


@pytest.mark.parametrize(("before", "sure"), [(2, True), (3, False), (None, False)])
def test_who_was_ended_by_the_kernel_is_called_that(before: int | None, sure: bool) -> None:
    limits = MemoryLimits(used=7 * GIB, limit=8 * GIB, available=20 * GIB, oom_kills=3)
    text = faults._killed(2 * GIB, limits, before)
    assert text.startswith("by the kernel" if sure else "most likely by the kernel")
    assert "(the worker had 2,048 MiB at most; cgroup memory 7.0 of 8.0 GiB" in text


@pytest.mark.parametrize("persistent", [True, False])
def test_who_is_ended_for_memory_is_not_replaced_for_ever(
    persistent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the loader goes on with a worker less, in later epochs, too; nothing is lost."""
    kills = itertools.count(1)
    monkeypatch.setattr("lit_loader.loader._SETTLING", 0.0)
    monkeypatch.setattr(viewer_page, "EVERY", 0)
    monkeypatch.setattr(growth, "memory_limits", lambda: MemoryLimits(oom_kills=0))
    monkeypatch.setattr(faults, "memory_limits", lambda: MemoryLimits(oom_kills=next(kills)))
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
    assert sum("ended" in text or "killed" in text for text in texts) == 2
    fewer = [text for text in texts if "so that there is memory for the others" in text]
    assert [text.partition(", so")[0] for text in fewer] == [
        "lit_loader: num_workers goes from 3 to 2", "lit_loader: num_workers goes from 2 to 1"
    ][: len(fewer)]  # fmt: skip
    assert left == 3 - len(fewer) < 3
