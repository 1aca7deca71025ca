"""Tokens are counted where samples are made, by any executor, each batch's once."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader, MixtureStream, PackCollate, PackedStream, PackingBatchSampler
from tests.support.samples import Call

KINDS = [
    {"num_workers": 0},
    {"num_workers": 2},
    pytest.param({"num_workers": 2, "worker_method": "thread"}, id="threads"),
]


def padded(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a tokenizer's collator gives."""
    tokens = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
    mask = (tokens > 0).long()
    lit_loader.note(tokens=int(mask.sum()))
    return {"input_ids": tokens, "attention_mask": mask}


def text(index: int) -> torch.Tensor:
    return torch.ones(1 + index % 7, dtype=torch.long)


@pytest.mark.parametrize("options", KINDS)
def test_a_language_model_sees_its_tokens(options: dict[str, Any]) -> None:
    with DataLoader(Call(text, 40), 8, shuffle=True, collate_fn=padded, **options) as loader:
        expected = sum(int(batch["attention_mask"].sum()) for _ in range(2) for batch in loader)
        found = loader.statistics()
    assert found.tokens == expected == 2 * sum(1 + n % 7 for n in range(40))
    assert found.tokens_per_second == pytest.approx(found.tokens / found.seconds)
    assert f"({found.samples} samples, {expected} tokens) in" in str(found)


def inner(index: int) -> int:
    lit_loader.note(tokens=1)
    list(DataLoader(Call(text, 8), 1))  # has tokens of its own
    return index


def test_a_loader_within_a_sample_has_its_own() -> None:
    loader = DataLoader(Call(inner, 8), 4)
    list(loader)
    assert loader.statistics().tokens == 8


class Documents(IterableDataset[list[int]]):
    """Each notes its tokens, as its author wrote it before he packed it."""

    def __iter__(self) -> Iterator[list[int]]:
        index, count = lit_loader.get_shard()
        for number in range(index, 100, count):
            lit_loader.note(tokens=3 + number % 11)
            yield [number] * (3 + number % 11)


@pytest.mark.parametrize("options", KINDS[1:2])
def test_packed_streams_count_by_themselves(options: dict[str, Any]) -> None:
    def make() -> DataLoader[Any]:
        sources = [PackedStream(Documents(), 16), PackedStream(Documents(), 16)]
        mixture = MixtureStream(sources, stopping_strategy="all_exhausted_without_replacement")
        return DataLoader(mixture, 4, num_shards=4, seed=1, **options)

    with make() as loader:
        batches = list(loader)
        assert loader.statistics().tokens == sum(batch["tokens"].numel() for batch in batches)
        loader.set_epoch(0)
        list(itertools.islice(loader, 5))
        state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        rest = sum(batch["tokens"].numel() for batch in loader)  # others are replayed for it
        assert loader.statistics().tokens == rest < sum(b["tokens"].numel() for b in batches)


def test_packs_count_by_themselves() -> None:
    lengths = [1 + n % 7 for n in range(40)]
    batches = PackingBatchSampler(lengths, 16)
    collate = PackCollate(pad_to_multiple_of=8)
    loader = DataLoader(Call(text, 40), batch_sampler=batches, collate_fn=collate)
    list(loader)
    assert loader.statistics().tokens == sum(lengths)  # without the padding
