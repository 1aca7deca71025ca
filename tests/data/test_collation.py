"""Samples of different lengths as one: padded, packed, and streams cut into sequences."""

import collections
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from lit_loader import (
    DataLoader,
    OptionError,
    PackCollate,
    Packed,
    PackedStream,
    PackingBatchSampler,
    PadCollate,
    Padded,
    TokenBudgetBatchSampler,
    get_epoch,
    get_shard,
)
from tests.support.exact import loaded, through_file
from tests.support.samples import Call, Cursor


class Pair(NamedTuple):
    tokens: Tensor
    label: int


def pieces(*lengths: int, dtype: torch.dtype = torch.int64) -> list[Tensor]:
    """Tensors of 1, 2, 3, ..."""
    return [torch.arange(1, length + 1, dtype=dtype) for length in lengths]


class Texts(Call):
    """Texts of 1 to 7 tokens, which are the text's number."""

    lengths = tuple(1 + index * 5 % 7 for index in range(40))

    def __init__(self) -> None:
        super().__init__(self.text, 40)

    def text(self, index: int) -> dict[str, Any]:
        return {"tokens": torch.full((self.lengths[index],), index), "index": index}


# --- padded ---

ROUNDED = {"padding_value": 9, "pad_to_multiple_of": 4}


@pytest.mark.parametrize(
    ("options", "lengths", "expected"),
    [
        ({}, (2, 0, 3), [[1, 2, 0], [0, 0, 0], [1, 2, 3]]),
        ({}, (2, 2), [[1, 2], [1, 2]]),
        (ROUNDED, (1, 5), [[1, *[9] * 7], [1, 2, 3, 4, 5, 9, 9, 9]]),
        (ROUNDED, (0, 0), [[], []]),
    ],
)
def test_tensors(options: Any, lengths: tuple[int, ...], expected: list[list[int]]) -> None:
    batch = PadCollate(**options)(pieces(*lengths))
    assert type(batch) is Padded and batch.values.tolist() == expected
    assert batch.lengths.tolist() == [*lengths]
    assert (batch.values.dtype, batch.lengths.dtype) == (torch.int64, torch.int64)
    width = len(expected[0])
    assert batch.mask().tolist() == [[place < n for place in range(width)] for n in lengths]


def test_arrays_dtypes_and_other_dimensions() -> None:
    for name in ("uint8", "int16", "float32", "bool"):
        batch = PadCollate()([np.ones(3, name), np.ones(1, name)])
        assert batch.values.dtype == getattr(torch, name) and batch.values.sum().item() == 4
    mixed = [*pieces(1), *pieces(1, dtype=torch.float32)]
    assert PadCollate()(mixed).values.dtype == torch.float32  # as torch.stack finds it
    batch = PadCollate(padding_value=0.5)([torch.ones(2, 3, 4), torch.ones(1, 3, 4)])
    assert batch.values.shape == (2, 2, 3, 4) and batch.values[1, 1].eq(0.5).all()
    assert PadCollate(math.nan)([torch.ones(0), torch.ones(1)]).values[0].isnan().all()


def test_nested_samples_and_named_entries() -> None:
    samples = [
        {"text": Pair(piece, number), "more": [piece, {"name": "abc"}], "score": 0.5}
        for number, piece in enumerate(pieces(1, 2))
    ]
    batch = PadCollate()(samples)
    assert type(batch["text"]) is Pair and batch["text"].label.tolist() == [0, 1]
    assert batch["text"].tokens.values.tolist() == [[1, 0], [1, 2]]
    assert batch["more"][0].lengths.tolist() == [1, 2]
    assert batch["more"][1] == {"name": ["abc", "abc"]} and batch["score"].dtype == torch.float64
    named = [
        collections.OrderedDict(tokens=piece, inner={"labels": piece}, image=torch.zeros(3, 2))
        for piece in pieces(1, 2)
    ]
    batch = PadCollate({"tokens": 0, "labels": -100})(named)
    assert batch["tokens"].values.tolist() == [[1, 0], [1, 2]]
    assert batch["inner"]["labels"].values.tolist() == [[1, -100], [1, 2]]
    assert batch["image"].shape == (2, 3, 2)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_through_a_worker(context: str) -> None:
    def batches(**options: Any) -> list[list[Any]]:
        sampler = TokenBudgetBatchSampler(Texts(), 24, pad_to_multiple_of=4, seed=3)
        collate = PadCollate({"tokens": -1}, pad_to_multiple_of=4)
        with DataLoader(Texts(), batch_sampler=sampler, collate_fn=collate, **options) as loader:
            found = list(loader)
        assert all(batch["tokens"].values.numel() <= 24 for batch in found)
        assert all(batch["tokens"].values.shape[1] % 4 == 0 for batch in found)
        return [[*map(Tensor.tolist, batch["tokens"]), batch["index"].tolist()] for batch in found]

    alone = batches()
    assert sorted(index for *_, indices in alone for index in indices) == list(range(40))
    assert batches(num_workers=1, multiprocessing_context=context) == alone


