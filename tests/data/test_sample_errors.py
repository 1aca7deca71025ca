"""Bad samples: skipped, replaced, counted, written down; what is none is raised as ever."""

import contextlib
import gc
import itertools
import logging
import pickle
import random
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from torch.utils.data import IterableDataset

from lit_loader import DataLoader
from lit_loader.data.bad_samples import MAX_DRAWS, MAX_IN_A_ROW
from lit_loader.data.sample_errors import KEPT_ERRORS
from lit_loader.errors import OptionError, SampleErrorsError
from tests.support.exact import Augmented, noisy_collate
from tests.support.samples import Call, Counting, Cursor, Rows, ints, share

BAD = (3, 7, 8, 9)


class CannotRead(Exception):
    """What a bad sample raises here."""


class Choosy(Augmented):
    """`Augmented`, of which the samples in ``bad`` raise after having drawn from everything."""

    def __init__(self, bad: Iterable[int] = BAD, length: int = 26) -> None:
        super().__init__(length)
        self.bad = frozenset(bad)
        # Not seeded by the loader where it seeds its workers only.
        self.numpy_rng = np.random.default_rng(1)
        self.python_rng = random.Random(2)
        self.torch_rng.manual_seed(3)

    def __getitem__(self, index: int) -> Tensor:
        sample = super().__getitem__(index)
        if index in self.bad:
            raise CannotRead(f"no sample {index}")
        return sample


class Together(Choosy):
    """Asked for whole batches; notes what it was asked for."""

    def __init__(self, bad: Iterable[int] = BAD) -> None:
        super().__init__(bad)
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        self.asked.append(list(indices))
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """0, 1, 2, ... below ``length``, shared out; its iterator goes on after the bad ones."""

    def __init__(self, bad: Iterable[int] = BAD, length: int = 14) -> None:
        self.bad = frozenset(bad)
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return map(self.item, share(range(self.length)))

    def item(self, number: int) -> int:
        if number in self.bad:
            raise CannotRead(f"no sample {number}")
        return number


class StatefulStream(Stream):
    """Its iterator knows its place."""

    def __iter__(self) -> Iterator[int]:
        return Cursor(self.item, share(range(self.length)))


class Generated(Stream):
    """Read through a generator, which its first exception finishes."""

    def __iter__(self) -> Iterator[int]:
        for number in range(self.length):
            yield self.item(number)


class GeneratedWithin(Generated):
    """That generator, hidden in an iterator."""

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


def unpack(batches: Iterable[Tensor]) -> list[list[float]]:
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
    "no other one of a user's sampler": (
        Call(fail_on_odd, 30),
        {"batch_size": None, "sampler": [1, 2, 3], "on_sample_error": "replace"}, [2],
    ),
    "an empty batch of the sampler's": (
        Rows(), {"batch_sampler": [[0], [], [1]], "collate_fn": len}, [1, 0, 1],
    ),
    "of a sample that is drawn again and again the limit counts one": (
        Call(fail_on_odd, 4),
        {"sampler": [1, 0, 1, 1, 2, 1], "batch_size": 3, "max_sample_errors": 1}, [[0], [2]],
    ),
    "any other exception, IndexError": (Call([0, 1, 2].__getitem__, 6), {}, [[0], [1], [2]]),
    "any other exception, StopIteration": (Call(stop, 6), {}, [[0], [2], [3], [4], [5]]),
}  # fmt: skip


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_given(name: str, workers: int) -> None:
    dataset, options, expected = GIVEN[name]
    options = {"on_sample_error": "skip", **options}
    with DataLoader(dataset, num_workers=workers, **options) as loader:
        found = [batch.tolist() if isinstance(batch, Tensor) else batch for batch in loader]
        assert found == expected
        assert len(loader) >= len(found)  # an upper bound


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_of_bad_samples_is_an_error(workers: int, persistent: bool) -> None:
    with DataLoader(
        Call(fail_always, 300), batch_size=4, num_workers=workers, on_sample_error="skip",
        persistent_workers=persistent and workers > 0,
    ) as loader:  # fmt: skip
        for epoch in range(2):
            iterator = iter(loader)
            with pytest.raises(SampleErrorsError) as caught:
                next(iterator)
            assert str(caught.value).startswith(
                f"lit_loader: no sample of epoch {epoch} could be read (300 bad samples): fix what "
                "they have in common, or set on_sample_error='raise' to see the traceback [LL212]; "
                f"the first is index 0 (position 0 of its batch): {__name__}.CannotRead: no "
                "sample 0; skipped; "
            )
            assert "\n" not in str(caught.value)
            assert list(iterator) == []
        assert loader.statistics().sample_errors == 600


