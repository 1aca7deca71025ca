"""Programs of other frameworks (``pip install -e ".[clients]"``, ``pytest -m clients``).

The table "Other frameworks" in examples/migrate/README.md says what is tested here.
"""

import importlib
import importlib.util
import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.support import client_programs as program
from tests.support.client_programs import BATCH_SIZE, EPOCHS, LENGTH
from tests.support.programs import run_python

pytestmark = pytest.mark.clients

ROOT = Path(program.__file__).parents[2]
EVERY = list(range(LENGTH))
OURS = "lit_loader.DataLoader"


def run(name: str, folder: Path, ranks: int = 1) -> list[dict[str, Any]]:
    """Runs a program in so many processes; gives what each of them saw."""
    library = {"geometric": "torch_geometric"}.get(name.partition("_")[0], name.partition("_")[0])
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    if library == "timm":
        check_torchvision()
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
    run_python(
        folder, *(launcher if ranks > 1 else []), program.__file__, name, folder,
        PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
    )  # fmt: skip
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def check_torchvision() -> None:
    """Skips the test where there is none that works: timm imports it."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pytest.skip("timm needs torchvision, which is not installed")
    except RuntimeError as error:
        pytest.skip(f"timm needs a torchvision that is built for the torch installed: {error}")


def shares(ranks: list[dict[str, Any]], epoch: int) -> list[list[int]]:
    return [list(chain(*seen["epochs"][epoch])) for seen in ranks]


def warned(seen: dict[str, Any], text: str) -> bool:
    return any(text in warning for warning in seen["warned"])


@pytest.mark.parametrize(
    "name", ["accelerate", "accelerate_with_our_engine", "accelerate_seedable"]
)
def test_accelerate_shards_and_steps(name: str, tmp_path: Path) -> None:
    ranks = run(name, tmp_path, 2)
    for epoch in range(EPOCHS):
        one, other = shares(ranks, epoch)
        assert len(one) == len(other) == 12  # even_batches: 22 samples, two of them twice
        assert {*one, *other} == set(EVERY)
    assert shares(ranks, 0) != shares(ranks, 1)
    for seen in ranks:
        assert seen["steps"] == [False, True, True] * EPOCHS  # the last one of an epoch too
        own = name == "accelerate_with_our_engine"
        assert (seen["engine"] == OURS) == own
        assert warned(seen, "LL706") == (name == "accelerate")


@pytest.mark.parametrize("name", ["accelerate_split", "accelerate_uneven", "accelerate_dispatched"])
def test_accelerates_options_hold(name: str, tmp_path: Path) -> None:
    ranks = run(name, tmp_path, 2)
    for epoch in range(EPOCHS):
        one, other = shares(ranks, epoch)
        assert {*one, *other} == set(EVERY)
        assert len(one) + len(other) == (24 if name == "accelerate_split" else LENGTH)
    size = BATCH_SIZE // 2 if name == "accelerate_split" else BATCH_SIZE
    assert len(ranks[0]["epochs"][0][0]) == size


def test_accelerate_alone(tmp_path: Path) -> None:
    (seen,) = run("accelerate", tmp_path)
    assert sorted(chain(*seen["epochs"][0])) == EVERY


def test_transformers_trainer(tmp_path: Path) -> None:
    ranks = run("transformers", tmp_path, 2)
    for epoch in range(EPOCHS):
        assert set(chain(*shares(ranks, epoch))) == set(EVERY)
        assert len(shares(ranks, epoch)[0]) == 12


def test_a_transformers_trainer_whose_loader_is_not_prepared(tmp_path: Path) -> None:
    for seen in run("transformers_unprepared", tmp_path, 2):
        assert sorted(chain(*seen["epochs"][0])) == EVERY
        assert warned(seen, "each of the 2 processes of this job reads all of")


@pytest.mark.parametrize("name", ["ignite", "skorch", "geometric", "timm", "monai"])
def test_each_sample_once_and_anew_each_epoch(name: str, tmp_path: Path) -> None:
    (seen,) = run(name, tmp_path)
    for epoch in seen["epochs"]:
        assert sorted(chain(*epoch)) == EVERY
    if len(seen["epochs"]) > 1:
        assert seen["epochs"][0] != seen["epochs"][1]
    assert not warned(seen, "lit_loader")
