"""What a program calls: `training` measures its training, `note` keeps which samples came."""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import random
import resource
import time
from pathlib import Path

import numpy as np
import torch
from pairs import used

FIGURES = {}  # of the training that has ended
_numbers = []


def note(numbers):
    """Keep which samples a batch has: their numbers, or values by which they can be told apart."""
    _numbers.extend(numbers.flatten().tolist() if hasattr(numbers, "flatten") else numbers)


def used_below(process):
    """Return the CPU seconds of the processes below one, and of their children that have ended."""
    seconds = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            _state, parent, *fields = stat.read_text().rpartition(")")[2].split()
            if int(parent) == process:
                seconds += sum(map(int, fields[9:13])) / os.sysconf("SC_CLK_TCK")
                seconds += used_below(int(stat.parent.name))
    return seconds


def used_by_children():
    """Some workers persist, others have ended."""
    return used(resource.RUSAGE_CHILDREN) + used_below(os.getpid())


def seed():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@contextlib.contextmanager
def training(epochs):
    """Measure what stands below. For each epoch count the samples by how often each came."""
    seed()
    children = used_by_children()
    own, began = used(resource.RUSAGE_SELF), time.perf_counter()
    yield
    clock, own = time.perf_counter() - began, used(resource.RUSAGE_SELF) - own
    # A Trainer and its loaders refer to each other. Workers that wait for the collector end here.
    gc.collect()
    length, rest = divmod(len(_numbers), epochs)
    assert not rest, f"{len(_numbers)} samples in {epochs} epochs"
    made = [_numbers[begin : begin + length] for begin in range(0, len(_numbers), length)]
    FIGURES.update(
        clock=clock,
        cpu=own + used_by_children() - children,
        epochs=[sorted(collections.Counter(collections.Counter(e).values()).items()) for e in made],
        orders=len(set(map(tuple, made))),
    )
