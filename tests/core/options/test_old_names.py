"""Names that were given up work for one more version, each with one warning that names the new one.

Hydra's are in tests/hydra/test_old_names.py.
"""

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import lit_loader
from lit_loader import (
    DataLoader,
    LoaderConfig,
    LoaderDataModule,
    MixtureStream,
    OptionError,
    PackCollate,
    PadCollate,
)
from lit_loader.compat.old_names import NAMES, OLD_OPTIONS, UNTIL

DATA: Any = list(range(8))
GIVEN: dict[str, Any] = {
    "check_exactness": 2, "reads": 4, "remote_workers": 3, "shard_tail": "keep", "share": True,
}  # fmt: skip
"""Each option by its old name, with a value that is not its default."""

Warned = Callable[[str, str], Any]


def old(name: str, new: str) -> Any:
    """One warning of one old name, at this file's line; nothing else."""
    return pytest.warns(
        DeprecationWarning, match=f"^lit_loader: .*{name}.* is called .*{new} now: "
    )


def one(caught: Any) -> None:
    (warning,) = caught
    assert warning.filename == __file__ and f"until version {UNTIL}" in str(warning.message)


def test_every_option_is_tried() -> None:
    assert sorted(GIVEN) == sorted(OLD_OPTIONS)
    assert NAMES.items() >= OLD_OPTIONS.items()


MAKE: dict[str, Callable[[dict[str, Any]], LoaderConfig]] = {
    "LoaderConfig": lambda options: LoaderConfig(**options),
    "from_options": lambda options: LoaderConfig.from_options(**options),
    "merged": lambda options: LoaderConfig().merged(**options),
    "data module": lambda options: LoaderDataModule({}, loader=options).configs["val"],
    "split": lambda options: LoaderDataModule({}, val=options).configs["val"],
    "from_datasets": lambda options: LoaderDataModule.from_datasets(DATA, **options).configs["val"],
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("way", MAKE)
def test_an_option_where_a_config_is_made(name: str, way: str) -> None:
    new = OLD_OPTIONS[name]
    with old(name, new) as caught:
        made = MAKE[way]({name: GIVEN[name]})
    one(caught)
    assert made == LoaderConfig(**{new: GIVEN[name]})
    with pytest.raises(OptionError, match=f"{new} must be .*, got {new}='x'"), old(name, new):
        MAKE[way]({name: "x"})
    assert MAKE[way]({name: None}) == LoaderConfig()  # as in a file that has both names


@pytest.mark.parametrize("name", sorted(GIVEN.keys() - {"remote_workers"}))  # which needs Ray
def test_an_option_of_a_loader(name: str) -> None:
    new, value = OLD_OPTIONS[name], GIVEN[name]
    with old(name, new) as caught:
        loader = DataLoader(DATA, **{name: value})
    one(caught)
    assert getattr(loader, new) == value and new in vars(loader) and name not in vars(loader)
    with old(f"DataLoader.{name}", new) as caught:
        assert getattr(loader, name) == value
    one(caught)
    with pytest.raises(
        OptionError, match=f"^lit_loader: {name} is the old name of {new}, and both are given"
    ):
        DataLoader(DATA, **{name: value, new: value})
    with old(f"DataLoader.{name}", new):
        if name == "shard_tail":
            with pytest.raises(
                OptionError, match="^lit_loader: uneven_ranks divides the data .* be changed"
            ):
                setattr(loader, name, value)
        else:
            setattr(loader, name, 0)
    assert getattr(loader, new) == (value if name == "shard_tail" else 0)


def test_remote_workers_of_a_loader() -> None:
    with (
        old("remote_workers", "num_remote_workers"),
        pytest.raises(OptionError, match="num_remote_workers is for worker processes"),
    ):
        DataLoader(DATA, remote_workers=1, worker_method="thread")  # type: ignore[call-arg]
    loader = DataLoader(DATA)
    with old("remote_workers", "num_remote_workers"):
        assert loader.remote_workers == 0  # type: ignore[attr-defined]
    with (
        old("remote_workers", "num_remote_workers"),
        pytest.raises(
            OptionError, match="^lit_loader: num_remote_workers cannot be changed once the loader"
        ),
    ):
        loader.remote_workers = 2  # type: ignore[attr-defined]


def test_several_make_one_warning() -> None:
    line = "share is called share_lists now, reads is called concurrent_reads now: use the new name"
    with pytest.warns(DeprecationWarning, match=line) as caught:
        loader = DataLoader(DATA, share=True, reads=0)  # type: ignore[call-arg]
    one(caught)
    assert (loader.share_lists, loader.concurrent_reads) == (True, 0)


@pytest.mark.parametrize("make", [MAKE["LoaderConfig"], MAKE["merged"], MAKE["split"]])
def test_both_names_are_refused(make: Callable[[dict[str, Any]], Any]) -> None:
    line = "share is the old name of share_lists, and both are given: leave share out, got share=Tr"
    with pytest.raises(OptionError, match=line):
        make({"share": True, "share_lists": False})


def test_a_config_s_attribute() -> None:
    with old("LoaderConfig.shard_tail", "uneven_ranks") as caught:
        assert LoaderConfig(uneven_ranks="drop").shard_tail == "drop"  # type: ignore[attr-defined]
    one(caught)


def test_options_that_replace_those_of_torch_s_loaders() -> None:
    class Module(lit_loader.lightning.datamodule.LightningDataModule):  # type: ignore[misc, name-defined]
        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(DATA)

    with old("check_exactness", "check_determinism") as caught:
        data = LoaderDataModule.from_datamodule(Module(), check_exactness=1)
    one(caught)
    assert data.train_dataloader().check_determinism == 1


def test_one_of_several_loaders() -> None:
    pair = {name: torch.utils.data.TensorDataset(torch.arange(4)) for name in ("a", "b")}
    with old("share", "share_lists"):
        data = LoaderDataModule({"val": pair}, loaders={"val": {"a": {"share": True}}})
        loaders = data.val_dataloader()
    assert (loaders["a"].share_lists, loaders["b"].share_lists) == (True, False)


def test_what_a_loader_copies_ahead() -> None:
    with old("DataLoader.copy_ahead", "_copy_ahead"):
        DataLoader(DATA).copy_ahead(torch.device("cpu"), print)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [PadCollate, PackCollate])
