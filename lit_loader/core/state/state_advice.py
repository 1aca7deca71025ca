"""What to do where a state was taken with other data, or other options, than the loader has."""

from __future__ import annotations

from typing import Final

__all__ = ["advice_on"]

_ADVICE: Final = {
    "dataset_length": "resume with the dataset that the state was taken from, or from a state of "
    "an epoch's end; without the state, call set_epoch(state['epoch']) to begin that epoch again",
    "num_workers": "an IterableDataset without num_shards is read in one part per worker: resume "
    "with the same number of workers, or pass num_shards from the beginning",
    "rank": "an IterableDataset's state is one rank's: save one on each rank, and load it there",
    "order": "resume with the same sampler or shuffle option",
    "shares": "weights of past draws are fixed. Keep them, and let others begin at a later draw, "
    "as in weights=[(0, {'web': 3, 'books': 1}), (5000, {'web': 1, 'books': 1})]",
}
_IN_LIGHTNING: Final = (
    ". Lightning changes the order when it divides the data among several ranks: resume with the "
    "same number of ranks, or pass shuffle=True, or num_replicas= and rank=, from the beginning"
)


def advice_on(name: str, shown: str, theirs: object, ours: object) -> str:
    """Say what to do about a part of a fingerprint, by its name, that differs."""
    field = name.rpartition(".")[2]
    text = _ADVICE.get("shares" if field == "shares" else name, f"resume with the same {shown}")
    orders = {theirs, ours}
    if "DistributedSamplerWrapper" in orders or orders == {"shuffled", "OrderedSampler"}:
        text += _IN_LIGHTNING
    return text
