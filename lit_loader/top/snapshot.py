"""What is shown, as plain data: the trainings, their ranks, loaders and workers at one moment.

The names of the fields are the keys of ``--json``: they stay as they are, and new ones may come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Event", "Frame", "Loader", "Rank", "Training", "Worker"]


@dataclass
class Frame:
    """A line of a Python stack.

    Attributes:
        file: Its file.
        line: Its number in there.
        function: The function.
        code: The line itself; "": it could not be read.
        user: Whether it is the line to look at: the innermost one that is neither the loader's nor
            an installed library's.
    """

    file: str
    line: int
    function: str
    code: str = ""
    user: bool = False


@dataclass
class Worker:
    """A worker process; or the training process, where it makes the batches itself.

    Attributes:
        worker: Its number; -1: it is the training process.
        pid: Its process here; None: it has none.
        stage: ``"starting"``, ``"worker_init_fn"``, ``"idle"``, ``"fetch"``, ``"collate"``,
            ``"encode"``, ``"leaving"``; ``"dead"``: it has ended and was not replaced yet;
            ``"remote"``: it makes a batch on another machine; ``"relay"``: the process here that
            hands batches over to those.
        batch: The batch that it makes, by its number in the epoch; None: none.
        sample: The place in the batch of the sample that it reads; None: it reads none.
        index: That sample's index; None: not known, or no whole number.
        seconds: How long it has been at this sample, or stage; None: not known.
        stalled: Whether that is long.
        cpu: Processors it uses, 1.0 is one; None: not known yet.
        memory: Bytes of its own, without shared memory; None: not known.
        doing: What the system says of it: "computing", "asleep", …; None: not known.
        made: Batches made under its number.
        node: The machine of a remote worker, "": it is not up; None: it is here.
        stack: The innermost line first, as far as it is the user's; None: it was not asked for.
        stack_problem: Why there is none though it was asked for; None: there is, or it was not.
        stack_time: When it was asked for, in seconds since 1970; None: it was not.
    """

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
    """A worker was replaced, or a sample could not be read.

    Attributes:
        time: Seconds since 1970.
        kind: ``"restart"`` or ``"bad sample"``.
        text: The loader's own words, perhaps cut off.
    """

    time: int
    kind: str
    text: str


@dataclass
class Loader:
    """A loader.

    Attributes:
        role: What it is for, ``"train"``, say; "": not known.
        dataset: What its dataset is called.
        state: ``"waiting"``: the training waits for a batch; ``"computing"``: it has one;
            ``"idle"``: nothing iterates the loader.
        state_seconds: Since when.
        epoch: The epoch that was begun last.
        batches: Batches of it that were given out.
        length: How many it has; None: not known.
        batch_size: Samples a batch; None: not known.
        batches_per_second: Of the last interval; None: not known yet.
        wait_share: Which part of the last interval the training has waited; None: not known yet.
        ready: Batches that are made and were not asked for.
        ahead: Batches that may be asked for ahead.
        num_workers: How many workers it is to have, on this machine; 0: the training process makes
            the batches itself.
        remote_workers: How many there are to be on other machines.
        remote_in_flight: Batches that those of them which are up may have at hand, at most.
        remote_batches: Those that they have made.
        nodes: Their machines.
        shared_memory: Bytes of real memory that batches lie in.
        restarts: Workers that were replaced.
        bad_samples: Samples that could not be read.
        workers: Its workers.
        events: The last restarts and bad samples, the oldest first.
        findings: What there is to say about it, in words.
        problem: Why nothing of all this is known; None: it is.
    """

    role: str = ""
    dataset: str = ""
    state: str = "idle"
    state_seconds: float | None = None
    epoch: int = 0
    batches: int = 0
    length: int | None = None
    batch_size: int | None = None
    batches_per_second: float | None = None
    wait_share: float | None = None
    ready: int = 0
    ahead: int = 0
    num_workers: int = 0
    remote_workers: int = 0
    remote_in_flight: int = 0
    remote_batches: int = 0
    nodes: list[str] = field(default_factory=list)
    shared_memory: int = 0
    restarts: int = 0
    bad_samples: int = 0
    workers: list[Worker] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    problem: str | None = None


@dataclass
class Rank:
    """A training process.

    Attributes:
        pid: Its number.
        rank: Its rank; None: not known, or there is only one.
        ranks: How many there are, those on other machines too; None: not known.
        cpu: Processors it uses, without its workers'; None: not known yet.
        memory: Bytes of its own memory; None: not known.
        loaders: Those that are seen at this moment.
    """

    pid: int
    rank: int | None = None
    ranks: int | None = None
    cpu: float | None = None
    memory: int | None = None
    loaders: list[Loader] = field(default_factory=list)


@dataclass
class Training:
    """The processes of one training on this machine.

    Attributes:
        pid: Of the first rank.
        command: Its command line.
        user: Whose it is.
        ranks: Its processes.
    """

    pid: int
    command: str
    user: str
    ranks: list[Rank] = field(default_factory=list)

    def loaders(self) -> list[Loader]:
        """Those of all ranks."""
        return [loader for rank in self.ranks for loader in rank.loaders]
