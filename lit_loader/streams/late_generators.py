"""Random generators that an iterable dataset makes while it is iterated, which nothing seeds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from lit_loader.core.seeding.find_generators import ADVICE, GeneratorWatch, find_generators
from lit_loader.core.seeding.twister import was_just_seeded

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
        return _begun_from_a_seed(generator.getstate()[1][:-1])
    if isinstance(generator, np.random.RandomState):
        words = generator.get_state(legacy=False)["state"].get("key")
        return words is None or _begun_from_a_seed(words.tolist())
    entropy = getattr(getattr(generator, "seed_seq", generator), "entropy", 0)
    return not isinstance(entropy, int) or 0 < entropy < 2**64


_MOST_TWISTS: Final = 64  # that are taken back: 40,000 draws, 50 ms
_SIZE: Final = 624
_ALL: Final = 0xFFFF_FFFF
_TOP: Final = 0x8000_0000


def _begun_from_a_seed(words: Sequence[int]) -> bool:
    """Say whether a state of 624 words follows from a seed; False too after very many draws.

    Who shuffles by one that was begun from entropy gives shares that overlap.
    """
    state = list(words)
    for _ in range(_MOST_TWISTS):
        if was_just_seeded(state):
            return True
        _untwist(state)
    return False


def _untwist(state: list[int]) -> None:
    """Take the state back to where it was 624 draws before; but for 31 bits that have no effect."""
    for i in reversed(range(_SIZE)):
        word = state[i] ^ state[(i + 397) % _SIZE]
        found = (word ^ 0x9908B0DF if word & _TOP else word) << 1 & _TOP
        word = state[i - 1] ^ state[(i + 396) % _SIZE]
        if word & _TOP:
            word, found = word ^ 0x9908B0DF, found | 1
        state[i] = found | word << 1 & ~_TOP & _ALL
