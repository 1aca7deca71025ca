"""Seeds derived from seeds, the global generators positioned by them, and put back afterwards."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lit_loader.core.seeding.generator_state import Rewind, preserved

from lit_loader.core.seeding import seeds as seeding
from lit_loader.core.seeding.seeds import derive, sample_seed, seed_globals, seed_worker
from tests.support.programs import ROOT, run_python


@pytest.fixture(autouse=True)
def _leave_the_generators_as_they_were(generators_kept: None) -> Iterator[None]:
    bits = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(bits)


@pytest.fixture(params=["fast", "portable"])
def _layouts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test also as on a torch whose private layout is another one."""
    if request.param == "portable":
        monkeypatch.setattr(seeding, "_initial_seed_leads_the_state", lambda: False)


def draws(count: int = 3) -> list[Any]:
    """Draw from each global generator in several ways, normal deviates an odd number of times."""
    return [
        [random.random() for _ in range(count)],
        random.gauss(0, 1),
        random.getrandbits(100),
        np.random.rand(count).tolist(),
        np.random.randn(),
        np.random.randint(1000, size=count).tolist(),
        torch.rand(count).tolist(),
        torch.randn(1).tolist(),
        torch.randint(1000, (count,)).tolist(),
    ]


KINDS = [np.random.MT19937, np.random.PCG64]


# ------------------------------------------------------------------------------------ derivation


def test_derived_seeds_never_change() -> None:
    """They name the data of a run; another value would be another run."""
    assert derive() == 0x9E3779B97F4A7C15
    assert derive(0) == 0x397AB29740681D9
    assert derive(42, 3, 7) == 0xC0B274B3D550DF36
    assert sample_seed(derive(42, 3), "name") == 0x3DD1FE1C7DB3FD2A
    assert sample_seed(derive(42, 3), ("name", 7)) == 0x6F84FB8B0501D008


@pytest.mark.parametrize("index", [7, np.int64(7), np.uint8(7), torch.tensor(7), np.array(7)])
def test_integers_of_any_kind_are_the_same_sample(index: Any) -> None:
    assert sample_seed(derive(1, 2), index) == derive(1, 2, 7)


def test_seeds_of_samples_are_the_same_in_each_process(tmp_path: Path) -> None:
    program = (
        "from lit_loader.core.seeding.seeds import sample_seed\n"
        "from torch import tensor\n"
        "indices = ['a', ('a', 1), frozenset('abcdef'), b'x', 1.5, tensor([1, 2]), [tensor(1.5)]]\n"
        "print([sample_seed(5, i) for i in indices])"
    )
    answers = {
        run_python(tmp_path, "-c", program, PYTHONPATH=str(ROOT), PYTHONHASHSEED=salt)
        for salt in ("1", "2")
    }
    assert len(answers) == 1


# ------------------------------------------------------------------------- the global generators


def test_a_worker_is_seeded_as_torch_documents_it() -> None:
    seed_worker(1234)
    assert torch.initial_seed() == 1234
    assert random.random() == random.Random(1234).random()


@pytest.mark.usefixtures("_layouts")
@pytest.mark.parametrize("kind", KINDS)
def test_one_seed_gives_one_stream_whatever_was_drawn_before(kind: type[Any]) -> None:
    """Whichever bit generator is behind NumPy's; it is kept."""
    np.random.set_bit_generator(kind(9))
    seed_globals(5)
    expected = draws()
    for before in range(4):
        draws(before)
        seed_globals(5)
        assert draws() == expected
    seed_globals(6)
    assert all(a != b for a, b in zip(draws(), expected, strict=True))
    assert type(np.random.get_bit_generator()) is kind


def test_streams_are_the_same_on_an_unknown_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    seed_globals(5)
    expected = draws()
    monkeypatch.setattr(seeding, "_initial_seed_leads_the_state", lambda: False)
    seed_globals(5)
    assert draws() == expected


def test_the_three_streams_and_those_of_next_seeds_are_unrelated() -> None:
    columns: list[np.ndarray] = []
    for seed in range(4):
        seed_globals(seed)
        columns.append(np.array([random.random() for _ in range(4000)]))
        columns.append(np.random.rand(4000))
        columns.append(torch.rand(4000, dtype=torch.float64).numpy())
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert abs(correlation).max() < 4.5 / 4000**0.5


# --------------------------------------------------------------------------------- preservation


def disturb() -> None:
    seed_globals(77)
    draws(5)
    torch.manual_seed(3)


def set_up(reserve: bool, kind: type[Any]) -> None:
    np.random.set_bit_generator(kind(4))
    seed_worker(99)
    torch.rand(5)
    random.random()
    if reserve:  # of two normal deviates drawn at once the second one waits
        random.gauss(0, 1)
        np.random.randn()
        torch.randn(1)


@pytest.mark.usefixtures("_layouts")
@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_generators_are_put_back_exactly(reserve: bool, kind: type[Any]) -> None:
    set_up(reserve, kind)
    expected = [torch.initial_seed(), random.gauss(0, 1), np.random.randn(3).tolist(), draws()]
    set_up(reserve, kind)
    bits = np.random.get_bit_generator()
    with preserved():
        disturb()
    assert np.random.get_bit_generator() is bits
    got = [torch.initial_seed(), random.gauss(0, 1), np.random.randn(3).tolist(), draws()]
    assert got == expected


def test_an_attempt_that_uses_up_a_deviate_is_taken_back_again_and_again() -> None:
    """Not a word is drawn by it, and somebody looks where the generators are meanwhile."""
    np.random.seed(1)
    np.random.randn()
    rewind, found = Rewind(), set()
    for _ in range(3):
        rewind.mark()
        first = np.random.randn()
        Rewind().mark()
        found.add((first, np.random.randn()))
        rewind.back()
    assert len(found) == 1
