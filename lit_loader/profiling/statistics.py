"""`LoaderStatistics`: twelve figures of a loader, and the verdict on its latest batches."""

from __future__ import annotations

from dataclasses import dataclass, field

from lit_loader.describe import public
from lit_loader.diagnostics.sentences import counted, mebibytes, percent
from lit_loader.profiling.verdict import Evidence, verdict

__all__ = ["LoaderStatistics", "MemoryUse"]


@dataclass(frozen=True)
class MemoryUse:
    """What memory a loader uses now, in bytes; None where the system does not say.

    Attributes:
        parent: The training process itself: its own copy of the dataset and everything else.
        arena: In use for batches.
        shared_data: Large arrays of the dataset that workers share under spawn and forkserver.
        workers: Each worker's own memory, by number. Memory that forked workers share with each
            other is divided among them.
    """

    parent: int | None = None
    arena: int = 0
    shared_data: int = 0
    workers: tuple[int | None, ...] = ()

    def __str__(self) -> str:
        shared = f", shared data {mebibytes(self.shared_data)}" if self.shared_data else ""
        workers = f", workers {' + '.join(map(mebibytes, self.workers))}" if self.workers else ""
        return f"parent {mebibytes(self.parent)}, arena {mebibytes(self.arena)}{shared}{workers}"


@public
@dataclass(frozen=True)
class LoaderStatistics:
    """Where the time of a loader's loops went, since its first batch.

    Durations are seconds, summed over all batches. ``waited`` is host time: the time that the loop
    spent in ``next()``. A GPU that still has work queued is busy meanwhile, so a loop that waits
    half of its time does not mean that the GPU is idle for half of it.

    Attributes:
        batches: Batches yielded.
        samples: Samples in them.
        tokens: Tokens in them, as counted by `lit_loader.note`, `PackedStream` or `PackCollate`; 0
            if nothing counts them.
        seconds: Spent in the loops over this loader: waiting for batches, and using them.
        waited: The part of ``seconds`` in which the loop waited for a batch.
        step: The rest of it: what the loop did between batches.
        fetch: Reading samples (``__getitem__``), in workers.
        collate: Collating them, in workers.
        transfer: Bringing batches from workers to the loop: writing them into shared memory,
            rebuilding and pinning them.
        busy: Making batches, summed over the workers; without workers 0.
        worker_restarts: Workers that were replaced after they crashed or hung.
        sample_errors: Samples that could not be read, and were skipped or replaced.
        memory: The memory of the loader's processes; None unless you asked for it.
        evidence: What the verdict is based on. Its fields may change at any time.
    """

    batches: int = 0
    samples: int = 0
    tokens: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    step: float = 0.0
    fetch: float = 0.0
    collate: float = 0.0
    transfer: float = 0.0
    busy: float = 0.0
    worker_restarts: int = 0
    sample_errors: int = 0
    memory: MemoryUse | None = None
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def wait_fraction(self) -> float:
        """``waited`` as a fraction of ``seconds``."""
        return self.waited / self.seconds if self.seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples per second of the loop, steps and waits included; of this rank."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the loop, steps and waits included; of this rank."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def verdict(self) -> str:
        """What limited the loop in its latest batches: three lines, for limit, evidence and fix."""
        return verdict(self.evidence)

    def __str__(self) -> str:
        """Return the figures in one line, and the verdict; the repr has everything."""
        return f"{self.figures()}\n{self.verdict}"

    def figures(self) -> str:
        """Return the figures in one line."""
        each = 1e3 / max(1, self.batches)
        stages = ("fetch", "collate", "transfer", "step")
        means = [(name, getattr(self, name) * each) for name in stages]
        tokens = f", {counted(self.tokens, 'token')}" if self.tokens else ""
        memory = f"; memory: {self.memory}" if self.memory else ""
        return (
            f"{counted(self.batches, 'batch', 'batches')} ({counted(self.samples, 'sample')}"
            f"{tokens}) in {self.seconds:.3g} s, {percent(self.wait_fraction)} of it waiting; ms "
            f"per batch: {', '.join(f'{name} {mean:.3g}' for name, mean in means)}; "
            f"{counted(self.worker_restarts, 'restart')}, "
            f"{counted(self.sample_errors, 'bad sample')}{memory}"
        )
