"""What to do where a state was taken with other data, or other options, than the loader has."""

from __future__ import annotations

from typing import Any

_ADVICE = {
    "dataset_length": "resume with the dataset that the state was taken from, or at the end of an "
    "epoch; or begin this epoch from its start: make the loader with the seed in "
    "state['fingerprint'], and call set_epoch(state['epoch']) instead of load_state_dict",
    "num_workers": "an iterable dataset's position belongs to its workers: resume with as many",
    "num_shards": "they are what the data is divided into: resume with as many",
    "rank": "an iterable dataset's state is one rank's: save one on each rank, and load it there",
    "order": "resume with the same sampler or shuffle option",
    "sampler": "resume with a sampler made with the same options",
    "dataset": "resume with a dataset made with the same options",
    "seed": "pass the state's seed as the loader's seed option",
}
_WRAPPED_ADVICE = (
    "Lightning wraps a sampler of your own to divide it among its ranks, and not on one: resume "
    "with as many ranks. For another number of them begin with num_replicas= and rank= of the "
    "loader, and Trainer(use_distributed_sampler=False)"
)
_OR_SHUFFLED = (
    ". In Lightning, which shuffles a training loader on several ranks, and not on one: resume "
    "with as many ranks, or train with shuffle=True from the beginning"
)


def advice(name: str, shown: str, theirs: Any, ours: Any) -> str:
    """Say what to do about a part of a fingerprint, by its name, that differs."""
    text = _ADVICE.get(name.partition(".")[0], f"resume with the same {shown}")
    if name == "order" and "DistributedSamplerWrapper" in (theirs, ours):
        text = _WRAPPED_ADVICE
    if sorted(map(str, (theirs, ours))) == ["DistributedSampler", "OrderedSampler"]:
        text += _OR_SHUFFLED
    return text
