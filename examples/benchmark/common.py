"""What the scripts of this folder share: turns in rounds, tables."""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch.utils.data import Dataset

import lit_loader

torch.set_num_threads(1)  # what torch makes of its own workers; forked ones inherit it

LOADERS = {"lit_loader": lit_loader.DataLoader, "torch": torch.utils.data.DataLoader}


def parser(doc, rounds=5):
    """Options that all have."""
    found = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--rounds", type=int, default=rounds, help=f"rounds that count ({rounds})")
    found.add_argument("--workers", type=int, default=2, help="workers of each loader (2)")
    found.add_argument("--quick", action="store_true", help="as little as shows that it works")
    return found


def in_turns(subjects, rounds, uncounted=1):
    """Measure in rounds that take turns, each time another one first; medians by name.

    So all meet the machine in the same moods. The first round starts workers and touches memory.
    """
    names, found = list(subjects), {name: [] for name in subjects}
    for number in range(uncounted + rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            figure = subjects[name]()
            if number >= uncounted:
                found[name].append(figure)
    return {name: statistics.median(figures) for name, figures in found.items()}


def clocked(loader, skip, batches):
    """Microseconds a batch in the midst of an epoch; what lies ready at its begin is skipped."""
    began = ended = time.perf_counter()
    for number, _ in enumerate(loader, 1):
        if number == skip:
            began = time.perf_counter()
        elif number == skip + batches:
            ended = time.perf_counter()
    return (ended - began) / batches * 1e6


def table(head, rows):
    """Print a table, numbers with about three digits."""
    for cells in (head, ["---"] + ["---:"] * (len(head) - 1), *rows):
        print("| " + " | ".join(map(_cell, cells)) + " |", flush=True)


def _cell(value):
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


class Block(Dataset):
    """One tensor of so many bytes, made anew each time.

    One that is always the same object would be handed over once: torch's worker moves its storage
    into shared memory, and from then on sends a handle.
    """

    def __init__(self, length, nbytes):
        self.length, self.block = length, torch.zeros(nbytes, dtype=torch.uint8)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.block.clone()
