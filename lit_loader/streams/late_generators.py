"""Random generators that an iterable dataset makes while it is iterated, which nothing seeds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from lit_loader.core.seeding.find_generators import ADVICE, GeneratorWatch, find_generators
from lit_loader.core.seeding.twister import begun_from_a_seed

__all__ = ["has_seed", "note_generators_made"]


def note_generators_made(watch: GeneratorWatch) -> None:
    """Note generators that an iterable dataset has made since it was begun.

    They are left alone until the next epoch: a state leads to this place by reading again.
    """
    for path, generator in find_generators(*watch.roots).pairs if watch.warns else ():
        if path not in watch.held.paths and not has_seed(generator):
            watch.note(
                f"{path} is a random generator that was made while the dataset was iterated, "
                "so it is not seeded in this epoch: unless it was given the same seed in all "
                "workers, shares taken after a shuffle by it overlap and leave samples out; "
                f"make it in __init__, {ADVICE} [LL413]"
            )
            break


def has_seed(generator: Any) -> bool:
    """Whether a generator is known to be made with a seed, and not from the system's entropy."""
    if isinstance(generator, torch.Generator):
        return True  # a new one has a seed that is always the same
    if isinstance(generator, random.SystemRandom):
        return False
    if isinstance(generator, random.Random):
        return begun_from_a_seed(generator.getstate()[1][:-1])
    if isinstance(generator, np.random.RandomState):
        words = generator.get_state(legacy=False)["state"].get("key")
        return words is None or begun_from_a_seed(words.tolist())
    entropy = getattr(getattr(generator, "seed_seq", generator), "entropy", 0)
    return not isinstance(entropy, int) or 0 < entropy < 2**64
