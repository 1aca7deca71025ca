"""The report of the digits, with the frequencies of the classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from digits import report
from digits.report import summary, write

__all__ = ["lines", "summary", "write"]


def lines(directory: Path, figures: dict[str, Any]) -> list[str]:
    """Returns the lines that end a run on the console."""
    first, *rest = report.lines(directory, figures)
    remarks = [value for name, value in figures.items() if name.startswith("remark/")]
    plot = directory / "frequencies.png"
    if plot.exists():
        rest.append(f"  {plot.name:<20}how often each digit is in the data and in the batches")
    return [first, *remarks, *rest]
