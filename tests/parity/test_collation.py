"""What a batch holds: default collation and conversion, custom ``collate_fn``, every kind of value.

Each case runs in-process and through workers: what is returned must be the same.
"""

import dataclasses
import enum
from collections import defaultdict, namedtuple
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import torch

from tests.support.datasets import Call
from tests.support.samples import uncollated as as_is
from tests.support.tools import is_oracle

Point = namedtuple("Point", ["x", "y"])


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Record:
    name: str
    value: torch.Tensor


def load(loader_class, num_workers, sample, **options) -> list[Any]:
    """All batches of four samples, each ``sample(index)``."""
    options.setdefault("batch_size", 2)
    return list(loader_class(Call(sample, length=4), num_workers=num_workers, **options))


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
    "namedtuple": (lambda i: Point(1, np.ones(1)), Point(1, torch.ones(1, dtype=torch.float64))),
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
        expected = CONVERTED[name][1]
        assert (type(found), repr(found)) == (type(expected), repr(expected))


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


ARRAYS = {
    "big-endian": np.arange(4, dtype=">i4"),
    "object": np.array([1, "two", None], dtype=object),
    "structured": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "empty": np.empty((0, 3)),
    "0-d": np.array(7),
}
OBJECTS = {
    "record": Record("a", torch.ones(1)),
    "enum": Colour.RED,
    "path": PurePosixPath("a/b"),
    "set": {1, 2},
    "huge int": 2**100,
    "defaultdict": defaultdict(list, a=[1]),
    "class": Record,
    "large bytes": b"x" * 3_000_000,
    "large text": "é" * 1_000_000,
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
