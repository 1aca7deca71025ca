"""What a batch holds: default collation and conversion, custom ``collate_fn``, every kind of value.

Each case runs in-process and through workers: what is returned must be the same.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
from collections import OrderedDict, defaultdict, namedtuple
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch

from .datasets import Call
from .tools import as_is, is_oracle, raises

Point = namedtuple("Point", ["x", "y"])


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Record:
    name: str
    value: torch.Tensor


class Tagged(torch.Tensor):
    """A plain Python subclass of Tensor."""


def load(loader_class, num_workers, sample, **options) -> list[Any]:
    """All batches of four samples, each ``sample(index)``."""
    options.setdefault("batch_size", 2)
    return list(loader_class(Call(sample, length=4), num_workers=num_workers, **options))


def same(left: Any, right: Any) -> bool:
    """Deep equality with exact types, dtypes and shapes."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


BATCHED = {
    "int": (lambda i: i, torch.tensor([0, 1])),
    "float": (lambda i: i + 0.5, torch.tensor([0.5, 1.5], dtype=torch.float64)),
    "bool": (lambda i: i == 1, torch.tensor([False, True])),
    "str": (lambda i: f"s{i}", ["s0", "s1"]),
    "bytes": (lambda i: bytes([i]), [b"\0", b"\1"]),
    "tensor": (lambda i: torch.full((2,), i), torch.tensor([[0, 0], [1, 1]])),
    "scalar tensor": (lambda i: torch.tensor(i), torch.tensor([0, 1])),
    "ndarray": (
        lambda i: np.full((1, 2), i, dtype=np.float32),
        torch.tensor([[[0, 0]], [[1, 1]]], dtype=torch.float32),
    ),
    "0-d ndarray": (lambda i: np.array(i, dtype=np.int16), torch.tensor([0, 1], dtype=torch.int16)),
    "numpy scalar": (lambda i: np.float32(i), torch.tensor([0, 1], dtype=torch.float32)),
    "numpy bool": (lambda i: np.bool_(i), torch.tensor([False, True])),
    "tuple": (lambda i: (i, f"s{i}"), [torch.tensor([0, 1]), ("s0", "s1")]),
    "list": (lambda i: [i, i * 2], [torch.tensor([0, 1]), torch.tensor([0, 2])]),
    "dict": (
        lambda i: {"b": i, "a": {"c": torch.tensor([i])}},
        {"b": torch.tensor([0, 1]), "a": {"c": torch.tensor([[0], [1]])}},
    ),
    "OrderedDict": (
        lambda i: OrderedDict(z=i, y="t"),
        OrderedDict(z=torch.tensor([0, 1]), y=["t", "t"]),
    ),
    "namedtuple": (lambda i: Point(i, f"s{i}"), Point(torch.tensor([0, 1]), ["s0", "s1"])),
    "nested": (
        lambda i: ({"p": Point(i, [i])},),
        [{"p": Point(torch.tensor([0, 1]), [torch.tensor([0, 1])])}],
    ),
    "empty dict": (lambda i: {}, {}),
    "zero-size": (lambda i: torch.empty(0, 3), torch.empty(2, 0, 3)),
}


def test_default_collation(loader_class, num_workers):
    loader = loader_class(
        Call(lambda key: BATCHED[key[0]][0](key[1])),
        batch_sampler=[[(name, 0), (name, 1)] for name in BATCHED],
        num_workers=num_workers,
    )
    for name, batch in zip(BATCHED, loader, strict=True):
        expected = BATCHED[name][1]
        if name in {"tuple", "nested", "namedtuple"}:
            # Torch turns the strings of a tuple's column into a tuple or a list, by its version.
            batch, expected = _columns_as_lists(batch), _columns_as_lists(expected)
        assert same(batch, expected), name


def _columns_as_lists(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_columns_as_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _columns_as_lists(item) for key, item in value.items()}
    return value


CONVERTED = {
    "ndarray": (lambda i: np.full(2, i), torch.tensor([0, 0])),
    "ndarray in a dict": (lambda i: {"a": np.zeros(1)}, {"a": torch.zeros(1, dtype=torch.float64)}),
    "numpy text": (lambda i: np.array(["x", "y"]), np.array(["x", "y"])),
    "numpy scalar": (lambda i: np.float32(2), torch.tensor(2.0)),
    "str": (lambda i: "text", "text"),
    "bytes": (lambda i: b"raw", b"raw"),
    "int": (lambda i: 3, 3),
    "None": (lambda i: None, None),
    "list": (lambda i: [1, np.ones(1)], [1, torch.ones(1, dtype=torch.float64)]),
    "tuple": (lambda i: (1, "a"), [1, "a"]),
    "namedtuple": (
        lambda i: Point(1, np.ones(1)),
        Point(1, torch.ones(1, dtype=torch.float64)),
    ),
}


