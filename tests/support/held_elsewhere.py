"""A module whose generator others use, as ``held_elsewhere.GENERATOR``."""

from __future__ import annotations

import random

GENERATOR = random.Random(1)
