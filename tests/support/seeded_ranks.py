"""Run as a script: two gloo ranks, each with its own loaders, as programs of torchrun have them.

Argument: jobs as JSON, each its seed ("-": none; "rank": another one on each rank), its workers,
and its kind of dataset. Prints as JSON, by job and rank: the indices and the noise of two passes.
"""

import json
import multiprocessing
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler, IterableDataset

from lit_loader import DataLoader, get_shard


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand((), dtype=torch.float64), np.random.random(), random.random()


class NoisyStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        share, count = get_shard()
        for index in range(share, 16, count):
            yield Noisy()[index]


def loader(kind: str, rank: int, workers: int) -> DataLoader[Any]:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": workers}
    if kind == "sampler":
        sampler = DistributedSampler(Noisy(), 2, rank)
        return DataLoader(Noisy(), sampler=sampler, **options)
    options["num_replicas"] = "auto"
    if kind == "stream":
        return DataLoader(NoisyStream(), num_shards=4, uneven_ranks="keep", **options)
    return DataLoader(Noisy(), shuffle=True, **options)


def run(rank: int, port: int, seed: str, workers: int, kind: str, results: Any) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.seed(), np.random.seed(None), random.seed()
    if seed != "-":
        number = 100 + rank if seed == "rank" else int(seed)
        torch.manual_seed(number), np.random.seed(number), random.seed(number)
    passes = []
    with loader(kind, rank, workers) as made:
        for epoch in range(2):
            if kind == "sampler":
                made.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            columns = [torch.cat(each).tolist() for each in zip(*made, strict=True)]
            passes.append(columns)
    results.send(passes)


def job(seed: str, workers: int, kind: str) -> list[Any]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    ranks = [
        context.Process(target=run, args=(rank, store.port, seed, workers, kind, pipes[rank][1]))
        for rank in range(2)
    ]
    for each in ranks:
        each.start()
    found = [pipe.recv() for pipe, _ in pipes]
    for each in ranks:
        each.join()
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps([job(*each) for each in json.loads(sys.argv[1])]))
