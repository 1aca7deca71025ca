"""What is shown, as plain data: the trainings, their ranks, loaders and workers at one moment.

The names of the fields are the keys of ``--json``: they stay as they are, and new ones may come.
What each means stands in the README, for those who read the JSON. And `findings`: what stands out
in a loader, in words; what limits in the long run is the loader's own verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from lit_loader.diagnostics.sentences import NOT_KNOWN, doing, duration

__all__ = ["STAGES", "Event", "Frame", "Loader", "Rank", "Training", "Worker", "findings"]

STAGES: Final = (
    *("starting", "worker_init_fn", "idle", "fetch", "collate", "encode", "leaving", "read"),
)
"""What a worker's stages are called where there is little room, in the order of `Stage`."""

_LONG_STEP: Final = 30.0  # seconds that a training step takes before it is remarked upon


@dataclass
class Frame:
    """A line of a Python stack."""

    file: str
    line: int
    function: str
    code: str = ""
    user: bool = False


@dataclass
class Worker:
    """A worker: what its row says, and ``/proc`` of its process."""

    worker: int
    pid: int | None
    stage: str
    batch: int | None = None
    sample: int | None = None
    index: int | None = None
    seconds: float | None = None
    stalled: bool = False
    cpu: float | None = None
    memory: int | None = None
    doing: str | None = None
    made: int = 0
    node: str | None = None
    stack: list[Frame] | None = None
    stack_problem: str | None = None
    stack_time: float | None = None


@dataclass
class Event:
    """A worker was replaced, or a sample could not be read."""

    time: float
    kind: str
    text: str


@dataclass
class Loader:
    """A loader: first what it has written itself (`profiling/shown.py`), then what is live."""

    role: str = ""
    dataset: str = ""
    options: str = ""
    batch_size: int | None = None
    length: int | None = None
    ahead: int = 0
    batches_per_second: float | None = None
    wait_share: float | None = None
    restarts: int = 0
    bad_samples: int = 0
    statistics: str = ""
    verdict: str = ""
    events: list[Event] = field(default_factory=list)

    age: float = 0.0
    state: str = "idle"
    state_seconds: float | None = None
    epoch: int = 0
    batches: int = 0
    ready: int = 0
    num_workers: int = 0
    remote_workers: int = 0
    remote_in_flight: int = 0
    remote_batches: int = 0
    nodes: list[str] = field(default_factory=list)
    shared_memory: int = 0
    workers: list[Worker] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    problem: str | None = None


@dataclass
class Rank:
    """A training process."""

    pid: int
    rank: int | None = None
    ranks: int | None = None
    cpu: float | None = None
    memory: int | None = None
    loaders: list[Loader] = field(default_factory=list)


@dataclass
class Training:
    """The processes of one training on this machine."""

    pid: int
    command: str
    user: str
    ranks: list[Rank] = field(default_factory=list)

    def loaders(self) -> list[Loader]:
        """Those of all ranks."""
        return [loader for rank in self.ranks for loader in rank.loaders]


def findings(loader: Loader) -> list[str]:
    """Say what stands out: who waits for whom, the most pressing first."""
    found = [
        f"worker {worker.worker} (pid {worker.pid}) has died; another one takes its place when "
        "the training next waits for a batch"
        for worker in loader.workers
        if worker.stage == "dead"
    ]
    stalled = [worker for worker in loader.workers if worker.stalled]
    found += [_stalled(each, loader) for each in sorted(stalled, key=lambda w: -(w.seconds or 0))]
    seconds = loader.state_seconds or 0
    if not found and loader.state == "waiting" and seconds >= 1:
        found.append(
            f"the training has waited for batch {loader.batches} for {duration(seconds)}, and the "
            "workers get on: samples are slow"
        )
    elif not found and loader.state == "computing" and seconds >= _LONG_STEP:
        found.append(
            f"the training has been at its own step for {duration(seconds)}, and {loader.ready} "
            "batches are ready: it does not wait for the loader"
        )
    return found


def _stalled(worker: Worker, loader: Loader) -> str:
    """Say where a worker is, since when, and who waits for it."""
    batch = None if worker.batch is None else f"batch {worker.batch}"
    index = NOT_KNOWN if worker.index is None else worker.index
    sample = -1 if worker.sample is None else worker.sample
    at = doing(STAGES.index(worker.stage), batch, sample, index)
    text = f"worker {worker.worker} has been {at} for {duration(worker.seconds or 0)}"
    if worker.doing:
        text += f", {worker.doing}"
    line = next((frame for frame in worker.stack or () if frame.user), None)
    if line is not None:
        text += f", in {line.function} ({line.file}:{line.line})"
    if loader.state == "waiting" and (loader.state_seconds or 0) >= 1:
        which = "this batch" if worker.batch == loader.batches else f"batch {loader.batches}"
        text += f"; the training has waited for {which} for {duration(loader.state_seconds or 0)}"
    elif loader.ready:
        text += f"; the training does not wait for it yet ({loader.ready} batches are ready)"
    return text