def each(loader_class, num_workers, values, **options) -> dict[str, Any]:
    """What becomes of values, by their names, in one epoch that gives them one by one."""
    loader = loader_class(
        Call(lambda name: values[name]()),
        batch_size=None, sampler=[*values], num_workers=num_workers, **options,
    )  # fmt: skip
    return dict(zip(values, loader, strict=True))


def test_conversion_without_batching(loader_class, num_workers):
    samples = {name: lambda make=make: make(0) for name, (make, _) in CONVERTED.items()}
    for name, found in each(loader_class, num_workers, samples).items():
        assert same(found, CONVERTED[name][1]), name


def test_collate_fn_may_be_a_function_an_object_or_a_bound_method(loader_class, num_workers):
    class Adder:
        def __call__(self, samples):
            return [sample + 10 for sample in samples]

        add = __call__

    for collate in (Adder(), Adder().add, lambda samples: [sample + 10 for sample in samples]):
        assert load(loader_class, num_workers, int, collate_fn=collate) == [[10, 11], [12, 13]]


FALSY = [None, False, True, 0, "", (), [], {}]


def test_falsy_samples_and_batches_are_delivered(loader_class, num_workers):
    data, keys = Call(lambda place: FALSY[place]), range(len(FALSY))
    options = {"sampler": keys, "num_workers": num_workers}
    assert list(loader_class(data, collate_fn=as_is, **options)) == [[each] for each in FALSY]
    first = loader_class(data, collate_fn=lambda samples: samples[0], **options)
    assert list(first) == FALSY


def test_tensors_are_tensors_and_writable(loader_class, num_workers):
    for batch in load(loader_class, num_workers, lambda i: torch.full((3,), float(i))):
        assert type(batch) is torch.Tensor
        batch.add_(1)
        batch.requires_grad_().sum().backward()
        assert batch.grad.tolist() == [[1, 1, 1]] * 2
        batch.detach().numpy()[:] = 5
        assert batch.detach().unique().tolist() == [5]


def test_changing_a_batch_changes_no_other(loader_class, num_workers):
    loader = loader_class(torch.arange(40), batch_size=2, num_workers=num_workers)
    held = []
    for batch in loader:
        batch += 100
        held.append(batch)
    assert torch.cat(held).tolist() == list(range(100, 140))
    assert torch.equal(torch.cat(list(loader)), torch.arange(40))


def test_a_view_keeps_its_batch_alive(loader_class, num_workers):
    loader = loader_class(torch.arange(400).view(100, 4), batch_size=2, num_workers=num_workers)
    columns = [batch[:, 1] for batch in loader]
    arrays = [batch.numpy() for batch in loader]
    assert torch.cat(columns).tolist() == list(range(1, 400, 4))
    assert np.concatenate(arrays).ravel().tolist() == list(range(400))


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


LAYOUTS = [
    torch.empty(0),
    torch.empty(3, 0, 2),
    torch.tensor(5),
    torch.arange(12).view(3, 4).t(),
    torch.arange(12)[::3],
    torch.arange(3).expand(4, 3),
    torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    *(torch.tensor([0, 1, 1, 0]).to(dtype) for dtype in DTYPES),
    torch.arange(3).as_subclass(Tagged),
    torch.ones(2, requires_grad=True),
    torch.nn.Parameter(torch.ones(2)),
]


def in_bytes(tensor: torch.Tensor) -> list[int]:
    plain = tensor.detach().as_subclass(torch.Tensor).clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).tolist()


def test_tensors_of_every_dtype_layout_and_class(loader_class, num_workers):
    values = {str(number): lambda value=value: value for number, value in enumerate(LAYOUTS)}
    for found, sent in zip(each(loader_class, num_workers, values).values(), LAYOUTS, strict=True):
        assert type(found) is type(sent)
        assert (found.dtype, found.shape) == (sent.dtype, sent.shape)
        assert found.requires_grad == sent.requires_grad and found.is_leaf
        assert in_bytes(found) == in_bytes(sent)


