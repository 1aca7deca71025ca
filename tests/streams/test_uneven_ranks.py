"""``uneven_ranks`` with ``num_shards`` on real ranks: all stop together, whoever has how much.

What each rank is to be given follows from what each reader gives (a loader without ranks says
that), and from a model of the rules, written down here once more.
"""

import functools
import signal
from typing import Any

import pytest

from lit_loader import LoaderError
from tests.support import tail_ranks
from tests.support.exact import digest
from tests.support.ranks import of_ranks
from tests.support.tail_ranks import SHARDS

pytestmark = pytest.mark.timeout(300)  # several ranks, on few processors

Case = tuple[str, str, int, list[tuple[int, int | None]]]


@functools.cache
def by_reader(kind: str) -> list[list[str]]:
    """The digests of each reader's batches."""
    found: list[list[str]] = [[] for _ in range(SHARDS)]
    for batch in tail_ranks.loader(kind, "keep", 0):
        found[int(batch[0, 0])].append(digest(batch[:, 7:-1]))
    return found


class Reader:
    """One reader in the model."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.at = self.laps = 0

    @property
    def own(self) -> int:
        """Batches that it has still to give for the first time."""
        return 0 if self.laps else self.batches - self.at


def turns(readers: list[Reader]) -> list[Reader]:
    """The order in which these readers give one batch each, round by round, to their ends."""
    rounds = range(max((reader.batches for reader in readers), default=0))
    return [reader for turn in rounds for reader in readers if reader.at <= turn < reader.batches]


def stage(readers: list[Reader], tail: str, ranks: int, taken: int | None) -> list[list[Any]]:
    """Let each rank take so many batches; give the readers and the numbers of these."""
    shares = [readers[rank::ranks] for rank in range(ranks)]
    own = [sum(reader.own for reader in share) for share in shares]
    counts = [max(own)] * ranks if tail == "pad" else own
    given: list[list[Any]] = []
    for share, count in zip(shares, counts, strict=True):
        count = count if taken is None else min(count, taken)
        mine: list[Any] = []
        order = turns([reader for reader in share if not reader.laps])
        while len(mine) < count:
            if not order:
                if all(reader.at == reader.batches for reader in share):
                    for reader in share:
                        reader.at, reader.laps = 0, reader.laps + 1
                order = turns(share)
            reader = order.pop(0)
            mine.append([readers.index(reader), reader.at])
            reader.at += 1
        given.append(mine)
    return given


def expected(kind: str, tail: str, _workers: int, stages: list[tuple[int, int | None]]) -> Any:
    batches = by_reader(kind)
    readers = [Reader(len(each)) for each in batches]
    return [
        [[[reader, batches[reader][at]] for reader, at in mine] for mine in given]
        for given in [stage(readers, tail, ranks, taken) for ranks, taken in stages]
    ]


def check(cases: list[Case], ranks: int) -> None:
    found = of_ranks(ranks, tail_ranks.run, cases)
    for number, each in enumerate(cases):
        for place, (taking, _) in enumerate(each[3]):
            got = [found[rank][number][place] for rank in range(taking)]
            assert got == expected(*each)[place], (each, place)


def test_four_ranks_then_two_then_one() -> None:
    check(
        [
            ("both", "pad", 1, [(4, 6), (2, 3), (1, None)]),
            ("iterator", "keep", 0, [(4, 1), (2, 1), (1, None)]),
            ("generator", "pad", 0, [(4, None)]),  # some begin again and again
            ("generator", "pad", 0, [(2, None)]),
            ("iterator", "pad", 2, [(2, 14), (2, None)]),
            ("generator", "pad", 1, [(2, 13), (2, None)]),
        ],
        4,
    )


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_is_killed(workers: int) -> None:
    said, code = of_ranks(2, tail_ranks.killed, workers)
    assert "lit_loader: rank 1 did not report" in said and "LL206" in said
    assert code == -signal.SIGKILL


def test_one_process_alone() -> None:
    loader = tail_ranks.loader("generator", "pad", 0, 2)
    with pytest.raises(LoaderError, match="uneven_ranks"):
        next(iter(loader))
