"""Whether a Mersenne Twister was just begun from a seed, and not from entropy, by its words.

Nothing else of a ``random.Random`` says so. A seed has few words: ``init_by_array`` adds them,
again and again, to the 624 of the state; entropy has as many as the state. Both steps can be taken
back. Source: M. Matsumoto, T. Nishimura, mt19937ar.c, 2002.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

__all__ = ["was_just_seeded"]

_SIZE: Final = 624
_ALL: Final = 0xFFFF_FFFF
_LONGEST_SEED: Final = 100  # words; that of a string has 16 and its own
_WORDS: Final = 2 * _LONGEST_SEED  # that show it


def was_just_seeded(words: Sequence[int]) -> bool:
    """Say whether a state of 624 words is that which a seed has left, with nothing drawn since."""
    state = [*words]
    return _is_of_a_number(state) or _is_of_few_words(state)


def _mixed(word: int, factor: int) -> int:
    return (word ^ (word >> 30)) * factor & _ALL


def _is_of_a_number(state: list[int]) -> bool:
    """Whether each word follows from the one before it, as after ``RandomState(seed)``."""
    return all(state[i] == _mixed(state[i - 1], 1812433253) + i & _ALL for i in range(2, _SIZE))


@cache
def _base() -> list[int]:
    base = [19650218]
    for i in range(1, _SIZE):
        base.append(_mixed(base[-1], 1812433253) + i & _ALL)
    return base


def _is_of_few_words(state: list[int]) -> bool:
    """Whether what ``init_by_array`` has added repeats, as after ``Random(seed)``."""
    base = _base()
    first = [state[i] + i & _ALL ^ _mixed(state[i - 1], 1566083941) for i in range(3, _WORDS)]
    added = [
        first[i - 3] - (base[i] ^ _mixed(first[i - 4], 1664525)) & _ALL for i in range(4, _WORDS)
    ]
    return any(added[n:] == added[:-n] for n in range(1, _LONGEST_SEED))
