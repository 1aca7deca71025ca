"""Random walks: whatever a program does with a loader, the model says which batch comes next."""

import os
import random
import signal
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lit_loader import DataLoader, get_rng

PERSISTENT = {"num_workers": 2, "persistent_workers": True, "max_worker_restarts": 100}
HOW: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork", "max_worker_restarts": 100},
    "persistent": PERSISTENT,
    "forkserver": {**PERSISTENT, "multiprocessing_context": "forkserver"},
    "threads": {"num_workers": 2, "worker_method": "thread"},
}
STEPS = ("iter", "next", "drop", "peek", "zip", "set_epoch", "seed", "state", "load")
WITH_WORKERS = ("resize", "kill", "start")


class Drawing(Dataset[Tensor]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, get_rng().random()])


class Run(dict[str, Any]):
    """A pass: its iterator, place, and all of its batches."""

    __eq__, __hash__ = object.__eq__, object.__hash__  # type: ignore[assignment]


class Walk:
    """A loader beside its model."""

    def __init__(self, options: dict[str, Any], seed: int | None, number: int) -> None:
        self.random, self.seed, self.processes = random.Random(number), seed, "max_" in str(options)
        self.loader = DataLoader(Drawing(), 4, shuffle=True, seed=seed, **options)
        self.runs: list[Run] = []  # iterators that live
        self.current: Run | None = None  # the pass that a state is of
        self.loaded: dict[str, Any] | None = None  # where the pass begins that comes next
        self.saved: list[Any] = []
        self.set, self.next, self.repeats = None, 0, Counter[int]()

    def iter(self) -> Run:
        self.runs.append(Run(drew=torch.get_rng_state(), it=iter(self.loader), given=0))
        return self.runs[-1]

    def begin(self, run: Run) -> None:
        epoch, loaded, self.loaded = self.epoch(), self.loaded, None
        run |= {"epoch": epoch, "repeat": self.repeats[epoch], "at": 0, **(loaded or {})}
        if "batches" not in run:  # as a new loader gives them that does nothing else
            now, new = torch.get_rng_state(), DataLoader(Drawing(), 4, shuffle=True, seed=self.seed)
            for _ in range(1 + (self.seed is not None) * run["repeat"]):
                torch.set_rng_state(run["drew"])
                new.set_epoch(epoch)
                run["batches"] = list(new)
            torch.set_rng_state(now)
        self.repeats[epoch] = max(self.repeats[epoch], run["repeat"] + 1)
        self.next = self.next if self.set is not None else epoch + 1
        self.current = self.current if self.is_running(self.current) else run

    def step(self, run: Run) -> None:
        if "at" not in run:
            self.begin(run)
        expected, found = run["batches"][run["at"] : run["at"] + 1], next(run["it"], None)
        if found is None:
            assert not expected
            self.drop(run)
            run["ended"] = True
            return
        assert torch.equal(found, expected[0]), (run["epoch"], run["repeat"], run["at"])
        run["at"], run["given"] = run["at"] + 1, run["given"] + 1
        if run["given"] > 1 or not self.is_running(self.current):
            self.current = run

    def drop(self, run: Run) -> None:
        self.runs.remove(run)
        del run["it"]

    def epoch(self) -> int:
        return self.next if self.set is None else self.set

    def is_running(self, run: Run | None) -> bool:
        return run in self.runs and run["at"] < 3

    def place(self) -> dict[str, Any]:
        """Return the place of a state that is taken now."""
        run = self.current
        if run is None or run.get("ended"):
            # A program that has set an epoch is expected to set the next one.
            epoch = self.epoch() + (run is not None and run["epoch"] == self.set)
            return {"epoch": epoch, "repeat": self.repeats[epoch], "at": 0}
        return {name: run[name] for name in ("epoch", "repeat", "at", "batches")}

    def do(self, name: str) -> None:
        if name in ("iter", "peek", "zip", "start"):
            drew = torch.get_rng_state()
            if name == "start" and not self.runs:
                self.loader.start()
                torch.manual_seed(self.random.randrange(9))
            runs = [self.iter() for _ in range(1 + (name == "zip"))]
            runs[0]["drew"] = drew
            for run in runs if name in ("peek", "zip") else []:
                self.step(run)
                self.drop(run)
        elif name == "next" and self.runs:
            self.step(self.random.choice(self.runs[-2:]))
        elif name == "drop" and self.runs:
            self.drop(self.random.choice(self.runs))
        elif name == "set_epoch":
            self.set = self.random.randrange(3)
            self.loader.set_epoch(self.set)
        elif name == "seed":
            torch.manual_seed(self.random.randrange(9))
        elif name == "state":
            self.saved.append((torch.get_rng_state(), self.loader.state_dict(), self.place()))
        elif name == "load" and self.saved:
            generator, state, place = self.random.choice(self.saved)
            torch.set_rng_state(generator)
            self.loader.load_state_dict(state)
            self.set, self.next, self.current, self.loaded = None, place["epoch"], None, place
            self.repeats = Counter({place["epoch"]: place["repeat"]})
            self.step(self.iter())
        elif name == "resize":
            self.loader.resize(self.random.randrange(1, 4))
        elif name == "kill" and self.processes:
            for run in self.loader._core.keeper.alive()[:1]:
                for process in [] if run.workers is None else run.workers.processes[:1]:
                    os.kill(process.pid, signal.SIGKILL)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:.*(LL306|LL325|LL333|LL334|SIGKILL)")
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize(
    ("how", "number"),
    [(how, n) for how in HOW for n in range({"inline": 12, "forkserver": 1}.get(how, 2))],
)
def test_a_walk_meets_the_model(how: str, number: int, seed: int | None) -> None:
    torch.manual_seed(number)
    walk, done = Walk(HOW[how], seed, number), []
    steps = [*STEPS, *["next"] * 6, *(WITH_WORKERS if how != "inline" else ())]
    try:
        for _ in range(60 if how == "inline" else 25):
            done.append(walk.random.choice(steps))
            walk.do(done[-1])
    except BaseException:
        print("walked:", *done)
        raise
    finally:
        walk.loader.close()
