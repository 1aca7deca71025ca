"""Writes a data set once, also where several processes try to at the same moment."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_once(directory: Path, write: Callable[[Path], None]) -> None:
    """Calls ``write(scratch)`` and puts what it wrote at `directory`, unless that is there.

    Lightning calls ``prepare_data`` once on each node, and a run may be broken off: so the files
    are written next to their place and moved there as a whole, by one atomic rename.
    """
    if directory.exists():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        write(scratch)
        scratch.chmod(0o755)
        scratch.rename(directory)
    except OSError:
        if not directory.is_dir():
            raise
        # Another node was quicker: what it wrote is the same.
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
