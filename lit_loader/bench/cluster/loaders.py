"""The loaders that are compared: the same dataset, batches and number of processors for each.

    opened(name, case, workers, address) ─▶ Loader: epoch, state, resume

Each is opened once in a process. What a loader cannot do is done as its users would: bare actors
are asked for the batches behind the position that was noted, and Ray Data, which has no state,
makes an epoch from its beginning, of which what was seen is thrown away.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset

from lit_loader.bench.data.datasets import Block
from lit_loader.bench.data.decoders import JpegImages, Texts

__all__ = ["CASES", "LOADERS", "Loader", "ids", "opened"]

LOADERS: Final = ("lit_loader", "bare", "ray_data", "ray_data, ordered")

CASES: Final[dict[str, tuple[str, Callable[[int], Any], int, int]]] = {
    "small": ("2 kB", lambda length: Block(length, 2048), 400, 1),
    "large": ("19 MB", lambda length: Block(length, 19 << 20), 60, 1),
    "jpeg": ("16 JPEG files 500x375", JpegImages, 800, 16),
    "text": ("16 texts of 512 tokens", lambda length: Texts(length, 512), 3200, 16),
    "numbered": ("the same with their indices", lambda length: Numbered(length), 3200, 16),
}
"""What it is called, its dataset of so many samples, these, samples a batch."""


class Numbered(Dataset[Any]):
    """JPEG images, each with its index before it.

    Args:
        length: Number of samples.
    """

    def __init__(self, length: int) -> None:
        self._images = JpegImages(length)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return (index, *self._images[index])


def ids(batch: Any) -> list[int]:
    """Give the indices of a batch of the case "numbered", of any loader."""
    return [int(index) for index in (batch["0"] if isinstance(batch, dict) else batch[0])]


class Loader(Protocol):
    """A loader in use."""

    def epoch(self) -> Iterator[Any]:
        """Begin an epoch, or the rest of one that `resume` was told of; gives its batches."""

    def state(self, batches: int) -> Any:
        """What is to be kept to go on behind so many batches of an epoch; can be pickled."""

    def resume(self, state: Any) -> None:
        """Have the next epoch begin there."""


def opened(name: str, case: str, workers: int, address: str, survives: bool = False) -> Loader:
    """Open a loader.

    Args:
        name: One of `LOADERS`.
        case: One of `CASES`.
        workers: Processors, each for one actor.
        address: The cluster.
        survives: Whether Ray is to restart bare actors, which it does only when asked to.
    """
    if name == "lit_loader":
        return _Ours(case, workers, address)
    if name == "bare":
        return _Bare(case, workers, address, survives)
    return _RayData(case, workers, address, name.endswith("ordered"))


def _collated(dataset: Any, indices: Any) -> dict[str, Any]:
    """Make a batch as the default collate does; arrays by name."""
    batch = torch.utils.data.default_collate([dataset[int(index)] for index in indices])
    parts = batch if isinstance(batch, (tuple, list)) else [batch]
    return {str(place): part.numpy() for place, part in enumerate(parts)}


class Making:
    """What an actor of the others is: it makes batches."""

    def __init__(self, case: str) -> None:
        torch.set_num_threads(1)
        _, make, length, self._size = CASES[case]
        self._dataset = make(length)

    def make(self, number: int) -> dict[str, Any]:
        """Make the batch with this number."""
        return _collated(self._dataset, range(number * self._size, (number + 1) * self._size))

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Make the batch of these rows, for Ray Data."""
        return _collated(self._dataset, rows["id"])


class _Ours:
    """`lit_loader.DataLoader`: remote workers, none on this side."""

    def __init__(self, case: str, workers: int, address: str) -> None:
        from lit_loader.config.ray_workers import RayWorkers
        from lit_loader.loader import DataLoader

        _, make, length, size = CASES[case]
        options: dict[str, Any] = {"remote_workers": workers, "remote": RayWorkers(address=address)}
        self._loader: Any = DataLoader(make(length), size, persistent_workers=True, **options)

    def epoch(self) -> Iterator[Any]:
        return iter(self._loader)

    def state(self, batches: int) -> Any:
        return self._loader.state_dict()

    def resume(self, state: Any) -> None:
        self._loader.load_state_dict(state)


class _Counted:
    """A loader without a state: its user keeps how many batches there were."""

    def __init__(self, address: str) -> None:
        import ray

        ray.init(address=address, log_to_driver=False)
        self._first = 0

    def state(self, batches: int) -> Any:
        return batches

    def resume(self, state: Any) -> None:
        self._first = state

    def _begin(self) -> int:
        first, self._first = self._first, 0
        return first


class _Bare(_Counted):
    """Actors that make the same batches, two in flight each; ``ray.get`` and a copy."""

    def __init__(self, case: str, workers: int, address: str, survives: bool) -> None:
        import ray

        super().__init__(address)
        _, _, length, size = CASES[case]
        self._batches = length // size
        again = -1 if survives else 0
        actor = ray.remote(
            num_cpus=1, max_restarts=again, max_task_retries=again, scheduling_strategy="SPREAD"
        )(Making)
        self._actors = [actor.remote(case) for _ in range(workers)]

    def epoch(self) -> Iterator[Any]:
        import ray

        waiting: deque[Any] = deque()
        for number in range(self._begin(), self._batches):
            actor = self._actors[number % len(self._actors)]
            waiting.append(actor.make.remote(number))
            if len(waiting) == 2 * len(self._actors):
                yield _copied(ray.get(waiting.popleft()))
        while waiting:
            yield _copied(ray.get(waiting.popleft()))


def _copied(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(np.array(part)) for name, part in batch.items()}


class _RayData(_Counted):
    """``iter_torch_batches`` of ``map_batches`` over the indices, by a pool of actors."""

    def __init__(self, case: str, workers: int, address: str, ordered: bool) -> None:
        import ray

        super().__init__(address)
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = ordered
        context.enable_progress_bars = False
        _, _, length, self._size = CASES[case]
        self._data = ray.data.range(length).map_batches(
            Making,
            fn_constructor_args=(case,),
            batch_size=self._size,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
        )

    def epoch(self) -> Iterator[Any]:
        batches = iter(self._data.iter_torch_batches(batch_size=self._size))
        return itertools.islice(batches, self._begin(), None)
