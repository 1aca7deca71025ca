"""From the seed of a pass to every random stream, and the three global generators set from it.

::

    bases ─▶ seed of a pass (core/seeding/bases.py)
         ├─derive(seed, batch)──── seeding="batch":  seed_globals before each batch
         ├─sample_seed(seed, index)─ seeding="sample": seed_globals before each sample
         └─seed + worker_id─────── seeding="worker": seed_worker, once at worker start
                                   (num_workers=0: OwnStreams of core/seeding/generator_state.py)

Nothing in here ever draws from a global generator. "The global generators" are those of ``random``,
``numpy.random`` (its legacy functions) and ``torch`` (its CPU generator).
"""

from __future__ import annotations

import contextlib
import ctypes  # reach: torch: a generator's state is written to by its address
import hashlib
import io
import operator
import pickle
import random
import threading
from collections.abc import Callable, Collection
from functools import cache
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = [
    *("BatchRng", "await_draws", "canonical_pickle", "derive", "extend", "extend_each"),
    *("index_number", "of_thread", "renew_numpy_generator", "sample_seed", "seed_globals"),
    *("seed_streams", "seed_worker", "tensor_bytes"),
]

# --- what `lit_loader.get_rng` gives: it follows from the sample alone ---

# A batch notes where it is (`BatchRng.begin`), which costs a few stores; a generator is made when
# it is asked for.

_OWN: Final = 0x6765_745F_726E_67  # keeps these streams apart from what is seeded otherwise


class BatchRng:
    """Gives the generators of the batch that is being made.

    Samples have theirs from ``epoch_seed``, that of the pass, and their index; those without
    an index, or read all at once (``together``), from ``parts``, as the batch has. ``progress``
    says which sample is being read; None: none is, as in ``collate_fn``. A batch that is not
    ``batched`` is a single index.
    """

    __slots__ = (
        "_batched",
        "_index",
        "_made",
        *("epoch_seed", "indices", "parts", "progress", "together"),
    )

    def __init__(self, batched: bool) -> None:
        self._batched, self.together = batched, True
        self.epoch_seed = 0
        self.indices: Any = None
        self.progress: Any = None
        self._made: dict[Any, Any]
        self.begin()

    def begin(self, *parts: int) -> None:
        """Begin a batch, or its collation: whatever was made before is not given again."""
        self.parts, self._index, self._made = parts, None, {}

    def attempt(self, index: Any) -> None:
        """Begin to read one sample, once more perhaps; its index, if it has one."""
        self._index, self._made = None if index is self.indices and self._batched else index, {}

    def give(self, index: Any, make: Callable[[int], Any] = np.random.default_rng) -> Any:
        """Give what ``make`` makes by a sample's seed, once; None: the one being read, or batch."""
        position = -1
        if self.progress is not None:
            position = self.progress.position
            index = self._at(position) if index is None else index
        own = (*self.parts, position + 1)
        seed = (
            extend(self.epoch_seed, *own) if index is None else sample_seed(self.epoch_seed, index)
        )
        key = make, position, seed
        if key not in self._made:  # in one step: threads of the dataset's may ask for the same one
            self._made.setdefault(key, make(extend(seed, _OWN)))
        return self._made[key]

    def _at(self, position: int) -> Any:
        """Give the index of a sample; None: it has none, or is read with the others at once."""
        indices = self.indices
        if self._index is not None or self.together:
            return self._index
        if not self._batched:
            return indices
        if type(indices) is list:
            return indices[position]
        if isinstance(indices, Collection):  # a tensor, a set, ...: as it is iterated
            return next(islice(indices, position, None))
        return None  # an iterator, which has been used up

    @property
    def last(self) -> list[Any]:
        """The generator that was made last, if there is any: where it is tells what was drawn."""
        made = [each for each in self._made.values() if isinstance(each, np.random.Generator)]
        return [each.bit_generator for each in made[-1:]]

    def place(self) -> Any:
        """Give where it is, for `go_back`; what is drawn meanwhile leaves no trace."""
        place = self.parts, self._index, self._made, self.progress
        self._made = {}
        return place

    def go_back(self, place: Any) -> None:
        """Be where it was."""
        self.parts, self._index, self._made, self.progress = place


_numpy: Any = np.random  # NumPy's stubs do not know all of its functions
_mtrand: Any = np.random.mtrand
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_LOW = 0xFFFF_FFFF


