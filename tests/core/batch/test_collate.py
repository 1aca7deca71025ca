"""Collating equals ``torch.utils.data.default_collate``; large outputs land in slot memory."""

import collections
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from lit_loader.core.batch.collate import default_collate
from lit_loader.core.transport.codec import SlotWriter, decode, encode


class Point(NamedTuple):
    x: Any
    y: Any


class Attributed(dict):
    """A dict with an attribute."""

    note = ""


class Frozen(Mapping):
    """A mapping that cannot be changed."""

    def __init__(self, items: Any) -> None:
        self.items_ = dict(items)

    def __getitem__(self, key: Any) -> Any:
        return self.items_[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class Unconstructible(Sequence):
    """A sequence that cannot be made from a list."""

    def __init__(self, first: Any, second: Any) -> None:
        self.pair = first, second

    def __getitem__(self, index: Any) -> Any:
        return self.pair[index]

    def __len__(self) -> int:
        return 2


class NoCopyMapping(Frozen):
    """A mapping whose constructor takes something else than a mapping."""

    def __init__(self, *, a: Any) -> None:
        super().__init__({"a": a})


class Tagged(torch.Tensor):
    """A plain subclass."""


class Custom:
    """An element that only a registered rule can collate."""

    def __init__(self, value: int) -> None:
        self.value = value


def new_writer(capacity: int = 1 << 22) -> SlotWriter:
    return SlotWriter(np.zeros(capacity, np.uint8))


def check_same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert got.requires_grad == expected.requires_grad
        assert got.is_contiguous() == expected.is_contiguous()
        assert torch.equal(torch.nan_to_num(got), torch.nan_to_num(expected))
    elif isinstance(expected, Mapping):
        assert list(got) == list(expected)
        for key in expected:
            check_same(got[key], expected[key])
    elif isinstance(expected, Sequence) and not isinstance(expected, (str, bytes)):
        assert len(got) == len(expected)
        for mine, theirs in zip(got, expected, strict=True):
            check_same(mine, theirs)
    else:
        assert got == expected


def images(count: int = 4) -> list[torch.Tensor]:
    return [torch.randn(3, 64, 64) for _ in range(count)]


SAMPLES: dict[str, list[Any]] = {
    "tensors": [torch.ones(2, 3), torch.zeros(2, 3)],
    "scalar tensors": [torch.tensor(1), torch.tensor(2)],
    "empty tensors": [torch.ones(0, 3), torch.ones(0, 3)],
    "large tensors": images(),
    "strided": [torch.randn(200, 100).t() for _ in range(3)],
    "mixed dtypes": [torch.ones(3), torch.ones(3, dtype=torch.float64)],
    "large mixed dtypes": [torch.ones(9000), torch.ones(9000, dtype=torch.float64)],
    "integers, then floats": [torch.ones(9000, dtype=torch.int64), torch.ones(9000)],
    "requires grad": [torch.ones(3, requires_grad=True), torch.ones(3)],
    "large requires grad": [torch.ones(9000, requires_grad=True), torch.ones(9000)],
    "bfloat16": [torch.ones(9000, dtype=torch.bfloat16)] * 4,
    "subclass": [torch.ones(3).as_subclass(Tagged), torch.ones(3).as_subclass(Tagged)],
    "large subclass": [torch.ones(9000), torch.ones(9000).as_subclass(Tagged)],
    "parameters": [torch.nn.Parameter(torch.ones(3))] * 2,
    "complex": [torch.ones(3, dtype=torch.complex64)] * 2,
    "arrays": [np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)],
    "large arrays": [np.random.default_rng(i).random((3, 64, 64)) for i in range(3)],
    "0-d arrays": [np.array(1.5), np.array(2.5)],
    "empty arrays": [np.ones((0, 3)), np.ones((0, 3))],
    "more empty arrays": [np.ones((2, 0, 1), np.float32), np.ones((2, 0, 1), np.float32)],
    "F arrays": [np.asfortranarray(np.arange(6.0).reshape(2, 3))] * 2,
    "mixed arrays": [np.ones(3, np.float32), np.ones(3, np.float64)],
    "array then tensor": [np.ones(3, np.float32), torch.ones(3)],
    "uint16 arrays": [np.ones(3, np.uint16)] * 2,
    "bool arrays": [np.array([True, False])] * 2,
    "masked arrays": [np.ma.masked_array([1, 2], mask=[0, 1])] * 2,
    "numpy scalars": [np.float32(1), np.float32(2)],
    "numpy float64 scalars": [np.float64(1), np.float64(2)],
    "numpy bools": [np.bool_(True), np.bool_(False)],
    "mixed numpy scalars": [np.float32(1), np.float64(2)],
    "numpy then python": [np.int32(1), 2],
    "ints": [1, 2, 3],
    "large ints": [2**62, -(2**62)],
    "bools": [True, False],
    "int then bool": [1, True],
    "int then float": [1, 2.5],
    "float then int": [1.5, 2],
    "floats": [1.5, float("nan"), float("inf")],
    "texts": ["a", "bc"],
    "bytes": [b"a", b"bc"],
    "dicts": [{"a": 1, "b": torch.ones(2)}, {"b": torch.ones(2), "a": 2}],
    "more keys later": [{"a": 1}, {"a": 2, "c": 3}],
    "nested": [{"a": [(1, 2.0), {"b": "x"}]}, {"a": [(3, 4.0), {"b": "y"}]}],
    "tuples": [(torch.ones(2), 1), (torch.zeros(2), 2)],
    "empty tuples": [(), ()],
    "empty dicts": [{}, {}],
    "lists": [[1, "a"], [2, "b"]],
    "list then tuple": [[1, 2], (3, 4)],
    "namedtuples": [Point(1, torch.ones(2)), Point(2, torch.zeros(2))],
    "ordered dicts": [collections.OrderedDict(b=1, a=2), collections.OrderedDict(b=3, a=4)],
    "deques": [collections.deque([1, 2]), collections.deque([3, 4])],
    "ranges": [range(3), range(3, 6)],
    "frozen mappings": [Frozen({"a": 1}), Frozen({"a": 2})],
    "what cannot be made of a mapping": [NoCopyMapping(a=1), NoCopyMapping(a=2)],
    "what cannot be made of a list": [Unconstructible(1, "a"), Unconstructible(2, "b")],
    "one sample": [{"a": torch.ones(2), "b": 3}],
}


@pytest.mark.parametrize("place", ["private", "slot", "full slot"])
@pytest.mark.parametrize("name", SAMPLES)
def test_equal_to_torchs(name: str, place: str) -> None:
    samples = SAMPLES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, on read-only and F arrays
        expected = torch_collate(samples)
    empty = {"private": None, "slot": new_writer().empty, "full slot": new_writer(64).empty}
    check_same(default_collate(samples, empty[place]), expected)


def test_attributes_and_factories_stay() -> None:
    one = Attributed(a=1)
    one.note = "kept"
    got = default_collate([one, Attributed(a=2)])
    assert type(got) is Attributed and got.note == "kept" and got["a"].tolist() == [1, 2]
    assert one["a"] == 1
    factory = default_collate([collections.defaultdict(list, a=1)] * 2)
    assert factory.default_factory is list


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("slot", [False, True], ids=["private", "slot"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: [torch.ones(2), torch.ones(3)],
        lambda: [torch.ones(9000), torch.ones(9001)],
        lambda: [np.ones(2), np.ones(3)],
        lambda: [[1, 2], [3]],
        lambda: [(1, 2), (3, 4, 5)],
        lambda: [{"a": 1}, {"b": 1}],
        lambda: [object(), object()],
        lambda: [None, None],
        lambda: [1, None],
        lambda: [1, "a"],
        lambda: [2**70, 1],
        lambda: [2**63, 1],
        lambda: [{"a": [Custom(1)]}, {"a": [Custom(2)]}],
        lambda: [np.array(["a"])] * 2,
        lambda: [np.array([object()])] * 2,
        lambda: [np.array(["2020"], "M8[D]")] * 2,
        lambda: [np.ones(2, ">f4")] * 2,
        lambda: [np.str_("a"), np.datetime64("2020")],
        lambda: [np.datetime64("2020")] * 2,
        lambda: [torch.ones(2), 1],
        lambda: [1, torch.ones(2)],
        lambda: [torch.eye(2).to_sparse()] * 2,
        lambda: [torch.eye(2).to_sparse_csr()] * 2,
        lambda: [torch.nested.nested_tensor([torch.ones(1)])] * 2,
        lambda: [],
    ],
)
def test_errors_are_torchs(make: Any, slot: bool) -> None:
    samples = make()
    try:
        expected = torch_collate(samples)
    except Exception as error:
        with pytest.raises(type(error)) as raised:
            default_collate(samples, new_writer().empty if slot else None)
        assert str(raised.value) == str(error)
    else:
        check_same(default_collate(samples), expected)


def test_a_rule_that_was_added(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(batch: Any, *, collate_fn_map: Any = None) -> Any:
        assert collate_fn_map is default_collate_fn_map
        return [each.value for each in batch]

    monkeypatch.setitem(default_collate_fn_map, Custom, rule)
    assert default_collate([{"a": Custom(1)}, {"a": Custom(2)}]) == {"a": [1, 2]}


def test_large_tensor_lands_in_the_slot_and_is_not_copied() -> None:
    writer = new_writer()
    samples = images()
    batch = default_collate([{"image": image, "label": 3} for image in samples], writer.empty)
    image = batch["image"]
    assert writer.base <= image.data_ptr() < writer.base + writer.memory.size
    got = decode(writer.memory, *encode(batch, writer))
    assert got["image"].data_ptr() == image.data_ptr()
    assert torch.equal(got["image"], torch.stack(samples))
