"""Messages: one size for all, and nothing lost on the way."""

from __future__ import annotations

import select
from typing import Any, get_args

import numpy as np
import pytest
import torch

from lit_loader.transport.messages import (
    SIZE,
    Message,
    Task,
    pack,
    pack_indices,
    unpack,
    unpack_all,
    unpack_indices,
)

LARGEST = {"seed": 2**64 - 1, "token": 2**64 - 1, "worker": 2**16 - 1, "status": 3}
KINDS = get_args(Message)


def example(kind: type[Any], small: bool) -> Any:
    """A message of this kind with small values, or with the largest."""
    fields = kind._fields
    if small:
        return kind(*range(len(fields)))
    return kind(*(LARGEST.get(name, 2**63 - 1) for name in fields))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("small", [True, False], ids=["small", "largest"])
def test_round_trip(kind: type[Any], small: bool) -> None:
    message = example(kind, small)
    data = pack(message)
    assert len(data) == SIZE
    again = unpack(data)
    assert type(again) is kind
    assert again == message


def test_a_message_in_the_midst_of_others() -> None:
    messages = [example(kind, small=True) for kind in KINDS]
    data = b"".join(pack(message) for message in messages)
    assert unpack_all(data) == messages


def test_negative_values() -> None:
    task = Task(1, -1, -2, 0, 0, 0, 0, 0)
    assert unpack(pack(task)) == task


def test_the_size_is_atomic_in_a_pipe() -> None:
    # POSIX's lower bound of PIPE_BUF, and a divisor of the capacity of every pipe, so that a
    # write goes in as a whole or not at all.
    assert SIZE <= select.PIPE_BUF
    assert 4096 % SIZE == 0


def packed(indices: Any) -> Any:
    return pack_indices(indices)


@pytest.mark.parametrize(
    "indices",
    [
        [3, 1, 2],
        [-1, 0, 2**63 - 1, -(2**63)],
        [2**63, 1],
        [10**40],
        [],
        [True, False],
        [1, True],
        ["a", "b"],
        [(0, 1), (2, 3)],
        (1, 2),
        7,
        "word",
        {"x": [1]},
        [None],
        range(3),
    ],
    ids=repr,
)
def test_indices_keep_value_and_type(indices: Any) -> None:
    again = unpack_indices(packed(indices))
    assert again == indices
    assert type(again) is type(indices)
    if isinstance(indices, list):
        assert [type(index) for index in again] == [type(index) for index in indices]


def test_indices_of_numpy_and_torch() -> None:
    numbers = unpack_indices(packed([np.int64(5), np.int32(6)]))
    assert [type(number) for number in numbers] == [np.int64, np.int32]
    assert torch.equal(unpack_indices(packed(torch.arange(3))), torch.arange(3))
