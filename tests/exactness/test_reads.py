"""`reads_ahead`: no byte depends on what is read ahead, whoever reads it, whatever goes wrong.

Epochs, resumes, deaths and resizes of its kinds of datasets are in test_exactness.py.
"""

import asyncio
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, StackDataset, Subset
from torch.utils.data import DataLoader as TorchLoader

import lit_loader
from lit_loader import CachedDataset, DataLoader, MixtureDataset
from lit_loader.errors import OptionError
from tests.support.exact import Augmented, digests, taken
from tests.support.samples import OfLength, share

LENGTH = 26


class Read(Augmented):
    """What is read, and a draw from every generator there is."""

    @lit_loader.reads_ahead
    def read(self, index: int) -> Tensor:
        return torch.tensor([index, 7.0 * index], dtype=torch.float64)

    def __getitem__(self, index: int) -> Tensor:
        data = self.read(index)
        data *= 2  # what another sample of this index is given is not this
        return torch.cat([super().__getitem__(index), data])


class Awaited(Read):
    """The same by a coroutine."""

    @lit_loader.reads_ahead
    async def read(self, index: int) -> Tensor:
        await asyncio.sleep(0)
        return torch.tensor([index, 7.0 * index], dtype=torch.float64)


class Many(Read):
    """The same, of a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        data = [self.read(index) for index in indices]
        return [
            torch.cat([Augmented.__getitem__(self, index), 2 * one])
            for index, one in zip(indices, data, strict=True)
        ]


class Around(Dataset[Tensor]):
    """A transform of the user's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Tensor:
        sample: Tensor = self.inner[index] + torch.rand((), dtype=torch.float64)
        return sample


class Reversed(Around):
    """Its samples are others; it says which."""

    def reads_from(self, index: int) -> list[tuple[Any, int]]:
        return [(self.inner, len(self) - 1 - index)]

    def __getitem__(self, index: int) -> Tensor:
        return super().__getitem__(len(self) - 1 - index)


class Still(OfLength):
    """Draws nothing, and can be cached."""

    length = LENGTH

    @lit_loader.reads_ahead
    def read(self, index: int) -> Tensor:
        return torch.tensor([index, 7.0 * index], dtype=torch.float64)

    def __getitem__(self, index: int) -> Tensor:
        return self.read(index) + 1


def noisy(sample: Tensor) -> Tensor:
    return sample + random.random()


