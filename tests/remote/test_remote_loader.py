"""Loaders with remote workers, through a real relay; the remote workers are threads in it."""

import itertools
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_loader.core.transport import arena
from lit_loader.errors import LoaderError, WorkerDiedError, WorkerRestartWarning
from lit_loader.top.look import Viewer
from tests.support.faults import plain
from tests.support.programs import run_program
from tests.support.remote_loaders import (
    LENGTH,
    Broken,
    Drawn,
    collate,
    compare_until,
    epochs,
    loader_of,
    told,
)
from tests.support.remote_threads import ThreadWorkers

FORKED = pytest.mark.usefixtures("forked_relays")


@pytest.mark.parametrize("here", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"seeding": "sample", "collate_fn": collate}, marks=pytest.mark.slow),
        pytest.param({"on_sample_error": "replace", "dataset": Broken()}, marks=pytest.mark.slow),
        pytest.param(
            {"on_sample_error": "skip", "dataset": Broken(), "batch_size": 3},
            marks=pytest.mark.slow,
        ),
        pytest.param({"batch_size": None}, marks=pytest.mark.slow),
    ],
    ids=["plain", "sample", "replace", "skip", "unbatched"],
)
def test_batches_are_those_of_one_process(
    here: int, options: dict[str, Any], tmp_path: Path
) -> None:
    remote = ThreadWorkers(str(tmp_path))
    options = dict(options)
    dataset = options.pop("dataset", None) or Drawn()
    with loader_of(dataset, here, 2, remote, **options) as loader:
        warned = compare_until(lambda: remote.count("made") > 3, loader, dataset, **options)
        statistics = loader.statistics()
    assert not warned
    made = statistics.evidence.remote_batches
    assert made > 0 and (made == statistics.batches) == (here == 0)
    assert remote.count("left") == 1


@FORKED
def test_a_viewer_tells_remote_from_local(tmp_path: Path) -> None:
    remote = ThreadWorkers(str(tmp_path))
    with loader_of(Drawn(), 1, 2, remote) as loader:
        compare_until(lambda: remote.count("made") > 0, loader, Drawn())
        found = Viewer(os.getpid()).look()
    [seen] = [each for each in found if len(each["workers"]) == 4]
    assert [each["worker"] for each in seen["workers"]] == [0, 1024, 1025, 1026]
    *_, relay = seen["workers"]
    assert relay["stage"] == "relay" and relay["pid"] and relay["memory"]
    assert [each["remote"] for each in seen["workers"]] == [False, True, True, False]


@FORKED
def test_a_state_says_nothing_of_remote_workers_and_is_resumed_without(tmp_path: Path) -> None:
    remote = ThreadWorkers(str(tmp_path))
    expected = next(epochs(Drawn()))
    alone, resumed = loader_of(Drawn()), loader_of(Drawn())
    with loader_of(Drawn(), 0, 2, remote) as loader:
        batches = zip(loader, alone, strict=True)
        for _ in range(5):
            next(batches)
        state = loader.state_dict()
        assert state == alone.state_dict()
        resumed.load_state_dict(state)
        assert [plain(batch) for batch in resumed] == expected[5:]
    with loader_of(Drawn(), 0, 2, remote) as loader:
        loader.load_state_dict(state)  # and the other way about, mid-epoch
        assert [plain(batch) for batch in loader] == expected[5:]


class Adjusted(Drawn):
    """The program changes how it reads."""

    factor = 1

    def __getitem__(self, index: int) -> Any:
        return self.factor * super().__getitem__(index)["drawn"]


@FORKED
def test_attributes_that_the_program_sets_reach_remote_workers(tmp_path: Path) -> None:
    """Living ones, and one that takes the place of another."""
    remote, dataset, alone = ThreadWorkers(str(tmp_path), dies_at={20: 1}), Adjusted(), Adjusted()
    expected = epochs(alone)
    with loader_of(dataset, 0, 2, remote) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestartWarning)
        for factor, taken in ((1, 3), (2, 24), (3, 24)):
            dataset.factor = alone.factor = factor
            found = [plain(batch) for batch in itertools.islice(loader, taken)]
            assert found == next(expected)[:taken]
    assert remote.count("died 20") == 3  # once more after the replacement


