"""Passes: what repeats and what does not, next to torch's loader; and what a resume continues."""

import contextlib
import random
import threading
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler, RandomSampler, get_worker_info

from lit_loader import DataLoader, ExactnessWarning, StateError, get_epoch, get_rng
from tests.support.samples import Call, OfLength

N = 24
HOW: dict[str, dict[str, Any]] = {
    "no workers": {},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}


class Rows(OfLength):
    """A sample is its index and a draw."""

    length = N

    def __getitem__(self, index: int) -> Tensor:
        return torch.cat([torch.tensor([index]), torch.rand(1, dtype=torch.float64)])


@pytest.fixture(params=HOW)
def how(request: pytest.FixtureRequest) -> dict[str, Any]:
    return HOW[request.param]


@pytest.fixture
def make(how: dict[str, Any]) -> Iterator[Any]:
    """Makes loaders, and closes them."""
    made: list[DataLoader[Any]] = []

    def loader(**options: Any) -> DataLoader[Any]:
        options = {"batch_size": 4, "shuffle": True} | how | options
        made.append(DataLoader(options.pop("dataset", Rows()), **options))
        return made[-1]

    torch.seed()
    yield loader
    for each in made:
        each.close()


def order(loader: Any) -> tuple[int, ...]:
    return tuple(int(row[0]) for batch in loader for row in batch)


def content(loader: Any) -> tuple[Any, ...]:
    return tuple(tuple(row) for batch in loader for row in batch.tolist())


def distinct(found: Any) -> int:
    return len(set(found))


@pytest.mark.parametrize("seed", [None, 7])
def test_epochs_that_are_set_again_have_other_orders(make: Any, seed: Any) -> None:
    """As where a Trainer fits three times with one loader."""
    loader, orders = make(seed=seed), []
    for _ in range(3):
        for epoch in range(2):
            loader.set_epoch(epoch)
            orders.append(content(loader))
    assert distinct(orders) == distinct(tuple(r[0] for r in each) for each in orders) == 6


@pytest.mark.parametrize("seed", [None, 7])
def test_a_second_pass_of_an_epoch_augments_anew(make: Any, seed: Any) -> None:
    loader, passes = make(seed=seed, shuffle=False), []
    for _ in range(2):
        loader.set_epoch(3)
        passes.append(content(loader))
    assert distinct(passes) == 2


def test_the_epoch_is_that_of_the_last_set_epoch(make: Any) -> None:
    loader, found = make(dataset=Call(lambda i: torch.tensor([i, get_epoch()]), N)), []
    for epoch in (None, None, 5, None, 2):
        if epoch is not None:
            loader.set_epoch(epoch)
        found.append({row[1] for row in content(loader)})
    assert found == [{0}, {1}, {5}, {5}, {2}]


@pytest.mark.parametrize("seed", [None, 7])
def test_a_peek_in_each_epoch_repeats_no_row(make: Any, seed: Any) -> None:
    """With a loader of a single batch, too."""
    loader, rows = make(seed=seed, batch_size=N), []
    for _ in range(3):
        rows += content([next(iter(loader))])
        rows += content(loader)
    assert distinct(rows) == len(rows)


def test_pairs_of_loaders_are_aligned_by_a_seed_before_each_iter(make: Any) -> None:
    """Images and masks: a seed, iter(a), the same seed, iter(b), zip."""
    images, masks = make(), make()
    for _ in range(2):
        iterators = []
        for loader in (images, masks):
            torch.manual_seed(5)
            iterators.append(iter(loader))
        for image, mask in zip(*iterators, strict=True):
            assert torch.equal(image, mask)


def test_generators_that_are_put_back_between_iter_and_next(make: Any) -> None:
    """Ignite's DeterministicEngine seeds, calls iter(), puts the generators back, calls next()."""
    loader = make()

    def begin() -> Any:
        before = torch.get_rng_state()
        torch.manual_seed(11)
        iterator = iter(loader)
        torch.set_rng_state(before)
        return iterator

    stopped = begin()
    first = [next(stopped) for _ in range(3)]
    del stopped
    again = list(begin())
    assert sorted(order(again)) == list(range(N))
    assert content(again[:3]) == content(first)


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": False}, {"sampler": RandomSampler(Rows())}, {"generator": torch.Generator()}],
)
def test_what_the_program_draws_afterwards_is_as_with_torchs_loader(
    how: dict[str, Any], options: dict[str, Any]
) -> None:
    if how.get("persistent_workers") and options == {"shuffle": False}:
        pytest.skip("torch's persistent workers draw no number then, and ours one")
    options = {"batch_size": 4, "shuffle": "sampler" not in options} | how | options
    drawn = []
    for kind in (TorchLoader, DataLoader):
        torch.manual_seed(3)
        loader = kind(range(N), **options)
        for _ in range(3):
            list(loader)
            torch.randn(5)
        drawn.append(torch.randn(4).tolist())
        del loader
    assert drawn[0] == drawn[1]


