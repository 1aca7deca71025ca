"""The benchmark runs, says what it measured, and measures what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lit_loader.apps import benchmark


@pytest.mark.parametrize("case", benchmark.CASES, ids=lambda case: case.name)
def test_a_case_measures_both_loaders(case: benchmark.Case) -> None:
    short = benchmark.Case(case.name, case.make, case.batch_size, batches=6)
    timing = benchmark.measure_transport(short, num_workers=1, rounds=1)
    assert timing.torch_us > 0
    assert timing.ours_us > 0
    assert timing.ratio == pytest.approx(timing.torch_us / timing.ours_us)


def test_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = benchmark.CASES[3]
    monkeypatch.setattr(
        benchmark, "CASES", (benchmark.Case(case.name, case.make, case.batch_size, 6),)
    )
    benchmark.main(["--rounds", "1", "--num-workers", "1", "--json", str(tmp_path / "out.json")])
    printed = capsys.readouterr().out
    assert case.name in printed
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["exactness"]["state, bytes"] < 2000
    assert figures["exactness"]["state_dict(), us"] < 1000
    assert figures["transport"][0]["case"] == case.name
