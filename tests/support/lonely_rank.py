"""Run as a script: two ranks read a stream, and one of them is killed; the other says what it met.

Arguments: what becomes of the stream's end, and the workers.
"""

import os
import signal
import sys
from datetime import timedelta

import torch.distributed as dist

from lit_loader import LoaderError
from tests.support.tail_ranks import exit_codes, loader

KILLED_AFTER = 2
"""Batches."""


def run(rank: int, port: int, tail: str, workers: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    store.set_timeout(timedelta(seconds=1))
    with loader("iterator", tail, workers, 2, rank) as batches:
        steps = 0
        try:
            for steps, _ in enumerate(batches, 1):
                if rank == 1 and steps == KILLED_AFTER:
                    os.kill(os.getpid(), signal.SIGKILL)
        except LoaderError as error:
            print(steps, error)


if __name__ == "__main__":
    print(exit_codes(2, run, sys.argv[1], int(sys.argv[2])))
