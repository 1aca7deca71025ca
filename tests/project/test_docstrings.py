"""The examples in the docstrings of public names run, and show what they print."""

import doctest
import logging
from pathlib import Path

import pytest

import lit_loader

pytestmark = pytest.mark.pages

NAMES = [
    "BalancedBatchSampler",
    "CachedDataset",
    "DataLoader",
    "LoaderDataModule",
    "MixtureSampler",
    "MixtureStream",
    "PackCollate",
    "PackedStream",
    "PackingBatchSampler",
    "PadCollate",
    "RandomStateCallback",
    "RayWorkers",
    "Retry",
    "SharedSequence",
    "TokenBudgetBatchSampler",
    "check_determinism",
    "get_rng",
    "get_shard",
    "shared_dataset",
]
"""What people use most."""


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "disabled", True)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(getattr(lit_loader, name), name, globs={"__name__": "__main__"})
    assert example.examples, f"{name} has no example"
    said: list[str] = []
    result = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(
        example, out=said.append
    )
    assert not result.failed, "".join(said)
