"""Mixtures of documents whose weights count tokens, not samples."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from lit_loader import DataLoader, MixtureStream, OptionError, get_shard


class Documents(IterableDataset[dict[str, Any]]):
    """Documents of one kind, each of so many tokens, or one more; it has a state."""

    def __init__(self, kind: str, length: int, count: int = 4000) -> None:
        self.kind, self.length, self.count = kind, length, count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return _Reader(self, *get_shard())


class _Reader(Iterator[dict[str, Any]]):
    def __init__(self, documents: Documents, index: int, count: int) -> None:
        self.documents, self.number, self.step = documents, index, count

    def __next__(self) -> dict[str, Any]:
        number, documents = self.number, self.documents
        if number >= documents.count:
            raise StopIteration
        self.number += self.step
        return {"kind": documents.kind, "tokens": [number] * (documents.length + number % 2)}

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def loader(workers: int = 0, weights: Any = None, **options: Any) -> DataLoader[Any]:
    sources = {"web": Documents("web", 10), "books": Documents("books", 100)}
    mixture = MixtureStream(
        sources,
        weights={"web": 3, "books": 1} if weights is None else weights,
        **{"epoch_length": 800, "tokens": "tokens", **options},
    )
    return DataLoader(mixture, 8, num_workers=workers, num_shards=4, collate_fn=as_they_are, seed=1)


def shares(batches: Any) -> tuple[float, float]:
    """The part of the books in the samples, and in the tokens."""
    samples: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for batch in batches:
        for sample in batch:
            samples[sample["kind"]] += 1
            tokens[sample["kind"]] += len(sample["tokens"])
    return samples["books"] / samples.total(), tokens["books"] / tokens.total()


def test_weights_count_tokens() -> None:
    with loader(tokens=None) as samples:
        assert shares(samples)[0] == pytest.approx(0.25, abs=0.01)
    with loader() as tokens:
        of_samples, of_tokens = shares(tokens)
    assert of_tokens == pytest.approx(0.25, abs=0.02)
    assert of_samples < 0.05


def count(sample: dict[str, Any]) -> int:
    return torch.tensor(sample["tokens"]).numel()


def test_a_function_counts_as_well() -> None:
    with loader() as by_name, loader(tokens=count) as by_function:
        assert list(by_function) == list(by_name)


@pytest.mark.process
@pytest.mark.parametrize("done", [3, 40])
def test_a_resume_goes_on(done: int) -> None:
    with loader(2) as first:
        batches = list(first)
    with loader(1) as second:
        iterator = iter(second)
        assert [next(iterator) for _ in range(done)] == batches[:done]
        state = second.state_dict()
    with loader(3) as third:
        third.load_state_dict(state)
        assert list(third) == batches[done:]


def test_a_resume_with_other_weights() -> None:
    with loader() as first:
        iterator = iter(first)
        for _ in range(50):
            next(iterator)
        state = first.state_dict()
    with loader(weights={"web": 1, "books": 3}) as second, pytest.warns(UserWarning, match="share"):
        second.load_state_dict(state)
        _, of_tokens = shares(list(second))
    assert of_tokens == pytest.approx(0.75, abs=0.08)


def test_weights_that_change() -> None:
    with loader(weights=[(0, {"web": 1, "books": 0}), (400, {"web": 1, "books": 1})]) as both:
        batches = list(both)
    assert shares(batches[:45])[1] == 0
    assert shares(batches[55:])[1] == pytest.approx(0.5, abs=0.05)


def test_a_source_that_ends() -> None:
    sources = {"web": Documents("web", 10, 40), "books": Documents("books", 100, 400)}
    mixture = MixtureStream(
        sources,
        weights=[3, 1],
        stopping_strategy="all_exhausted_without_replacement",
        tokens="tokens",
    )
    found = list(DataLoader(mixture, None, num_shards=1))
    assert Counter(sample["kind"] for sample in found) == {"web": 40, "books": 400}


def less_than_nothing(sample: Any) -> int:
    return -1


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("words", "tokens='words' is no entry of a sample, which has 'kind', 'tokens'"),
        (less_than_nothing, "must count a sample's tokens, got -1"),
    ],
    ids=["entry", "count"],
)
def test_what_cannot_be_counted(tokens: Any, message: str) -> None:
    with loader(tokens=tokens) as bad, pytest.raises(OptionError, match=message):
        next(iter(bad))


def test_refused() -> None:
    with pytest.raises(OptionError, match="tokens must be the name of an entry, or a function"):
        MixtureStream([Documents("web", 1)], tokens=3)  # type: ignore[arg-type]
