"""Bad samples: retried, skipped, replaced, counted, written down; what is none is raised."""

import itertools
import pickle
import random
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

import lit_loader
from lit_loader import DataLoader, OptionError, Retry, SampleError, SampleErrorsError
from lit_loader.data import bad_samples
from lit_loader.data.bad_samples import MAX_BACKOFF, MAX_IN_A_ROW
from lit_loader.data.sample_errors import KEPT_ERRORS, NOT_REPLACED
from tests.support.bad_data import BAD, CannotRead, Choosy, Stream
from tests.support.exact import noisy_collate
from tests.support.samples import Call, OfLength, Rows, ints
from tests.support.tools import Gate

NOTES = sys.version_info >= (3, 11)
"""Whether exceptions have notes."""


class Together(Choosy):
    """Asked for whole batches; notes what it was asked for."""

    def __init__(self, bad: Iterable[int] = BAD) -> None:
        super().__init__(bad)
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        self.asked.append(list(indices))
        return [self[index] for index in indices]


class Generated(Stream):
    """Read through a generator, which its first exception finishes."""

    def __iter__(self) -> Iterator[int]:
        for number in range(self.length):
            yield self.item(number)


class Hidden(Generated):
    """That generator, within an iterator."""

    def __iter__(self) -> Iterator[int]:
        return map(int, super().__iter__())


def fail_on_bad(index: int) -> int:
    if index in BAD:
        raise CannotRead(f"no sample {index}")
    return index


def fail_on_odd(index: int) -> int:
    if index % 2:
        raise CannotRead(f"no sample {index}")
    return index


def fail_always(index: Any) -> int:
    raise CannotRead(f"no sample {index}")


def stop(index: int) -> int:
    if index == 1:
        raise StopIteration("stopped")
    return index


def broken_collate(samples: Any) -> None:
    raise CannotRead("collate")


def broken_sampler() -> Iterator[int]:
    yield 0
    raise CannotRead("sampler")


def rows(batches: Iterable[Tensor]) -> list[list[float]]:
    return [row for batch in batches for row in batch.tolist()]


def indices(batches: Iterable[Tensor]) -> list[list[int]]:
    return [batch[:, 0].to(int).tolist() for batch in batches]


# --- skip ---

GIVEN: dict[str, tuple[Any, dict[str, Any], list[Any]]] = {
    "a shorter batch": (
        Call(fail_on_bad, 15), {"batch_size": 4},
        [[0, 1, 2], [4, 5, 6], [10, 11], [12, 13, 14]],
    ),
    "no batch": (Call(fail_on_odd, 8), {"sampler": [1, 3, 0, 2, 5, 7], "batch_size": 2}, [[0, 2]]),
    "no sample": (Call(fail_on_odd, 6), {"batch_size": None}, [0, 2, 4]),
    "an empty batch of the sampler's": (
        Rows(), {"batch_sampler": [[0], [], [1]], "collate_fn": len}, [1, 0, 1],
    ),
    "any other exception, IndexError": (Call([0, 1, 2].__getitem__, 6), {}, [[0], [1], [2]]),
    "any other exception, StopIteration": (Call(stop, 6), {}, [[0], [2], [3], [4], [5]]),
}  # fmt: skip


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_yielded(name: str, workers: int) -> None:
    dataset, options, expected = GIVEN[name]
    with DataLoader(dataset, num_workers=workers, on_sample_error="skip", **options) as loader:
        found = [batch.tolist() if isinstance(batch, Tensor) else batch for batch in loader]
        assert found == expected and len(loader) >= len(found)  # an upper bound


@pytest.mark.parametrize("dataset", [Call(fail_always, 14), Stream(bad=range(14))])
def test_an_epoch_of_bad_samples_is_an_error(dataset: Any, workers: int) -> None:
    with DataLoader(dataset, 4, num_workers=workers, on_sample_error="skip") as loader:
        for epoch in range(2):
            iterator = iter(loader)
            with pytest.raises(SampleErrorsError) as caught:
                next(iterator)
            assert f"no sample of epoch {epoch} could be read (14 bad samples)" in str(caught.value)
            assert "LL211" in str(caught.value) and "\n" not in str(caught.value)
            assert list(iterator) == []
        assert loader.statistics().sample_errors == 28


