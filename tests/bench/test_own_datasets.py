"""Twenty datasets: what is advised is as good as the best of the table, or it is said why not."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from lit_loader.bench import runner
from lit_loader.hydra.conf_folder import conf_folder
from tests.support.bench_programs import PROGRAMS

for needed in ("rich", "PIL"):
    pytest.importorskip(needed)

SHORT = [
    *("rounds=2", "loaders=[lit_loader,torch]", "grid.num_workers=[0,1,2]"),
    *("grid.prefetch_factor=[2]", "grid.seconds=0.05"),
]
SOME = ("unpicklable", "a stream in shards")


def measured(tmp_path: Path, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        cfg = compose("lit_loader/bench/default", overrides=[*SHORT, *overrides])
        assert runner.run(cfg, tmp_path) == 0
    grid: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())["grid"]
    return grid


def seconds(point: dict[str, Any]) -> float:
    return statistics.median(point["seconds_per_batch"])


@pytest.mark.time
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    "name",
    [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS],
)
def test_the_advice_is_the_best_of_its_table(name: str, tmp_path: Path) -> None:
    grid = measured(tmp_path, *PROGRAMS[name])
    points = [point for point in grid["points"] if point["seconds_per_batch"]]
    auto = [{"loader": "lit_loader", "num_workers": "auto", **grid["auto"]}] if grid["auto"] else []
    text, keys = "\n".join(grid["advice"]), ("num_workers", "prefetch_factor", "worker_method")
    chosen = auto[0] if grid["chosen"]["num_workers"] == "auto" else next(
        point for point in points
        if point["loader"] == "lit_loader"
        and all(point[key] == grid["chosen"][key] for key in keys)
    )  # fmt: skip
    best = min(map(seconds, [*points, *auto]))
    if any(told in text for told in ("not sure: ", "but torch's loader was faster", "keeps up")):
        return
    assert seconds(chosen) <= 1.1 * best, text
    if name == "unpicklable":  # forked workers need not pickle it
        assert not any(point["cannot"] for point in grid["points"])