@pytest.mark.ours_only
def test_lazy_conjugation_is_carried(loader_class, num_workers):
    """Torch's queues lose the bit, so that the values arrive unconjugated."""
    value = torch.tensor([1 + 2j, 3 - 1j]).conj()
    batch = load(loader_class, num_workers, lambda i: value, batch_size=None)[0]
    assert torch.equal(batch, value)


@pytest.mark.filterwarnings("ignore:Sparse (invariant|CSR):UserWarning")
def test_sparse_tensors(loader_class, num_workers):
    coo = torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse()
    csr = torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse_csr()
    batch = load(loader_class, num_workers, lambda i: (coo, csr), batch_size=None)[0]
    for got, sent in zip(batch, (coo, csr), strict=True):
        assert got.layout == sent.layout
        assert torch.equal(got.to_dense(), sent.to_dense())


def nested_sample(layout):
    with_rows = [torch.arange(2.0), torch.arange(3.0)]
    return torch.nested.nested_tensor(with_rows, layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors(loader_class, num_workers, layout):
    batch = load(loader_class, num_workers, lambda i: nested_sample(layout), batch_size=None)[0]
    assert batch.is_nested
    assert [row.tolist() for row in batch.unbind()] == [[0, 1], [0, 1, 2]]


def test_tensors_that_share_storage_still_do(loader_class, num_workers):
    def sample(index):
        base = torch.arange(6)
        return [base, base, base[2:], base.view(2, 3).t()]

    base, twin, tail, turned = load(loader_class, num_workers, sample, batch_size=None)[0]
    base[5] = 50
    assert twin[5] == tail[3] == turned[2, 1] == 50


ARRAYS = {
    "float16": np.arange(4, dtype=np.float16),
    "big-endian": np.arange(4, dtype=">i4"),
    "unicode": np.array(["a", "bcd"]),
    "bytes": np.array([b"a", b"bcd"]),
    "object": np.array([1, "two", None], dtype=object),
    "structured": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "datetime": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "complex array": np.array([1 + 2j]),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "empty": np.empty((0, 3)),
    "0-d": np.array(7),
}
OBJECTS = {
    "record": Record("a", torch.ones(1)),
    "enum": Colour.RED,
    "path": PurePosixPath("a/b"),
    "date": datetime.datetime(2020, 1, 2),
    "decimal": decimal.Decimal("1.5"),
    "set": {1, 2},
    "frozenset": frozenset("ab"),
    "complex": 1 + 2j,
    "huge int": 2**100,
    "defaultdict": defaultdict(list, a=[1]),
    "bytearray": bytearray(b"abc"),
    "class": Record,
    "large bytes": b"x" * 3_000_000,
    "large text": "é" * 1_000_000,
    "deep list": [[[[[[1]]]]]],
    "ellipsis": ...,
    "range": range(3),
    "slice": slice(1, 2),
    "dtype": torch.float16,
    "device": torch.device("cpu"),
    "size": torch.Size([1, 2]),
    "numpy scalar": np.float32(3),
}


def test_arrays_and_objects_pass_unchanged(loader_class, num_workers):
    given = ARRAYS | OBJECTS
    values = {name: lambda value=value: value for name, value in given.items()}
    for name, batch in each(loader_class, num_workers, values, collate_fn=as_is).items():
        value = given[name]
        assert type(batch) is type(value)
        if name in ARRAYS:
            native = value.dtype.newbyteorder("=") if is_oracle(loader_class) else value.dtype
            assert batch.dtype in (value.dtype, native)
            assert batch.shape == value.shape
            batch, value = batch.tolist(), value.tolist()
        assert batch == value


@pytest.mark.parametrize(
    ("sample", "error"),
    [
        (lambda i: torch.zeros(i + 1), RuntimeError),
        (lambda i: object(), TypeError),
        (lambda i: [0] * (i + 1), RuntimeError),
        (lambda i: None, TypeError),
        (lambda i: {"a": 1} if i == 0 else {"b": 1}, KeyError),
        (lambda i: np.array(["x"]), TypeError),
    ],
    ids=["shapes", "object", "lengths", "None", "keys", "numpy text"],
)
def test_what_cannot_be_collated(loader_class, num_workers, sample, error):
    with raises(error):
        load(loader_class, num_workers, sample)