def test_a_loader_with_a_seed_draws_nothing(make: Any) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    list(make(seed=1))
    assert torch.equal(before, torch.get_rng_state())


def shares(**options: Any) -> list[DataLoader[Any]]:
    return [DataLoader(Rows(), 4, rank=rank, num_replicas=2, **options) for rank in range(2)]


def sampled() -> list[DataLoader[Any]]:
    return [DataLoader(Rows(), 4, sampler=DistributedSampler(Rows(), 2, rank)) for rank in range(2)]


@pytest.mark.parametrize("kind", ["options", "sampler"])
@pytest.mark.filterwarnings("ignore:.*LL307")
def test_a_rank_that_peeks_alone_costs_no_samples(kind: str) -> None:
    loaders = shares(shuffle=True, seed=1) if kind == "options" else sampled()
    for _ in range(3):
        next(iter(loaders[0])), next(iter(loaders[0]))
        assert sorted(order(loaders[0]) + order(loaders[1])) == list(range(N))


def test_ranks_are_told_once_that_the_epoch_was_not_set() -> None:
    loader, _ = shares(shuffle=True, seed=1)
    first = order(loader)
    with pytest.warns(UserWarning, match="LL307"):
        assert order(loader) == first
    assert order(loader) == first
    loader.set_epoch(1)
    assert order(loader) != first


def test_ranks_without_a_job_are_told_that_they_share_no_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    with pytest.warns(UserWarning, match="LL336"):
        order(shares(shuffle=True)[0])
    for quiet in (shares(shuffle=True, seed=1), shares(), sampled()):
        order(quiet[0])
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    both = shares(shuffle=True)
    assert sorted(order(both[0]) + order(both[1])) == list(range(N))


def stop(loader: Any, after: int) -> tuple[list[Any], dict[str, Any]]:
    given = []
    for batch in loader:
        given.append(batch.tolist())
        if len(given) == after:
            break
    return given, loader.state_dict()


def test_a_resume_is_exact_and_seeded_passes_after_it_are(make: Any) -> None:
    whole = make(seed=3)
    passes = [content(whole) for _ in range(3)]
    stopped, resumed = make(seed=3), make(seed=3)
    list(stopped)
    given, state = stop(stopped, 2)
    resumed.load_state_dict(state)
    rest = content(resumed)
    assert (*content(torch.tensor(given, dtype=torch.float64)), *rest) == passes[1]
    assert content(resumed) == passes[2]


def run(make: Any, resumed: Any = None, *, restored: bool = False) -> Any:
    """Train for three epochs with dropout; stop in the second one, or continue there."""
    torch.manual_seed(0)
    loader, passes, saved = make(), [], None
    if resumed is not None:
        state, generator = resumed
        loader.load_state_dict(state)
        if restored:
            torch.set_rng_state(generator)
    for epoch in range(loader.position.epoch, 4):
        rows: list[Any] = []
        for batch in loader:
            rows += batch.tolist()
            torch.rand(3)  # dropout
            if resumed is None and epoch == 1 and len(rows) == 8:
                saved = loader.state_dict(), torch.get_rng_state()
        passes.append(rows)
    return passes, saved


def test_later_passes_are_exact_if_the_generator_is_restored_and_else_new(make: Any) -> None:
    whole, saved = run(make)
    restored, _ = run(make, saved, restored=True)
    assert restored == [whole[1][8:], *whole[2:]]
    new, _ = run(make, saved)
    assert new[0] == whole[1][8:]
    assert not any(one == other for one in new[1:] for other in whole)


def test_a_state_of_an_iterator_that_has_not_begun(make: Any) -> None:
    loader, resumed = make(), make()
    list(loader)
    waiting = iter(loader)
    resumed.load_state_dict(loader.state_dict())
    torch.manual_seed(8)
    assert content(resumed) == content(waiting)


