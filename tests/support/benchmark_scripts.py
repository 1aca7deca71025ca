"""The scripts of examples/benchmark, and the tables that they print."""

from tests.support.programs import ROOT

SCRIPTS = ROOT / "examples" / "benchmark"


def table(printed: str) -> dict[str, dict[str, list[str]]]:
    """The cells of its last table, by row and column; columns may have the same name."""
    lines = [line.strip(" |").split(" | ") for line in printed.splitlines() if line[:1] == "|"]
    last = max(number for number, row in enumerate(lines) if row[0] == "---")
    found: dict[str, dict[str, list[str]]] = {}
    for row in lines[last + 1 :]:
        found[row[0]] = {}
        for name, cell in zip(lines[last - 1][1:], row[1:], strict=True):
            found[row[0]].setdefault(name, []).append(cell)
    return found
