"""Memory: all processes together, over three epochs of ten million strings, and with an array.

A forked worker shares the list's memory with its parent only until it touches a record, for that
changes the record's reference count and with it the page. So each loader is measured in a process
of its own, started by spawn, that makes the list, loads it with forked workers, and looks at the
proportional set size (PSS) of itself and its workers several times an epoch; the peak is the
figure. Further rows hold the same records in `lit_loader.SharedSequence`, where there is one, and
have lit_loader share the list (``share=True``).

Where workers begin with a new interpreter, what counts is whether each unpickles its own: an array
of which every worker reads all, by sizes, start methods and workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing import get_all_start_methods
from multiprocessing.connection import Connection
from typing import Any

from lit_loader.bench.core.names import OURS
from lit_loader.bench.core.results import Measurement, Target
from lit_loader.bench.core.settings import Settings
from lit_loader.bench.data.datasets import Records, WholeArray
from lit_loader.bench.loaders.adapters import adapters
from lit_loader.bench.loaders.interface import CannotRun, Setup
from lit_loader.bench.measure.rounds import Opener, Subject
from lit_loader.bench.measure.session import Row, Session

__all__ = ["rows"]

EPOCHS = 3

_SHARE = "list with share=True"

_LOOKS = 4
"""Times an epoch that memory is looked at: it takes the kernel a while."""

_RECORD_BYTES = 80
"""Of a string of 20 characters, and the list's pointer to it."""


def rows(settings: Settings) -> list[Row]:
    """A list, shuffled and in order; and a `SharedSequence`, if there is one."""
    records = 20_000 if settings.quick else 10_000_000
    # In order, a loader whose workers always get the same batches has each record touched by one of
    # them only; shuffled, all come to all. A SharedSequence's memory does not depend on the order.
    kinds = [("list", True), ("SharedSequence", True), ("list", False), (_SHARE, True)]
    found = []
    for holder, shuffle in kinds:
        shared = holder == "SharedSequence"
        if shared and not _shared_sequence():
            continue
        name = f"{records:,} records in a {holder}, {'shuffled' if shuffle else 'in order'}"
        setup = Setup(1024, settings.num_workers, settings.prefetch_factor, shuffle)
        make = functools.partial(_records, records, shared)
        needed = records * _RECORD_BYTES * (2 + setup.num_workers)
        run = functools.partial(
            _run, name=name, make=make, setup=setup, needed=needed, share=holder == _SHARE
        )
        found.append(Row("memory", name, run))
    return found + _arrays(settings)


def _arrays(settings: Settings) -> list[Row]:
    """An array, by start methods, sizes and workers."""
    found = []
    quick = settings.quick
    for method in get_all_start_methods():
        if quick and method == "spawn":
            continue
        for megabytes in (2,) if quick else (50, 350):
            for workers in (1,) if quick else (1, 4):
                name = f"array of {megabytes} MB, {method}, {workers} workers"
                setup = Setup(1, workers, settings.prefetch_factor, start_method=method)
                needed = megabytes * 10**6 * (3 + workers)
                make = functools.partial(WholeArray, megabytes)
                run = functools.partial(_run, name=name, make=make, setup=setup, needed=needed)
                found.append(Row("memory", name, run))
    return found


def _records(records: int, shared: bool) -> Records:
    names: Any = [f"image/{number:010d}.jpg" for number in range(records)]
    return Records(_shared_sequence()(names) if shared else names)


def _shared_sequence() -> Any:
    import lit_loader

    return getattr(lit_loader, "SharedSequence", None)


def _run(
    session: Session,
    *,
    name: str,
    make: Callable[[], Any],
    setup: Setup,
    needed: int,
    share: bool = False,
) -> None:
    measurement = Measurement("memory", name, "MB", (Target("vs_torch", 1.0),))

    def opener(loader: str) -> Opener:
        @contextlib.contextmanager
        def open_() -> Iterator[Subject]:
            yield lambda: {"": _in_a_process(loader, setup, make, needed, share)}

        return open_

    # Memory does not depend on the machine's mood, and every process is new: one round will do.
    session.compare(
        measurement, {name: opener(name) for name in session.adapters}, rounds=1, uncounted=0
    )


def _in_a_process(
    loader: str, setup: Setup, make: Callable[[], Any], needed: int, share: bool
) -> float:
    """Peak PSS in 10**6 bytes, measured in a new process."""
    from lit_loader.system.cgroups import memory_limits

    available = memory_limits().available
    if available is not None and needed > available:
        raise CannotRun(f"it may take {needed / 1e9:.0f} GB, {available / 1e9:.0f} are available")
    if share and loader == OURS:
        setup = dataclasses.replace(setup, options={"share": True})
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    # The parent's forked helpers are none of its business: what counts is below this process.
    process = context.Process(target=_measure, args=(sender, loader, setup, make))
    process.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        process.join()
        raise CannotRun(f"its process ended with exit code {process.exitcode}") from None
    finally:
        if process.is_alive() and process.exitcode is None:
            process.join(30)
            process.kill()
        process.join()
        receiver.close()
    if isinstance(found, str):
        raise CannotRun(found)
    return float(found)


def _measure(sender: Connection, loader: str, setup: Setup, make: Callable[[], Any]) -> None:
    """What the new process does; sends the peak, or why there is none."""
    from lit_loader.bench.core.processes import pss_bytes
    from lit_loader.bench.measure.rounds import in_one_line

    try:
        dataset = make()
        opened = adapters()[loader].open(dataset, setup)
        peak = 0
        batches = len(dataset) // (setup.batch_size or 1)
        for _ in range(EPOCHS):
            for number, _batch in enumerate(opened.epoch(), 1):
                if number % max(1, batches // _LOOKS) == 0:
                    peak = max(peak, pss_bytes())
        opened.close()
        sender.send(peak / 1e6)
    except Exception as error:  # reported by the parent, whatever it is
        sender.send(in_one_line(error))
