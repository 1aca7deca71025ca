"""From one base seed to every random stream, and the three global generators set from it.

::

    seed ──derive(seed, epoch)────────────── the epoch's order (sampling.py)
         ├─derive(seed, epoch, batch)─────── seeding="batch":  seed_globals before each batch
         ├─sample_seed(seed, epoch, index)── seeding="sample": seed_globals before each sample
         └─seed + worker_id───────────────── seeding="worker": seed_worker, once at worker start
                                             (num_workers=0: OwnStreams, around each batch)

Nothing in here ever draws from a global generator. "The global generators" are those of ``random``,
``numpy.random`` (its legacy functions) and ``torch`` (its CPU generator).
"""

from __future__ import annotations

import hashlib
import io
import operator
import pickle
import random
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = [
    "OwnStreams",
    "base_seed",
    "derive",
    "preserved",
    "sample_seed",
    "seed_globals",
    "seed_worker",
]

_mtrand: Any = np.random.mtrand  # NumPy's stubs do not know all of its functions
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E37_79B9_7F4A_7C15
# One fixed offset a stream keeps random, NumPy and torch apart although they share one seed.
_PYTHON_STREAM, _NUMPY_STREAM, _TORCH_STREAM = (_GOLDEN * k & _MASK for k in (1, 2, 3))


def _mix(x: int) -> int:
    """Map 64 bits onto 64 bits, one to one, each output bit depending on each input bit.

    The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
    Generators, 2014).
    """
    x = (x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB & _MASK
    return x ^ (x >> 31)


def derive(*parts: int) -> int:
    """Mix integers into one 64-bit seed; order and number of the parts count.

    Args:
        *parts: Integers of any size and sign; each is taken modulo 2**64.

    Returns:
        A seed in ``range(2**64)``, the same in every process, version and platform.
    """
    state = _GOLDEN
    for part in parts:
        state = _mix(state ^ _mix(part + _GOLDEN & _MASK))
    return state


def sample_seed(seed: int, epoch: int, index: Any) -> int:
    """Give the seed of one sample, which depends on nothing but these three.

    Args:
        seed: Base seed.
        epoch: Epoch number.
        index: The sample's index as the sampler gave it: an integer (NumPy's and 0-d tensors are
            equal to Python's), a string, or anything that can be pickled.

    Returns:
        A seed in ``range(2**64)``. Equal indices have equal seeds in every process (Python's
        own ``hash`` is salted in each process anew and would not).
    """
    return derive(seed, epoch, _fingerprint(index))


def _fingerprint(index: Any) -> int:
    if isinstance(index, (tuple, list)):
        return derive(len(index), *map(_fingerprint, index))
    if isinstance(index, (set, frozenset)):  # iterates in salted order
        return derive(-len(index), *sorted(map(_fingerprint, index)))
    if isinstance(index, str):
        data = index.encode("utf-8", "surrogatepass")
    else:
        try:
            return operator.index(index)
        except TypeError:
            data = _canonical_pickle(index)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _canonical_pickle(value: Any) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=4)
    pickler.fast = True  # without memo: equal values give equal bytes, whether parts are shared
    pickler.dump(value)
    return file.getvalue()


def base_seed(seed: int | None, generator: torch.Generator | None) -> int:
    """Choose the seed that everything else is derived from, drawing nothing.

    Args:
        seed: The loader's ``seed`` option; wins if given.
        generator: The loader's ``generator`` option; its initial seed is used, never its state,
            so its position does not matter and is not changed.

    Returns:
        A seed in ``range(2**64)``; without both, what ``torch.manual_seed`` was called with last.
    """
    if seed is not None:
        return seed & _MASK
    return (generator.initial_seed() if generator is not None else torch.initial_seed()) & _MASK


def seed_worker(seed: int) -> None:
    """Seed the global generators at a worker's start, as torch's own loader does.

    Args:
        seed: ``base_seed + worker_id`` (taken modulo 2**64), which ``torch.initial_seed()`` gives
            from now on, as torch documents it.
    """
    seed &= _MASK
    torch.manual_seed(seed)  # the accelerators' generators, too
    _seed_as_worker(seed)


def _seed_as_worker(seed: int) -> None:
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    _seed_numpy(_mix(seed ^ _NUMPY_STREAM) >> 32)


def seed_globals(seed: int) -> None:
    """Position the global generators by one number: three streams unrelated to each other.

    ``torch.initial_seed()`` stays what it was: in a worker, programs read from it what their
    ``worker_init_fn`` has set, or ``base_seed + worker_id``.

    Args:
        seed: 64-bit seed (taken modulo 2**64), as `derive` gives it. NumPy's and torch's Mersenne
            Twisters take 32 bits of it each.
    """
    seed &= _MASK
    random.seed(_mix(seed ^ _PYTHON_STREAM))
    _seed_numpy(_mix(seed ^ _NUMPY_STREAM) >> 32)
    _position_torch(_mix(seed ^ _TORCH_STREAM) >> 32, torch.default_generator)


def _seed_numpy(seed: int) -> None:
    np.random.seed(seed)
    bits = _mtrand.get_bit_generator()
    if not isinstance(bits, np.random.MT19937):  # the user has put another one behind numpy.random
        _mtrand.set_bit_generator(bits)  # forgets a normal deviate in reserve, which seed() keeps


