"""Packs: what they hold and how full they are, as one sequence, over ranks, resumed."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import IterableDataset

from lit_loader import (
    DataLoader,
    PackCollate,
    Packed,
    PackedStream,
    PackingBatchSampler,
    StateError,
    get_epoch,
    get_shard,
)
from lit_loader.data.packing import best_fit
from tests.core.options.test_refusals import refused
from tests.parity.tools import lists
from tests.support.exact import loaded, through_file
from tests.support.samples import Call


def texts(count: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).lognormal(5, 1, count)
    return np.clip(drawn, 16, 1024).astype(np.int64)


# --- what packs hold ---


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 3), st.integers(50, 90)
)
def test_best_fit(lengths: list[int], windows: int, room: int) -> None:
    given_lengths = np.array([np.roll(lengths, shift) for shift in range(windows)])
    packs, used = best_fit(given_lengths, room)
    for of, where, count in zip(given_lengths, packs, used, strict=True):
        assert sorted({*where.tolist()}) == list(range(count))
        held = np.bincount(where, weights=of)
        assert held.max() <= room
        # No two packs could be one: then the later one would not have been begun.
        assert count == 1 or np.sort(held)[:2].sum() > room
    assert len({*used.tolist()}) == 1  # whatever the order


@example([0, 0, 0, 38], 40, None, 4, False, False)  # fewer packs than ranks, one of one sample
@given(
    st.lists(st.integers(0, 60), max_size=80),
    st.integers(40, 90),
    st.none() | st.integers(1, 20),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_every_sample_comes_once_in_as_many_packs_each_epoch(
    lengths: list[int],
    room: int,
    window: int | None,
    replicas: int,
    shuffle: bool,
    drop_last: bool,
) -> None:
    made = PackingBatchSampler(
        lengths, room, window=window, num_replicas=replicas, shuffle=shuffle, drop_last=drop_last,
        too_long="skip",
    )  # fmt: skip
    fitting = [index for index, length in enumerate(lengths) if length <= room]
    for epoch in range(3):
        made.set_epoch(epoch)
        packs = list(made)
        assert len(packs) == len(made)
        assert all(0 < sum(lengths[index] for index in pack) <= room or not any(
            lengths[index] for index in pack) for pack in packs)  # fmt: skip
        held = list(itertools.chain(*packs))
        assert len(held) == len({*held})
        assert {*held} <= {*fitting}
        assert len(packs) % replicas == 0 or all(len(pack) == 1 for pack in packs)
        if not drop_last:
            assert sorted(held) == fitting
            assert all(packs)


@pytest.mark.parametrize(
    ("room", "options", "least"),
    [
        (1024, {}, 0.98),
        (2048, {}, 0.98),
        (8192, {}, 0.975),
        (8192, {"num_replicas": 8}, 0.97),
        (2048, {"window": 100}, 0.92),
        (2048, {"drop_last": True, "num_replicas": 8}, 0.98),
    ],
)
def test_packs_are_full(room: int, options: dict[str, Any], least: float) -> None:
    made = PackingBatchSampler(texts(50_000), room, **options)
    for epoch in (0, 3):
        made.set_epoch(epoch)
        assert least < made.fill() <= 1
    # In the order of the samples, as many to a pack as fit: 78 to 97 %.


def test_an_epoch_that_needs_more_packs_is_packed_in_larger_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lit_loader.data.packing._LARGEST", 1)
    monkeypatch.setattr("lit_loader.data.packing._SPREAD", 0)
    made = PackingBatchSampler(texts(400), 1024, window=20)
    packs = []
    for epoch in range(8):
        made.set_epoch(epoch)
        packs.append(list(made))
    assert {*map(len, packs)} == {len(made)}
    assert all(sorted(itertools.chain(*each)) == list(range(400)) for each in packs)


def test_windows_of_the_order() -> None:
    monotone = PackingBatchSampler([30] * 20, 60, window=4, shuffle=False)
    assert list(monotone)[:3] == [[0, 1], [2, 3], [4, 5]]
    whole = PackingBatchSampler([50, 10, 50, 10], 60, shuffle=False)
    assert sorted(map(sorted, whole)) == [[0, 1], [2, 3]]
    assert list(PackingBatchSampler([], 60)) == []


def test_refusals_and_too_long() -> None:
    assert (
        "samples are longer than max_tokens=10 allows (1 of 2; sample 1 has 11 tokens)"
        in refused(lambda: PackingBatchSampler([3, 11], 10))
    )
    assert list(PackingBatchSampler([3, 11], 10, too_long="skip")) == [[0]]
    assert sorted(PackingBatchSampler([3, 11], 10, too_long="truncate")) == [[0], [1]]
    assert "window must be a whole number of at least 1" in refused(
        lambda: PackingBatchSampler([3], 10, window=0)
    )


# --- as one sequence ---


def sample(length: int, first: int = 0) -> dict[str, Any]:
    tokens = torch.arange(first, first + length)
    return {"tokens": tokens, "labels": tokens * 10, "name": f"of {length}"}


def test_a_pack_as_one_sequence() -> None:
    pack = PackCollate({"tokens": 0, "labels": -100})([sample(3), sample(1, 7), sample(2)])
    assert isinstance(pack, Packed)
    assert pack.values["tokens"].tolist() == [0, 1, 2, 7, 0, 1]
    assert pack.values["labels"].tolist() == [0, 10, 20, 70, 0, 10]
    assert pack.values["name"] == ["of 3", "of 1", "of 2"]
    assert pack.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert pack.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert (pack.cu_seqlens.dtype, pack.max_seqlen) == (torch.int32, 3)
    assert pack.sequence_ids.tolist() == [0, 0, 0, 1, 2, 2]


def test_padding_is_a_sequence_of_its_own() -> None:
    pack = PackCollate({"tokens": 0, "labels": -100}, 8)([sample(3), sample(2)])
    assert pack.values["labels"].tolist() == [0, 10, 20, 0, 10, -100, -100, -100]
    assert pack.cu_seqlens.tolist() == [0, 3, 5, 8]
    assert pack.position_ids.tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
    assert pack.sequence_ids.tolist() == [0, 0, 0, 1, 1, -1, -1, -1]
    assert pack.max_seqlen == 3


def test_attention_over_a_pack_is_that_over_its_samples() -> None:
    """By the mask of sequence_ids, and as a nested tensor."""
    vectors = [torch.randn(length, 8, dtype=torch.float64) for length in (3, 5, 1)]
    pack = PackCollate()(vectors)
    attend = torch.nn.functional.scaled_dot_product_attention
    alone = torch.cat([attend(v[None], v[None], v[None])[0] for v in vectors])
    values, of = pack.values[None], pack.sequence_ids
    assert torch.allclose(attend(values, values, values, of[:, None] == of)[0], alone)
    nested = torch.nested.nested_tensor_from_jagged(pack.values, pack.cu_seqlens.long())
    assert all(map(torch.equal, nested.unbind(), vectors))


@pytest.mark.parametrize(
    ("samples", "error", "message"),
    [
        (
            [{"a": torch.ones(2), "b": torch.ones(3)}],
            ValueError,
            "b: the packed entries of a sampl",
        ),
        ([1, 2], ValueError, "samples have nothing to pack: no tensor with a length"),
        ([torch.ones(2, 3), torch.ones(2, 4)], ValueError, "only the first dimension may differ"),
    ],
)
def test_what_cannot_be_packed(samples: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PackCollate()(samples)


class Texts(Call):
    def __init__(self, count: int = 60) -> None:
        super().__init__(lambda index: torch.full((int(self.lengths[index]),), index), count)
        self.lengths = texts(count)


@pytest.mark.parametrize("workers", [0, 2])
def test_packs_from_a_loader(workers: int) -> None:
    data = Texts()
    batches = PackingBatchSampler(data, 2048, seed=1)
    loader = DataLoader(
        data, batch_sampler=batches, collate_fn=PackCollate(), num_workers=workers, seed=1
    )
    packs = list(loader)
    expected = list(PackingBatchSampler(data, 2048, seed=1))
    assert len(packs) == len(expected)
    for pack, indices in zip(packs, expected, strict=True):
        assert isinstance(pack, Packed)
        assert [
            int(each[0]) for each in pack.values.tensor_split(pack.cu_seqlens.long()[1:-1])
        ] == (indices)


def test_resume_among_other_ranks() -> None:
    def loader(replicas: int, rank: int = 0, of: int = 4) -> DataLoader[Any]:
        batches = PackingBatchSampler(texts(300), 1024, seed=3, num_replicas=of)
        return DataLoader(Call(int, 300), batch_sampler=batches, num_replicas=replicas, rank=rank)

    whole = lists(loader(1))
    first = loader(2)
    assert [b.tolist() for b in itertools.islice(first, 4)] == whole[:8:2]
    state = through_file(first.state_dict())
    ranks = [lists(loaded(loader(4, rank), state)) for rank in range(4)]
    assert list(itertools.chain(*zip(*ranks, strict=True))) == whole[8:]
    with pytest.raises(StateError, match="dealt among 4 ranks, and this PackingBatchSampler deals"):
        loader(2, of=2).load_state_dict(state)


# --- streams ---


class Documents(IterableDataset[Any]):
    """Documents of different lengths, in another order each epoch; each reader has its share."""

    def __init__(self, count: int = 40, stateful: bool = True) -> None:
        self.count, self.stateful = count, stateful

    def __iter__(self) -> Any:
        index, count = get_shard()
        order = np.random.default_rng(get_epoch()).permutation(self.count)[index::count]
        return Reader(order) if self.stateful else iter(map(document, order))


def document(number: int) -> Tensor:
    return torch.arange(1 + number % 13) + 100 * int(number)


class Reader:
    def __init__(self, order: Any) -> None:
        self.order, self.place = order, 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Tensor:
        if self.place == len(self.order):
            raise StopIteration
        self.place += 1
        return document(self.order[self.place - 1])

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def tokens(sequences: Any) -> list[int]:
    return list(itertools.chain(*(each["tokens"].tolist() for each in sequences)))


@pytest.mark.parametrize("overlap", [0, 1, 5])
def test_a_stream_is_cut_into_sequences(overlap: int) -> None:
    documents = list(Documents())
    whole = torch.cat(documents).tolist()
    sequences = list(PackedStream(Documents(), 16, overlap))
    step = 16 - overlap
    assert [each["tokens"].tolist() for each in sequences] == [
        whole[start : start + 16] for start in range(0, len(whole) - 15, step)
    ]
    for each in sequences:
        breaks = each["sequence_ids"].diff() == 1
        assert (each["position_ids"][1:] == 0).tolist() == breaks.tolist()
        assert (each["tokens"] // 100)[each["sequence_ids"] == 0].unique().numel() == 1


def test_entries_of_documents() -> None:
    (first, *_) = PackedStream([{"tokens": b"abc", "loss": [1.0, 0, 1]}] * 3, 5)
    assert bytes(first["tokens"].tolist()) == b"abcab"
    assert first["loss"].tolist() == [1, 0, 1, 1, 0]
    for bad in (b"", {"tokens": [1, 2], "loss": [1]}, 7):
        with pytest.raises(ValueError, match="document's entries must have one length of at least"):
            next(iter(PackedStream([bad], 5)))
    for bad in ("abc", None, ["a", "b"], (number for number in range(3)), {"tokens": object()}):
        with pytest.raises(
            ValueError, match=r"^lit_loader: document 1 .*, 'tokens', must be a tensor, an ar"
        ):
            next(iter(PackedStream([[1], bad], 5)))


def test_what_is_no_stream_of_documents() -> None:
    assert "overlap must be below length=5" in refused(lambda: PackedStream([], 5, 5))
    for wrong in (None, "abc", Documents, Call(document, 3)):
        message = refused(lambda wrong=wrong: PackedStream(wrong, 4))  # type: ignore[misc]
        assert message.startswith("lit_loader: documents must be an iterable dataset, got ")
        assert message.endswith(
            "samples of a map-style dataset are packed by PackingBatchSampler [LL652]"
        )


@pytest.mark.parametrize("overlap", [0, 3])
def test_a_stream_goes_on_where_it_was(overlap: int) -> None:
    """At each place, by its own state: torchdata's loaders do it alike."""
    whole = tokens(PackedStream(Documents(), 7, overlap))
    for count in range(0, 12):
        first: Any = iter(PackedStream(Documents(), 7, overlap))
        begun = tokens(itertools.islice(first, count))
        resumed: Any = iter(PackedStream(Documents(), 7, overlap))
        resumed.load_state_dict(through_file(first.state_dict()))
        assert resumed.state_dict() == first.state_dict()
        assert begun + tokens(resumed) == whole


@pytest.mark.filterwarnings("ignore:.*PackedStream has a source that has no state_dict")
@pytest.mark.parametrize("stateful", [True, False])
def test_a_stream_in_a_loader(stateful: bool) -> None:
    def loader(workers: int) -> DataLoader[Any]:
        stream = PackedStream(Documents(80, stateful), 16, 1)
        return DataLoader(stream, 2, num_shards=2, num_workers=workers, seed=1)

    def told(batches: Any) -> list[Any]:
        return [[part.tolist() for part in batch.values()] for batch in batches]

    whole = told(loader(0))
    assert told(loader(2)) == whole
    for count in (1, 4):
        first = loader(2)
        told(itertools.islice(first, count))
        assert told(loaded(loader(0), through_file(first.state_dict()))) == whole[count:]


def test_documents_that_have_changed() -> None:
    resumed: Any = iter(PackedStream([b"ab"], 4))
    resumed.load_state_dict({"documents": None, "offset": 3})
    with pytest.raises(StateError, match="at token 3 of a document that has 2"):
        next(resumed)
