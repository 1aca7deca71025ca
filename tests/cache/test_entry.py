"""A sample as bytes and back: equal in all that it is, and the reader's own."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader.data import cache_entry as entry
from lit_loader.data.cache_entry import MISSING, UNIT, pack, seal, unpack, whole
from tests.cache.data import equal

Pair = namedtuple("Pair", "left right")
SHARED = torch.arange(6.0)

SAMPLES: dict[str, Any] = {
    "tensor": torch.arange(12).reshape(3, 4),
    "scalars": (1, 2.5, "three", b"four", None, True, 5j, -(10**30)),
    "image and label": (torch.full((3, 8, 8), 7, dtype=torch.uint8), 3),
    "dict": {"x": np.arange(5.0), "y": torch.zeros(()), "name": "a\udcff"},
    "list": [torch.ones(2), np.zeros((), np.int16)],
    "none": None,
    "nothing": (),
    "empty": {"x": torch.empty(0, 3), "y": np.empty((2, 0))},
    "nested": {"boxes": [{"at": torch.ones(4), "class": 1}], "size": (3, 4)},
    "named": Pair(torch.ones(2), np.ones(3)),
    "ordered": OrderedDict(a=torch.ones(1)),
    "strings": np.array(["ab", "c"]),
    "foreign bytes": np.arange(4, dtype=">i4"),
    "records": np.zeros(3, [("x", "f4"), ("y", "i8")]),
    "strided": torch.arange(12).reshape(3, 4).T,
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "numbers of numpy": (np.float32(1.5), np.int64(3)),
    "large": torch.arange(100_000),
    "keys": {1: torch.ones(1), "b": 2},
}


def read(index: int, written: Any) -> Any:
    return unpack(index, written.copy())


@pytest.mark.parametrize("name", SAMPLES)
def test_back_again(name: str) -> None:
    written = pack(7, SAMPLES[name])
    assert len(written) % UNIT == 0
    assert equal(read(7, written), SAMPLES[name])
    assert read(8, written) is MISSING


@pytest.mark.parametrize("name", ["image and label", "nested", "strided"])
def test_what_is_read_is_the_readers_own(name: str) -> None:
    written = pack(0, SAMPLES[name])
    before = written.tobytes()

    def write(value: Any) -> None:
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            for each in value:
                write(each)
        elif isinstance(value, torch.Tensor):
            value.fill_(99)

    write(read(0, written))
    assert written.tobytes() == before
    assert equal(read(0, written), SAMPLES[name])


@pytest.mark.parametrize(
    "sample",
    [
        (SHARED, SHARED),
        (SHARED[:4], SHARED[2:]),
        {"a": SHARED.numpy(), "b": SHARED},
    ],
    ids=range(3),
)
def test_parts_that_share_memory_share_it_again(sample: Any) -> None:
    again = read(0, pack(0, sample))
    assert equal(again, sample)
    one, other = again.values() if isinstance(again, dict) else again
    other[...] = 50
    assert 50 in one


def test_any_change_is_found() -> None:
    written = pack(3, SAMPLES["image and label"])
    seal(written)
    assert whole(written)
    assert equal(read(3, written), SAMPLES["image and label"])
    for byte in range(entry._HEADER.size):
        damaged = written.copy()
        damaged[byte] ^= 1
        assert not whole(damaged), byte
    for byte in range(UNIT, len(written), 5):
        damaged = written.copy()
        damaged[byte] ^= 0x10
        assert not whole(damaged), byte
    for end in range(0, len(written), UNIT):
        assert not whole(written[:end])
        torn = written.copy()
        torn[end:] = 0
        assert not whole(torn)
