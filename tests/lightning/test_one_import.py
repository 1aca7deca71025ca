"""Programs written for torch's loader, with the import as their only change: Lightning and Fabric.

Two ranks run ``one_import_fit.py`` once; each test looks at one thing that they saw.
"""

import json
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lit_loader import DataLoader, OptionError
from tests.support import one_import_fit as program
from tests.support.bulk import builders
from tests.support.lightning_runs import quiet_trainer
from tests.support.one_import_fit import BATCH_SIZE, OwnModule
from tests.support.programs import run_program
from tests.support.strategy_runs import BATCHES, EPOCHS, LENGTH, check_prediction

EVERY = set(range(LENGTH))


class Runs(NamedTuple):
    folder: Path
    ranks: list[dict[str, Any]]

    def epochs(self, name: str, batches: int = BATCHES) -> list[list[list[int]]]:
        """Of each epoch, the ids that each rank saw."""
        return [
            [
                [
                    int(row.split(":")[0])
                    for batch in runs[name][first : first + batches]
                    for row in batch
                ]
                for runs in self.ranks
            ]
            for first in range(0, len(self.ranks[0][name]), batches)
        ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(program.__file__)
    run_program(script, folder, cwd=folder, timeout=280, forked=True)
    seen = [json.loads((folder / f"seen-{rank}.json").read_text()) for rank in range(2)]
    return Runs(folder, seen)


@pytest.mark.parametrize("name", ["whole", "data module", "given", "reloaded"])
def test_ranks_have_disjoint_and_complete_shares_anew_each_epoch(name: str, runs: Runs) -> None:
    epochs = runs.epochs(name)
    assert len(epochs) == EPOCHS
    for one, other in epochs:
        assert len(one) == len(other) == LENGTH // 2
        assert {*one, *other} == EVERY
    assert epochs[0] != epochs[1]
    if name != "reloaded":  # each new loader has a seed of its own
        assert [run[name] for run in runs.ranks] == [run["whole"] for run in runs.ranks]


def test_of_several_loaders_each_is_shared(runs: Runs) -> None:
    for one, other in runs.epochs("several", 2 * BATCHES):
        assert sorted(one + other) == sorted(2 * list(EVERY))


def test_a_resumed_run_goes_on_exactly(runs: Runs) -> None:
    for seen in runs.ranks:
        assert seen["stopped"] == seen["whole"][:3]
        assert seen["resumed"] == seen["whole"][2:]


@pytest.mark.parametrize(("checkpoint", "done"), [("a", 2), ("b", 5)])
def test_on_one_rank_it_goes_on_with_the_same_samples(
    checkpoint: str, done: int, runs: Runs, tmp_path: Path
) -> None:
    model = OwnModule(batch_size=2 * BATCH_SIZE)
    path = runs.folder / f"{checkpoint}.ckpt"
    trainer = quiet_trainer(tmp_path, max_epochs=EPOCHS)
    with pytest.warns(UserWarning, match="LL330"):
        trainer.fit(model, ckpt_path=path, weights_only=True)
    # Without a seed the epochs after the resumed one are new.
    end = BATCHES * (1 + done // BATCHES)
    left = zip(*(seen["whole"][done:end] for seen in runs.ranks), strict=True)
    assert list(map(set, model.seen))[: end - done] == [{*one, *other} for one, other in left]


def test_overfitting_has_the_same_batches_each_epoch(runs: Runs) -> None:
    one, other = runs.epochs("overfit", 2)
    assert one == other == [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]]


def test_without_lightnings_sampler_everybody_reads_everything_and_it_is_said(runs: Runs) -> None:
    for shares in runs.epochs("whole, by all", 7):
        assert [set(share) for share in shares] == [EVERY, EVERY]
    warnings = [warning for seen in runs.ranks for warning in seen["warned"]]
    assert warnings and all("LL220" in warning for warning in warnings)


def test_evaluation_is_shared_and_advised_of(runs: Runs) -> None:
    assert sorted(chain(*(seen["evaluated"] for seen in runs.ranks))) == sorted(EVERY)
    assert runs.ranks[0]["advised"]


def test_prediction_writers_are_told_the_indices(runs: Runs) -> None:
    check_prediction(runs.folder, "given")


def test_fabric_shares_and_shuffles(runs: Runs) -> None:
    first, second = (
        [list(chain(*seen["fabric"][epoch])) for seen in runs.ranks] for epoch in range(2)
    )
    for shares in (first, second):
        assert sorted(chain(*shares)) == sorted(EVERY)
    assert first != second
    assert [seen["fabric's"] for seen in runs.ranks] == [BATCHES, BATCHES]


def test_a_shared_dataset_is_built_once(runs: Runs) -> None:
    first, second = ({inode for _, inode in seen["shared"]} for seen in runs.ranks)
    assert first == second and len(first) == 1 and first != {0}
    numbers = sorted(number for seen in runs.ranks for number, _ in seen["shared"])
    assert numbers == list(range(6))
    assert len(builders(runs.folder / "built")) == 1


def test_auto_takes_the_ranks_of_the_job(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [seen["auto"] for seen in runs.ranks] == [[0, 2, 4], [1, 3, 5]]
    assert DataLoader(range(6), num_replicas="auto").num_replicas is None
    monkeypatch.setenv("WORLD_SIZE", "2")  # of a job that nobody has joined yet
    with pytest.raises(OptionError, match="init_process_group"):
        DataLoader(range(6), num_replicas="auto")


def test_unequal_shards_under_ddp(runs: Runs) -> None:
    """A stream that is stopped where one rank repeats (or in the second epoch), and resumed."""

    def seen(name: str) -> list[Any]:
        return [json.loads((runs.folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]

    whole = seen("whole")
    for rank, steps in enumerate(whole):
        epochs = [[step[1:] for step in steps if step[0] == epoch] for epoch in range(2)]
        assert tuple(map(len, epochs)) == (17, 17)
        assert {reader % 2 for epoch in epochs for reader, _ in epoch} == {rank}
        distinct = [len({digest for _, digest in epoch}) for epoch in epochs]
        assert distinct == [11 if rank == 1 else 17] * 2
    first, second = seen("first"), seen("second")
    assert [one + other for one, other in zip(first, second, strict=True)] == whole
