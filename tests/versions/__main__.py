"""``python -m tests.versions [NAME ...]``: the table of versions, each line as it is found out."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.versions.environments import ENVIRONMENTS, build, run


def main(names: list[str]) -> None:
    """Run the environments of these names, or all."""
    unknown = [name for name in names if name not in ENVIRONMENTS]
    if unknown:
        raise SystemExit(f"no environment {unknown[0]!r}: there are {', '.join(ENVIRONMENTS)}")
    print("| | Python | torch | lightning | hydra-core | numpy | passed | skipped | failed |")
    print("|" + " --- |" * 9)
    with tempfile.TemporaryDirectory() as temporary:
        kept = Path(os.environ.get("LIT_LOADER_ENVIRONMENTS", temporary))
        for name in names or ENVIRONMENTS:
            versions = ENVIRONMENTS[name]
            try:
                python = build(versions, kept / name)
            except (LookupError, subprocess.CalledProcessError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            outcome = run(versions, python, Path(temporary) / f"{name}.xml")
            figures = [outcome.passed, outcome.skipped, len(outcome.failed)]
            print(f"| {name} |", *outcome.versions.values(), *figures, "|", sep=" | ", flush=True)
            for test in outcome.failed:
                print(f"{name}: failed: {test}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
