"""Computed permutations: bijective, reached at any position, uniform, unrelated between seeds.

All seeds are fixed, so a statistical test here gives the same result each time. A chi-square
statistic with ``k`` degrees of freedom is compared with the bound that chance passes once in ten
thousand (Wilson and Hilferty's approximation).
"""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_loader.core.sampling.orders import MAX_LENGTH, TABLE_LENGTH, Permutation


def assert_uniform(counts: object) -> None:
    """Check that counts of equally likely cells look like that."""
    observed = np.asarray(counts, dtype=float).ravel()
    expected = observed.sum() / observed.size
    statistic = float(((observed - expected) ** 2 / expected).sum())
    k = observed.size - 1
    bound = k * (1 - 2 / (9 * k) + 3.719 * (2 / (9 * k)) ** 0.5) ** 3
    assert expected >= 5, "too few draws for a chi-square test"
    assert statistic < bound


LENGTHS = [
    *range(12),
    *(1000, TABLE_LENGTH - 1, TABLE_LENGTH, TABLE_LENGTH + 1, TABLE_LENGTH + 2),
    *(33**2 - 1, 33**2, 33**2 + 1, 33 * 34, 33 * 34 + 1),
    *(4095, 4096, 4097, 10_007, 65_536, 100_003),
]


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1, -5])
def test_every_element_comes_once(seed: int) -> None:
    for length in LENGTHS:
        order = Permutation(length, seed).take(0, length)
        assert order.dtype == np.int64
        assert np.array_equal(np.sort(order), np.arange(length))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 50_000), st.integers(0, 2**64 - 1), st.data())
def test_a_part_equals_that_part_of_the_whole(length: int, seed: int, data: st.DataObject) -> None:
    permutation = Permutation(length, seed)
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start, length))
    whole = permutation.take(0, length)
    assert np.array_equal(permutation.take(start, stop), whole[start:stop])
    assert np.array_equal(permutation.at(np.arange(length)[::-1]), whole[::-1])


@pytest.mark.parametrize("length", [10**9, 2**31, 2**32 + 1, 10**15, MAX_LENGTH - 1, MAX_LENGTH])
def test_long_orders_stay_inside_and_repeat_nothing(length: int) -> None:
    permutation = Permutation(length, 3)
    for start in (0, length // 2, length - 4096):
        part = permutation.take(start, start + 4096)
        assert part.min() >= 0
        assert part.max() < length
        assert len(np.unique(part)) == 4096


def test_the_order_of_a_seed_never_changes() -> None:
    """A checkpoint from another machine or an older release must mean the same order."""
    assert Permutation(10, 1).take(0, 10).tolist() == [7, 4, 8, 1, 2, 6, 5, 0, 9, 3]
    assert Permutation(10**9, 1).take(0, 4).tolist() == [933811138, 740131938, 228380134, 410122981]


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_all_orders_of_a_few_elements_are_equally_likely(length: int) -> None:
    counts = Counter(tuple(Permutation(length, seed).take(0, length)) for seed in range(12_000))
    assert_uniform([counts[order] for order in itertools.permutations(range(length))])


@pytest.mark.parametrize("length", [40, 1030, 1089, 100_003])
def test_neighbours_are_independent(length: int) -> None:
    """Next to each other, and a row of the computed order's rectangle apart."""
    columns = -(-length // int(np.ceil(length**0.5)))
    pairs, apart, steps = np.zeros((8, 8)), np.zeros((8, 8)), np.zeros(16)
    for seed in range(6000):
        first = seed % 17
        a, b, c = Permutation(length, seed).at(np.array([first, first + 1, first + columns]))
        pairs[a * 8 // length, b * 8 // length] += 1
        apart[a * 8 // length, c * 8 // length] += 1
        steps[(b - a - 1) % length * 16 // length] += 1
    if length > 1000:  # with few elements, "never the same one twice" is seen
        assert_uniform(pairs)
        assert_uniform(apart)
        assert_uniform(steps)
    else:
        assert (pairs > 0).all()


def test_epochs_have_no_structure_in_common() -> None:
    """Between successive seeds, an element stays at its place, or next to its neighbour, by chance.

    Both numbers are about Poisson distributed with mean 1 for each pair of epochs.
    """
    length, epochs = 2000, 400
    orders = [Permutation(length, seed).take(0, length) for seed in range(epochs)]
    stays = sum(int((a == b).sum()) for a, b in itertools.pairwise(orders))
    follows = 0
    for a, b in itertools.pairwise(orders):
        place = np.argsort(b)
        follows += int((place[a[1:]] - place[a[:-1]] == 1).sum())
    for total in (stays, follows):
        assert abs(total - epochs) < 4 * epochs**0.5
