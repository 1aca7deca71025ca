"""Messages: one size for all, and nothing lost on the way."""

from __future__ import annotations

import select
from typing import Any, get_args

import pytest

from lit_loader.transport.messages import SIZE, Message, pack, unpack, unpack_all

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


def test_the_size_is_atomic_in_a_pipe() -> None:
    # POSIX's lower bound of PIPE_BUF, and a divisor of the capacity of every pipe, so that a
    # write goes in as a whole or not at all.
    assert SIZE <= select.PIPE_BUF
    assert 4096 % SIZE == 0
