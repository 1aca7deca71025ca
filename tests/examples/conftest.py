"""The fixture ``examples``: modules of examples/ can be imported."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def examples(generators_kept: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Generators, environment and path are put back afterwards."""
    from tests.support.recipes import EXAMPLES  # skips where something that all need is missing

    monkeypatch.syspath_prepend(EXAMPLES)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
