"""PadCollate: what it pads, what it leaves alone, what it refuses, and its way through workers."""

import collections
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lit_loader import DataLoader, TokenBudgetBatchSampler, default_collate
from lit_loader.data.pad import PadCollate, Padded
from tests.core.options.test_refusals import refused


class Pair(NamedTuple):
    """A sample."""

    tokens: Tensor
    label: int


class Documents(Dataset[dict[str, Any]]):
    """Documents of 1 to 7 tokens, which are the document's number."""

    lengths = tuple(1 + index * 5 % 7 for index in range(40))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": torch.full((self.lengths[index],), index), "index": index}


def pieces(*lengths: int, dtype: torch.dtype = torch.int64) -> list[Tensor]:
    """Tensors of 1, 2, 3, ..."""
    return [torch.arange(1, length + 1, dtype=dtype) for length in lengths]


# --- what is padded ---

ROUNDED = {"padding_value": 9, "pad_to_multiple_of": 4}


@pytest.mark.parametrize(
    ("options", "lengths", "expected"),
    [
        ({}, (2, 0, 3), [[1, 2, 0], [0, 0, 0], [1, 2, 3]]),
        ({}, (2, 2), [[1, 2], [1, 2]]),
        (ROUNDED, (1, 5), [[1, *[9] * 7], [1, 2, 3, 4, 5, 9, 9, 9]]),
        (ROUNDED, (4,), [[1, 2, 3, 4]]),
        (ROUNDED, (0, 0), [[], []]),
    ],
)
def test_tensors(options: Any, lengths: tuple[int, ...], expected: list[list[int]]) -> None:
    batch = PadCollate(**options)(pieces(*lengths))
    assert type(batch) is Padded
    assert batch.values.tolist() == expected
    assert batch.lengths.tolist() == [*lengths]
    assert (batch.values.dtype, batch.lengths.dtype) == (torch.int64, torch.int64)
    width = len(expected[0])
    assert batch.mask().tolist() == [[place < n for place in range(width)] for n in lengths]


def test_other_dimensions_stay() -> None:
    batch = PadCollate(padding_value=0.5)([torch.ones(2, 3, 4), torch.ones(1, 3, 4)])
    assert batch.values.shape == (2, 2, 3, 4)
    assert batch.values[1, 1].eq(0.5).all()


@pytest.mark.parametrize("name", ["uint8", "int16", "int64", "float32", "float64", "bool"])
def test_arrays(name: str) -> None:
    batch = PadCollate()([np.ones(3, name), np.ones(1, name)])
    assert batch.values.dtype == getattr(torch, name)
    assert batch.values.sum().item() == 4


def test_dtypes_find_a_common_one_as_in_torch_stack() -> None:
    mixed = [*pieces(1), *pieces(1, dtype=torch.float32)]
    assert PadCollate()(mixed).values.dtype == torch.stack(mixed).dtype == torch.float32


def test_gradients_pass() -> None:
    leaf = torch.ones(2, requires_grad=True)
    PadCollate()([leaf, leaf[:1]]).values.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2, 1]


def test_nested_samples() -> None:
    samples = [
        {"text": Pair(piece, number), "more": [piece, {"name": "abc"}], "score": 0.5}
        for number, piece in enumerate(pieces(1, 2))
    ]
    batch = PadCollate()(samples)
    assert type(batch) is dict
    assert type(batch["text"]) is Pair
    assert batch["text"].tokens.values.tolist() == [[1, 0], [1, 2]]
    assert batch["text"].label.tolist() == [0, 1]
    assert batch["more"][0].lengths.tolist() == [1, 2]
    assert batch["more"][1] == {"name": ["abc", "abc"]}
    assert batch["score"].dtype == torch.float64


