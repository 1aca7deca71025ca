"""A delay of 30 ms that is put into one stage of a batch's way, and says itself how long it was."""

import time
from typing import Any

import torch
from torch import Tensor

from tests.support.samples import OfLength

DELAY = 0.03  # seconds
SAMPLES = 2  # of a batch
STAGES = {"fetch": "fetch", "collate": "collate", "encode": "transfer", "decode": "transfer",
          "pin": "transfer"}  # fmt: skip
"""Where a delay may be, and the figure that has it."""


def delay() -> int:
    """Wait; returns the nanoseconds that it took: on a busy machine more than was asked for."""
    began = time.monotonic_ns()
    time.sleep(DELAY)
    return time.monotonic_ns() - began


class Delayed(OfLength):
    """Rows of three; reading the first sample of each batch takes long if ``stage`` is "fetch".

    The second column says how many nanoseconds the sample was waiting.
    """

    def __init__(self, stage: str = "none", batches: int = 12) -> None:
        super().__init__(batches * SAMPLES)
        self.stage = stage

    def __getitem__(self, index: int) -> Tensor:
        slow = self.stage == "fetch" and index % SAMPLES == 0
        return torch.tensor([index, delay() if slow else 0, 0], dtype=torch.float64)


class Collate:
    """Stacks; a batch is a dict of rows and of an object that a stage may take long with."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def __call__(self, samples: list[Tensor]) -> dict[str, Any]:
        took = delay() if self.stage == "collate" else int(samples[0][1])
        kind = {"encode": SlowToPickle, "decode": SlowToUnpickle, "pin": SlowToPin}
        return {"x": torch.stack(samples).float(), "cargo": kind.get(self.stage, Cargo)(took)}


class Cargo:
    """An object in a batch; ``took``: nanoseconds that a stage was delayed."""

    def __init__(self, took: int) -> None:
        self.took = took


class SlowToPickle(Cargo):
    def __reduce__(self) -> Any:
        return Cargo, (delay(),)


class SlowToUnpickle(Cargo):
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.took = delay()


class SlowToPin(Cargo):
    def pin_memory(self) -> Cargo:
        return Cargo(delay())