@pytest.mark.parametrize("batch_size", [3, None])
def test_so_is_a_stream_of_bad_samples(workers: int, batch_size: int | None) -> None:
    expected = "^lit_loader: no sample of epoch 0 could be read .14 bad samples"
    with (
        DataLoader(
            Stream(bad=range(14)), batch_size, num_workers=workers, on_sample_error="skip"
        ) as loader,
        pytest.raises(SampleErrorsError, match=expected),
    ):
        list(loader)


def test_an_empty_epoch_and_the_rest_of_one_are_none(workers: int) -> None:
    options: dict[str, Any] = {"num_workers": workers, "on_sample_error": "skip"}
    with DataLoader(Call(fail_always, 0), **options) as loader:
        assert list(loader) == []
    rest = Call(lambda index: index if index < 3 else fail_always(index), 7)
    with DataLoader(rest, **options) as loader:
        iterator = iter(loader)
        assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
        state = loader.state_dict()
        assert list(iterator) == []
    with DataLoader(rest, **options) as loader:
        loader.load_state_dict(state)
        assert list(loader) == []


@pytest.mark.parametrize("seeding", ["batch", "sample", "worker"])
@pytest.mark.parametrize("dataset", [Choosy, Together])
def test_a_skipped_sample_has_drawn_nothing(dataset: Any, seeding: str) -> None:
    options: dict[str, Any] = {"collate_fn": noisy_collate, "seed": 5, "seeding": seeding}
    batches = [list(range(first, first + 5)) for first in range(0, 25, 5)]
    good = [[index for index in batch if index not in BAD] for batch in batches]
    left = DataLoader(dataset(), batch_sampler=batches, on_sample_error="skip", **options)
    asked = DataLoader(dataset(bad=()), batch_sampler=good, **options)
    assert unpack(left) == unpack(asked)


# --- replace ---


def replaced(dataset: Any = None, **options: Any) -> list[int]:
    """All indices of an epoch in which bad samples are replaced."""
    options = {"shuffle": True, "seed": 11, "on_sample_error": "replace"} | options
    with DataLoader(Choosy() if dataset is None else dataset, **options) as loader:
        return [index for batch in indices(loader) for index in batch]


def test_replacements_do_not_depend_on_who_makes_the_batch(workers: int) -> None:
    once = replaced(batch_size=4)
    assert len(once) == 26
    assert not set(BAD) & set(once)
    assert once == replaced(batch_size=4, num_workers=workers)
    assert once == replaced(batch_size=7, num_workers=workers)
    assert once == replaced(batch_size=26)
    assert once == replaced(batch_size=4, seeding="sample")
    shards = [replaced(batch_size=3, num_replicas=2, rank=rank) for rank in range(2)]
    assert once == [index for pair in zip(*shards, strict=True) for index in pair]


def test_with_seeding_sample_a_replacement_is_the_sample_it_always_is() -> None:
    options: dict[str, Any] = {"seed": 3, "seeding": "sample", "batch_size": 5}
    clean = {row[0]: row for row in unpack(DataLoader(Choosy(bad=()), **options))}
    rows = unpack(DataLoader(Choosy(), on_sample_error="replace", **options))
    assert len(rows) == 26
    assert all(row == clean[row[0]] for row in rows)


