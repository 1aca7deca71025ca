"""Seeds derived from seeds; the program's own generators, which no loader disturbs."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader.core.seeding.seeds import derive, extend, index_number, order_seed, seed_globals
from tests.support.programs import ROOT, run_python

pytestmark = pytest.mark.usefixtures("generators_kept")


def test_derived_seeds_never_change() -> None:
    """They name the data of a run; another value would be another run."""
    assert derive(0) == 0x397AB29740681D9
    assert derive(42, 3, 7) == 0xC0B274B3D550DF36
    assert extend(5, 1, 2) == 0xF4679113F565A90E
    assert order_seed(1, 2) == 0x3215DCEC6C8BAAAA
    assert index_number("name") == 0xDA6E932A8493C057
    assert index_number(("name", 7)) == 0x86FF6276C8AB65A1


@pytest.mark.parametrize("index", [7, np.int64(7), np.uint8(7), torch.tensor(7), np.array(7)])
def test_integers_of_any_kind_are_the_same_sample(index: Any) -> None:
    assert index_number(index) == index_number(7)


def test_numbers_of_samples_are_the_same_in_each_process(tmp_path: Path) -> None:
    """Python hashes strings otherwise in each."""
    indices = "['a', ('a', 1), frozenset('abcdef'), b'x', 1.5, tensor([1, 2]), [tensor(1.5)]]"
    program = (
        "from lit_loader.core.seeding.seeds import index_number\nfrom torch import tensor\n"
        f"print([index_number(i) for i in {indices}], hash('a'))"
    )
    salt = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    printed = run_python(tmp_path, "-c", program, PYTHONPATH=str(ROOT), PYTHONHASHSEED=salt)
    numbers, hashed = printed.rsplit(maxsplit=1)
    assert numbers == str([index_number(i) for i in eval(indices, {"tensor": torch.tensor})])
    assert int(hashed) != hash("a")


def test_the_three_streams_and_those_of_next_seeds_are_unrelated() -> None:
    columns: list[np.ndarray] = []
    for seed in range(4):
        seed_globals(seed)
        columns += [np.array([random.random() for _ in range(4000)]), np.random.rand(4000)]
        columns.append(torch.rand(4000, dtype=torch.float64).numpy())
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert abs(correlation).max() < 4.5 / 4000**0.5