@pytest.mark.parametrize(
    ("dataset", "seeding"), [(Choosy, "batch"), (Choosy, "sample"), (Together, "sample")]
)
def test_a_skipped_sample_has_drawn_nothing(dataset: Any, seeding: str) -> None:
    options: dict[str, Any] = {"collate_fn": noisy_collate, "seed": 5, "seeding": seeding}
    batches = [list(range(first, first + 5)) for first in range(0, 25, 5)]
    options |= {"batch_sampler": batches, "on_sample_error": "skip"}
    clean = rows(DataLoader(dataset(bad=()), **options))
    assert rows(DataLoader(dataset(), **options)) == [row for row in clean if row[0] not in BAD]


# --- replace ---


def replaced(**options: Any) -> list[int]:
    """All indices of an epoch in which bad samples are replaced."""
    options = {"shuffle": True, "seed": 11, "on_sample_error": "replace"} | options
    with DataLoader(Choosy(), **options) as loader:
        batches = [batch if batch.ndim > 1 else batch[None] for batch in loader]
        return [index for batch in indices(batches) for index in batch]


def test_replacements_do_not_depend_on_who_makes_the_batch(workers: int) -> None:
    once = replaced(batch_size=4)
    assert len(once) == 26 and not set(BAD) & set(once)
    assert once == replaced(batch_size=7, num_workers=workers)
    assert once == replaced(batch_size=None, num_workers=workers)
    assert once == replaced(batch_size=4, seeding="sample")
    shards = [replaced(batch_size=3, num_replicas=2, rank=rank) for rank in range(2)]
    assert once == [index for pair in zip(*shards, strict=True) for index in pair]


def test_under_a_users_sampler_only_what_it_has_chosen_is_yielded(workers: int) -> None:
    chosen = [1, 0, 2, 3, 1, 5, 6, 4, 1, 8, 7, 8]
    options: dict[str, Any] = {"num_workers": workers, "on_sample_error": "replace", "seed": 2}
    with DataLoader(Call(fail_on_odd, 30), 4, sampler=chosen, **options) as loader:
        batches = [batch.tolist() for batch in loader]
    for first, batch in zip(range(0, 12, 4), batches, strict=True):
        asked = chosen[first : first + 4]
        assert len(batch) == 4 and {*batch} <= {*asked}
        assert not any(number % 2 for number in batch)
    lists = [[0, 1, 2], [3, 5], [7, 4]]
    with DataLoader(Call(fail_on_odd, 30), batch_sampler=lists, **options) as loader:
        first_batch, *others = (batch.tolist() for batch in loader)
    assert first_batch in ([0, 0, 2], [0, 2, 2])
    assert others == [[4, 4]]  # [3, 5]: nothing good is left of it


def test_a_sample_without_a_replacement_is_an_error_at_once(workers: int) -> None:
    options: dict[str, Any] = {"on_sample_error": "replace", "num_workers": workers, "seed": 1}
    for batch_size in (60, None):
        with DataLoader(Call(fail_always, 300), batch_size, **options) as loader:
            iterator = iter(loader)
            for bad in (batch_size or 1, 2 * (batch_size or 1)):
                with pytest.raises(SampleErrorsError, match=rf"\({bad} bad samples.*LL211"):
                    next(iterator)
            assert iterator.sample_errors.errors[-1].action in ("skipped", NOT_REPLACED)


def test_an_iterable_dataset_has_no_replacements() -> None:
    with pytest.raises(OptionError, match="on_sample_error='replace' does not apply to an Iter"):
        DataLoader(Stream(), on_sample_error="replace")