def test_collating(kind: Any) -> None:
    with old("pad_value", "padding_value") as caught:
        made = kind(pad_value=-1)
    one(caught)
    assert made.padding_value == -1
    with pytest.raises(
        OptionError, match="^lit_loader: pad_value is the old name of padding_value, and both"
    ):
        kind(pad_value=1, padding_value=2)


STRATEGIES = {"stop": "first_exhausted", "drop": "all_exhausted_without_replacement"}


@pytest.mark.parametrize("value", STRATEGIES)
def test_the_end_of_a_mixture(value: str) -> None:
    both = f"exhausted='{value}' is called stopping_strategy='{STRATEGIES[value]}' now: use"
    with pytest.warns(DeprecationWarning, match=both) as caught:
        made = MixtureStream([[1], [2]], exhausted=value)  # type: ignore[call-arg]
    one(caught)
    assert made.stopping_strategy == STRATEGIES[value]
    line = f"'{value}' is called '{STRATEGIES[value]}"
    with pytest.warns(DeprecationWarning, match=line):  # by its place
        assert MixtureStream([[1], [2]], None, None, value).stopping_strategy == STRATEGIES[value]


@pytest.mark.parametrize("value", STRATEGIES)
def test_a_state_of_an_older_mixture(value: str) -> None:
    def loader(strategy: str) -> DataLoader[Any]:
        sources = [[*range(20)], [*range(100, 120)]]
        return DataLoader(MixtureStream(sources, stopping_strategy=strategy), 4, seed=1)

    first = loader(STRATEGIES[value])
    batches: Iterator[Any] = iter(first)
    next(batches)
    state = first.state_dict()
    fields = state["fingerprint"]
    assert fields.pop("dataset.stopping_strategy") == STRATEGIES[value]
    fields["dataset.exhausted"] = value
    again = loader(STRATEGIES[value])
    again.load_state_dict(state)
    assert torch.equal(next(iter(again)), next(batches))
    other = loader(next(new for old, new in STRATEGIES.items() if old != value))
    line = f"dataset.stopping_strategy='{STRATEGIES[value]}', but this loader has dataset.stopping_"
    with pytest.raises(lit_loader.StateError, match=line):
        other.load_state_dict(state)


def test_hyperparameters_of_a_checkpoint() -> None:
    """One of 0.3 holds every option by its old name, and a constructor takes them."""
    saved = Path(__file__).parents[1] / "state" / "states" / "trainer.ckpt"
    options = torch.load(saved, weights_only=True)["datamodule_hyper_parameters"]
    with pytest.warns(DeprecationWarning, match="shard_tail is called uneven_ranks now"):
        data = LoaderDataModule({"train": DATA}, **options)
    assert data.configs["train"].batch_size == 4


def test_what_is_no_name_is_none() -> None:
    loader = DataLoader(DATA)
    for thing in (loader, LoaderConfig(), loader.statistics()):
        with pytest.raises(AttributeError, match="object has no attribute 'pad_value'"):
            assert thing.pad_value  # type: ignore[union-attr]
        assert not hasattr(thing, "exhausted")
    with pytest.raises(TypeError, match="unknown option 'shared'"):
        LoaderConfig(shared=True)  # type: ignore[call-arg]

    class Derived(DataLoader[Any]):
        share = "its own"

        @property
        def broken(self) -> int:
            raise AttributeError("of its own")

    derived = Derived(DATA)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        derived.share = "another"
        assert derived.share == "another" and derived.share_lists is False
    with pytest.raises(AttributeError, match="^of its own$"):
        assert derived.broken


def test_a_program_of_today_does_without_them() -> None:
    code = (
        "import sys, lit_loader; loader = lit_loader.DataLoader([1, 2, 3], 2, share_lists=True)\n"
        "list(loader); loader.statistics(); loader.load_state_dict(loader.state_dict())\n"
        "loader.seed = 3; list(loader); assert 'lit_loader.compat.old_names' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)
