"""From the seed of a pass to every random stream.

::

    seed of a pass ─┬─ extend(seed, BATCH, number)      the generators, before each batch
                    ├─ extend(seed, SAMPLE, position)   … and each sample, with seeding="sample"
                    ├─ extend(…, OWN)                   what `lit_loader.get_rng` returns
                    ╰─ seed + worker id                 in worker_init_fn, as with torch

Nothing in here draws from a global generator. "The global generators" are those of ``random``, of
``numpy.random`` (its legacy functions) and of ``torch`` (its CPU generator).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import operator
import pickle
import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

BATCH: Final = 0xBA7C
SAMPLE: Final = 0x5A3B
"""Keep the seeds of batches and of samples of one pass apart."""

_BY_INDEX: Final = 0x1D3C
_ORDER: Final = 0x0DE2
_OWN: Final = 0x6765_745F_726E_67

UNTOLD: Final = -(2**63)
"""In place of ``dataset_epoch``: the dataset gets none. Epochs may be negative."""


class PassSeeds(NamedTuple):
    """What the random numbers of one pass follow from; sent to workers with each task."""

    seed: int  # 64 bits
    ordinal: int = 0  # of epoch and earlier passes of it, by which held generators vary
    held: int = 0  # whether ``seed`` takes the place of held generators' own seeds
    dataset_epoch: int = UNTOLD  # what the dataset's ``set_epoch`` is called with


# --- mixing ---

_numpy: Any = np.random  # NumPy's stubs do not know all of its functions
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E37_79B9_7F4A_7C15


def mix(number: int) -> int:
    """Mix the low 64 bits of a number one to one, by the finaliser of SplitMix64."""
    x = number & _MASK
    x = (x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB & _MASK
    return x ^ (x >> 31)


def derive(*parts: int) -> int:
    """Mix integers of any size into one 64-bit seed; the order and number of the parts count.

    The result is the same in every process, version and platform.
    """
    return extend(_GOLDEN, *parts)


def extend(seed: int, *parts: int) -> int:
    """Mix further integers into a seed: ``extend(derive(a, b), c) == derive(a, b, c)``.

    By the finaliser of SplitMix64, twice, which maps 64 bits one to one onto 64 bits so that each
    output bit depends on each input bit (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
    Generators, 2014).
    """
    for part in parts:
        x = part + _GOLDEN & _MASK
        x = (x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK
        x = (x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB & _MASK
        x ^= seed ^ (x >> 31)
        x = (x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK
        x = (x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB & _MASK
        seed = x ^ (x >> 31)
    return seed


def order_seed(base: int, epoch: int, repeat: int = 0) -> int:
    """Return the seed of an epoch's order, for the passes that follow from one base."""
    return extend(derive(base, epoch), _ORDER, repeat)


def index_number(index: Any) -> int:
    """Return the number that stands for a sample's index in a seed.

    The index is an integer (NumPy's and 0-d tensors are equal to Python's), a string, or anything
    that can be pickled. Equal indices have equal numbers in every process, unlike Python's own
    ``hash``.
    """
    if isinstance(index, (tuple, list)):
        return derive(len(index), *map(index_number, index))
    if isinstance(index, (set, frozenset)):  # iterates in salted order
        return derive(-len(index), *sorted(map(index_number, index)))
    if isinstance(index, str):
        data = index.encode("utf-8", "surrogatepass")
    else:
        try:
            return operator.index(index)
        except TypeError:
            data = canonical_pickle(index)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def canonical_pickle(value: object) -> bytes:
    """Pickle a value so that equal values give equal bytes."""
    file = io.BytesIO()
    pickler = _Pickler(file, protocol=4)
    pickler.fast = True  # without memo: whether parts are shared does not count
    pickler.dump(value)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Writes tensors as their bytes: what torch writes of a storage differs each time."""

    def reducer_override(self, obj: object) -> Any:
        if type(obj) is not torch.Tensor:
            return NotImplemented
        return tuple, (str(obj.dtype), tuple(obj.shape), tensor_bytes(obj).tobytes())


def tensor_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a tensor's values in order, uint8 of shape (bytes,), not to be changed.

    Raises if it has none (it is sparse, nested or quantized, say).
    """
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy()