def test_the_loaders_own_generator_is_part_of_its_state(make: Any) -> None:
    def own() -> Any:
        return make(generator=torch.Generator().manual_seed(2))

    whole, stopped, resumed = own(), own(), own()
    passes = [content(whole) for _ in range(4)]
    list(stopped)
    _, state = stop(stopped, 2)
    resumed.load_state_dict(state)
    assert content(resumed) == passes[1][8:]
    assert [content(resumed), content(resumed)] == passes[2:]
    for wrong in (b"", b"x" * 5056):
        before = resumed.generator.get_state()
        with pytest.raises(StateError):
            resumed.load_state_dict({**state, "generators": [wrong]})
        assert torch.equal(before, resumed.generator.get_state())


def test_a_resumed_program_that_seeds_at_its_start_repeats_no_epoch_from_its_end(make: Any) -> None:
    torch.manual_seed(2)
    loader = make()
    passes = [content(loader) for _ in range(2)]
    state = loader.state_dict()
    torch.manual_seed(2)
    resumed = make()
    resumed.load_state_dict(state)
    assert distinct([*passes, content(resumed), content(resumed)]) == 4


def test_a_state_is_that_of_the_iterator_that_yielded_last(make: Any) -> None:
    loader = make(seed=1)
    outer = iter(loader)
    next(outer), next(outer)
    assert loader.position == (0, 2)
    next(iter(loader))  # a peek
    assert loader.position == (0, 2)
    inner = iter(loader)
    next(inner)
    assert loader.position == (0, 2)
    next(inner)
    assert loader.position == (2, 2)
    next(outer)
    assert loader.position == (0, 3)


def test_load_state_dict_while_an_iterator_is_in_use(make: Any) -> None:
    loader = make(seed=1)
    _, state = stop(loader, 4)
    running = iter(loader)
    next(running)
    with pytest.warns(UserWarning, match="LL333"):
        loader.load_state_dict(state)
    assert loader.position == (0, 4)
    next(running)
    assert loader.position == (1, 2)
    assert len(list(loader)) == 2


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_a_batch_that_another_thread_builds_changes_no_pass(method: str) -> None:
    """A thread iterates a loader without workers while this one begins passes of its own."""
    blocked, proceed = threading.Event(), threading.Event()

    def wait(index: int) -> int:
        blocked.set()
        assert proceed.wait(60)
        return index

    options: dict[str, Any] = {"num_workers": 2, "worker_method": method, "seed": 3}
    loader = DataLoader(Call(int, N), 4, shuffle=True, **options)
    expected = [torch.cat([*loader]).tolist() for _ in range(3)]
    loader = DataLoader(Call(int, N), 4, shuffle=True, **options)
    assert torch.cat([*loader]).tolist() == expected[0]
    other = threading.Thread(target=lambda: [*DataLoader(Call(wait, 2), 1)])
    other.start()
    try:
        assert blocked.wait(60)
        assert torch.cat([*loader]).tolist() == expected[1]
        iterator = iter(loader)
        first = [next(iterator), next(iterator)]
        state = loader.state_dict()
        del iterator
        loader.load_state_dict(state)
        assert torch.cat([*first, *loader]).tolist() == expected[2]
    finally:
        proceed.set()
        other.join()


def test_a_peek_that_uses_up_the_loaded_position_is_reported(make: Any) -> None:
    loader = make(seed=1)
    loader.load_state_dict(stop(make(seed=1), 2)[1])
    next(iter(loader))
    loader.set_epoch(0)
    with pytest.warns(UserWarning, match="LL306"):
        next(iter(loader))
    loader.load_state_dict(stop(make(seed=1), 2)[1])
    next(iter(loader))
    loader.set_epoch(1)  # the program has left that epoch
    next(iter(loader))


def test_set_epoch_keeps_a_loaded_position_or_gives_it_up(make: Any) -> None:
    _, state = stop(make(seed=1), 2)
    loader = make(seed=1)
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert len(list(loader)) == 4
    loader.load_state_dict(state)
    loader.set_epoch(1)
    with pytest.warns(UserWarning, match="LL325"):
        assert len(list(loader)) == 6


