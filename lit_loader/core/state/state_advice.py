"""What to do where a state was taken with other data, or other options, than the loader has."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["advice_on"]

_ADVICE: Final = {
    "dataset_length": "resume with the dataset that the state was taken from, or from a state of "
    "an epoch's end; without the state, call set_epoch(state['epoch']) to begin that epoch again",
    "num_workers": "an IterableDataset without num_shards is read in one part per worker: resume "
    "with the same number of workers, or pass num_shards from the beginning",
    "num_shards": "they are what the data is divided into: resume with the same number",
    "rank": "an IterableDataset's state is one rank's: save one on each rank, and load it there",
    "order": "resume with the same sampler or shuffle option",
    "sampler": "resume with a sampler made with the same options",
    "dataset": "resume with a dataset made with the same options",
    "shares": "weights of past draws are fixed. Keep them, and let others begin at a later draw, "
    "as in weights=[(0, {'web': 3, 'books': 1}), (5000, {'web': 1, 'books': 1})]",
    "seed": "pass the state's seed as the loader's seed option",
}
_WRAPPED: Final = (
    "Lightning wraps a custom sampler to divide it among several ranks: resume with the same "
    "number of ranks, or begin with num_replicas= and rank= and "
    "Trainer(use_distributed_sampler=False)"
)
_OR_SHUFFLED: Final = (
    ". Lightning shuffles a training loader on several ranks, and not on one: resume with the same "
    "number of ranks, or train with shuffle=True from the beginning"
)


def advice_on(name: str, shown: str, theirs: Any, ours: Any) -> str:
    """Say what to do about a part of a fingerprint, by its name, that differs."""
    of, _, field = name.partition(".")
    text = _ADVICE.get("shares" if field == "shares" else of, f"resume with the same {shown}")
    if name == "order" and "DistributedSamplerWrapper" in (theirs, ours):
        text = _WRAPPED
    if {theirs, ours} == {"shuffled", "OrderedSampler"}:
        text += _OR_SHUFFLED
    return text
