"""Messages: one size for all, and nothing lost on the way."""

import select
from typing import Any, get_args

from lit_loader.transport.messages import SIZE, Message, pack, unpack, unpack_all

LARGEST = {"seed": 2**64 - 1, "token": 2**64 - 1, "worker": 2**16 - 1, "status": 3}


def test_round_trip() -> None:
    """Of small values and of the largest, alone and in the midst of others."""
    messages: list[Any] = []
    for kind in get_args(Message):
        fields = kind._fields
        messages.append(kind(*range(len(fields))))
        messages.append(kind(*(LARGEST.get(name, 2**63 - 1) for name in fields)))
    packed = [pack(message) for message in messages]
    assert {len(data) for data in packed} == {SIZE}
    for found in (list(map(unpack, packed)), unpack_all(b"".join(packed))):
        assert [*map(type, found)] == [*map(type, messages)]
        assert found == messages


def test_the_size_is_atomic_in_a_pipe() -> None:
    # POSIX's lower bound of PIPE_BUF, and a divisor of the capacity of every pipe, so that a
    # write goes in as a whole or not at all.
    assert SIZE <= select.PIPE_BUF
    assert 4096 % SIZE == 0
