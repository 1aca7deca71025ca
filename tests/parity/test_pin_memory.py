"""``pin_memory`` on a machine without an accelerator: one warning, and the data as always."""

from __future__ import annotations

import warnings

import pytest
import torch

from .datasets import Squares
from .tools import flat, is_oracle

pytestmark = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="states what happens without an accelerator"
)


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}], ids=str)
def test_one_warning_and_no_pinning(loader_class, options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = loader_class(Squares(4), batch_size=2, pin_memory=True, **options)
        batches = list(loader)
        again = list(loader)
    assert flat(batches) == flat(again) == [0, 1, 4, 9]
    assert not any(batch.is_pinned() for batch in batches)
    relevant = [str(w.message) for w in caught if "pin_memory" in str(w.message)]
    assert len(relevant) == (2 if is_oracle(loader_class) else 1)
    assert loader.pin_memory is True
