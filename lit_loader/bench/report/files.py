"""The report as files: results.json with everything, results.csv with a line for each figure.

Called by `bench/runner.py` at the end of a run; `bench/report/check.py` compares with the JSON
later.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_loader.bench.core.results import COPY, IN_PROCESS, LIMIT, Measurement, Spread
from lit_loader.bench.report.check import FORMAT

if TYPE_CHECKING:
    from lit_loader.bench.own_dataset.grid import Grid

__all__ = ["COLUMNS", "write"]

COLUMNS = (
    "case", "row", "loader", "unit", "median", "low", "high", "rounds", "vs_torch", "of_limit",
    "limit", "limit_by", "cannot",
)  # fmt: skip


def write(
    directory: Path,
    machine: Mapping[str, Any],
    measurements: Sequence[Measurement],
    grid: Grid | None,
    interrupted: bool,
) -> list[str]:
    """Write both files; returns their names."""
    report = {
        "format": FORMAT,
        "interrupted": interrupted,
        "machine": machine,
        "measurements": [_measurement(m) for m in measurements],
        "grid": None if grid is None else grid.as_dict(),
    }
    (directory / "results.json").write_text(json.dumps(report, indent=1, ensure_ascii=False))
    with (directory / "results.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        for measurement in measurements:
            table.writerows(_lines(measurement))
    return ["results.json", "results.csv"]


def _measurement(measurement: Measurement) -> dict[str, Any]:
    return {
        "case": measurement.case,
        "name": measurement.name,
        "unit": measurement.unit,
        "axis": measurement.axis,
        "x": measurement.x,
        "limit_by": measurement.limit_source,
        "limit": _spread(measurement.figure(LIMIT)),
        "in_process": _spread(measurement.figure(IN_PROCESS)),
        "memory_copy": _spread(measurement.figure(COPY)),
        "loaders": {
            name: {
                "figure": _spread(measurement.figure(name)),
                "rounds": measurement.values(name),
                "vs_torch": _spread(measurement.vs_torch(name)),
                "of_limit": _spread(measurement.of_limit(name)),
                "cannot": measurement.cannot.get(name),
            }
            for name in measurement.loaders
        },
        "targets": [
            {"of": t.of, "bound": t.bound, "met": t.met(measurement)} for t in measurement.targets
        ],
    }


def _spread(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else _as_columns(spread)


def _lines(measurement: Measurement) -> Iterator[dict[str, Any]]:
    limit = measurement.figure(LIMIT)
    for name in measurement.loaders:
        figure = measurement.figure(name)
        torch, best = measurement.vs_torch(name), measurement.of_limit(name)
        yield {
            "case": measurement.case,
            "row": measurement.name,
            "loader": name,
            "unit": measurement.unit,
            **({} if figure is None else _as_columns(figure)),
            "rounds": len(measurement.values(name)),
            "vs_torch": None if torch is None else torch.median,
            "of_limit": None if best is None else best.median,
            "limit": None if limit is None else limit.median,
            "limit_by": measurement.limit_source,
            "cannot": measurement.cannot.get(name),
        }


def _as_columns(spread: Spread) -> dict[str, float]:
    return {"median": spread.median, "low": spread.low, "high": spread.high}
