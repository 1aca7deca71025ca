"""`OneCoreThread`: a thread of the loader, in which torch computes on one CPU core."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import torch


class OneCoreThread(threading.Thread):
    """A daemon, whose operations torch does not divide among further threads.

    ``torch.set_num_threads(1)`` counts for the thread that calls it, and for threads that start
    later. So `start` waits for that call and then sets back what other threads get.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(daemon=True, **options)
        self._is_set = threading.Event()

    def start(self) -> None:
        """Start the thread, and wait until it runs."""
        before = torch.get_num_threads()
        super().start()
        self._is_set.wait()
        torch.set_num_threads(before)

    def run(self) -> None:
        """Call the target."""
        torch.set_num_threads(1)
        self._is_set.set()
        super().run()


def await_threads(threads: Iterable[threading.Thread], seconds: float) -> None:
    """Wait until threads have ended, for at most this number of seconds.

    The interpreter's end may abort the process if it meets a daemon within native code.
    """
    deadline = time.monotonic() + seconds
    for thread in threads:
        if thread is not threading.current_thread():  # which collects garbage
            thread.join(max(0.0, deadline - time.monotonic()))
