"""A state that is loaded where the dataset has grown, or shrunk, since it was taken."""

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from torch.utils.data import RandomSampler

from lit_loader import DataLoader, LoaderDataModule, StateError
from tests.support.datasets import SizedStream
from tests.support.exact import loaded, through_file
from tests.support.lightning_runs import Noting, Points, SaveAt, quiet_trainer
from tests.support.samples import Call

TOLD = "the state is of an epoch's end, where the dataset had 40 samples; it has {} now, and the"


def loader(length: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(Call(int, length), **{"batch_size": 4, "shuffle": True, "seed": 3, **options})


def epoch(source: Any) -> list[list[int]]:
    return [batch.tolist() for batch in source]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "the rest is dropped": {"batch_size": 12, "drop_last": True},
    "a smaller last batch": {"batch_size": 12},
    "ranks": {"num_replicas": 3, "rank": 1, "batch_size": 5},
    "ranks that drop": {"num_replicas": 3, "rank": 1, "batch_size": 5, "uneven_ranks": "drop"},
    "another batch size": {"batch_size": 5},
    "workers": {"num_workers": 2, "persistent_workers": True},
}


@pytest.mark.parametrize("length", [60, 20])
@pytest.mark.parametrize("where", ["behind the last batch", "behind the loop"])
@pytest.mark.parametrize("case", OPTIONS)
def test_at_an_epochs_end(case: str, where: str, length: int) -> None:
    options = OPTIONS[case]
    before = loader(40, **{**options, **({"batch_size": 4} if "another" in case else {})})
    iterator = iter(before)
    for _ in range(len(before)):
        next(iterator)
    if where == "behind the loop":
        assert next(iterator, None) is None
    state = through_file(before.state_dict())
    before.close()
    expected = loader(length, **options)
    expected.set_epoch(1)
    with loader(length, **options) as resumed:
        with pytest.warns(UserWarning, match=TOLD.format(length)):
            resumed.load_state_dict(state)
        if where == "behind the last batch":
            assert epoch(resumed) == []
        assert epoch(resumed) == epoch(expected)
    expected.close()


def test_in_mid_epoch_the_refusal_names_a_way_out() -> None:
    before = loader(40, seed=None)
    next(iter(before))
    state = before.state_dict()
    message = (
        "state was taken with dataset_length=40, but this loader has dataset_length=60: resume "
        "with the dataset that the state was taken from, or at the end of an epoch; or begin this "
        "epoch from its start: make the loader with the seed in state['fingerprint'], and call "
        "set_epoch(state['epoch']) instead of load_state_dict"
    )
    with pytest.raises(StateError, match=re.escape(message)):
        loaded(loader(60, seed=None), state)
    began_again = loader(60, seed=state["fingerprint"]["seed"])
    began_again.set_epoch(state["epoch"])
    assert sorted(chain(*epoch(began_again))) == [*range(60)]


def test_a_sampler_of_the_users_and_a_stream() -> None:
    sampled = loader(40, shuffle=None, sampler=RandomSampler(range(40)))
    streamed = DataLoader(SizedStream(40), 4)
    for before in (sampled, streamed):
        epoch(before)
        state = before.state_dict()
        after = (
            loader(60, shuffle=None, sampler=RandomSampler(range(60)))
            if before is sampled
            else DataLoader(SizedStream(60), 4)
        )
        with pytest.warns(UserWarning, match=TOLD.format(60)):
            after.load_state_dict(state)
        assert sorted(chain(*epoch(after))) == [*range(60)]


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")
@pytest.mark.filterwarnings("ignore:.*the state is of an epoch's end")
@pytest.mark.parametrize("hook", ["epoch", "batch", "behind"])
def test_lightning(hook: str, tmp_path: Path) -> None:
    """Whichever hook saves behind an epoch's last batch: the next epoch has all samples."""
    path = tmp_path / "a.ckpt"

    class AtEpochsEnd(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(path)

    def data(length: int) -> LoaderDataModule:
        options = {"batch_size": 4, "seed": 3}
        return LoaderDataModule({"train": Points(length)}, options, train={"shuffle": True})

    saver = {"epoch": AtEpochsEnd(), "batch": SaveAt(path, 10), "behind": Callback()}[hook]
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[saver])
    trainer.fit(Noting(), data(40))
    if hook == "behind":
        trainer.save_checkpoint(path)
    model, whole = Noting(), Noting()
    resumed = quiet_trainer(tmp_path, max_epochs=3)
    resumed.fit(model, data(60), ckpt_path=path)
    quiet_trainer(tmp_path, max_epochs=3).fit(whole, data(60))
    assert model.seen("train") == whole.seen("train")[15:]
    assert resumed.current_epoch == 3
