"""`GlobalStates`: every draw shows, nothing else does, and what is kept can be put back."""

import ctypes
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader import DataLoader
from lit_loader.core.seeding import global_states
from lit_loader.core.seeding.global_states import GlobalStates, StatesKept

DRAWS: dict[str, Callable[[], object]] = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "624 of random": lambda: random.getrandbits(32 * 624),
    "numpy": np.random.rand,
    "624 of numpy": lambda: np.random.bytes(4 * 624),
    "torch": lambda: torch.rand(()),
    "624 of torch": lambda: torch.rand(624),
    "one of two normal deviates": lambda: torch.randn((), dtype=torch.float64),
    "randint": lambda: torch.randint(10, (1,)),
    "randperm": lambda: torch.randperm(4),
    "bernoulli": lambda: torch.bernoulli(torch.tensor(0.5)),
    "in place": lambda: torch.empty(1).normal_(),
}


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    yield
    random.setstate(kept[0])
    np.random.set_state(kept[1])
    torch.set_rng_state(kept[2])


def states() -> tuple[object, ...]:
    numpy = np.random.get_state()
    return random.getstate(), numpy[1].tolist(), numpy[2], torch.get_rng_state().tolist()


def test_memory_lies_where_it_is_looked_for() -> None:
    """Else all goes right, and takes longer: see the words on each of the three in the module."""
    assert global_states._python_view is not None
    assert global_states.numpy_memory()
    assert global_states._torch_views


def test_no_memory_behind_torchs_generator_is_read() -> None:
    size = ctypes.CDLL(None).malloc_usable_size
    size.argtypes, size.restype = [ctypes.c_void_p], ctypes.c_size_t
    for generator in (torch.Generator(), torch.default_generator):
        whole = size(generator._cdata)
        assert whole >= global_states._BEFORE_WORDS + 4 * global_states._WORDS
        offset = global_states._torch_words_in(generator)
        assert offset is not None
        assert whole >= offset + 4 * global_states._WORDS + global_states._RESERVE


@pytest.mark.parametrize("found", [[None, None], [100, None], [100, 96], [0, 0]])
def test_memory_that_lies_elsewhere_is_not_looked_at(
    found: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not found, found elsewhere in the global one, or not what draws change."""
    monkeypatch.setattr(global_states, "_torch_words_in", lambda generator: found.pop(0))
    if found == [0, 0]:  # views of what no draw changes
        monkeypatch.setattr(global_states, "_HEAD", 0)
        monkeypatch.setattr(global_states, "_SOME", 8)
        monkeypatch.setattr(global_states, "_RESERVE", 0)
    assert global_states._views_of_torch() == ()


class Drawing(torch.utils.data.Dataset[torch.Tensor]):
    """Every third sample draws, from one of the three."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        draws = (lambda: torch.randn(()).item(), random.random, np.random.rand)
        drawn = 0.0 if index % 3 else draws[index % 9 // 3]()
        return torch.tensor([index, drawn])


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_do_not_depend_on_how_torchs_state_is_read(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    for views in (global_states._torch_views, ()):
        monkeypatch.setattr(global_states, "_torch_views", views)
        monkeypatch.setattr(global_states, "_view", (None, memoryview(b""), ()))
        torch.manual_seed(1)
        context = "fork" if workers else None  # who is started anew looks for itself
        options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": context}
        with DataLoader(Drawing(), 4, shuffle=True, seed=3, **options) as loader:
            read.append([batch.tolist() for _ in range(2) for batch in loader])
            read[-1].append(torch.rand(2).tolist())
    assert read[0] == read[1]


@pytest.mark.parametrize("by_state", [False, True])
@pytest.mark.parametrize("draw", DRAWS)
def test_each_draw_is_seen_and_put_back(
    draw: str, by_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_state:  # as where torch's memory is not known
        monkeypatch.setattr(global_states, "_torch_views", ())
        monkeypatch.setattr(global_states, "_view", (None, memoryview(b""), ()))
    for _ in range(4):  # the second of two deviates is in reserve
        before, exactly = GlobalStates.now(), states()
        assert before is not None
        assert GlobalStates.now() == before
        kept = StatesKept.of(before)
        DRAWS[draw]()
        assert GlobalStates.now() != before
        moved = states()
        kept.put_back()
        kept.put_back()
        assert states() == exactly
        DRAWS[draw]()
        assert states() == moved


def test_what_is_kept_is_that_of_the_same_place() -> None:
    first = GlobalStates.now()
    assert first is not None
    kept = StatesKept.of(first)
    assert StatesKept.of(first) is kept
    torch.rand(())
    second = GlobalStates.now()
    assert second is not None
    assert StatesKept.of(second) is not kept
    assert not torch.equal(StatesKept.of(second).torch, kept.torch)


def test_other_generators_are_not_looked_at() -> None:
    before = GlobalStates.now()
    torch.rand(3, generator=torch.Generator().manual_seed(1))
    random.Random(1).random()
    np.random.default_rng(1).random()
    assert GlobalStates.now() == before