_scratch = torch.Generator()


def _position_torch(seed: int, target: torch.Generator) -> None:
    """Set ``target`` to the state after ``manual_seed(seed)``, except for its initial seed."""
    if not _initial_seed_leads_the_state():
        target.manual_seed(seed)
        return
    _scratch.manual_seed(seed)
    state = _scratch.get_state()
    # Through NumPy, for indexing a tensor costs as much as all the rest of this function.
    state.numpy().view(np.uint64)[0] = target.initial_seed()
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


def preserved() -> AbstractContextManager[None]:
    """Give a context after which the global generators are exactly as they were before.

    Exactly means: the next numbers, a normal deviate that ``random.gauss`` or NumPy keep in
    reserve, and ``torch.initial_seed()``; also when the body raises. In the body ``numpy.random``
    draws from a spare bit generator, so the body must seed before it draws; the other two go on
    from where they are. May be nested.
    """
    return _Preserved()


class _Preserved:
    __slots__ = ("_outside", "_spare")

    def __enter__(self) -> None:
        self._outside = _capture()
        self._spare = _spares.pop() if _spares else np.random.MT19937(0)
        _mtrand.set_bit_generator(self._spare)

    def __exit__(self, *error: object) -> None:
        _spares.append(self._spare)
        _install(self._outside)


class OwnStreams:
    """Context manager: in its body the global generators are those of a worker of its own.

    They are seeded as `seed_worker` does it when the body is entered first, and go on where they
    were when it is entered again. Outside, the global generators are as if there were no body,
    exactly as with `preserved`; those of accelerators are not touched.

    Args:
        seed: ``base_seed + worker_id``, taken modulo 2**64.
    """

    __slots__ = ("_inside", "_outside", "_seed")

    def __init__(self, seed: int) -> None:
        self._seed = seed & _MASK
        self._inside: _Streams | None = None

    def __enter__(self) -> None:
        """Take the global generators over."""
        self._outside = _capture()
        if self._inside is None:
            _mtrand.set_bit_generator(np.random.MT19937(0))
            _seed_as_worker(self._seed)
        else:
            _install(self._inside)

    def __exit__(self, *error: object) -> None:
        """Give them back."""
        self._inside = _capture()
        _install(self._outside)


class _Streams(NamedTuple):
    python: tuple[Any, ...]
    torch: torch.Tensor
    bits: Any
    reserve: dict[str, Any]


def _capture() -> _Streams:
    return _Streams(
        random.getstate(),
        torch.default_generator.get_state(),
        _mtrand.get_bit_generator(),
        _get_reserve(),
    )


def _install(streams: _Streams) -> None:
    _mtrand.set_bit_generator(streams.bits)
    _set_reserve(streams.reserve)
    torch.default_generator.set_state(streams.torch)
    random.setstate(streams.python)


# Swapping the bit generator is cheap; reading or writing a Mersenne Twister's state as a dict takes
# NumPy 35 us a time. The swap forgets the normal deviate in reserve, which is kept beside the bit
# generator, so that one is read and written apart, behind a stand-in that has no state.
_spares: list[Any] = []


class _StandIn:
    """A bit generator as far as ``RandomState.get_state`` and ``set_state`` look at one."""

    @property
    def state(self) -> dict[str, Any]:
        return {"bit_generator": "MT19937", "state": {}}

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        pass


def _get_reserve() -> dict[str, Any]:
    if not _stand_in_works():
        return np.random.get_state(legacy=False)
    return _get_behind_stand_in(_mtrand._rand)


def _set_reserve(reserve: dict[str, Any]) -> None:
    if not reserve["has_gauss"]:
        return  # nor has NumPy, after the swap
    if _stand_in_works():
        _set_behind_stand_in(_mtrand._rand, reserve)
    else:
        np.random.set_state(reserve)


def _get_behind_stand_in(generator: Any) -> dict[str, Any]:
    held, generator._bit_generator = generator._bit_generator, _StandIn()
    try:
        return generator.get_state(legacy=False)  # type: ignore[no-any-return]
    finally:
        generator._bit_generator = held


def _set_behind_stand_in(generator: Any, reserve: dict[str, Any]) -> None:
    held, generator._bit_generator = generator._bit_generator, _StandIn()
    try:
        generator.set_state(reserve)
    finally:
        generator._bit_generator = held


@cache
def _stand_in_works() -> bool:
    """Check once a process that NumPy's internals are as the stand-in supposes.

    Where they are not, `preserved` is slower by 70 us and as exact.
    """
    ours, theirs = np.random.RandomState(1), np.random.RandomState(1)
    try:
        pair = ours.standard_normal(2)
        theirs.standard_normal()  # the first of the pair: the second one is in reserve
        reserve = _get_behind_stand_in(theirs)
        _set_behind_stand_in(ours, reserve)
        return bool(
            reserve["has_gauss"] == 1
            and ours.standard_normal() == theirs.standard_normal() == pair[1]
            and ours.standard_normal() == theirs.standard_normal()
        )
    except Exception:
        return False
