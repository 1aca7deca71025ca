"""What the error of a sample says: which sample it was, how often it was tried, what to do."""

import sys
from dataclasses import dataclass
from typing import Any

import pytest

from lit_loader import DataLoader, Retry
from tests.support.samples import Call, Counting

WORKERS = pytest.mark.parametrize("num_workers", [0, 2])

needs_notes = pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")


def bad_at_9(index: int) -> int:
    if index == 9:
        raise ValueError("cannot read")
    return index


def told(loader: DataLoader[Any]) -> str:
    """The first exception's text, on one line for each of its parts; the loader has others."""
    with pytest.raises((ValueError, OSError, TypeError)) as caught:
        list(loader)
    lines = [*str(caught.value).splitlines(), *getattr(caught.value, "__notes__", ())]
    if loader.num_workers:
        [line] = [line for line in lines if line.startswith("in worker")]
        return line.partition("), ")[2]
    assert len(lines) == 2
    return lines[1].removeprefix("in ")


def refuse_9(samples: list[int]) -> list[int]:
    if 9 in samples:
        raise TypeError("not a nine")
    return samples


class Together(Call):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


MANY = f"batch 0, indices [{', '.join(map(str, range(32)))}, … 40 in all]"
NINE = "batch 2, at index 9 (sample 1 of 4), indices [8, 9, 10, 11]"


@needs_notes
@WORKERS
@pytest.mark.parametrize(
    ("dataset", "options", "expected"),
    [
        (Call(bad_at_9, 12), {}, NINE),
        (Call(bad_at_9, 12), {"sample_retries": 1}, NINE),
        (Together(bad_at_9, 12), {"seeding": "sample"}, NINE),
        (Together(bad_at_9, 12), {}, "batch 2, indices [8, 9, 10, 11]"),
        (Call(int, 12), {"collate_fn": refuse_9}, "batch 2, indices [8, 9, 10, 11]"),
        (Call(bad_at_9, 12), {"batch_size": None}, "batch 9, index 9"),
        (Call(float), {"batch_size": None, "sampler": ["a"]}, "batch 0, index 'a'"),
        (Call(int, 40), {"collate_fn": refuse_9, "batch_size": 40}, MANY),
    ],
    ids=["alone", "tolerant", "one by one", "together", "collated", "unbatched", "key", "many"],
)
def test_the_sample_is_named(dataset: Any, options: Any, expected: str, num_workers: int) -> None:
    assert told(DataLoader(dataset, num_workers=num_workers, **{"batch_size": 4, **options})) == (
        expected
    )


@needs_notes
@pytest.mark.parametrize(
    ("num_workers", "shards", "expected"),
    [
        (0, None, "batch 2, at sample 1, an iterable dataset's next samples"),
        (2, None, "batch 3, at sample 0, the next samples of shard 1 of 2"),
        (0, 2, "batch 3, at sample 0, the next samples of shard 1 of 2"),
        (1, 2, "batch 3, at sample 0, the next samples of shard 1 of 2"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"sample_retries": 1}], ids=["plain", "tolerant"])
def test_an_iterables_sample_is_counted(
    num_workers: int, shards: int | None, expected: str, options: Any
) -> None:
    # Of two workers the second gives 1, 3, 5, 7 and 9, in batches 1 and 3.
    dataset = Counting(12, bad_at_9)
    loader = DataLoader(dataset, 4, num_workers=num_workers, num_shards=shards, **options)
    assert told(loader) == expected


@needs_notes
def test_an_exception_that_takes_no_note_comes_as_it_is() -> None:
    @dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    def fail(index: int) -> None:
        raise Frozen(index)

    for options in ({}, {"sample_retries": Retry(2, 0, [Frozen])}):
        with pytest.raises(Frozen) as caught:
            next(iter(DataLoader(Call(fail), **options)))
        assert caught.value.code == 0


# --- retries ---


def always(index: int) -> None:
    raise OSError("gone")


class Changing:
    """Fails with an error that may pass, then with one that does not."""

    def __init__(self) -> None:
        self.errors: list[Exception] = [OSError("busy"), OSError("busy"), ValueError("broken")]

    def __call__(self, index: int) -> None:
        raise self.errors.pop(0)


@needs_notes
@WORKERS
@pytest.mark.parametrize(
    ("sample", "kind", "expected"),
    [
        (always, OSError, "this sample was tried 5 times, sample_retries=4"),
        (Changing(), ValueError, "this sample was tried 3 times, sample_retries=4"),
    ],
    ids=["always", "changing"],
)
def test_retries_are_told(
    sample: Any, kind: type[Exception], expected: str, num_workers: int
) -> None:
    if isinstance(sample, Changing):
        sample = Changing()
    # One sample: a worker that reads another one before it has a list without errors.
    loader = DataLoader(
        Call(sample, 1), num_workers=num_workers, sample_retries=Retry(4, 0)
    )  # fmt: skip
    with pytest.raises(kind) as caught:
        next(iter(loader))
    notes = getattr(caught.value, "__notes__", ())
    assert expected in f"{caught.value}\n{caught.value.__cause__}\n{' '.join(notes)}"