def test_getitems_is_called_once_and_then_for_single_indices() -> None:
    dataset = Together(bad=[1])
    loader = DataLoader(dataset, batch_size=3, on_sample_error="skip")
    assert indices(itertools.islice(loader, 2)) == [[0, 2], [3, 4, 5]]
    assert dataset.asked == [[0, 1, 2], [0], [1], [2], [3, 4, 5]]
    dataset = Together(bad=[1])
    loader = DataLoader(dataset, batch_size=2, on_sample_error="replace", seeding="sample", seed=0)
    [[first, replacement]] = indices(itertools.islice(loader, 1))
    assert (first, dataset.asked) == (0, [[0], [1], [replacement]])


# --- iterable datasets ---


def test_an_iterator_is_asked_again(workers: int) -> None:
    expected = [[0, 1, 2, 4], [5, 6, 10, 11], [12, 13]]
    if workers:  # of the even and of the odd numbers each
        expected = [[0, 2, 4, 6], [1, 5, 11, 13], [10, 12]]
    with DataLoader(Stream(), 4, num_workers=workers, on_sample_error="skip") as loader:
        assert [batch.tolist() for batch in loader] == expected


@pytest.mark.parametrize("options", [{"on_sample_error": "skip"}, {}])
@pytest.mark.parametrize("dataset", [Generated, Hidden])
def test_a_finished_generator_is_not_the_end_of_the_data(dataset: Any, options: Any) -> None:
    loader = DataLoader(dataset(), 2, sample_retries=Retry(2, 0, [CannotRead]), **options)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(CannotRead, match="^no sample 3") as caught:
        next(iterator)
    if NOTES:
        note, place = caught.value.__notes__
        assert "LL210" in note
        assert place == "in batch 1, at sample 1, an iterable dataset's next samples"
    loader = DataLoader(dataset(), 2, sample_retries=2)  # by which this error is not retried
    with pytest.raises(CannotRead) as caught:
        list(loader)
    assert not any("generator" in note for note in getattr(caught.value, "__notes__", ()))
    assert ints(DataLoader(dataset(bad=()), 4, on_sample_error="skip")) == list(range(14))


def test_there_is_an_end_of_skipping_in_a_row() -> None:
    dataset = Stream(bad=range(1, 10_000), length=10_000)
    iterator = iter(DataLoader(dataset, 1, on_sample_error="skip"))
    assert next(iterator).tolist() == [0]
    with pytest.raises(CannotRead, match=f"^no sample {MAX_IN_A_ROW}"):
        next(iterator)


# --- what is no bad sample ---


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_only_reading_a_sample_can_be_bad(policy: str, workers: int) -> None:
    options: dict[str, Any] = {"on_sample_error": policy, "num_workers": workers}
    with (
        DataLoader(Rows(), collate_fn=broken_collate, **options) as loader,
        pytest.raises(CannotRead, match="^collate"),
    ):
        next(iter(loader))
    with DataLoader(Rows(), sampler=broken_sampler(), **options) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(CannotRead, match="^sampler"):
            next(iterator)


# --- the limit ---


def test_the_limit_may_be_reached(workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers, "on_sample_error": "skip"}
    for limit in (len(BAD), None):
        with DataLoader(Choosy(), 4, max_sample_errors=limit, **options) as loader:
            for _ in range(2):  # each epoch has its own count
                iterator = iter(loader)
                assert sum(map(len, iterator)) == 26 - len(BAD)
                assert iterator.sample_errors.count == len(BAD)


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_beyond_the_limit_all_are_listed(policy: str, workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers, "on_sample_error": policy, "seed": 1}
    with DataLoader(Choosy(), 2, max_sample_errors=1, **options) as loader:
        iterator = iter(loader)
        assert [len(next(iterator)) for _ in range(3)] == [2, 2 if policy == "replace" else 1, 2]
        with pytest.raises(SampleErrorsError) as caught:
            next(iterator)
        head, *lines = str(caught.value).split("\n")
        assert "2 bad samples in an epoch; max_sample_errors=1" in head and "LL211" in head
        assert [error.index for error in caught.value.errors] == [3, 7]
        assert lines == [f"  {error}" for error in caught.value.errors]
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (str(copy), copy.errors) == (str(caught.value), caught.value.errors)
        with pytest.raises(SampleErrorsError, match="[34] bad"):  # the batch that failed is past
            next(iterator)
        assert len(next(iterator)) == 2


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_nothing_is_read_beyond_the_limit_within_a_batch(policy: str) -> None:
    read = []

    def fail(index: int) -> None:
        read.append(index)
        fail_always(index)

    iterator = iter(DataLoader(Call(fail, 300), 60, on_sample_error=policy, max_sample_errors=3))
    with pytest.raises(SampleErrorsError, match=r"4 bad .*; max_sample_errors=3 .*LL211"):
        next(iterator)
    assert read == [0, 1, 2, 3]


