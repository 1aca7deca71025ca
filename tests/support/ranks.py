"""Ranks of a job: forks of this process that are gloo ranks, as a launcher starts programs."""

import multiprocessing
import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def of_ranks(number: int, target: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return, by rank, what ``target(rank, *arguments)`` returns; of one that is killed its code.

    All ranks that live wait for each other before they end.
    """
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(number)]
    waiting, end = context.Pipe(duplex=False)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def run(rank: int) -> None:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(number))
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        end.close()
        for at, pair in enumerate(pipes):
            pair[0].close()
            if at != rank:
                pair[1].close()
        own = dist.TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=200))
        dist.init_process_group("gloo", store=own, rank=rank, world_size=number)
        pipes[rank][1].send(target(rank, *arguments))
        waiting.poll(None)

    ranks = [context.Process(target=run, args=(rank,)) for rank in range(number)]
    for each in ranks:
        each.start()
    found = []
    for process, (reading, writing) in zip(ranks, pipes, strict=True):
        writing.close()
        try:
            found.append(reading.recv())
        except EOFError:
            process.join()
            found.append(process.exitcode)
        reading.close()
    end.close()
    waiting.close()
    for each in ranks:
        each.join()
        each.close()
    return found
