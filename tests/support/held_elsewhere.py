"""A module whose generator others use, as ``held_elsewhere.GENERATOR``."""

import random

GENERATOR = random.Random(1)
