"""`shared_dataset`: one process of a machine builds a dataset, the others map its arrays.

::

    key, pickled factory ─▶ label ─▶ lock ─▶ found among this user's open files? ─ yes ─▶ mapped
                                      ▲        │ no                                        ▲
                                    waits      ╰─▶ built ─▶ frozen ─▶ file, sealed ────────╯

`core/transport/dataset_pickle.py` writes and reads the file, as it does for workers by spawn.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from lit_loader.core.options.checks import filled_text, is_dataset, seconds, undeferred
from lit_loader.core.system.shared_file import HeldFile
from lit_loader.core.transport.dataset_pickle import Policy, freeze, thaw
from lit_loader.data import memory_files
from lit_loader.data.draws import Draws
from lit_loader.data.memory import memory_left
from lit_loader.describe import message_of, public, short_repr
from lit_loader.errors import LoaderError, OptionError, TransportError

__all__ = ["shared_dataset"]

_T = TypeVar("_T")

_LABEL: Final = "lit_loader dataset 2"
"""What files in memory and locks are called; its end is the version of the format."""

_SPARED: Final = 256 << 20  # bytes of memory that are left to others

_PROCESSES: Final = Policy(
    "cannot be pickled, as shared_dataset needs",
    "leave it out in __getstate__ and make it on first use",
)

_building: set[tuple[int, str]] = set()
"""Which threads of this process build what now."""

_log = logging.getLogger("lit_loader.node")


@public
def shared_dataset(factory: Callable[[], _T], key: str, timeout: float = 1800.0) -> _T:
    """Build a dataset once for all processes of this user on this machine that ask for it.

    The first one calls ``factory``. It and all others, ranks or other runs, get an equal dataset
    each, whose large arrays and tensors (64 KiB and more) lie in memory once for all of them and
    their forked workers; other workers have a copy, one for all of a loader. What a process writes
    into one is seen by no other.
    The data lives as long as any process that has it, and nothing is left of it. If the process
    that builds is killed, another one builds. Where ``factory`` raises, that is raised, and the
    next process tries by itself.

    In Hydra around any dataset::

        _target_: lit_loader.shared_dataset
        key: flowers v2
        factory: {_target_: my.Dataset, root: data, _partial_: true}

    Args:
        factory: Makes the dataset, without arguments, and draws no random numbers from a generator
            that is not its own. It can be pickled. A factory of another name, or with other
            arguments, makes another dataset in spite of the same key.
        key: Names the data, as in "flowers, June 2026": change it with files, code, installed
            packages and the environment.
        timeout: Seconds to wait for another process that builds.

    Returns:
        The dataset. Where memory does not suffice, it is this process's own, and a line is logged.

    Raises:
        OptionError: An argument is refused, or the factory draws random numbers, or asks for this
            very dataset.
        TransportError: The factory or the dataset cannot be pickled.
        LoaderError: Another process has not finished within ``timeout``.

    Examples:
        >>> from functools import partial
        >>> import torch
        >>> from lit_loader import shared_dataset
        >>> dataset = shared_dataset(partial(torch.arange, 100_000), key="numbers, v1")
        >>> dataset[3]
        tensor(3)
    """
    if isinstance(factory, str) or not callable(factory) or is_dataset(factory):
        raise OptionError(
            "factory must make the dataset when it is called without arguments, got "
            f"{short_repr(factory)}: pass functools.partial(Dataset, ...), in Hydra _partial_: true"
        )
    key = filled_text("key", key)
    timeout = seconds("timeout", timeout)
    label = memory_files.label_of(_LABEL, key, _pickled(undeferred(factory)))
    me = threading.get_ident(), label
    if me in _building:
        raise OptionError(
            f"the factory of shared_dataset({key!r}) asks for the dataset that it is to make, and "
            "would wait for itself: make the dataset by its class"
        )
    try:
        lock = memory_files.lock(label, timeout)
    except TimeoutError as error:
        raise LoaderError(
            f"{error.strerror} has not finished building shared_dataset({key!r}) within "
            f"timeout={timeout} s. Raise timeout, or end that process, and another one builds"
        ) from error
    except OSError as error:  # a sandbox
        _say_alone(key, str(error))
        return _made(factory, key)
    with lock:
        fd = memory_files.find(label)
        if fd is None:
            _building.add(me)
            try:
                return _built(factory, key, label)
            finally:
                _building.discard(me)
    return _mapped(fd, factory, key)


def _pickled(factory: Callable[[], object]) -> tuple[bytes, object]:
    """Return what is the same in processes that mean the same dataset."""
    by_value = importlib.util.find_spec("cloudpickle") is not None
    policy = Policy(
        "cannot be pickled, by which shared_dataset knows who means the same dataset",
        "pass a function or class at the top level of a module, and paths and numbers",
        by_value=by_value,
        apart=False,
    )
    identity = _apart(factory)
    pickled = freeze(identity, policy, {"factory": identity}).pickled
    # What a script defines is pickled by its name, which another script may have, too.
    script = getattr(sys.modules["__main__"], "__file__", None)
    return pickled, script if b"__main__" in pickled else None


def _apart(thing: object) -> object:
    """Take a partial apart, which is pickled otherwise once somebody has seen its attributes."""
    if not isinstance(thing, functools.partial):
        return thing
    keywords = {name: _apart(value) for name, value in thing.keywords.items()}
    return thing.func, [*map(_apart, thing.args)], keywords


def _made(factory: Callable[[], _T], key: str) -> _T:
    """Call the factory, and see that what it makes does not depend on who calls it."""
    draws = Draws(factory)
    before = draws.look()
    dataset = factory()
    if (drawn := draws.drawn(before)) is not None:
        raise OptionError(
            f"the factory of shared_dataset({key!r}) draws from (or seeds) {drawn}, and all "
            "processes would have what the first one drew. Use a generator of its own, with a seed"
        )
    if not is_dataset(dataset):
        raise OptionError(
            f"the factory of shared_dataset({key!r}) must return an object with __getitem__ or "
            f"__iter__, got {short_repr(dataset)}: is a return missing?"
        )
    return dataset


def _say_alone(key: str, why: str) -> None:
    _log.warning("%r is built in each process for itself: %s", key, why)


def _mapped(fd: int, factory: Callable[[], _T], key: str) -> _T:
    try:
        dataset: _T = thaw(fd, held=True)
        return dataset
    except Exception as error:  # whatever unpickling raises: a class that is not found here, say
        _say_alone(key, f"another one's cannot be read here ({type(error).__name__}: {error})")
        return _made(factory, key)
    finally:
        os.close(fd)


def _built(factory: Callable[[], _T], key: str, label: str) -> _T:
    """Build it, publish it, and map what was published, as all others do."""
    dataset = _made(factory, key)
    frozen = freeze(dataset, _PROCESSES, {"dataset": dataset})
    nbytes, left = frozen.size, memory_left()
    if left is not None and left < nbytes + _SPARED:
        _say_alone(key, f"it needs {nbytes / 1e6:.0f} MB, and {left / 1e6:.0f} MB are left")
        return dataset
    try:
        file = HeldFile(memory_files.new(label))
        frozen.write(file.fd)
    except OSError as error:
        _say_alone(key, message_of(error))
        return dataset
    # From here on this process has it as all others have, and its own copy goes.
    del dataset, frozen
    gc.collect()
    try:
        dataset = thaw(file.fd, held=True)
        memory_files.seal(file.fd)
    except Exception as error:
        raise TransportError(
            f"shared_dataset({key!r}) cannot be unpickled ({type(error).__name__}: "
            f"{message_of(error)}): correct its __setstate__"
        ) from error
    return dataset
