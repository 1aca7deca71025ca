"""A delay of 30 ms that is put into one stage of a batch's way, and says itself how long it was."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.support.samples import OfLength

DELAY = 0.03
"""Seconds."""

SAMPLES = 2
"""Samples of a batch."""

STAGES = ("fetch", "collate", "encode", "decode", "pin")


def sleep() -> None:
    time.sleep(DELAY)


def compute() -> None:
    """Keep the processor for as long."""
    end = time.monotonic() + DELAY
    while time.monotonic() < end:
        pass


Wait = Callable[[], None]


def timed(wait: Wait) -> int:
    """Wait; nanoseconds that it took, which on a busy machine may be more than was asked for."""
    began = time.monotonic_ns()
    wait()
    return time.monotonic_ns() - began


class Delayed(OfLength):
    """Rows of three; reading the first sample of each batch takes long if ``stage`` is "fetch".

    The second column says how many nanoseconds the sample was waiting.
    """

    def __init__(self, stage: str = "none", wait: Wait = sleep, batches: int = 12) -> None:
        super().__init__(batches * SAMPLES)
        self.stage, self.wait = stage, wait

    def __getitem__(self, index: int) -> Tensor:
        slow = self.stage == "fetch" and index % SAMPLES == 0
        return torch.tensor([index, timed(self.wait) if slow else 0, 0], dtype=torch.float64)


class Collate:
    """Stacks; a batch is a dict of rows and of an object that a stage may take long with."""

    def __init__(self, stage: str, wait: Wait) -> None:
        self.stage, self.wait = stage, wait

    def __call__(self, samples: list[Tensor]) -> dict[str, Any]:
        took = timed(self.wait) if self.stage == "collate" else int(samples[0][1])
        kind = {"encode": SlowToPickle, "decode": SlowToUnpickle, "pin": SlowToPin}
        cargo = kind.get(self.stage, Cargo)(self.wait, took)
        return {"x": torch.stack(samples).float(), "cargo": cargo}


class Cargo:
    """An object in a batch.

    Attributes:
        took: Nanoseconds that a stage was delayed.
    """

    def __init__(self, wait: Wait, took: int) -> None:
        self.wait, self.took = wait, took


class SlowToPickle(Cargo):
    def __reduce__(self) -> Any:
        return Cargo, (self.wait, timed(self.wait))


class SlowToUnpickle(Cargo):
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, took=timed(state["wait"]))


class SlowToPin(Cargo):
    def pin_memory(self) -> Cargo:
        return Cargo(self.wait, timed(self.wait))
