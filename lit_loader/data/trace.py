"""`note` and `trace`: what the samples of a batch are made of, by the names that a dataset gives.

What a dataset notes is kept while `trace` reads the batch again, in this process. Else nothing is
kept and nothing is sent: a batch is a function of its place, so it is read once more.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.utils.data import IterableDataset

from lit_loader.context import reading
from lit_loader.core.options.checks import whole_number
from lit_loader.errors import OptionError

__all__ = ["trace"]


def trace(loader: Any, batch: int, epoch: int, state: Mapping[str, Any]) -> list[Any]:
    """Give what `DataLoader.trace` gives, by a state from before the batch."""
    batch = whole_number("batch", batch, low=0)
    epoch = whole_number("epoch", epoch, low=0)
    streams = isinstance(loader.dataset, IterableDataset)
    if streams and loader.num_shards is None and loader.num_workers not in (0, 1):
        raise OptionError(
            f"trace reads in this process, and without num_shards each of the {loader.num_workers} "
            "workers reads a share of its own: pass num_shards"
            " [LL669]"
        )
    again = copy.copy(loader)
    again.num_workers, again.pin_memory, again.collate_fn = 0, False, _names_alone
    again.load_state_dict(state)
    place = again.state_dict()
    if place["epoch"] != epoch or place["batches"] > batch:
        raise OptionError(
            f"state must be one from before batch {batch} of epoch {epoch}, got one of batch "
            f"{place['batches']} of epoch {place['epoch']}"
            " [LL668]"
        )
    with again, _notes() as names:
        for number, _ in enumerate(again, place["batches"]):
            if number == batch:
                return list(dict.fromkeys(names))
            names.clear()
    raise IndexError(f"batch {batch}: epoch {epoch} has fewer batches")


@contextmanager
def _notes() -> Iterator[list[Any]]:
    """Take down what datasets note in this thread."""
    before, reading.notes = reading.notes, []
    try:
        yield reading.notes
    finally:
        reading.notes = before


def _names_alone(samples: Any) -> int:
    return 0
