"""Random data for property tests: what a sample is made of is a value that Hypothesis can shrink.

A `Leaf` or a container of such (dict, list, tuple, `Pair`) is a schema; `sample_of` makes a sample
by it, of the index and of all global generators: a batch made with other seeds is another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, Sampler

import lit_loader
from tests.support.faults import visit
from tests.support.samples import Cursor

TENSORS = ("float32", "float64", "float16", "bfloat16", "complex64", "int64", "uint8", "bool")
ARRAYS = ("float32", "float64", "int64", "int16", "uint8", "bool")
WIDE = 3_000  # numbers a tensor: two such samples are more than a slot of 64 KiB


class Leaf(NamedTuple):
    """What is no container."""

    kind: str  # "tensor", "array", "str", "int", "float" or "none"
    dtype: str = ""
    shape: tuple[int, ...] = ()


class Pair(NamedTuple):
    first: Any
    second: Any


def sample_of(schema: Any, index: int) -> Any:
    """Make the sample ``index``."""
    if isinstance(schema, dict):
        return {key: sample_of(value, index) for key, value in schema.items()}
    if isinstance(schema, Pair):
        return Pair(*(sample_of(value, index) for value in schema))
    if not isinstance(schema, Leaf):
        return type(schema)(sample_of(value, index) for value in schema)
    if schema.kind == "tensor":
        return (torch.rand(schema.shape) * 100 + index).to(getattr(torch, schema.dtype))
    if schema.kind == "array":
        # From a zero-dimensional product comes a scalar, which is no array.
        return np.asarray(np.random.random(schema.shape) * 100 + index % 100).astype(schema.dtype)
    if schema.kind == "str":
        return f"{index} {random.random()}"
    return {"int": index, "float": random.random(), "none": None}[schema.kind]


def holds_none(schema: Any) -> bool:
    """Whether a sample has a None, for which the default collate has no place."""
    if isinstance(schema, Leaf):
        return schema.kind == "none"
    return any(map(holds_none, schema.values() if isinstance(schema, dict) else schema))


def schemas() -> st.SearchStrategy[Any]:
    """Schemas of all shapes; zero-dimensional, empty and wide tensors among their parts."""
    shapes = st.sampled_from([(), (3,), (2, 3), (0,), (2, 0, 1), (1,), (WIDE,)])
    leaves = st.one_of(
        st.builds(Leaf, st.just("tensor"), st.sampled_from(TENSORS), shapes),
        st.builds(Leaf, st.just("array"), st.sampled_from(ARRAYS), shapes),
        st.sampled_from(["int", "float", "str", "none"]).map(Leaf),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.lists(inner, max_size=2),
            st.lists(inner, max_size=2).map(tuple),
            st.builds(Pair, inner, inner),
        ),
        max_leaves=5,
    )


class Samples(Dataset):
    """A sample by index."""

    def __init__(self, schema: Any, length: int) -> None:
        self.schema = schema
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        assert 0 <= index < self.length
        visit("fetching")
        return sample_of(self.schema, index)


class Stream(IterableDataset):
    """The samples in order. Readers take turns batch by batch: any number gives the same.

    A reader's first sample draws from what is the same in all readers, and not from its batch's; so
    each block's first one, which is some reader's first, brings numbers of its own.
    """

    def __init__(self, schema: Any, length: int, block: int) -> None:
        self.schema = schema
        self.length = length
        self.block = block

    def share(self) -> list[int]:
        """Indices of the reader that asks."""
        reader, readers = lit_loader.get_shard()
        block = self.block
        starts = range(reader * block, self.length, readers * block)
        return [i for start in starts for i in range(start, min(start + block, self.length))]

    def sample(self, index: int) -> Any:
        """Make the sample ``index``."""
        if index % self.block:
            return sample_of(self.schema, index)
        outside = random.getstate(), np.random.get_state(), torch.get_rng_state()
        random.seed(index)
        np.random.seed(index)
        torch.manual_seed(index)
        try:
            return sample_of(self.schema, index)
        finally:
            random.setstate(outside[0])
            np.random.set_state(outside[1])
            torch.set_rng_state(outside[2])

    def make(self, index: int) -> Any:
        visit("fetching")
        return self.sample(index)

    def __iter__(self) -> Iterator[Any]:
        return (self.make(index) for index in self.share())


class StatefulStream(Stream):
    """The same, by an iterator that can say where it is."""

    def __iter__(self) -> Iterator[Any]:
        return Cursor(self.make, self.share())


class Strided(Sampler[int]):
    """A sampler of the user's, with repetitions."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return ((position * 6 + 1) % self.length for position in range(self.length))


class Uneven(Sampler[list[int]]):
    """A batch sampler of the user's: batches of one, two, three, one, … samples."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[list[int]]:
        start, size = 0, 1
        while start < self.length:
            yield list(range(start, min(start + size, self.length)))
            start, size = start + size, size % 3 + 1


def noisy(samples: Any) -> Any:
    """A ``collate_fn`` that draws from the generators, too."""
    return {"samples": samples, "noise": (torch.rand(2), random.random(), np.random.random())}
