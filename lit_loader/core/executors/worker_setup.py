"""`WorkerSetup`: what makes a worker's batches, in a process of this machine or of another one.

::

    start    seed ─▶ unpack the user's objects ─▶ worker_init_fn ─▶ loader
    a batch  `make_batch` of the loader ─▶ batch, or an exception with where it came from

Used by `core/executors/main.py`, and by workers elsewhere; they differ in how batches travel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lit_loader.context import NOBODY, reading
from lit_loader.core.batch.batch_builder import builder_of
from lit_loader.core.batch.batch_spec import BatchSpec
from lit_loader.core.batch.collate import collate_privately
from lit_loader.core.batch.progress import Progress
from lit_loader.core.batch.worker_info import WorkerInfo, show
from lit_loader.core.seeding.held_generators import find_generators, tape
from lit_loader.core.seeding.seeds import canonical_pickle, seed_worker
from lit_loader.core.state.position import ReaderPlace
from lit_loader.core.transport.worker_exception import WorkerException, describe_batch


class WorkerSetup:
    """Makes batches by the user's objects, which ``unpack`` gives.

    An exception at its start is that of every batch: `failure` returns it. ``who`` names the
    worker in messages: "in worker 3 (pid 17)"; ``seed`` is its own.
    """

    def __init__(
        self,
        who: str,
        worker: int,
        num_workers: int,
        seed: int,
        unpack: Callable[[], BatchSpec],
    ) -> None:
        self._who = who
        self.spec: BatchSpec | None = None  # what is made; None: it could not be unpacked
        self.loader: Any = None  # makes it
        self.broken: WorkerException | None = None  # what has gone wrong at the start
        where = "while its dataset was unpickled"
        try:
            seed_worker(seed)
            spec = self.spec = unpack()
            reading().leave()  # what the parent was reading, of which this process may be a fork
            kind = WorkerInfo if spec.shards is None else spec.streams.process_info
            show(kind(id=worker, num_workers=num_workers, seed=seed, dataset=spec.dataset))
            collate_privately()
            where = "in worker_init_fn"
            if spec.worker_init_fn is not None:
                before = _held_states(spec)
                spec.worker_init_fn(worker)
                if not spec.seeded:  # else the loader's seed takes the place of their own
                    held, after = spec.held, _held_states(spec)
                    kept = {
                        path: held[path] for path in held if before.get(path) == after.get(path)
                    }
                    spec = self.spec = spec._replace(held=kept)
            where = "while its dataset was copied"
            if spec.shards is not None:
                reading().shard_asked = NOBODY  # by a worker, not by a reader
            self.loader = builder_of(spec, worker, num_workers)
        except BaseException as error:
            self.broken = WorkerException.capture(error, f"{who}, {where}")

    def failure(
        self, error: BaseException, number: int, indices: object, progress: Progress
    ) -> WorkerException:
        """Carry what batch ``number`` of the epoch has raised, with where it came from.

        Without a ``loader`` there is no batch, and what has gone wrong at the start is returned.
        """
        if self.broken is not None:
            return self.broken
        if indices is None or isinstance(indices, ReaderPlace):
            indices = self.loader.whose(number)
        return WorkerException.capture(
            error, f"{self._who}, {describe_batch(number, indices, progress)}"
        )


def _held_states(spec: BatchSpec) -> dict[str, bytes]:
    """Return the states of the generators that a dataset holds.

    One that worker_init_fn seeds counts from the pass's seed, as with torch: `HeldGenerators`.
    """
    found = find_generators(spec.dataset, spec.collate_fn, spec.worker_init_fn).generators
    tapes = ((path, tape(generator)) for path, generator in found)
    return {path: canonical_pickle(each.read()) for path, each in tapes if each is not None}