# --- what `lit_loader.get_rng` returns ---


class BatchRng:
    """Makes the generators that samples and ``collate_fn`` of the current batch ask for.

    A batch notes where it is in `begin`, which costs a few stores; a generator is made when it is
    asked for. ``size`` samples make a batch, or None if their number varies: then a sample's seed
    follows from the batch's number and the sample's place in it, else from its position in the
    pass.
    """

    __slots__ = ("_made", "_size", "batch", "pass_seed", "rank", "replicas", "step")

    def __init__(self, size: int | None, rank: int = 0, replicas: int = 1) -> None:
        self._size, self.rank, self.replicas = size, rank, replicas
        self.pass_seed = self.batch = 0
        self.step: Any = None  # has the place of the sample that is being read; None: none is
        self._made: dict[object, Any] = {}

    def begin(self, pass_seed: int, batch: int) -> None:
        """Begin a batch, by its number over all ranks."""
        self.pass_seed, self.batch, self.step, self._made = pass_seed, batch, None, {}

    def sample_seed(self, place: int) -> int:
        """Return the seed of the sample at a place of the batch."""
        size, batch = self._size, self.batch
        if size is None:
            return extend(self.pass_seed, SAMPLE, batch, place)
        step = batch // self.replicas
        return extend(self.pass_seed, SAMPLE, (step * size + place) * self.replicas + self.rank)

    def attempt(self) -> None:
        """Begin to read a sample again: it draws the same numbers."""
        self._made = {}

    def give(self, index: Any, make: Callable[[int], Any] = np.random.default_rng) -> Any:
        """Return what ``make`` makes of a seed, once: the sample's being read, or the batch's.

        With an ``index`` the seed follows from that alone.
        """
        place = -1 if self.step is None else self.step.place
        if index is not None:
            seed = extend(self.pass_seed, _BY_INDEX, index_number(index))
        elif place < 0:
            seed = extend(self.pass_seed, BATCH, self.batch)
        else:
            seed = self.sample_seed(place)
        key = make, place, seed
        if key not in self._made:  # in one step: threads of the dataset may ask for the same one
            self._made.setdefault(key, make(extend(seed, _OWN)))
        return self._made[key]


# --- seeding the global generators ---


def seed_globals(seed: int) -> None:
    """Seed the three global generators; ``torch.initial_seed()`` then returns the seed.

    torch's engine takes the low 32 bits and NumPy's another 32, so that the two Mersenne Twisters
    are unrelated. Python's takes all 64, in another way.
    """
    torch.default_generator.manual_seed(seed)
    _numpy.seed(numpy_seed(seed))
    random.seed(seed)


def numpy_seed(seed: int) -> int:
    """Return the 32 bits by which NumPy's global generator is seeded."""
    return mix(seed + _GOLDEN) >> 32


def seed_worker(seed: int) -> None:
    """Seed the global generators at a worker's start, and those of accelerators.

    Args:
        seed: The pass's seed + the worker's number, as with torch's loader.
    """
    with contextlib.suppress(RuntimeError):  # torch 2.6 says so that there is no accelerator
        if torch.accelerator.current_accelerator() is not None:  # asks no driver: in a fork, say
            torch.manual_seed(seed & _MASK)  # their generators too, for which it takes locks
    seed_globals(seed & _MASK)


def await_draws() -> None:
    """Wait, before a fork, until no other thread draws from torch's global generator.

    Its lock cannot be made new in the copy. A thread that holds it needs nothing of this one to
    finish its draw, and as a rule does not begin another before the fork.
    """
    torch.default_generator.get_state()


def renew_numpy_generator() -> None:
    """Put another generator behind ``numpy.random``, in a process just forked.

    A thread that is not here may hold the other's lock. Workers seed before they draw.
    """
    mtrand: Any = np.random.mtrand
    with contextlib.suppress(Exception):  # the user's own, of a class that is made in another way
        mtrand.set_bit_generator(type(mtrand.get_bit_generator())(0))
