"""What a factory depends on, in a few characters: processes share what has the same fingerprint.

That is the function or class with its code, and its arguments (`node/parts.py`). Of what it reads
(files, say) the key must speak.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from typing import Any

import numpy as np
import torch

from lit_loader import __version__
from lit_loader.node.parts import Parts

__all__ = ["environment", "fingerprint"]


def fingerprint(*things: Any) -> str:
    """Give 32 characters that are the same in all processes for equal things.

    Raises:
        OptionError: One of them cannot be told from others.
    """
    digest, parts = hashlib.blake2b(digest_size=16), Parts()
    for thing in things:
        for text in parts.of(thing):
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def environment() -> tuple[str, ...]:
    """Name what must agree for one process to read what another has pickled."""
    versions = (__version__, torch.__version__, np.__version__, platform.machine())
    return sys.version, sys.prefix, str(versions), os.path.dirname(os.path.dirname(__file__))
