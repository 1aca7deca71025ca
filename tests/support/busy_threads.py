"""Threads that never rest."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

__all__ = ["busy"]


@contextlib.contextmanager
def busy(deeds: Iterable[Callable[[], object]]) -> Iterator[None]:
    """Threads that do one thing each, over and over until the end; none of them may fail."""
    stop, failures = threading.Event(), list[BaseException]()

    def repeat(deed: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                deed()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=repeat, args=(deed,)) for deed in deeds]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures
