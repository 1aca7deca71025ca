"""Collating equals ``torch.utils.data.default_collate``; large outputs land in slot memory."""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from lit_loader.core.batch.collate import default_collate
from lit_loader.core.transport.codec import SlotWriter, decode, encode


class Point(NamedTuple):
    x: Any
    y: Any


class Attributed(dict):
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
    def __init__(self, value: int) -> None:
        self.value = value


def new_writer(capacity: int = 1 << 22) -> SlotWriter:
    return SlotWriter(np.zeros(capacity, np.uint8))


def check_same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if got is expected:  # what torch leaves as it is
        return
    if isinstance(expected, torch.Tensor) and expected.layout is not torch.strided:
        check_same(got.to_dense(), expected.to_dense())
    elif isinstance(expected, torch.Tensor):
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


TENSORS: list[Callable[[], Any]] = [
    *(
        lambda shape=shape, dtype=dtype: torch.ones(shape, dtype=dtype)
        for shape in [(), (0, 3), (2, 3), (9000,)]
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.complex64)
    ),
    lambda: torch.randn(200, 100).t(),
    lambda: torch.ones(9000, requires_grad=True),
    lambda: torch.ones(9000).as_subclass(Tagged),
    lambda: torch.nn.Parameter(torch.ones(3)),
    lambda: torch.eye(2).to_sparse(),
    lambda: torch.eye(2).to_sparse_csr(),
    lambda: torch.nested.nested_tensor([torch.ones(1)]),
]
ARRAYS: list[Callable[[], Any]] = [
    *(
        lambda shape=shape, dtype=dtype: np.zeros(shape, dtype)
        for shape in [(), (0, 3), (2, 3), (9000,)]
        for dtype in ("f4", "f8", "u2", "?", ">f4", "M8[D]", "U1", "O")
    ),
    lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    lambda: np.ma.masked_array([1, 2], mask=[0, 1]),
]
VALUES: list[Any] = [
    *(1, True, 2.5, float("nan"), 2**62, -(2**62), 2**63, 2**70, "a", "bc", b"a", None, Custom(1)),
    *(np.float32(1), np.float64(2), np.int32(1), np.bool_(True), np.str_("a")),
    np.datetime64("2020"),
]
"""Kinds of samples, of which torch refuses some, alone or with others."""

PLAIN = [lambda value=value: value for value in VALUES]
leaves = st.sampled_from([*TENSORS, *ARRAYS, *PLAIN])
pairs = st.sampled_from([TENSORS, ARRAYS, PLAIN]).flatmap(
    lambda kinds: st.tuples(st.sampled_from(kinds), st.sampled_from(kinds)).map(list)
)
CONTAINERS: list[Callable[[Any, Any], Any]] = [
    *(lambda a, b: [a, b], lambda a, b: (a,), lambda a, b: (a, b), lambda a, b: {"a": a, "b": b}),
    *(lambda a, b: {"b": b, "a": a}, lambda a, b: {}, lambda a, b: (), Point),
    *(lambda a, b: collections.OrderedDict(b=b, a=a), lambda a, b: collections.deque([a, b])),
    *(lambda a, b: range(3), lambda a, b: Frozen({"a": a}), lambda a, b: NoCopyMapping(a=a)),
    Unconstructible,
]


def made(make: Callable[[Any, Any], Any], a: Any, b: Any) -> Callable[[], Any]:
    return lambda: make(a(), b())


samples = st.recursive(
    leaves, lambda part: st.builds(made, st.sampled_from(CONTAINERS), part, part), max_leaves=4
)


def outcome(collate: Callable[[Any], Any], batch: list[Any]) -> tuple[Any, Any]:
    try:
        return collate(batch), None
    except Exception as error:
        return None, (type(error), str(error))


@pytest.mark.filterwarnings("ignore")  # torch's, on read-only arrays and prototypes
@settings(max_examples=500, derandomize=True)
@given(
    st.builds(lambda one, count: [one] * count, samples, st.integers(1, 3))
    | st.lists(samples, max_size=3)
    | pairs,
    st.sampled_from(["private", "slot", "full slot"]),
)
def test_equal_to_torchs(makers: list[Callable[[], Any]], place: str) -> None:
    """Also in what is raised, and in which words."""
    batch = [make() for make in makers]
    unlike = len(set(map(type, batch))) > 1
    empty = {"private": None, "slot": new_writer().empty, "full slot": new_writer(64).empty}
    expected, error = outcome(torch_collate, batch)
    found, raised = outcome(lambda batch: default_collate(batch, empty[place]), batch)
    if error is None:
        check_same(found, expected)
    elif unlike and isinstance(batch[0], (Mapping, Sequence)):
        assert raised is not None  # of unlike containers torch's own error says nothing
    else:
        assert raised == error


def test_attributes_and_factories_stay() -> None:
    one = Attributed(a=1)
    one.note = "kept"
    got = default_collate([one, Attributed(a=2)])
    assert type(got) is Attributed and got.note == "kept" and got["a"].tolist() == [1, 2]
    assert one["a"] == 1
    factory = default_collate([collections.defaultdict(list, a=1)] * 2)
    assert factory.default_factory is list


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