def test_an_epochs_end_that_was_saved_in_the_loop_is_reported(make: Any) -> None:
    loader = make(seed=1)
    _, state = stop(loader, 6)
    resumed = make(seed=1)
    resumed.load_state_dict(state)
    with pytest.warns(UserWarning, match="LL334"):
        assert list(resumed) == []
    assert len(list(resumed)) == 6
    resumed.load_state_dict(state)
    resumed.set_epoch(1)  # as loops do that save the next epoch's number
    assert len(list(resumed)) == 6


def test_the_dataset_is_told_the_epoch_that_it_was_told(make: Any) -> None:
    class Told(Rows):
        epochs = (-1,)

        def set_epoch(self, epoch: int) -> None:
            self.epochs = [epoch]  # type: ignore[assignment]  # no plain attribute

        def __getitem__(self, index: int) -> Tensor:
            return torch.tensor([index, self.epochs[0]])

    loader = make(dataset=Told(), seed=1)
    assert {row[1] for row in content(loader)} == {-1}
    loader.set_epoch(7)
    assert {row[1] for row in content(loader)} == {7}
    _, state = stop(loader, 2)
    resumed = make(dataset=Told(), seed=1)
    resumed.load_state_dict(state)
    assert {row[1] for row in content(resumed)} == {7}


# --- samplers ---


class Counting:
    """A slow sampler that counts its items, with a state if ``keeps``."""

    def __init__(self, keeps: bool) -> None:
        self.drawn = self.start = 0
        if keeps:
            self.state_dict = lambda: {"at": self.at}
            self.load_state_dict = lambda state: setattr(self, "start", state["at"])

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        self.at, self.start = self.start, 0
        for index in range(self.at, N):
            self.drawn += 1
            self.at += 1
            yield index


@pytest.mark.parametrize("keeps", [True, False])
def test_a_sampler_with_a_state_is_not_drawn_again(keeps: bool) -> None:
    _, state = stop(DataLoader(Rows(), 1, sampler=Counting(keeps)), 20)
    sampler = Counting(keeps)
    loader = DataLoader(Rows(), 1, sampler=sampler)
    loader.load_state_dict(state)
    assert order(loader) == (20, 21, 22, 23)
    assert sampler.drawn == (4 if keeps else N)


class Forgetful:
    """Draws from a generator that no state holds."""

    def __init__(self) -> None:
        self.rng = random.Random()

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.sample(range(N), N))


def test_a_sampler_that_gives_other_indices_is_reported_once() -> None:
    _, state = stop(DataLoader(Rows(), 4, sampler=Forgetful()), 2)
    loader = DataLoader(Rows(), 4, sampler=Forgetful())
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="LL319") as told:
        order(loader)
    assert len(told) == 1


class Ending(Counting):
    """Prepares its next pass when it has come to its end."""

    def __init__(self) -> None:
        super().__init__(keeps=True)
        self.shift = 0
        self.state_dict = lambda: {"at": self.at, "shift": self.shift}
        self.load_state_dict = lambda state: self._load(state["at"], state["shift"])

    def _load(self, at: int, shift: int) -> None:
        self.start, self.shift = at % N, shift

    def __iter__(self) -> Iterator[int]:
        yield from ((index + self.shift) % N for index in super().__iter__())
        self.at, self.shift = 0, self.shift + 1