def _mix(x: int) -> int:
    """Map 64 bits onto 64 bits, one to one, each output bit depending on each input bit.

    The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
    Generators, 2014).
    """
    x = (x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB & _MASK
    return x ^ (x >> 31)


def derive(*parts: int) -> int:
    """Mix integers of any size into one 64-bit seed; order and number of the parts count.

    It is the same in every process, version and platform.
    """
    return extend(_GOLDEN, *parts)


def extend(seed: int, *parts: int) -> int:
    """Mix further integers into a seed: ``extend(derive(a, b), c) == derive(a, b, c)``."""
    for part in parts:  # `_mix`, twice, spelled out: it is done for each batch
        x = part + _GOLDEN & _MASK
        x = (x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK
        x = (x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB & _MASK
        x ^= seed ^ (x >> 31)
        x = (x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK
        x = (x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB & _MASK
        seed = x ^ (x >> 31)
    return seed


def extend_each(seeds: tuple[int, int, int], parts: tuple[int, ...]) -> list[int]:
    """Do as :func:`extend` for several seeds at once."""
    return [extend(seed, *parts) for seed in seeds]


def sample_seed(epoch_seed: int, index: Any) -> int:
    """Give the seed of one sample, which depends on that of the pass and its index alone.

    The index is an integer (NumPy's and 0-d tensors are equal to Python's), a string, or anything
    that can be pickled. Equal ones have equal seeds in every process, as with Python's own ``hash``
    they would not.
    """
    return extend(epoch_seed, index_number(index))


def index_number(index: Any) -> int:
    """Give the number that stands for a sample's index in its seed."""
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


def canonical_pickle(value: Any) -> bytes:
    """Pickle a value so that equal ones give equal bytes."""
    file = io.BytesIO()
    pickler = _Pickler(file, protocol=4)
    pickler.fast = True  # without memo: equal values give equal bytes, whether parts are shared
    pickler.dump(value)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Writes tensors as their bytes: what torch writes of a storage differs each time."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor:
            return NotImplemented
        return tuple, (str(obj.dtype), tuple(obj.shape), tensor_bytes(obj).tobytes())


def tensor_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Give the bytes of a tensor's values in order, uint8 of shape (bytes,); not to be changed.

    Raises if it has no such (it is sparse, nested or quantized, say).
    """
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy()


def seed_worker(seed: int) -> None:
    """Seed the global generators at a worker's start, as torch's own loader does.

    ``torch.initial_seed()`` gives ``base_seed + worker_id`` from now on, as torch documents it.
    """
    if _has_accelerator():
        torch.manual_seed(seed & _MASK)  # their generators, too, for which it takes locks
    seed_streams(seed)


def _has_accelerator() -> bool:
    """Whether torch knows of an accelerator; asks no driver, for this may be a forked process."""
    try:
        return torch.accelerator.current_accelerator() is not None
    except RuntimeError:  # what torch 2.6 says where there is none
        return False


def await_draws() -> None:
    """Wait, before a fork, until no other thread is at drawing from torch's global generator.

    Its lock cannot be made new in the copy. A thread that has it needs nothing of this one to come
    to the end of its draw, and as a rule does not begin another before the fork.
    """
    torch.default_generator.get_state()


def renew_numpy_generator() -> None:
    """Put another generator behind ``numpy.random``, in a process just forked.

    A thread that is not here may hold the other's lock. Workers seed before they draw.
    """
    with contextlib.suppress(Exception):  # the user's own, of a class that is made in another way
        _mtrand.set_bit_generator(type(_mtrand.get_bit_generator())(0))


def seed_streams(seed: int) -> None:
    """Do as `seed_worker` does, and leave the accelerators' generators alone."""
    seed &= _MASK
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    _seed_numpy(_mix(seed) >> 32)


class _OfThread(threading.local):
    """What a worker in a thread has in the place of the global generators, which it leaves alone.

    Torch's alone: there is `torch.thread_safe_generator` for it. None: this is no such thread.
    ``seeds`` are those of Python's and NumPy's, which nobody draws from.
    """

    generator: torch.Generator | None = None
    seeds = 0, 0


of_thread: Final = _OfThread()


def seed_globals(seed: int, numpy: int | None = None, python: int | None = None) -> None:
    """Position the global generators by 64 bits: three streams unrelated to each other.

    NumPy's and Python's by bits of their own, where those are given, which nothing else has.

    ``torch.initial_seed()`` stays what it was: in a worker, programs read from it what their
    ``worker_init_fn`` has set, or ``base_seed + worker_id``.
    """
    # Disjoint halves for the two Mersenne Twisters that are set from 32 bits, in the same way;
    # Python sets its own in another way, from all 64.
    seed = _mix(seed & _MASK)
    python, numpy = seed if python is None else python, (seed if numpy is None else numpy) >> 32
    own = of_thread.generator
    if own is not None:
        own.manual_seed(seed & _LOW)
        of_thread.seeds = python, numpy
        return
    random.seed(python)
    _seed_numpy(numpy)
    _position_torch(seed & _LOW, torch.default_generator)


def _seed_numpy(seed: int) -> None:
    np.random.seed(seed)
    if not isinstance(_numpy.get_bit_generator(), np.random.MT19937):
        # The user has put another one behind numpy.random: its seed() keeps a normal deviate that
        # is in reserve.
        state = _numpy.get_state(legacy=False)
        _numpy.set_state({**state, "has_gauss": 0, "gauss": 0.0})


_scratch = torch.Generator()


def _position_torch(seed: int, target: torch.Generator) -> None:
    """Set ``target`` to the state after ``manual_seed(seed)``, except for its initial seed."""
    if not _initial_seed_leads_the_state():
        target.manual_seed(seed)
        return
    _scratch.manual_seed(seed)
    state = _scratch.get_state()
    # By address, for indexing a tensor costs as much as all the rest of this function.
    ctypes.c_uint64.from_address(state.data_ptr()).value = target.initial_seed()
    target.set_state(state)


@cache
def _initial_seed_leads_the_state() -> bool:
    """Check once a process that a generator's state begins with its initial seed (8 bytes).

    The layout is torch's own business: where it differs, `_position_torch` gives up on the initial
    seed and keeps the stream right.
    """
    ours, theirs = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    state = theirs.get_state()
    if state.device.type != "cpu" or state.numel() % 8:
        return False
    state.numpy().view(np.uint64)[0] = 1
    ours.set_state(state)
    draws = [torch.randn(8, generator=g, device="cpu").tolist() for g in (ours, theirs)]
    return ours.initial_seed() == 1 and draws[0] == draws[1]
