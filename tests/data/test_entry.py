"""A sample as bytes and back: equal in all that it is, and the reader's own."""

import copy
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader import CachedDataset
from lit_loader.data import cache_entry as entry
from lit_loader.data.cache_entry import MISSING, UNIT, pack, seal, unpack, whole
from tests.data.data import equal
from tests.support.samples import Call

Pair = namedtuple("Pair", "left right")
SHARED = torch.arange(6.0)

SAMPLES: list[Any] = [
    (1, 2.5, "three", b"four", None, True, 5j, -(10**30), np.float32(1.5), np.int64(3)),
    (torch.full((3, 8, 8), 7, dtype=torch.uint8), 3),
    {"x": np.arange(5.0), "y": torch.zeros(()), "name": "a\udcff", 1: torch.ones(1)},
    None,
    (),
    {"x": torch.empty(0, 3), "y": np.empty((2, 0)), "z": np.zeros((), np.int16)},
    {"boxes": [{"at": torch.ones(4), "class": 1}], "size": (3, 4)},
    Pair(torch.ones(2), OrderedDict(a=np.ones(3))),
    [np.array(["ab", "c"]), np.arange(4, dtype=">i4"), np.zeros(3, [("x", "f4"), ("y", "i8")])],
    [torch.arange(12).reshape(3, 4).T, np.asfortranarray(np.arange(6.0).reshape(2, 3))],
    torch.arange(100_000).to(torch.bfloat16),
]


def test_back_again() -> None:
    made = Call(lambda index: copy.deepcopy(SAMPLES[index]), len(SAMPLES))
    cached: Any = CachedDataset(made, "2 MB")
    for _ in range(3):
        samples = [cached[index] for index in range(len(SAMPLES))]
        assert all(map(equal, samples, SAMPLES))
        for sample in samples[1][0], samples[6]["boxes"][0]["at"], samples[9][0]:
            sample.fill_(99)  # what is read is the reader's own
    assert cached.figures()[:2] == (2 * len(SAMPLES), len(SAMPLES))


@pytest.mark.parametrize(
    "sample",
    [(SHARED, SHARED), (SHARED[:4], SHARED[2:]), {"a": SHARED.numpy(), "b": SHARED}],
    ids=range(3),
)
def test_one_object_stays_one_and_parts_that_overlap_come_apart(sample: Any) -> None:
    again = unpack(0, pack(0, sample))
    assert equal(again, sample)
    one, other = again.values() if isinstance(again, dict) else again
    other[...] = 50
    assert (50 in one) == (one is other) == (type(sample) is tuple and sample[0] is sample[1])


def test_any_change_is_found() -> None:
    written = pack(3, SAMPLES[1])
    seal(written)
    assert len(written) % UNIT == 0 and whole(written)
    assert equal(unpack(3, written), SAMPLES[1]) and unpack(4, written) is MISSING
    for byte in [*range(entry._HEADER.size), *range(UNIT, len(written), 5)]:
        damaged = written.copy()
        damaged[byte] ^= 0x10
        assert not whole(damaged), byte
    for end in range(0, len(written), UNIT):
        assert not whole(written[:end])
        torn = written.copy()
        torn[end:] = 0
        assert not whole(torn)
