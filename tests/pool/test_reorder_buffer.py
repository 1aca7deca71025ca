"""The in-order window, for itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lit_loader.pool.reorder_buffer import ReorderBuffer


def drain(window: ReorderBuffer[str]) -> list[int]:
    numbers = []
    while (entry := window.pop()) is not None:
        assert entry[1] == f"item {entry[0]}"
        numbers.append(entry[0])
    return numbers


def window_of(*numbers: int, in_order: bool = True) -> ReorderBuffer[str]:
    window: ReorderBuffer[str] = ReorderBuffer(in_order)
    for number in numbers:
        window.expect(number)
    return window


def test_empty() -> None:
    window = window_of(0)
    assert window.pop() is None
    assert len(window) == 0


def test_holds_back_until_those_before_are_out() -> None:
    window = window_of(0, 1, 2)
    window.put(2, "item 2")
    window.put(1, "item 1")
    assert window.pop() is None
    assert len(window) == 2
    window.put(0, "item 0")
    assert drain(window) == [0, 1, 2]


def test_numbers_with_gaps_and_no_order_of_their_own() -> None:
    window = window_of(7, 3, 12)
    for number in (3, 12, 7):
        window.put(number, f"item {number}")
    assert drain(window) == [7, 3, 12]


def test_out_of_order_gives_as_it_comes() -> None:
    window = window_of(0, 1, 2, in_order=False)
    window.put(2, "item 2")
    assert drain(window) == [2]
    window.put(1, "item 1")
    window.put(0, "item 0")
    assert drain(window) == [1, 0]


def test_restart_keeps_what_has_come_in_and_names_what_has_not() -> None:
    window = window_of(0, 1, 2, 3)
    window.put(2, "item 2")
    window.put(0, "item 0")
    assert window.restart([1, 2, 3]) == [1, 3]
    assert len(window) == 1  # item 0 is forgotten
    window.put(3, "item 3")
    window.put(1, "item 1")
    assert drain(window) == [1, 2, 3]


def test_restart_with_nothing() -> None:
    window = window_of(0, 1)
    window.put(0, "item 0")
    assert window.restart([]) == []
    assert window.pop() is None


@given(st.permutations(range(12)), st.integers(1, 12))
def test_whatever_the_order_of_arrival(arrival: list[int], chunk: int) -> None:
    window = window_of(*range(12))
    out = []
    for start in range(0, 12, chunk):
        for number in arrival[start : start + chunk]:
            window.put(number, f"item {number}")
        out += drain(window)
    assert out == list(range(12))
    assert len(window) == 0