def test_without_batching_a_sample_is_replaced(workers: int) -> None:
    options: dict[str, Any] = {"on_sample_error": "replace", "seed": 11, "shuffle": True}
    with DataLoader(Choosy(), None, num_workers=workers, **options) as loader:
        assert [int(row[0]) for row in loader] == replaced(batch_size=4)


def test_under_a_users_sampler_only_what_it_has_chosen_is_given_out(workers: int) -> None:
    chosen = [1, 0, 2, 3, 1, 5, 6, 4, 1, 8, 7, 8]
    with DataLoader(
        Call(fail_on_odd, 30), sampler=chosen, batch_size=4, num_workers=workers, seed=2,
        on_sample_error="replace",
    ) as loader:  # fmt: skip
        batches = [batch.tolist() for batch in loader]
    assert len(batches) == 3
    for first, batch in zip(range(0, 12, 4), batches, strict=True):
        asked = chosen[first : first + 4]
        assert len(batch) == 4
        for index, given in zip(asked, batch, strict=True):
            assert given == index or (index % 2 and given in asked and not given % 2)


def test_a_users_batches_are_filled_up_from_themselves() -> None:
    loader = DataLoader(
        Call(fail_on_odd, 30), batch_sampler=[[0, 1, 2], [3, 5], [7, 4]], on_sample_error="replace"
    )
    batches = [batch.tolist() for batch in loader]
    assert batches[0] in ([0, 0, 2], [0, 2, 2])
    assert batches[1:] == [[4, 4]]  # [3, 5]: nothing good is left of it


def test_a_bad_replacement_counts_and_the_next_is_drawn() -> None:
    dataset = Choosy(bad=set(range(25)) - {17})  # 17 and 25 are good
    iterator = iter(DataLoader(dataset, batch_size=1, on_sample_error="replace", seed=2))
    assert int(next(iterator)[0, 0]) in (17, 25)
    errors = list(iterator.sample_errors.errors)
    assert errors[0].index == 0
    assert len({error.index for error in errors}) == len(errors) > 1  # none is read twice
    assert {error.action for error in errors} <= {"replaced by 17", "replaced by 25"}
    assert len({error.action for error in errors}) == 1
    assert {error.position for error in errors} == {0}


def test_the_search_for_a_replacement_is_bounded() -> None:
    """Where nothing can be read at all, it is once for a batch; that is an error, at once."""
    read = []

    def fail(index: int) -> None:
        read.append(index)
        fail_always(index)

    loader = DataLoader(Call(fail, 300), 60, on_sample_error="replace", seed=1)
    iterator = iter(loader)
    with pytest.raises(SampleErrorsError) as caught:
        next(iterator)
    assert str(caught.value).startswith(
        "lit_loader: no sample of batch 0 could be read, nor any that was drawn in its place "
        f"({len(read)} bad "
    )
    assert "the first is index 0 (position 0 of its batch): " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert {error.action for error in iterator.sample_errors.errors} == {"no replacement found"}
    assert 60 + MAX_DRAWS / 2 < len(read) == len(set(read)) <= 60 + MAX_DRAWS
    assert iterator.sample_errors.count == len(read)
    for batch in range(1, 5):
        with pytest.raises(
            SampleErrorsError, match=f"^lit_loader: no sample of batch {batch} could"
        ):
            next(iterator)
    with pytest.raises(
        SampleErrorsError, match="^lit_loader: no sample of epoch 0 could be read .300 bad"
    ):
        next(iterator)
    assert list(iterator) == []
    assert len(read) <= 5 * (60 + MAX_DRAWS)


def test_a_bad_sample_is_counted_and_logged_once(
    workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that was drawn as a replacement for others; and of very many, the first alone."""
    dataset = Choosy(bad=range(1, 200), length=400)
    with DataLoader(
        dataset, 4, num_workers=workers, on_sample_error="replace", seed=1
    ) as loader, caplog.at_level(logging.WARNING, "lit_loader.data.sample_errors"):  # fmt: skip
        iterator = iter(loader)
        assert sum(map(len, iterator)) == 400
        assert iterator.sample_errors.count == loader.statistics().sample_errors == 199
    *lines, last = caplog.messages
    assert last == "further bad samples of this epoch are counted, and not logged"
    named = [line.partition("index ")[2].split()[0] for line in lines]
    assert len(named) == len(set(named)) == KEPT_ERRORS


def test_an_iterable_dataset_has_no_replacements() -> None:
    with pytest.raises(
        OptionError, match="^lit_loader: on_sample_error='replace' does not apply to an Iter"
    ):
        DataLoader(Stream(), on_sample_error="replace")


# --- whole batches at once ---


def test_getitems_is_called_once_and_falls_back_to_single_indices() -> None:
    dataset = Together(bad=[1])
    loader = DataLoader(dataset, batch_size=3, on_sample_error="skip")
    assert indices(itertools.islice(loader, 2)) == [[0, 2], [3, 4, 5]]
    assert dataset.asked == [[0, 1, 2], [0], [1], [2], [3, 4, 5]]


def test_getitems_gets_single_indices_where_samples_are_seeded() -> None:
    dataset = Together(bad=[1])
    loader = DataLoader(dataset, batch_size=2, on_sample_error="replace", seeding="sample", seed=0)
    [[first, replacement]] = indices(itertools.islice(loader, 1))
    assert (first, dataset.asked) == (0, [[0], [1], [replacement]])


# --- iterable datasets ---


def test_an_iterator_is_asked_again(workers: int) -> None:
    expected = [[0, 1, 2, 4], [5, 6, 10, 11], [12, 13]]
    if workers:  # of the even and of the odd numbers each
        expected = [[0, 2, 4, 6], [1, 5, 11, 13], [10, 12]]
    for dataset in (Stream(), StatefulStream()):
        with DataLoader(dataset, 4, num_workers=workers, on_sample_error="skip") as loader:
            assert [batch.tolist() for batch in loader] == expected


@pytest.mark.parametrize("drop_last", [False, True])
def test_bad_samples_before_the_end_are_told_of(drop_last: bool, workers: int) -> None:
    with DataLoader(
        Stream(bad=[4, 5], length=6), batch_size=2, num_workers=workers, drop_last=drop_last,
        on_sample_error="skip",
    ) as loader:  # fmt: skip
        iterator = iter(loader)
        assert sorted(ints(iterator)) == [0, 1, 2, 3]
        messages = [error.message for error in iterator.sample_errors.errors]
        assert messages == ["no sample 4", "no sample 5"]
    dropped = iter(DataLoader(Stream(bad=[3], length=4), 2, drop_last=True, on_sample_error="skip"))
    assert [batch.tolist() for batch in dropped] == [[0, 1]]
    assert dropped.sample_errors.count == 1


@pytest.mark.parametrize("options", [{"on_sample_error": "skip"}, {"sample_retries": 2}])
@pytest.mark.parametrize("dataset", [Generated, GeneratedWithin])
def test_a_finished_generator_is_not_the_end_of_the_data(dataset: Any, options: Any) -> None:
    loader = DataLoader(dataset(), 2, transient_errors=[CannotRead], retry_backoff=0, **options)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(CannotRead, match="^no sample 3") as caught:
        next(iterator)
    if sys.version_info >= (3, 11):
        note, place = caught.value.__notes__
        assert note.startswith("a generator cannot go on after an exception") and "\n" not in note
        assert place == "in batch 1, at sample 1, an iterable dataset's next samples"


def test_a_generators_other_errors_are_raised_without_that_note() -> None:
    loader = DataLoader(Generated(), 2, sample_retries=2)  # not a transient error
    with pytest.raises(CannotRead) as caught:
        list(loader)
    assert not any("generator" in note for note in getattr(caught.value, "__notes__", ()))


def test_a_generator_that_ends_is_the_end_of_the_data() -> None:
    assert ints(DataLoader(Generated(bad=()), 4, on_sample_error="skip")) == list(range(14))


def test_there_is_no_end_of_skipping_in_a_row() -> None:
    dataset = Stream(bad=range(1, 10_000), length=10_000)
    iterator = iter(DataLoader(dataset, 1, on_sample_error="skip"))
    assert next(iterator).tolist() == [0]
    with pytest.raises(CannotRead, match=f"^no sample {MAX_IN_A_ROW}") as caught:
        next(iterator)
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__[0].startswith(f"{MAX_IN_A_ROW} samples in a row could not be")


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


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("iterable", [False, True])
def test_exits_are_let_through(error: type[BaseException], iterable: bool) -> None:
    def leave(index: int) -> int:
        raise error

    class Leaving(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return map(leave, range(3))

    loader = DataLoader(Leaving() if iterable else Call(leave), on_sample_error="skip")
    with pytest.raises(error):
        next(iter(loader))


# --- the limit ---


def test_the_limit_may_be_reached(workers: int) -> None:
    for limit in (len(BAD), None):
        with DataLoader(
            Choosy(), batch_size=4, num_workers=workers, on_sample_error="skip",
            max_sample_errors=limit,
        ) as loader:  # fmt: skip
            for _ in range(2):  # in each epoch anew
                iterator = iter(loader)
                assert sum(map(len, iterator)) == 26 - len(BAD)
                assert iterator.sample_errors.count == len(BAD)


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_beyond_the_limit_all_are_listed(policy: str, workers: int) -> None:
    with DataLoader(
        Choosy(), batch_size=2, num_workers=workers, on_sample_error=policy, max_sample_errors=1,
        seed=1,
    ) as loader:  # fmt: skip
        iterator = iter(loader)
        assert [len(next(iterator)) for _ in range(3)] == [2, 2 if policy == "replace" else 1, 2]
        with pytest.raises(SampleErrorsError) as caught:
            next(iterator)
        head, *lines = str(caught.value).split("\n")
        assert head == (
            "lit_loader: max_sample_errors=1 bad samples are allowed in an epoch, got 2: fix them "
            "or raise max_sample_errors; they are [LL211]:"
        )
        assert [error.index for error in caught.value.errors] == [3, 7]
        assert lines == [f"  {error}" for error in caught.value.errors]
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (str(copy), copy.errors) == (str(caught.value), caught.value.errors)
        with pytest.raises(SampleErrorsError, match="got [34]"):  # the batch that failed is past
            next(iterator)
        assert len(next(iterator)) == 2


def failing_batch(loader: DataLoader[Any], after: int, ahead: bool = False) -> tuple[int, Any]:
    """How many batches come, of which some are taken first, until one too many is bad; a state."""
    iterator, given, state = iter(loader), 0, None
    with contextlib.suppress(SampleErrorsError):
        for given in itertools.count():
            if given == after:
                if ahead:
                    loader.commit(ahead=True)
                state = loader.state_dict()
            next(iterator)
    return given, state


@pytest.mark.parametrize("ahead", [False, True], ids=["plain", "a batch ahead"])
@pytest.mark.parametrize(
    ("data", "policy"),
    [(Choosy, "skip"), (Choosy, "replace"), (StatefulStream, "skip"), (Stream, "skip")],
)
@pytest.mark.filterwarnings("ignore:.*resuming reads again")
def test_a_resume_counts_on(data: Any, policy: str, ahead: bool, workers: int) -> None:
    """Else a job that is ended every hour passes over any number of bad samples."""

    def make() -> DataLoader[Any]:
        return DataLoader(
            data(), 2, num_workers=min(workers, 1), on_sample_error=policy, max_sample_errors=2,
            seed=1,
        )  # fmt: skip

    with make() as loader:
        whole, _ = failing_batch(loader, 99)
    for stop in range(1, whole + 1):
        with make() as loader, make() as other:
            _, state = failing_batch(loader, stop, ahead)
            if state is None:
                continue
            other.load_state_dict(state)
            left, _ = failing_batch(other, 99)
            assert stop - ahead + left == whole, stop


def test_a_batch_that_is_beyond_the_limit_by_itself_is_not_read_on() -> None:
    read = []

    def fail(index: int) -> int:
        read.append(index)
        raise CannotRead

    for policy in ("skip", "replace"):
        read.clear()
        loader = DataLoader(
            Call(fail, 100), batch_size=50, on_sample_error=policy, max_sample_errors=3
        )
        with pytest.raises(SampleErrorsError, match="got 4"):
            next(iter(loader))
        assert read == [0, 1, 2, 3]


# --- what is written down ---


def test_an_error_is_written_down(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    with DataLoader(
        Choosy(), batch_size=4, num_workers=workers, on_sample_error="replace", seed=1
    ) as loader:
        iterator = iter(loader)
        with caplog.at_level(logging.WARNING, "lit_loader.data.sample_errors"):
            next(iterator)
        first, *more = iterator.sample_errors.errors
    assert (first.index, first.position, first.retries, more) == (3, 3, 0, [])
    assert (first.kind, first.message) == (f"{__name__}.CannotRead", "no sample 3")
    assert first.action.startswith("replaced by ")
    assert first.trace.startswith(__file__)
    assert 'in __getitem__: raise CannotRead(f"no sample {index}")' in first.trace
    assert "fetch.py" not in first.trace
    assert pickle.loads(pickle.dumps(first)) == first
    assert caplog.messages == [f"bad sample in batch 0, {first}"]
    assert str(first) == (
        f"index 3 (position 3 of its batch): {__name__}.CannotRead: no sample 3; "
        f"{first.action}; {first.trace}"
    )


def test_whatever_the_exception_its_record_is_short_and_on_one_line() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail(index: int) -> None:
        raise (ValueError("many\nlines " * 1000), Mute())[index]

    iterator = iter(DataLoader(Call(fail, 2), on_sample_error="skip"))
    with pytest.raises(SampleErrorsError) as caught:
        next(iterator)
    assert len(str(caught.value)) < 1300 and "\n" not in str(caught.value)
    long, mute = iterator.sample_errors.errors
    assert (long.kind, long.message[:21]) == ("ValueError", "many lines many lines")
    assert mute.message == "<str() of the exception raised RuntimeError>"
    for error in (long, mute):
        assert len(str(error)) < 1000 and "\n" not in str(error)


def test_no_exception_is_kept_alive() -> None:
    """Its traceback would hold samples, to be found by the garbage collector."""
    raised: list[weakref.ref[Exception]] = []

    class Noted(Exception):
        def __init__(self) -> None:
            raised.append(weakref.ref(self))

    def fail(index: int) -> int:
        if index in (1, 2):
            raise Noted
        return index

    class Mapped(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return map(fail, range(4))

    gc.disable()
    try:
        for dataset in (Call(fail, 4), Mapped(), Counting(4, fail)):
            for options in ({"on_sample_error": "skip"}, {"sample_retries": 1}):
                iterator = iter(
                    DataLoader(dataset, transient_errors=[Noted], retry_backoff=0, **options)
                )
                assert next(iterator).tolist() == [0]
                with contextlib.suppress(Noted):
                    next(iterator)
        assert len(raised) == 2 + 2 + 2 + 2 + 1 + 1
        assert [reference() for reference in raised] == [None] * len(raised)
    finally:
        gc.enable()
