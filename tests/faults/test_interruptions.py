"""A signal handler raises at each call that ``next()`` makes: the next ``next()`` gives the batch.

Python runs handlers where a function begins, so the exception is raised there, by a trace function.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader
from tests.support.exact import Augmented, loaded
from tests.support.samples import own_generators

PACKAGE = str(Path(lit_loader.__file__).parent)


class Struck(BaseException):
    """As KeyboardInterrupt is."""


class Strike:
    """Raises at a call within the package, by its number."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise Struck


class Noise(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for number in range(20):
            yield torch.tensor([number, float(torch.rand(()))])


def read(loader: Any, at: int) -> tuple[list[Any], bool]:
    """Read an epoch, struck in its fourth next(); return it, and whether it was struck."""
    found, strike, iterator = [], Strike(at), iter(loader)
    for number in itertools.count():
        sys.settrace(strike if number == 3 else None)
        try:
            batch = next(iterator, None)
        except Struck:
            continue
        finally:
            sys.settrace(None)
        if batch is None:
            return found, strike.left < 0
        found.append((batch.tolist(), tuple(loader.position)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a finalizer
@pytest.mark.parametrize(("workers", "step"), [(0, 1), (1, 13)])
@pytest.mark.parametrize("dataset", [Augmented(20), Noise()])
def test_the_batch_that_was_due_comes_next(dataset: Any, workers: int, step: int) -> None:
    loader = DataLoader(dataset, 4, seed=1, num_workers=workers)
    begin, generators = loader.state_dict(), own_generators()
    (expected, _), (following, _) = (read(loader, sys.maxsize) for _ in range(2))
    assert len(expected) == 5
    for at in itertools.count(0, step):
        found, was_struck = read(loaded(loader, begin), at)
        assert found == expected, at
        assert read(loader, sys.maxsize)[0] == following, at
        assert own_generators() == generators, at
        if not was_struck:
            break
    assert at > 20