class Large(Drawn):
    """Samples that do not fit into a slot at first."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((60_000,), float(index)) + torch.rand(1)


@FORKED
@pytest.mark.parametrize("dataset", [Drawn(), Large()], ids=["", "larger slots"])
def test_an_epoch_that_is_left_leaves_nothing_to_the_next_one(
    dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "_LARGEST_SLOT", 64 << 10)
    remote = ThreadWorkers(str(tmp_path))
    expected = epochs(dataset)
    with loader_of(dataset, 1, 2, remote) as loader:
        for place, whole in enumerate(expected):
            stop = len(whole) if place % 3 == 2 else place % 5 + 1
            batches = iter(loader)
            assert [plain(next(batches)) for _ in range(stop)] == whole[:stop]
            if remote.count("made") > 20:
                break


@FORKED
def test_an_error_comes_with_type_traceback_index_and_node(tmp_path: Path) -> None:
    remote = ThreadWorkers(str(tmp_path))
    with loader_of(Broken(), 0, 2, remote, shuffle=False) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ValueError, match="sample 7 is broken") as caught:
            next(batches)
        text = str(caught.value)
        for part in (
            "in remote worker ",
            f"node {os.uname().nodename}",
            "batch 1, at index 7 (sample 3 of 4)",
            "The worker's traceback:",
            "in __getitem__",
        ):
            assert part in text
        assert plain(next(batches)["index"]) == plain(torch.tensor([8, 9, 10, 11]))


# --- faults ---


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    # Two workers of a node within two seconds are one event.
    "dies": ({"dies_at": {2: 1, 9: 1}}, "Other workers build its batches, nothing is lost"),
    "silent": ({"silent_at": (3,), "patience": 1.5}, "is gone (no sign of life"),
    "relay": ({"kills_relay_at": (3,)}, "by SIGKILL. Another one was started, and nothing is lost"),
    "unreachable": ({"unreachable": 2, "patience": 1.0}, "no cluster of threads can be reached"),
    "room": ({"room": 1, "patience": 0.7}, "of 2 remote workers are up: see what the cluster has"),
    "versions": ({"versions": {"numpy": "0.1"}}, "numpy 0.1 there, "),
}


@FORKED
@pytest.mark.parametrize(
    ("fault", "here"),
    [
        *(("dies", 0), ("silent", 0), ("relay", 0)),
        *(pytest.param(fault, 1, marks=pytest.mark.slow) for fault in FAULTS),
    ],
)
def test_what_is_told_of_costs_no_batch(fault: str, here: int, tmp_path: Path) -> None:
    options, text = FAULTS[fault]
    remote = ThreadWorkers(str(tmp_path), **options)
    with loader_of(Drawn(), here, 2, remote) as loader:
        warned = told(text, loader, Drawn())
        made = remote.count("made")
        warned += compare_until(lambda: remote.count("made") > made, loader, Drawn())
    told_of = [each for each in warned if "are up" not in each or fault == "room"]
    assert len(told_of) <= (2 if fault == "dies" else 1), warned
    kind = "ExactnessWarning" if fault == "versions" else "WorkerRestartWarning"
    assert all(each.startswith(kind) for each in told_of)


@FORKED
def test_a_batch_that_ends_every_worker_is_given_up(tmp_path: Path) -> None:
    remote = ThreadWorkers(str(tmp_path), dies_at={2: 99})
    expected = next(epochs(Drawn()))
    with loader_of(Drawn(), 0, 2, remote) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore", WorkerRestartWarning)
        batches = iter(loader)
        assert [plain(next(batches)) for _ in range(2)] == expected[:2]
        with pytest.raises(WorkerDiedError, match="Batch 2 has ended 2 remote workers in a row"):
            next(batches)
        assert [plain(batch) for batch in batches] == expected[3:]


@FORKED
@pytest.mark.parametrize("here", [0, 1])
def test_the_workers_here_are_resized_beside_remote_ones(here: int, tmp_path: Path) -> None:
    remote = ThreadWorkers(str(tmp_path))
    with loader_of(Drawn(), here, 2, remote) as loader:
        compare_until(lambda: remote.count("made") > 0, loader, Drawn())
        begun = loader.state_dict()["epoch"]
        expected, batches = next(itertools.islice(epochs(Drawn()), begun, None)), iter(loader)
        found = [plain(next(batches)) for _ in range(5)]
        for number in (3, 1):
            loader.resize(number)
            found += [plain(next(batches)) for _ in range(5)]
        found += [plain(batch) for batch in batches]
        assert found == expected
        made = remote.count("made")
        compare_until(lambda: remote.count("made") > made, loader, Drawn())


@FORKED
@pytest.mark.parametrize("here", [0, 1])
def test_a_relay_that_is_stopped_is_replaced_after_the_timeout(here: int, tmp_path: Path) -> None:
    remote = ThreadWorkers(str(tmp_path), kills_relay_at=(3,), relay_signal=signal.SIGSTOP)
    with loader_of(Drawn(), here, 2, remote, timeout=0.5) as loader:
        told("by SIGKILL. Another one was started, and nothing is lost", loader, Drawn())


@FORKED
@pytest.mark.slow
def test_relays_that_are_killed_again_and_again_are_done_without(tmp_path: Path) -> None:
    remote = ThreadWorkers(str(tmp_path), kills_relay_at=tuple(range(LENGTH)), in_flight=1)
    with loader_of(Drawn(), 1, 1, remote) as loader:
        warned = compare_until(lambda: len(remote.killed) == 3, loader, Drawn())
        warned += compare_until(lambda: True, loader, Drawn())
    assert remote.count("joined") == 3
    assert "for the 3rd time. The workers of this machine go on without" in warned[2]


@FORKED
def test_without_a_cluster_and_workers_here_there_is_an_error(tmp_path: Path) -> None:
    remote = ThreadWorkers(str(tmp_path), unreachable=99)
    with (
        loader_of(Drawn(), 0, 2, remote) as loader,
        pytest.raises(
            LoaderError, match="^lit_loader: remote workers: no cluster of threads can be reached"
        ),
    ):
        next(iter(loader))


@FORKED
def test_where_none_comes_up_and_none_is_here_there_is_an_error(tmp_path: Path) -> None:
    remote = ThreadWorkers(str(tmp_path), room=0, patience=0.05)
    with (
        loader_of(Drawn(), 0, 2, remote) as loader,
        pytest.warns(
            WorkerRestartWarning, match="0 of 2 remote workers are up: see what the cluster"
        ),
        pytest.raises(LoaderError, match="of 2 remote workers none has come up for 1 s"),
    ):
        next(iter(loader))


@FORKED
def test_a_dataset_that_cannot_travel_is_refused(tmp_path: Path) -> None:
    dataset = Drawn()
    dataset.file = open(tmp_path / "open", "w")  # type: ignore[attr-defined]  # noqa: SIM115
    with (
        dataset.file,  # type: ignore[attr-defined]
        loader_of(dataset, 0, 1, ThreadWorkers(str(tmp_path))) as loader,
        pytest.raises(LoaderError, match="dataset.file: .* as remote workers need"),
    ):
        next(iter(loader))


# --- the end ---


PROGRAM = """
import os, signal, sys
from tests.support.remote_loaders import Drawn, loader_of
from tests.support.remote_threads import ThreadWorkers

if __name__ == "__main__":
    loader = loader_of(Drawn(), 0, 2, ThreadWorkers(sys.argv[1]))
    batches = iter(loader)
    next(batches)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_training_process_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run_program(program, tmp_path, code=-signal.SIGKILL, forked=True)
    remote = ThreadWorkers(str(tmp_path))
    while not remote.count("left"):
        os.sched_yield()
