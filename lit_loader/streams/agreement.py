"""`Agreement`: by how many batches each rank comes to its end, so that all can stop together.

::

    tell(12), tell(13), tell(14, final) ─▶ this rank's word ─╮
                                                             ├─ admits(15)? ─▶ True, False
                             other ranks' words, or known ───╯

Each rank says of how many batches it is sure, and when there will be no more. Whether there is a
batch of a certain number for all ranks follows from what they have said, and not from when: all
come to the same answer. Batches are counted from where the epoch was begun, or resumed; under
"drop", where rounds count, those before are added, of which a rank may have more than another one:
its lead, after a resume by another number of ranks in the midst of a round.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from multiprocessing import util
from typing import Any, Final, Literal

from lit_loader.errors import LoaderError
from lit_loader.streams.job_store import JobStore

__all__ = ["Agreement"]

FAREWELL: Final = 5.0
"""Seconds that the first rank stays at its exit for those that have not read the last words."""

_FINAL, _DONE = "f", "d"
_SHORTEST, _LONGEST = 0.0001, 0.005  # seconds until it is asked again


class Agreement:
    """What this rank and the others have said of an epoch's end.

    ``counts``: so many batches each rank has said to have; ``final``: these are all of them.
    ``job`` has the ranks' words; None: all is known, or there is one rank alone. ``lead``: batches
    that this rank's readers have given before; only with ``"drop"``.
    """

    # Lets the first rank's process stay for the others, which still have to read.
    farewell: util.Finalize[Any] | None = None

    def __init__(
        self,
        tail: Literal["drop", "pad"],
        rank: int,
        counts: Sequence[int],
        final: bool,
        job: JobStore | None,
        where: str,
        lead: int = 0,
    ) -> None:
        self._job, self._flags = job, ""
        self._needs_all = tail == "drop"  # a batch is admitted if all have it; else if one has
        self._rank, self._where = rank, where
        self._counts = [*counts]
        self._final = [final] * len(counts)
        known = job is None or not self._needs_all
        self._leads: list[int | None] = [lead if known else None] * len(counts)
        self._leads[rank] = lead
        self._promised = counts[rank] if final else None
        self._sure = 0  # batches that are known to be admitted

    def tell(self, count: int, final: bool = False) -> None:
        """Say that this rank has so many batches, its lead counted; ``final``: and no more.

        A LoaderError if there are not as many as was promised.
        """
        if self._promised is not None:
            if final and count != self._promised:
                raise LoaderError(
                    f"rank {self._rank} has {count:,} batches in {self._where}, but shard_length "
                    f"of its dataset promised {self._promised:,}, on which all ranks rely: let "
                    "shard_length(index, count) give what __iter__ gives that reader"
                )
            return
        self._counts[self._rank] = count
        if final:
            self._final[self._rank] = True
            self._flags = _FINAL
        if self._job is not None:
            self._write()
        elif len(self._counts) == 1:
            self._sure = count

    def admits(self, number: int) -> bool:
        """Whether all ranks are to give a batch of this number, from 1 on; waits until it is known.

        A LoaderError if another rank says nothing.
        """
        number += max(self._all_leads())
        if number <= self._sure:
            return True
        verdict = self._heard(number, self._verdict)
        assert verdict is not None
        return verdict

    @property
    def excess(self) -> int:
        """By how much another rank's lead is larger; waits until that is known."""
        own = self._leads[self._rank]
        assert own is not None
        return max(self._all_leads()) - own

    def _all_leads(self) -> list[int]:
        if None in self._leads:
            self._write()
            self._heard(1, lambda _: None if None in self._leads else True)
        return self._leads  # type: ignore[return-value]

    def _heard(self, number: int, verdict: Callable[[int], bool | None]) -> bool | None:
        """Hear the others until there is a verdict on a number."""
        asked, pause = time.monotonic(), _SHORTEST
        while True:
            found = verdict(number)
            if found is not None:
                return found
            self._hear()
            if verdict(number) is None:
                self._check_patience(number, time.monotonic() - asked)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)

    def _verdict(self, number: int) -> bool | None:
        counts = self._counts
        self._sure = min(counts) if self._needs_all else max(counts)
        if number <= self._sure:
            return True
        over = [final and count < number for final, count in zip(self._final, counts, strict=True)]
        if any(over) if self._needs_all else all(over):
            return False
        return None

    def _hear(self) -> None:
        """Read what the others have said last."""
        if self._job is None:
            return
        try:
            words = self._job.read()
        except RuntimeError as error:
            raise self._lost(error) from error
        for rank, word in enumerate(words):
            if word is None or rank == self._rank:
                continue
            count, flags, lead = word.split(" ")
            self._leads[rank] = int(lead)
            # A word may be older than one before, where two processes have the same rank.
            self._counts[rank] = max(self._counts[rank], int(count))
            self._final[rank] |= _FINAL in flags

    def _check_patience(self, number: int, waited: float) -> None:
        if self._job is None or waited <= self._job.patience:
            return
        silent = [
            rank
            for rank, (count, final) in enumerate(zip(self._counts, self._final, strict=True))
            if rank != self._rank and (self._leads[rank] is None or (count < number and not final))
        ]
        raise LoaderError(
            f"rank {silent[0]} has not said for {waited:,.0f} s (the job's timeout) whether it has "
            f"a batch {number:,} in {self._where}: it has ended, is late, has left the epoch, or "
            "iterates another loader; if it is late, init_process_group(timeout=...) gives it more "
            "time; if ranks are to stop apart, pass shard_tail='keep'"
        )

    def _lost(self, error: BaseException) -> LoaderError:
        reason = " ".join(str(error).split())[:120]
        return LoaderError(
            f"the ranks' common store, in the first rank's process, is lost in {self._where} "
            f"({reason}): the first rank has ended; its own messages say why"
        )

    def _write(self) -> None:
        assert self._job is not None
        try:
            count, lead = self._counts[self._rank], self._leads[self._rank]
            self._job.write(f"{count} {self._flags} {lead}")
        except RuntimeError as error:
            raise self._lost(error) from error

    def end(self) -> None:
        """Note that this rank has come to the end and asks no more."""
        job = self._job
        if job is None or _DONE in self._flags:
            return
        self._flags += _DONE
        self._write()
        if job.first:  # whose process has the store
            # Also at the end of a process that multiprocessing has started, where atexit is not.
            if self.farewell is not None:
                self.farewell.cancel()
            Agreement.farewell = util.Finalize(None, self._wait_for_readers, exitpriority=0)

    def _wait_for_readers(self) -> None:
        """Stay until all others have come to the end, too: they still have to read this store."""
        assert self._job is not None
        until = time.monotonic() + FAREWELL
        with contextlib.suppress(RuntimeError):
            while time.monotonic() < until:
                words = self._job.read()
                flags = [word.split(" ")[1] for word in words if word is not None]
                if len(flags) == len(words) and all(_DONE in each for each in flags):
                    return
                time.sleep(_LONGEST)