class Told(Read):
    """What is read depends on the epoch, of which it is told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @lit_loader.reads_ahead
    def read(self, index: int) -> Tensor:
        return torch.tensor([self.epoch, lit_loader.get_epoch()], dtype=torch.float64)


KINDS: dict[str, Callable[[], Any]] = {
    "plain": Read,
    "told the epoch": Told,
    "async": Awaited,
    "many": Many,
    "subset": lambda: Subset(Read(40), [*range(30, 4, -1)]),
    "subset of many": lambda: Subset(Many(40), [*range(30, 4, -1)]),
    "concat": lambda: ConcatDataset([Read(10), Awaited(16)]),
    "stack": lambda: StackDataset(Read(), Read()),
    "mixture": lambda: MixtureDataset([Read(10), Subset(Read(30), range(16))]),
    "cached": lambda: CachedDataset(Still(), "1 MB").map(noisy),
    "around": lambda: Around(Subset(Around(Read(30)), range(LENGTH))),
    "reversed": lambda: Reversed(Read()),
}


def make(dataset: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **({"batch_size": 4, "shuffle": True, "seed": 11} | options))


def test_a_class_that_is_pickled_with_its_functions() -> None:
    pytest.importorskip("cloudpickle")

    class Local(Still):
        @lit_loader.reads_ahead
        def read(self, index: int) -> Tensor:
            return torch.tensor([index, 7.0 * index], dtype=torch.float64)

    with make(Local(), num_workers=1, multiprocessing_context="spawn") as loader:
        assert digests(loader) == digests(make(Still(), concurrent_reads=0))


def test_without_batches_and_with_a_list_as_index() -> None:
    for options in ({"batch_size": None}, {"batch_size": None, "sampler": [[1, 2], [3, 3]]}):
        kind: Any = Read if "sampler" not in options else Listed
        shuffle = None if "sampler" in options else True
        expected = digests(make(kind(), concurrent_reads=0, shuffle=shuffle, **options))
        with make(kind(), num_workers=2, shuffle=shuffle, **options) as loader:
            assert digests(loader) == expected


class Listed(Still):
    """Takes a list of indices."""

    def __getitem__(self, index: Any) -> Tensor:
        return torch.stack([self.read(one) for one in index])


class Named(Still):
    """Calls its reads in other ways than they are made ahead."""

    @lit_loader.reads_ahead
    def read(self, key: int, times: int = 1) -> Tensor:
        return torch.tensor(float(key * times))

    @lit_loader.reads_ahead
    async def awaited(self, key: int, times: int = 1) -> Tensor:
        await asyncio.sleep(0)
        return torch.tensor(float(key * times))

    def __getitem__(self, index: int) -> Tensor:
        some = self.read(key=index), self.read(index, times=2), self.awaited(key=index, times=3)
        return torch.stack([*some, self.awaited(index)])


@pytest.mark.parametrize("workers", [0, 2])
def test_called_in_another_way_it_reads_at_once(workers: int) -> None:
    expected = [[float(i * times) for times in (1, 2, 3, 1)] for i in range(LENGTH)]
    assert [Named()[i].tolist() for i in range(LENGTH)] == expected
    found = torch.cat(list(DataLoader(Named(), 4, num_workers=workers)))
    assert found.tolist() == expected


class Leaving(Still):
    """Its read asks for the program's end, which would end the event loop of all reads."""

    @lit_loader.reads_ahead
    async def awaited(self, key: int, times: int = 1) -> Tensor:
        if key == 5:
            raise SystemExit("enough")
        return torch.tensor(float(key * times))

    def __getitem__(self, index: int) -> Tensor:
        return self.awaited(index, times=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_read_that_asks_for_the_end_is_named(workers: int) -> None:
    dataset = Leaving()
    with pytest.raises(RuntimeError, match=r"Leaving\.awaited raised SystemExit\('enough'\)"):
        dataset[5]
    with pytest.raises(RuntimeError, match=r"Leaving\.awaited raised SystemExit\('enough'\)"):
        list(DataLoader(dataset, 4, num_workers=workers))
    assert dataset[6].item() == 12


class Broken(Read):
    @lit_loader.reads_ahead
    def read(self, index: int) -> Tensor:
        if index % 5 == 4:
            raise KeyError(f"no object {index}")
        return torch.tensor([index, 7.0 * index], dtype=torch.float64)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_has_index_and_stack(workers: int) -> None:
    with make(Broken(), num_workers=workers, shuffle=False) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(KeyError) as raised:
            next(batches)
    text = "".join(map(str, [raised.value, *getattr(raised.value, "__notes__", [])]))
    assert "no object 4" in text
    if sys.version_info >= (3, 11):  # in this process the place is a note, which came with 3.11
        assert "at index 4 (sample 0 of 4)" in text
    if workers:
        assert "at index 4 (sample 0 of 4)" in text
        assert ", in read\n    raise KeyError" in text


def test_what_nobody_asks_for_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    for kind in (Broken, AwaitedBroken):
        with make(kind(), num_workers=1, shuffle=False, persistent_workers=True) as loader:
            for _ in range(2):
                assert len(taken(loader, 1)[0]) == 1
        assert len(taken(make(kind(), batch_size=4, shuffle=False), 1)[0]) == 1
    assert capfd.readouterr() == ("", "")


class AwaitedBroken(Broken):
    @lit_loader.reads_ahead
    async def read(self, index: int) -> Tensor:
        return Broken.read.__wrapped__(self, index)  # type: ignore[attr-defined,no-any-return]


class Drawing(Read):
    @lit_loader.reads_ahead
    def read(self, index: int) -> Tensor:
        return torch.tensor([index, random.random()], dtype=torch.float64)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_read_that_draws_is_told_and_not_made_ahead(workers: int) -> None:
    expected = digests(make(Drawing(), concurrent_reads=0))
    with (
        make(Drawing(), num_workers=workers) as loader,
        pytest.warns(UserWarning, match=r"Drawing\.read draws from random at \d+, so it is called"),
    ):
        assert digests(loader) == expected


class Asking(Read):
    @lit_loader.reads_ahead
    def read(self, index: int) -> Tensor:
        return torch.full((2,), lit_loader.get_rng().random(), dtype=torch.float64)


@pytest.mark.parametrize("reads", [0, 16])
def test_a_read_has_no_generator(reads: int) -> None:
    with pytest.raises(OptionError, match=r"get_rng\(\) in a method that reads_ahead"):
        digests(make(Asking(), concurrent_reads=reads))


_counting = threading.Lock()


class Counting(Still):
    """Tells how many reads there were at a time, and waits for as many as there are to be."""

    def __init__(self, together: int) -> None:
        self.together = together
        self.first, self.now, self.most = True, 0, 0

    @lit_loader.reads_ahead
    def read(self, index: int) -> Tensor:
        if self.first:
            self.first, self.gate = False, threading.Barrier(self.together)
            return torch.zeros(2)
        with _counting:
            self.now += 1
            self.most = max(self.most, self.now)
        self.gate.wait(20)  # raises where they are fewer
        with _counting:
            self.now -= 1
        return torch.full((2,), float(self.most))


@pytest.mark.parametrize("workers", [0, 1])
def test_so_many_at_a_time_over_batches(workers: int) -> None:
    # One sample, and then 12; in a worker in batches of 4, all of which are there at once.
    together = 4
    dataset = Subset(Counting(together), range(13))
    options: Any = {"batch_size": 13} if not workers else {"prefetch_factor": 4}
    with make(
        dataset, num_workers=workers, concurrent_reads=together, shuffle=False, **options
    ) as loader:
        most = torch.cat([*loader]).max() - 1  # the thread that makes the batch may read as well
        assert together <= most <= together + 1


def test_the_check_of_exactness_agrees() -> None:
    with make(Read(), num_workers=1, check_determinism=3) as loader:
        assert digests(loader) == digests(make(Read(), concurrent_reads=0))


def test_pickled_and_used_by_threads_of_the_datasets_own() -> None:
    expected = digests(make(Still(), concurrent_reads=0))
    with make(Threaded(), num_workers=2) as loader:
        assert digests(loader) == expected


class Threaded(Still):
    """What people write by hand."""

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        with ThreadPoolExecutor(len(indices)) as pool:
            return [*pool.map(self.__getitem__, indices)]


# --- streams ---


class Stream(IterableDataset[Tensor]):
    """Reads what its keys name; what it draws follows."""

    def __init__(self, keys: Any = range(40)) -> None:
        self.keys = keys

    def read(self, key: int) -> Tensor:
        return torch.tensor([key, 7.0 * key], dtype=torch.float64)

    def __iter__(self) -> Iterator[Tensor]:
        keys = [*self.keys]
        random.shuffle(keys)
        for key, data in lit_loader.read_stream(share(keys), self.read):
            yield torch.cat([data, torch.rand(1, dtype=torch.float64), torch.tensor([key])])


class AwaitedStream(Stream):
    async def read(self, key: int) -> Tensor:  # type: ignore[override]
        await asyncio.sleep(0)
        return torch.tensor([key, 7.0 * key], dtype=torch.float64)


def make_stream(dataset: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **({"batch_size": 4, "seed": 5, "num_shards": 3} | options))


def test_a_stream_outside_of_a_loader() -> None:
    assert [*lit_loader.read_stream(iter("ab"), str.upper)] == [("a", "A"), ("b", "B")]
    assert len([*TorchLoader(Stream(), None)]) == 40


class DrawnKeys(Stream):
    def __iter__(self) -> Iterator[Tensor]:
        keys = (random.randrange(100) for _ in range(20))
        for _, data in lit_loader.read_stream(keys, self.read):
            yield data


def test_keys_that_are_drawn_one_by_one_are_refused() -> None:
    assert len(digests(make_stream(DrawnKeys(), num_shards=None, concurrent_reads=0))) == 5
    with pytest.raises(OptionError, match="keys of read_stream draw random numbers"):
        digests(make_stream(DrawnKeys(), num_shards=None))


class BrokenStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        return iter(lit_loader.read_stream([*self.keys], self.read))

    def read(self, key: int) -> Tensor:
        if key % 5 == 4:
            raise OSError(f"no object {key}")
        return torch.tensor(key)


@pytest.mark.parametrize(("workers", "retries"), [(0, 0), (1, 0), (0, 2)])
def test_a_stream_goes_on_behind_what_cannot_be_read(workers: int, retries: int) -> None:
    options: dict[str, Any] = {"num_shards": None, "on_sample_error": "skip"}
    options["sample_retries"] = {"times": retries, "backoff": 0}
    expected = [key for key in range(40) if key % 5 != 4]
    for reads in (0, 16):
        with make_stream(
            BrokenStream(), num_workers=workers, concurrent_reads=reads, **options
        ) as loader:
            assert torch.cat([keys for keys, _ in loader]).tolist() == expected


class PassingStream(BrokenStream):
    """Its reads fail once each, as those of a store that has much to do."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[int] = set()

    def read(self, key: int) -> Tensor:
        if key % 5 in (0, 4) and key not in self.failed:
            self.failed.add(key)
            raise OSError(f"no object {key} yet")
        return torch.tensor(key)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_retry_reads_the_same_key(workers: int, policy: Any) -> None:
    options = {"num_shards": None, "on_sample_error": policy}
    options["sample_retries"] = {"times": 2, "backoff": 0}
    for reads in (0, 16):
        with make_stream(
            PassingStream(), num_workers=workers, concurrent_reads=reads, **options
        ) as loader:
            assert torch.cat([keys for keys, *_ in loader]).tolist() == [*range(40)]