def test_a_streams_limit_stops_within_a_batch(workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers, "on_sample_error": "skip"}
    stream = Stream(bad=range(1, 10_000), length=10_000)
    with DataLoader(stream, 4, max_sample_errors=3, **options) as loader:
        iterator = iter(loader)
        with pytest.raises(SampleErrorsError, match="4 bad .* max_sample_errors=3"):
            next(iterator)
        assert iterator.sample_errors.count == 4


# --- what is written down ---


def test_an_error_is_written_down(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"num_workers": workers, "on_sample_error": "replace", "seed": 1}
    with DataLoader(Choosy(), 4, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        [first] = iterator.sample_errors.errors
    assert type(first) is SampleError and pickle.loads(pickle.dumps(first)) == first
    assert (first.index, first.position, first.retries) == (3, 3, 0)
    assert (first.kind, first.message) == (f"{CannotRead.__module__}.CannotRead", "no sample 3")
    assert first.action.startswith("replaced by ")
    assert "bad_data.py" in first.trace and "fetch.py" not in first.trace
    assert caplog.messages == [f"bad sample in batch 0, {first}"]
    assert str(first) == (
        f"index 3 (position 3 of its batch): {CannotRead.__module__}.CannotRead: no sample 3; "
        f"{first.action}; {first.trace}"
    )


def test_each_is_counted_and_logged_once(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    """Of very many, the first ones alone."""
    options: dict[str, Any] = {"num_workers": workers, "on_sample_error": "replace", "seed": 1}
    with DataLoader(Choosy(range(1, 400, 2), 400), 4, **options) as loader:
        iterator = iter(loader)
        assert sum(map(len, iterator)) == 400
        assert iterator.sample_errors.count == loader.statistics().sample_errors == 200
    *lines, last = caplog.messages
    assert last == "further bad samples of this epoch are counted, and not logged"
    named = [line.partition("index ")[2].split()[0] for line in lines]
    assert len(named) == len(set(named)) == KEPT_ERRORS


# --- retry ---


class Flaky(OfLength):
    """Draws, and fails ``times`` times on each of some, having drawn one value more."""

    length = 14

    def __init__(self, times: int = 2) -> None:
        self.numpy, self.torch = np.random.default_rng(3), torch.Generator()
        self.left = dict.fromkeys((0, 3, 4, 11), times)

    def draws(self) -> list[float]:
        normal = float(torch.rand((), generator=self.torch, dtype=torch.float64))
        return [random.gauss(0, 1), np.random.normal(), self.numpy.random(dtype=np.float32), normal]

    def __getitem__(self, index: int) -> Tensor:
        drawn = self.draws()
        if self.left.get(index, 0):
            self.left[index] -= 1
            self.draws()
            raise OSError(f"no sample {index} yet")
        return torch.tensor([index, *drawn], dtype=torch.float64)


class FlakyTogether(Flaky):
    """Asked for whole batches."""

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [self[index] for index in indices]


class FlakyStream(IterableDataset[Tensor]):
    """The same, iterated; its iterator is where it was after an exception."""

    def __init__(self, times: int = 2) -> None:
        self.samples = Flaky(times)

    def __iter__(self) -> Iterator[Tensor]:
        self.place, self.step = lit_loader.get_shard()
        return self

    def __next__(self) -> Tensor:
        if self.place >= 14:
            raise StopIteration
        sample = self.samples[self.place]
        self.place += self.step
        return sample


def two_epochs(dataset: Any, workers: int, retries: int = 0, **options: Any) -> tuple[Any, int]:
    """What two epochs yield, and how often samples of the first were read again."""
    with DataLoader(
        dataset, 4, num_workers=workers, persistent_workers=workers > 0, seed=9,
        collate_fn=noisy_collate, sample_retries=Retry(retries, backoff=0), **options,
    ) as loader:  # fmt: skip
        iterators = iter(loader), iter(loader)
        batches = [batch.tolist() for iterator in iterators for batch in iterator]
        return batches, iterators[0].sample_errors.retries


@pytest.mark.parametrize("seeding", ["batch", "sample"])
@pytest.mark.parametrize("kind", [Flaky, FlakyTogether, FlakyStream])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_batches_are_those_of_a_clean_run(
    kind: Any, seeding: str, policy: str, workers: int
) -> None:
    # As many as each sample needs; a batch of several that fail, asked for at once, needs more.
    retries = 4 if kind is FlakyTogether else 2
    options = {"seeding": seeding, "on_sample_error": policy}
    clean, none = two_epochs(kind(times=0), workers, retries, **options)
    retried, times = two_epochs(kind(), workers, retries, **options)
    assert retried == clean and (none, times) == (0, 8)


def test_after_the_last_retry_the_error_counts(workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers, "sample_retries": Retry(2, backoff=0)}
    with (
        DataLoader(Flaky(times=3), 14, **options) as loader,
        pytest.raises(OSError, match="no sample 0 yet"),
    ):
        list(loader)
    with DataLoader(Flaky(times=3), 14, on_sample_error="skip", **options) as loader:
        iterator = iter(loader)
        assert [len(batch) for batch in iterator] == [10]
        errors = iterator.sample_errors.errors
        assert [error.retries for error in errors] == [2] * 4
        assert "no sample 0 yet after 2 retries; skipped; " in str(errors[0])
        assert (iterator.sample_errors.retries, iterator.sample_errors.count) == (8, 4)


@pytest.mark.parametrize(
    ("retry", "tries"),
    [
        (5, 1),
        ({"times": 5, "backoff": 0, "on": ["builtins.LookupError"]}, 6),
        (Retry(2, 0, [KeyError]), 3),
    ],
)
def test_which_errors_are_tried_again(retry: Any, tries: int) -> None:
    read = []

    def fail(index: int) -> None:
        read.append(index)
        raise KeyError(index)

    loader = DataLoader(Call(fail, 1), sample_retries=retry, on_sample_error="skip")
    with pytest.raises(SampleErrorsError):
        next(iter(loader))
    assert read == [0] * tries


def test_the_wait_doubles_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(bad_samples.time, "sleep", slept.append)
    totals = []

    def fail(index: int) -> None:
        totals.append(sum(slept))
        slept.clear()
        raise OSError

    with pytest.raises(SampleErrorsError):
        next(iter(DataLoader(Call(fail, 1), sample_retries=9, on_sample_error="skip")))
    assert totals == pytest.approx([0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0])


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.usefixtures("by_fork")
def test_the_wait_ends_when_the_batch_is_no_longer_wanted(policy: str, gate: Gate) -> None:
    """The worker is there for the next epoch at once."""

    def sample(index: int) -> int:
        if index == 1 and lit_loader.get_epoch() == 0:
            gate.open()
            raise OSError
        return index

    options: Any = {"on_sample_error": policy, "sample_retries": Retry(9, MAX_BACKOFF)}
    with DataLoader(Call(sample, 4), num_workers=1, persistent_workers=True, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        assert gate.wait()
        begun = time.monotonic()
        assert ints(loader) == [0, 1, 2, 3]
        assert time.monotonic() - begun < MAX_BACKOFF
