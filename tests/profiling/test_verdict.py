"""What the verdict says of the latest batches: limit, evidence, fix. And that it always says it."""

import dataclasses
import random
from typing import Any

import pytest

from lit_loader.profiling.controller import Setting
from lit_loader.profiling.verdict import Evidence, verdict


def seen(waited: float, *busy: float, fetch: float | None = None, **fields: Any) -> Evidence:
    """100 batches of 8 in 100 seconds, of which the loop waited, and each worker was busy, so."""
    made = sum(busy) * 100
    known: dict[str, Any] = {
        "batches": 100,
        "samples": 800,
        "seconds": 100.0,
        "waited": 100 * waited,
        "fetch": 0.9 * made if fetch is None else fetch,
        "collate": 0.1 * made,
        "busy": tuple(100 * each for each in busy),
        "num_workers": len(busy),
        "cores": 4,
        "computing": 0.9,
    }
    return Evidence(**{**known, **fields})


ITEM = "Limit: reading samples, in __getitem__"
SENDING = "Limit: sending batches to the training process"
AUTO = {"auto": Setting(2, 2, "more than 2 did not help"), "num_workers": 2}
GROWS = {"auto": Setting(2, 2, "the loop waited for the workers"), "num_workers": 2}

CASES: dict[str, tuple[Evidence, str, str]] = {
    "step": (seen(0.02, 0.2), "Limit: the training step", "Fix: none is needed"),
    "step, but for a hang": (
        seen(0.42, 0.2, hung=40.0, hangs=1), "Limit: workers that hang", "or lower timeout"
    ),
    "hang": (
        seen(0.6, 0.9, hung=40.0, hangs=2), "40 s of it were lost to 2 workers that hung", "timeout"
    ),
    "hang, beside another limit": (
        seen(0.9, 0.9, 0.9, hung=10.0, hangs=1), "10 s of it were lost to 1 worker that hung",
        "raise num_workers",
    ),
    "start": (seen(0.4, 0.3, starts=1, startup=38.0), "Limit: the start", "loader.start()"),
    "starts": (
        seen(0.4, 0.3, starts=9, startup=38.0), "first batch of 9 epochs (4.2 s each)",
        "persistent_workers=True",
    ),
    "starts, persistent": (
        seen(0.4, 0.3, starts=9, startup=38.0, persistent_workers=True), "Limit: the start",
        "longer epochs",
    ),
    "starts, usual batches": (seen(0.9, 0.9, starts=50, startup=45.0), ITEM, "raise num_workers"),
    "no workers": (seen(0.9, fetch=80.0), ITEM, "Fix: set num_workers"),
    "no workers, quick": (seen(0.9, fetch=0.05), "a batch takes 0.5 ms", "larger batches"),
    "no workers, collate_fn": (
        seen(0.9, fetch=10.0, collate=70.0), "Limit: making batches, in collate_fn", "num_workers"
    ),
    "a table": (seen(0.9, fetch=80.0, num_workers=2), "makes the batches itself", "none is known"),
    "workers compute": (
        seen(0.4, 0.9, 0.9), "2 workers 90 % busy, 90 % of it in __getitem__",
        "raise num_workers: there are 4 CPU cores",
    ),
    "workers compute on all cores": (
        seen(0.4, *[0.9] * 4), ITEM, "make __getitem__ cheaper; more workers do not help"
    ),
    "workers wait": (
        seen(0.4, *[0.9] * 4, computing=0.1), "waited for 90 % (storage, network)",
        "raise num_workers, even beyond the 4 CPU cores",
    ),
    "workers wait, and for a core, too": (
        seen(0.4, *[0.9] * 4, computing=0.02, queued=0.75), "75 % (a CPU core)", "read_threads"
    ),
    "a stream's workers wait": (
        seen(0.4, *[0.9] * 4, computing=0.1, iterable=True), "90 % (st", "wait, so ignore LL031"
    ),
    "workers wait for a core": (
        seen(0.4, 0.9, 0.9, computing=0.3, queued=0.6), "60 % (a CPU core)", "free CPU cores"
    ),
    "collate_fn": (
        seen(0.4, *[0.9] * 4, collate=900.0), "in collate_fn", "make collate_fn cheaper"
    ),
    "a stream": (
        seen(0.4, *[0.9] * 4, iterable=True), "in the stream's __iter__",
        "make the stream's __iter__ cheaper",
    ),
    "a full cache": (
        seen(0.4, 0.9, cache={"cache_bytes_missing": 2_140_000_000}), ITEM, "2.14 GB more memory"
    ),
    "auto": (seen(0.4, 0.9, 0.9, **AUTO), "2 workers (more than 2 did not", "make __getitem__ ch"),
    "auto, climbing": (seen(0.4, 0.9, 0.9, **GROWS), ITEM, "Fix: let it run"),
    "slow samples": (
        seen(0.4, 0.9, slowest=(("77", 0.9), ("8", 0.1))), "slowest samples: 77 (900 ms)", "raise"
    ),
    "a lock": (
        seen(0.4, 0.9, 0.9, lock_fraction=0.3), "30 % of the looks", "hold the lock for less time"
    ),
    "the GIL": (
        seen(0.9, 0.9, 0.9, threads=True, late=1.0), "hold the GIL", "worker_method='multipro"
    ),
    "equal shares": (
        seen(0.9, 0.9, 0.1, 0.1, iterable=True), "one worker was 90 % busy, the others 10 %",
        "equal shares",
    ),
    "a few slow batches": (
        seen(0.4, 0.4, 0.4, slow=35.0), "Limit: a few slow batches", "raise prefetch_factor"
    ),
    "encode": (seen(0.4, 0.9, encode=900.0), SENDING, "return tensors or arrays"),
    "large batches": (
        seen(0.4, 0.9, encode=900.0, nbytes=10**10), SENDING, "send less: a batch has 100 MB"
    ),
    "decode": (seen(0.4, 0.3, late=30.0), "75 % of that was for batches that had", "tensors or a"),
    "small batches": (
        seen(9e-4, 1e-4, seconds=0.1, busy=(0.01,)), SENDING, "larger batches, or num_workers=0"
    ),
    "nothing known": (seen(0.4, 0.3, 0.3), "Limit: not found", "Fix: none is known"),
    "remote workers": (seen(0.4, 0.9, remote_workers=8), "9 workers 10 % busy", "none is known"),
    "a GPU": (seen(0.4, 0.9, gpu=True), "(host time: the GPU may have been busy meanwhile)", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_limit_evidence_and_fix(name: str) -> None:
    """Also: prefetch is advised for slow batches alone."""
    evidence, said, fix = CASES[name]
    text = verdict(evidence)
    limit, shown, advice = text.splitlines()
    assert (limit[:7], shown[:10], advice[:5]) == ("Limit: ", "Evidence: ", "Fix: ")
    assert said in text and fix in advice, text
    assert shown.startswith("Evidence: in the last 100 batches the loop waited ")
    assert ("prefetch_factor" in text) == (name == "a few slow batches")


def test_it_has_three_lines_whatever_the_figures_are() -> None:
    """It is printed with the statistics, and must not raise there."""
    for seed in range(100):
        assert len(verdict(drawn(seed)).splitlines()) == 3


def drawn(seed: int) -> Evidence:
    """Return any figures."""
    draw = random.Random(seed)
    fields: dict[str, Any] = {
        field.name: draw.choice([0, 1, 2, 3.5])
        for field in dataclasses.fields(Evidence)
        if field.type in ("int", "float")
    }
    fields |= {
        "batches": draw.choice([1, 5]),
        "busy": tuple(draw.random() for _ in range(seed % 3)),
    }
    fields |= {name: draw.random() < 0.5 for name in ("threads", "iterable", "persistent_workers")}
    return Evidence(**fields)


def test_without_batches() -> None:
    assert verdict(Evidence()) == "no batch was loaded"
