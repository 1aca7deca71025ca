"""What exactness costs: checkpoints, resuming early and late, a billion shuffled items.

    python examples/benchmark/exactness.py [--quick]

Figures of lit_loader alone: others have no such state, or replay the data to reach it.
"""

import pickle
import statistics
import time
import tracemalloc

import torch
from common import parser, table

from lit_loader import DataLoader

DATA = torch.zeros(1_000_000, 16)


def opened():
    return DataLoader(DATA, batch_size=32, shuffle=True, seed=1)


def long():
    return DataLoader(range(10**9), batch_size=32, shuffle=True, seed=1)


def median(call, times):
    """Microseconds of a call."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def main():
    times = 3 if parser(__doc__).parse_args().quick else 51
    loader = opened()
    next(iter(loader))
    state = loader.state_dict()

    def first_batch(percent):
        fresh = opened()
        if percent:
            batches = len(fresh) * percent // 100
            fresh.load_state_dict({**state, "batches": batches})
        next(iter(fresh))

    rows = [["checkpoint state, pickled, bytes", len(pickle.dumps(state))]]
    rows.append(["state_dict(), µs", median(loader.state_dict, times)])
    for percent in (0, 1, 99):
        took = median(lambda percent=percent: first_batch(percent), times)
        rows.append([f"first batch of a new loader resumed at {percent} %, µs", took])
    rows.append(
        ["first batch of 10^9 shuffled items, µs", median(lambda: next(iter(long())), times)]
    )
    tracemalloc.start()
    next(iter(long()))
    rows.append(["memory for it, kB", tracemalloc.get_traced_memory()[1] / 1e3])
    table(["exactness", "figure"], rows)


if __name__ == "__main__":
    main()