@pytest.mark.parametrize("kind", ["with a state", "with a generator"])
def test_a_loop_that_asks_for_len_loader_batches_lets_samplers_come_to_their_end(
    make: Any, kind: str
) -> None:
    """As Lightning does."""

    def loader() -> Any:
        if kind == "with a state":
            return make(sampler=Ending(), shuffle=None)
        generator = torch.Generator().manual_seed(4)
        return make(sampler=RandomSampler(range(N), generator=generator), shuffle=None)

    def epoch(loader: Any, batches: int = N // 4) -> Any:
        iterator = iter(loader)
        return order([next(iterator) for _ in range(batches)])

    whole, stopped, resumed = loader(), loader(), loader()
    expected = [order(whole) for _ in range(3)]
    assert epoch(stopped) == expected[0]
    assert epoch(stopped, 2) == expected[1][:8]
    resumed.load_state_dict(stopped.state_dict())
    assert epoch(resumed, N // 4 - 2) == expected[1][8:]
    assert epoch(resumed) == expected[2]


def test_what_is_changed_after_start_counts(make: Any) -> None:
    _, state = stop(make(seed=1), 2)
    expected = make(seed=1)
    expected.load_state_dict(state)
    loader = make(seed=1)
    loader.start()
    loader.load_state_dict(state)
    assert content(loader) == content(expected)
    loader.start()
    loader.set_epoch(5)
    expected.set_epoch(5)
    assert content(loader) == content(expected)


def test_an_iterator_made_before_start_has_the_pass_that_comes_next(make: Any) -> None:
    whole = make(seed=1)
    expected = [content(whole), content(whole)]
    loader = make(seed=1)
    iterator = iter(loader)
    loader.start()
    assert [content(iterator), content(loader)] == expected


def test_what_persistent_workers_begin_early_is_not_read_twice(
    make: Any, how: dict[str, Any], tmp_path: Path
) -> None:
    def logged(index: int) -> int:
        with (tmp_path / "log").open("a") as log:
            log.write(f"{get_epoch()}:{index} ")
        return index

    # One worker: of several, an idle one may read what another one is slow to begin.
    workers = min(1, how.get("num_workers", 0))
    loader = make(dataset=Call(logged, N), seed=1, num_workers=workers)
    for _ in range(3):
        list(loader)
    read = (tmp_path / "log").read_text().split()
    assert sorted(each for each in read if each[0] < "3") == sorted(
        f"{epoch}:{index}" for epoch in range(3) for index in range(N)
    )


class Holding(Rows):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(42)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, self.rng.random()])


def test_a_held_generator_gives_what_its_own_seed_gives_and_more_in_each_pass(make: Any) -> None:
    loader, another = (make(dataset=Holding(), shuffle=False) for _ in range(2))
    passes = [content(loader) for _ in range(3)]
    assert distinct(passes) == 3
    assert [content(another) for _ in range(3)] == passes


def by_worker_seed(index: int) -> tuple[int, float, float]:
    """Derive a generator from what torch's programs ask."""
    info = torch.utils.data.get_worker_info()
    seed = torch.initial_seed() if info is None else info.seed
    assert info is None or info.seed == torch.initial_seed()
    return index, np.random.default_rng(seed).random(), get_rng().random()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("seeding", ["batch", "sample"])
def test_generators_made_of_the_workers_seed_repeat(method: str, seeding: str) -> None:
    found = []
    for workers, persistent in ((0, False), (2, False), (5, True)):
        torch.manual_seed(0)
        more = {"multiprocessing_context": method} if workers else {}
        loader = DataLoader(
            Call(by_worker_seed), 2, True, num_workers=workers, persistent_workers=persistent,
            seeding=seeding, **more,
        )  # fmt: skip
        found.append([[part.tolist() for part in batch] for _ in range(2) for batch in loader])
        loader.close()
    assert found[0] == found[1] == found[2]
    drawn = {number for batch in found[0] for number in batch[1]}
    assert len(drawn) == (32 if seeding == "sample" else 16)


def initial(worker: int) -> None:
    global _initial
    _initial = torch.initial_seed() - worker


_initial = -1


@pytest.mark.usefixtures("by_fork")
def test_worker_init_fn_finds_the_passes_seed_and_its_number() -> None:
    loader = DataLoader(Call(lambda _: _initial, 8), 1, num_workers=2, worker_init_fn=initial)
    assert all(distinct(int(batch) for batch in loader) == 1 for _ in range(2))
    assert distinct(int(batch) for _ in range(3) for batch in loader) == 3


class Noisy(OfLength):
    """Holds a generator that is seeded by the system, as long as nobody seeds it."""

    length = N

    def __init__(self) -> None:
        self.rng = np.random.RandomState()

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, self.rng.random_sample()], dtype=torch.float64)