# --- packed ---


def sample(length: int, first: int = 0) -> dict[str, Any]:
    tokens = torch.arange(first, first + length)
    return {"tokens": tokens, "labels": tokens * 10, "name": f"of {length}"}


def test_a_pack_as_one_sequence() -> None:
    pack = PackCollate({"tokens": 0, "labels": -100})([sample(3), sample(1, 7), sample(2)])
    assert isinstance(pack, Packed) and (pack.cu_seqlens.dtype, pack.max_seqlen) == (torch.int32, 3)
    assert pack.values["tokens"].tolist() == [0, 1, 2, 7, 0, 1]
    assert pack.values["labels"].tolist() == [0, 10, 20, 70, 0, 10]
    assert pack.values["name"] == ["of 3", "of 1", "of 2"]
    assert pack.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert pack.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert pack.sequence_ids.tolist() == [0, 0, 0, 1, 2, 2]


def test_padding_is_a_sequence_of_its_own() -> None:
    pack = PackCollate({"tokens": 0, "labels": -100}, 8)([sample(3), sample(2)])
    assert pack.values["labels"].tolist() == [0, 10, 20, 0, 10, -100, -100, -100]
    assert pack.cu_seqlens.tolist() == [0, 3, 5, 8] and pack.max_seqlen == 3
    assert pack.position_ids.tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
    assert pack.sequence_ids.tolist() == [0, 0, 0, 1, 1, -1, -1, -1]


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


@pytest.mark.parametrize("workers", [0, 2])
def test_packs_from_a_loader(workers: int) -> None:
    options: dict[str, Any] = {"collate_fn": PackCollate({"tokens": 0}), "num_workers": workers}
    batches = PackingBatchSampler(Texts(), 20, seed=1)
    packs = list(DataLoader(Texts(), batch_sampler=batches, **options))
    assert [pack.values["index"].tolist() for pack in packs] == list(batches)
    for pack in packs:
        parts = pack.values["tokens"].tensor_split(pack.cu_seqlens.long()[1:-1])
        assert [int(part[0]) for part in parts] == pack.values["index"].tolist()


# --- refused ---


@pytest.mark.parametrize(
    ("collate", "samples", "error", "message"),
    [
        (PadCollate(), [{"a": [torch.ones(2, 3)]}, {"a": [torch.ones(2, 4)]}], ValueError, "a[0]:"),
        (PadCollate(), [torch.ones(1), torch.tensor(1.0)], ValueError, "only the first dimension"),
        (PadCollate(), [{"a": (1, 2)}, {"a": (1,)}], RuntimeError, "lengths 2, 1: make tensors"),
        (PadCollate(), [{"a": 1}, {"b": 1}], KeyError, "'a'"),
        (PadCollate(), [np.array(["a"])] * 2, TypeError, "batch must contain tensors"),
        (PadCollate(-100), [torch.ones(1).byte()], ValueError, "uint8 cannot hold padding_value"),
        (PadCollate(0.5), pieces(1), ValueError, "int64 cannot hold padding_value=0.5"),
        (PadCollate(math.nan), pieces(1), ValueError, "int64 cannot hold padding_value=nan"),
        (PackCollate(), [{"a": torch.ones(2), "b": torch.ones(3)}], ValueError, "have one length"),
        (PackCollate(), [1, 2], ValueError, "samples have nothing to pack"),
        (PackCollate(), [torch.ones(2, 3), torch.ones(2, 4)], ValueError, "only the first dim"),
    ],
)
def test_samples_are_refused(collate: Any, samples: Any, error: Any, message: str) -> None:
    with pytest.raises(error) as caught:
        collate(samples)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PadCollate("0"), "padding_value must be a number"),  # type: ignore[arg-type]
        (lambda: PadCollate({"tokens": None}), "padding_value must be a number"),  # type: ignore
        (lambda: PadCollate(0, 0), "pad_to_multiple_of must be a whole number of at least 1"),
        (lambda: PackedStream([], 5, 5), "overlap must be below length=5"),
        *(
            (lambda wrong=wrong: PackedStream(wrong, 4), "documents must be an iterable dataset")
            for wrong in (None, "abc", IterableDataset, Texts())
        ),
    ],
)
def test_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


