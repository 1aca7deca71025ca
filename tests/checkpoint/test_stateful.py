"""torchdata's Stateful protocol: who is asked for a state, and streams resumed from it."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lit_loader import DataLoader
from tests.support.exact import Augmented, digests, taken
from tests.support.stateful_data import SAMPLERS, STREAMS, sampling

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* has no state_dict and load_state_dict"),
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated"),  # which torchdata calls
]

LENGTH = 22
SHUFFLES = ["no", "own", "torch", "python", "numpy"]


def saved(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def stream(kind: str, shuffle: str, keeps: bool, workers: int, **options: Any) -> DataLoader[Any]:
    dataset = STREAMS[kind](LENGTH, shuffle, keeps)
    return DataLoader(dataset, **{"batch_size": 3, "num_workers": workers, "seed": 7} | options)


def check_stream(*args: Any, stops: slice = slice(None), **options: Any) -> None:
    """Resume at each stop, at the next one again, and compare with the stream as it was."""
    with stream(*args, **options) as loader:
        states, expected = [saved(loader.state_dict())], []
        for batch in loader:
            expected += digests([batch])
            states.append(saved(loader.state_dict()))
    assert len(set(expected)) == len(expected)
    for stop in range(len(states))[stops]:
        with stream(*args, **options) as resumed:
            resumed.load_state_dict(states[stop])
            assert resumed.state_dict() == states[stop]
            got, iterator = taken(resumed, 1)
            assert got == expected[stop : stop + 1], stop
            if not got:
                continue
            state = saved(resumed.state_dict())
            del iterator
            with stream(*args, **options) as again:
                again.load_state_dict(state)
                assert digests(again) == expected[stop + 1 :], stop
            if args[0] == "both" and "persistent_workers" in options and stop == 0:
                continue  # it counts its epochs, also where it has not given anything to tell of
            resumed.load_state_dict(state)  # the same loader, from where it is
            assert digests(resumed) == expected[stop + 1 :], stop


OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_size": None},
    {"batch_size": 1},
    {"batch_size": 4, "drop_last": True},
    {"on_sample_error": "skip"},
    {"seeding": "sample"},
    {"persistent_workers": True},
    {"rank": 1, "num_replicas": 2},
]


def stream_cases() -> Iterator[Any]:
    """All there are; by default those without options, and few with workers."""
    for case in itertools.product(STREAMS, SHUFFLES, (False, True), (0, 1, 2), OPTIONS):
        _, shuffle, keeps, workers, options = case
        usual = shuffle == "own" and keeps if workers == 2 else shuffle in ("no", "own", "torch")
        marks = [] if usual and workers != 1 and not options else [pytest.mark.slow]
        if workers or "persistent_workers" not in options:
            yield pytest.param(*case, marks=marks, id="-".join(map(str, case)))


@pytest.mark.parametrize(("kind", "shuffle", "keeps", "workers", "options"), [*stream_cases()])
def test_streams_resumed(
    kind: str, shuffle: str, keeps: bool, workers: int, options: dict[str, Any]
) -> None:
    check_stream(kind, shuffle, keeps, workers, stops=slice(None, None, 1 + workers), **options)


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("neither", ["iter"]),
        ("iterator", ["iter", "load iterator"]),
        ("dataset", ["load", "iter"]),
        ("its own iterator", ["iter", "load iterator"]),
        ("both", ["load", "iter", "load iterator"]),
    ],
)
def test_in_which_order_datasets_are_restored(kind: str, order: list[str]) -> None:
    """As torchdata does it."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    for cls in (DataLoader, torchdata.StatefulDataLoader):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader = cls(STREAMS[kind](LENGTH), batch_size=3)
            iterator = iter(loader)
            list(itertools.islice(iterator, 3))
            state = loader.state_dict()
            dataset = STREAMS[kind](LENGTH)
            resumed = cls(dataset, batch_size=3)
            resumed.load_state_dict(state)
            next(iter(resumed))
            assert dataset.calls == order, cls


def sampled(use: str, args: tuple[Any, ...], workers: int) -> tuple[Any, DataLoader[Any]]:
    kind, *drawn = args
    sampler, options = sampling(use, kind, LENGTH, *drawn)
    return sampler, DataLoader(Augmented(LENGTH), num_workers=workers, seed=7, **options)


def check_sampler(use: str, args: tuple[Any, ...], workers: int, stops: slice) -> None:
    """States of the first and of the second epoch; each is resumed, and once more."""
    epochs, states = [], []
    _, loader = sampled(use, args, workers)
    with loader:
        for _ in range(3):
            epochs.append([])
            states.append([saved(loader.state_dict())])
            for batch in loader:
                epochs[-1] += digests([batch])
                states[-1].append(saved(loader.state_dict()))
    for epoch in range(2):
        for stop in range(len(states[epoch]))[stops]:
            _, resumed = sampled(use, args, 0)
            resumed.load_state_dict(states[epoch][stop])
            assert resumed.state_dict() == states[epoch][stop]
            got, _ = taken(resumed, 1)
            assert got == epochs[epoch][stop : stop + 1], (epoch, stop)
            _, again = sampled(use, args, workers)
            with again:
                again.load_state_dict(saved(resumed.state_dict()))
                if got:
                    assert digests(again) == epochs[epoch][stop + 1 :], (epoch, stop)
                assert digests(again) == epochs[epoch + 1], (epoch, stop)


USES = ["sampler", "batch sampler", "in torch's batch sampler"]


def sampler_cases() -> Iterator[Any]:
    shuffles, both = ("no", "torch", "python", "numpy"), (False, True)
    for case in itertools.product(USES, SAMPLERS, shuffles, both, both, (0, 2)):
        usual = case[2:] == ("torch", True, False, 0)
        marks = [] if usual else [pytest.mark.slow]
        yield pytest.param(*case, marks=marks, id="-".join(map(str, case)))


@pytest.mark.parametrize(
    ("use", "kind", "shuffle", "keeps", "jitter", "workers"), [*sampler_cases()]
)
def test_samplers_resumed(
    use: str, kind: str, shuffle: str, keeps: bool, jitter: bool, workers: int
) -> None:
    check_sampler(use, (kind, shuffle, keeps, jitter), workers, slice(None, None, 1 + workers))


class StatefulTable(Augmented):
    def state_dict(self) -> dict[str, int]:
        raise AssertionError("not asked")

    load_state_dict = state_dict


@pytest.mark.parametrize("workers", [0, 2])
def test_map_style_datasets_are_not_asked_and_it_is_said(workers: int) -> None:
    def make(kind: type) -> DataLoader[Any]:
        return DataLoader(kind(LENGTH), 4, num_workers=workers, seed=7)

    with make(StatefulTable) as loader:
        expected = digests(loader)
    with make(StatefulTable) as loader:
        got, iterator = taken(loader, 2)
        with pytest.warns(
            UserWarning,
            match="StatefulTable has state_dict and load_state_dict, which are not called: a "
            "map-style dataset is read by whichever worker is free, so that each sample must",
        ) as record:
            state = loader.state_dict()
            loader.state_dict()
        assert len(record) == 1
        assert got + digests(iterator) == expected
    with make(StatefulTable) as resumed:
        resumed.load_state_dict(state)
        assert digests(resumed) == expected[2:]
