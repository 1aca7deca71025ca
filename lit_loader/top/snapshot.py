"""What is shown, as plain data: the trainings, their ranks, loaders and workers at one moment.

The names of the fields are the keys of ``--json``: they stay as they are, and new ones may come.
What each means stands in the README, for those who read the JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Event", "Frame", "Loader", "Rank", "Training", "Worker"]


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
    """A loader: first what it has written itself (`iteration/shown.py`), then what is live."""

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