def renew(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.rng = np.random.RandomState(info.seed % 2**32)


def seed_in_place(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.rng.seed(info.seed % 2**32)


@pytest.mark.parametrize("init", [renew, seed_in_place])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_generator_that_worker_init_fn_seeds_repeats(
    init: Any, method: str, persistent: bool
) -> None:
    """NumPy's recipe, as MONAI has it, too."""

    def run(workers: int, stop: int = 99) -> tuple[list[Any], DataLoader[Any]]:
        torch.manual_seed(1)
        loader = DataLoader(
            Noisy(), 4, num_workers=workers, persistent_workers=persistent, worker_init_fn=init,
            multiprocessing_context=method,
        )  # fmt: skip
        return [batch.tolist() for _ in range(2) for batch in islice(loader, stop)], loader

    expected, _ = run(2)
    assert run(1)[0] == expected
    assert distinct(row[1] for batch in expected for row in batch) == 2 * N
    some, stopped = run(2, 3)
    resumed = DataLoader(Noisy(), 4, num_workers=1, worker_init_fn=init)
    resumed.load_state_dict(stopped.state_dict())
    again = run(2, 3)[1]
    again.load_state_dict(stopped.state_dict())
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in again]
    assert some[:3] == expected[:3]
    seeded = [
        [batch.tolist() for batch in DataLoader(Noisy(), 4, num_workers=workers, seed=1, **how)]
        for workers, how in ((0, {}), (2, {"worker_init_fn": init}))
    ]
    assert seeded[0] == seeded[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("by_fork")
def test_a_generator_that_no_seed_determines_is_reported(workers: int) -> None:
    data: Any = Call(int, 8)
    data.rng = random.SystemRandom()
    loader = DataLoader(data, 4, num_workers=workers, seed=1)
    with pytest.warns(ExactnessWarning, match=r"rng is a random\.SystemRandom"):
        list(loader)  # it comes with a worker's first batch, which may be the second one


# --- without workers: generators are lent to datasets that draw ---


DRAW = {"torch": lambda: float(torch.rand(())), "numpy": np.random.rand, "python": random.random}


def late(first: int, kind: str) -> Call:
    """A dataset that begins to draw at an index."""
    return Call(lambda index: DRAW[kind]() if index >= first else 0.0, 64)


def states() -> tuple[Any, ...]:
    numpy = np.random.get_state()
    return torch.get_rng_state().tolist(), numpy[1].tolist(), numpy[2:], random.getstate()


@pytest.mark.parametrize("kind", ["torch", "numpy", "python"])
@pytest.mark.parametrize("first", [0, 9])
def test_the_programs_generators_go_on_as_if_no_loader_were_there(kind: str, first: int) -> None:
    loader = DataLoader(late(first, kind), 1, seed=1)
    np.random.randn()  # keeps a second one in reserve
    before = states()
    with_workers = [float(b) for b in DataLoader(late(first, kind), 1, seed=1, num_workers=1)]
    assert [float(batch) for batch in loader] == with_workers
    assert states() == before


@pytest.mark.parametrize("kind", ["torch", "numpy", "python"])
def test_a_dataset_that_begins_to_draw_late_is_reported_once(kind: str) -> None:
    loader = DataLoader(late(20, kind), 1, seed=1)
    with pytest.warns(UserWarning, match=r"batches 17 to 31 were not seeded.*LL414") as told:
        drawn = [float(batch) for batch in loader]
    assert len(told) == 1
    exact = [float(batch) for batch in DataLoader(late(20, kind), 1, seed=1, num_workers=1)]
    assert drawn[31:] == exact[31:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [float(b) for b in DataLoader(late(20, kind), 1, seed=1, seeding="sample")]


class Interrupted(Rows):
    """Its length is asked for in vain once. As a batch sampler it has a state, and gives pairs."""

    asked, at, start = 0, 0, 0

    def __len__(self) -> int:
        self.asked -= 1
        if self.asked == 0:
            raise KeyboardInterrupt
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        begin, self.start = self.start, 0
        for at in range(begin, 4):
            self.at = at + 1
            yield [2 * at, 2 * at + 1]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["at"]


@pytest.mark.parametrize("batched", [False, True])
def test_an_interrupt_as_a_pass_begins_changes_no_batch(batched: bool) -> None:
    data, found = Interrupted(), list[list[Any]]()
    options: dict[str, Any] = {"batch_sampler": data} if batched else {"shuffle": True}
    for asked in range(3):
        batches = iter(DataLoader(Rows() if batched else data, seed=1, **options))
        data.asked, got = asked, list[Any]()
        for _ in range(6):
            with contextlib.suppress(KeyboardInterrupt):
                got.extend(batch.tolist() for batch in islice(batches, 1))
        found.append(got)
    assert found == [found[0]] * 3 and len(found[0]) == 4


@pytest.mark.parametrize("name", ["indices_of", "state_at"])
def test_what_needs_a_seed_says_so(name: str) -> None:
    with pytest.raises(ValueError, match="seed="):
        getattr(DataLoader(Rows(), 4, shuffle=True), name)(0, 1)