def test_named_entries_alone_are_padded() -> None:
    samples = [
        {"tokens": piece, "inner": {"labels": piece}, "image": torch.zeros(3, 2)}
        for piece in pieces(1, 2)
    ]
    batch = PadCollate({"tokens": 0, "labels": -100})(samples)
    assert batch["tokens"].values.tolist() == [[1, 0], [1, 2]]
    assert batch["inner"]["labels"].values.tolist() == [[1, -100], [1, 2]]
    assert batch["image"].shape == (2, 3, 2)


def test_without_anything_to_pad_it_is_default_collate() -> None:
    samples = [{"number": index, "text": "ab", "scalar": torch.tensor(1.5)} for index in range(3)]
    ours, theirs = PadCollate()(samples), default_collate(samples)
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in ("number", "scalar"))
    assert ours["text"] == theirs["text"]


def test_other_mappings_and_arrays_of_text() -> None:
    samples = [collections.OrderedDict(tokens=piece) for piece in pieces(1, 2)]
    assert PadCollate()(samples)["tokens"].lengths.tolist() == [1, 2]
    with pytest.raises(TypeError, match="default_collate: batch must contain tensors"):
        PadCollate()([np.array(["a"]), np.array(["b"])])


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"padding_value": "0"},
            "padding_value must be a number, or a mapping from entry to number",
        ),
        ({"padding_value": {"tokens": None}}, "got padding_value={'tokens': None}"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of must be a whole number of at least 1"),
        ({"pad_to_multiple_of": 1.5}, "got pad_to_multiple_of=1.5"),
        ({"pad_to_multiple_of": True}, "got pad_to_multiple_of=True"),
    ],
)
def test_options_are_refused(options: dict[str, Any], message: str) -> None:
    assert message in refused(lambda: PadCollate(**options))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(-100, torch.uint8), (0.5, torch.int64), (2, torch.bool), (math.nan, torch.int32)],
)
def test_a_value_that_the_dtype_cannot_hold(value: float, dtype: torch.dtype) -> None:
    with pytest.raises(
        ValueError, match=f"x: {dtype} cannot hold padding_value={value}: choose anoth"
    ):
        PadCollate(value)([{"x": torch.zeros(1, dtype=dtype)}])


def test_not_a_number_pads_floats() -> None:
    assert PadCollate(math.nan)(pieces(0, 1, dtype=torch.float32)).values[0].isnan().all()


@pytest.mark.parametrize(
    ("samples", "error", "message"),
    [
        (
            [{"a": [torch.ones(2, 3)]}, {"a": [torch.ones(2, 4)]}],
            ValueError,
            "a[0]: only the first dimension may differ, got shapes (2, 3), (2, 4)",
        ),
        ([torch.ones(1), torch.tensor(1.0)], ValueError, "samples: only the first dimension may"),
        (
            [{"a": (1, 2)}, {"a": (1,)}],
            RuntimeError,
            "a: sequences of different lengths cannot be padded, got lengths 2, 1: make tensors of",
        ),
        ([{"a": 1}, {"b": 1}], KeyError, "'a'"),
    ],
)
def test_samples_are_refused(samples: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        PadCollate()(samples)
    assert str(caught.value).removeprefix("lit_loader: ").startswith(message)


# --- in a loader ---


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_through_a_worker(context: str) -> None:
    def batches(**options: Any) -> list[list[Any]]:
        sampler = TokenBudgetBatchSampler(Documents(), 24, pad_to_multiple_of=4, seed=3)
        collate = PadCollate({"tokens": -1}, pad_to_multiple_of=4)
        with DataLoader(
            Documents(), batch_sampler=sampler, collate_fn=collate, **options
        ) as loader:
            got = []
            for batch in loader:
                assert type(batch["tokens"]) is Padded
                assert batch["tokens"].values.numel() <= 24
                assert batch["tokens"].values.shape[1] % 4 == 0
                got.append([*map(Tensor.tolist, batch["tokens"]), batch["index"].tolist()])
            return got

    alone = batches()
    assert sorted(index for *_, indices in alone for index in indices) == list(range(40))
    assert batches(num_workers=1, multiprocessing_context=context) == alone
