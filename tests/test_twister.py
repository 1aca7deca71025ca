"""The state of Mersenne Twisters, copied as bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lit_loader import twister
from lit_loader.twister import twister_state


def test_the_states_lie_where_they_are_supposed_to() -> None:
    """If this fails after an upgrade everything is still right; batches without workers cost more.

    Python says nothing of where its state lies; NumPy publishes the address, and no layout.
    """
    for check in (twister._python_has_it_behind_the_head, twister._numpy_has_it_at_its_address):
        check.cache_clear()
        assert check()


@pytest.mark.parametrize("drawn", [0, 1, 623, 624, 625, 1500])
def test_a_state_put_back_goes_on_from_there(drawn: int) -> None:
    python, numpy = random.Random(5), np.random.MT19937(5)
    for _ in range(drawn):
        python.getrandbits(32)
        numpy.random_raw()
    states = twister_state(python), twister_state(numpy)
    assert states[0] is not None and states[1] is not None
    kept = states[0].read(), states[1].read()
    expected = [python.random() for _ in range(700)], numpy.random_raw(1400).tolist()
    for state, data in zip(states, kept, strict=True):
        state.write(data)
    assert ([python.random() for _ in range(700)], numpy.random_raw(1400).tolist()) == expected


class Subclass(random.Random):
    pass


@pytest.mark.parametrize(
    "generator", [Subclass(1), random.SystemRandom(), np.random.PCG64(1), np.random.RandomState(1)]
)
def test_other_classes_are_left_to_their_own_methods(generator: object) -> None:
    assert twister_state(generator) is None


def test_an_interpreter_of_another_make(monkeypatch: pytest.MonkeyPatch) -> None:
    twister._python_has_it_behind_the_head.cache_clear()
    monkeypatch.setattr(twister, "_HEAD", twister._HEAD + 16)
    assert twister_state(random.Random(1)) is None
    monkeypatch.undo()
    twister._python_has_it_behind_the_head.cache_clear()


def test_a_state_keeps_its_generator_alive() -> None:
    state = twister_state(random.Random(3))
    assert state is not None
    other = twister_state(random.Random(3))
    assert other is not None and state.read() == other.read()


def test_a_state_has_the_bytes_of_the_twister_alone() -> None:
    state = twister_state(np.random.MT19937(3))
    assert state is not None and len(state.read()) == 2500
    with pytest.raises(ValueError):
        state.write(bytes(2501))