# --- streams ---


class Documents(IterableDataset[Any]):
    """Documents of different lengths, in another order each epoch; each reader has its share."""

    def __init__(self, count: int = 40, stateful: bool = True) -> None:
        self.count, self.stateful = count, stateful

    def __iter__(self) -> Any:
        index, count = get_shard()
        order = np.random.default_rng(get_epoch()).permutation(self.count)[index::count]
        return Cursor(document, order.tolist()) if self.stateful else iter(map(document, order))


def document(number: int) -> Tensor:
    return torch.arange(1 + number % 13) + 100 * int(number)


def tokens(sequences: Any) -> list[int]:
    return list(itertools.chain(*(each["tokens"].tolist() for each in sequences)))


@pytest.mark.parametrize("overlap", [0, 1, 5])
def test_a_stream_is_cut_into_sequences(overlap: int) -> None:
    whole = torch.cat(list(Documents())).tolist()
    sequences = list(PackedStream(Documents(), 16, overlap))
    assert [each["tokens"].tolist() for each in sequences] == [
        whole[start : start + 16] for start in range(0, len(whole) - 15, 16 - overlap)
    ]
    for each in sequences:
        breaks = each["sequence_ids"].diff() == 1
        assert (each["position_ids"][1:] == 0).tolist() == breaks.tolist()
        assert (each["tokens"] // 100)[each["sequence_ids"] == 0].unique().numel() == 1


def test_entries_of_documents() -> None:
    (first, *_) = PackedStream([{"tokens": b"abc", "loss": [1.0, 0, 1]}] * 3, 5)
    assert bytes(first["tokens"].tolist()) == b"abcab" and first["loss"].tolist() == [1, 0, 1, 1, 0]
    for bad in (b"", {"tokens": [1, 2], "loss": [1]}, 7):
        with pytest.raises(ValueError, match="entries must have one length of at least 1"):
            next(iter(PackedStream([bad], 5)))
    for bad in ("abc", None, ["a", "b"], {"tokens": object()}):
        with pytest.raises(ValueError, match="document 1 .*, 'tokens', must be a tensor, an array"):
            next(iter(PackedStream([[1], bad], 5)))


@pytest.mark.parametrize("overlap", [0, 3])
def test_a_stream_goes_on_where_it_was(overlap: int) -> None:
    """At each place, by its own state, as torchdata's loaders resume it."""
    whole = tokens(PackedStream(Documents(), 7, overlap))
    for count in range(0, 12):
        first: Any = iter(PackedStream(Documents(), 7, overlap))
        begun = tokens(itertools.islice(first, count))
        resumed: Any = iter(PackedStream(Documents(), 7, overlap))
        resumed.load_state_dict(through_file(first.state_dict()))
        assert resumed.state_dict() == first.state_dict()
        assert begun + tokens(resumed) == whole


@pytest.mark.filterwarnings("ignore:.*LL308")
@pytest.mark.parametrize("stateful", [True, False])
def test_a_stream_in_a_loader(stateful: bool) -> None:
    def loader(workers: int) -> DataLoader[Any]:
        stream = PackedStream(Documents(80, stateful), 16, 1)
        return DataLoader(stream, 2, num_shards=2, num_workers=workers, seed=1)

    def plain(batches: Any) -> list[Any]:
        return [[part.tolist() for part in batch.values()] for batch in batches]

    whole = plain(loader(0))
    for count in (1, 4):
        first = loader(2)
        assert plain(itertools.islice(first, count)) == whole[:count]
        assert plain(loaded(loader(0), through_file(first.state_dict()))) == whole[count:]
