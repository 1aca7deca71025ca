"""Seeds are told from the system's entropy by the state that they lead to."""

import random
from typing import Any

import numpy as np
import pytest

from lit_loader.streams.late_generators import has_seed

SEEDED: list[Any] = [
    *(random.Random(seed) for seed in (0, 1, 2**31, 2**64 + 1, -7, "a string", 0.5)),
    *(np.random.RandomState(seed) for seed in (0, 1, 2**32 - 1, [1, 2, 3])),
]


@pytest.mark.parametrize("draws", [0, 700, 10_000])
def test_seeds_are_told_from_entropy(draws: int) -> None:
    for make in (random.Random, np.random.RandomState):
        generator = make()
        for _ in range(draws):
            generator.random() if make is random.Random else generator.random_sample()  # type: ignore[attr-defined]
        assert not has_seed(generator)
    for generator in SEEDED:
        state = generator.getstate() if isinstance(generator, random.Random) else None
        for _ in range(draws):
            generator.random() if state else generator.random_sample()
        assert has_seed(generator)
        if state:
            generator.setstate(state)


def test_those_of_the_system_and_without_words_are_not_asked() -> None:
    assert not has_seed(random.SystemRandom())
    assert has_seed(np.random.RandomState(np.random.PCG64(1)))
