"""Compares a run's ratios, ours against torch and the limit, with those of an earlier report.

Used for ``check=results.json``. Times are not compared: they belong to a machine and its mood, and
ratios within one round far less so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lit_loader.bench.core.names import OURS
from lit_loader.bench.core.results import Measurement

__all__ = ["FORMAT", "compare", "ratios"]

FORMAT: Final = 1
"""Of results.json."""

_RATIOS: Final = {"vs_torch": "times as good as torch", "of_limit": "of the limit"}


class _Pair(NamedTuple):
    what: str
    before: float
    now: float


def ratios(measurement: Measurement, loader: str) -> dict[str, float]:
    """A loader's ratios by name, medians; more is better."""
    found = {"vs_torch": measurement.vs_torch(loader), "of_limit": measurement.of_limit(loader)}
    return {name: spread.median for name, spread in found.items() if spread is not None}


def compare(
    earlier: Mapping[str, Any], measurements: Sequence[Measurement], tolerance: float
) -> tuple[list[str], bool]:
    """Compare our ratios with those of an earlier report.

    Args:
        earlier: The report, as read from its JSON.
        measurements: Those of this run.
        tolerance: Part by which a ratio may be lower than before.

    Returns:
        Lines to print, and whether anything is worse. Nothing in common counts as worse.
    """
    pairs = list(_pairs(earlier, measurements))
    if not pairs:
        return ["check: nothing of this run is in the earlier report: run the same cases"], True
    worse = [pair for pair in pairs if pair.now < pair.before * (1 - tolerance)]
    lines = [
        f"check: WORSE {pair.what}: {pair.now:.3g}, was {pair.before:.3g} "
        f"({100 * (pair.now / pair.before - 1):+.0f} %, {100 * tolerance:.0f} % are tolerated)"
        for pair in worse
    ]
    better = len(pairs) - len(worse)
    lines.append(f"check: {better} of {len(pairs)} ratios are as good as before")
    return lines, bool(worse)


def _pairs(earlier: Mapping[str, Any], measurements: Sequence[Measurement]) -> Iterator[_Pair]:
    before = {(row["case"], row["name"]): row["loaders"] for row in earlier["measurements"]}
    for measurement in measurements:
        old = before.get((measurement.case, measurement.name), {}).get(OURS, {})
        for name, now in ratios(measurement, OURS).items():
            if old.get(name):
                what = f"{measurement.case}, {measurement.name}, {_RATIOS[name]}"
                yield _Pair(what, old[name]["median"], now)
