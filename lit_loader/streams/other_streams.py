"""Streams of other libraries that do not do what their methods promise: all that is known of them.

**Hugging Face.** A stream with ``.shuffle()`` reads ahead into a buffer, and its state says how far
it has read, not what it has yielded: who continues from it never gets what was in the buffer. So
such a state is not taken (`trusts`). The stream is replayed, which is slower and loses nothing.

It also notes the state that it is given, and continues there whenever it is iterated in the state's
epoch: also where it is to begin again, as a source of a mixture that repeats it, or in the same
epoch once more. What was before that place would be lost. So one that was given a state, and is to
begin at its start, gets back what it had before (`open_stream`).

Its epoch lies in memory that copies share (`shared_epoch`), and forked workers, who would all add
to it at once (`own_epochs`). ``split_dataset_by_node`` makes it take its rank's share by itself
(`splitter_by_ranks`).

**WebDataset.** A pipeline may have a stage that takes its rank's share (`splitter_by_ranks`), and
one that shuffles by a seed of the time and the process id (`advice_if_unseeded`).

**LitData, Mosaic.** Their ``state_dict`` is of another protocol: their own loaders call it with
what they have counted, which no other loader knows. It is not called.

There is no public way to say what a stream is made of, and what it has been given.
A version that calls it otherwise is taken at its word.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

from lit_loader.core.state.state_validation import has_methods
from lit_loader.core.state.stateful import OpenStream, is_stateful
from lit_loader.streams.wrapped import wrapped

_BUFFERS: Final = "BufferShuffledExamplesIterable"
_MOST: Final = 10_000
# reach: datasets: where a stream notes the state that it is given
_START: Final = "_starting_state_dict"

_noted: WeakKeyDictionary[object, object] = WeakKeyDictionary()


def _attributes(stream: object) -> dict[str, object]:
    return getattr(stream, "__dict__", {})


# --- states ---


def open_stream(
    source: Any, name: str, state: Mapping[str, Any] | None = None, role: str | None = None
) -> OpenStream:
    """Iterate a stream from its start, or from where a state says; see `OpenStream`."""
    kept = _attributes(source)
    with contextlib.suppress(TypeError):  # it cannot be noted
        if state:
            if _START in kept:
                _noted.setdefault(source, kept[_START])
        elif source in _noted:
            source.load_state_dict(_noted.pop(source))
    return OpenStream(source, name, state, role, trusts)


def trusts(stream: object) -> bool:
    """Whether a stream has a state, and this is not known to leave out samples."""
    return is_stateful(stream) and not _forgets(stream)


# reach: datasets: the stages of a stream, among them a buffer that its state leaves out
def _forgets(stream: object) -> bool:
    """Whether this is a Hugging Face stream with a shuffle buffer."""
    waiting = [getattr(stream, "_ex_iterable", None)]
    for stage in itertools.islice(waiting, _MOST):  # it grows meanwhile
        if type(stage).__name__ == _BUFFERS:
            return True
        parts = getattr(stage, "ex_iterables", None)  # of concatenated and interleaved streams
        waiting += parts if isinstance(parts, (list, tuple)) else ()
        waiting += [part] if (part := getattr(stage, "ex_iterable", None)) is not None else []
    return False


def advice_on_replay(dataset: object) -> str:
    """Say why a resume replays what was delivered, and what to do about it."""
    why, cure = "has no state_dict and load_state_dict", "add these methods"
    if getattr(dataset, "state_is_that_of_sources", False):
        why = "has a source without state_dict and load_state_dict"
    elif _forgets(dataset):
        why = "has a state_dict that leaves out its shuffle buffer"
        cure = "shuffle by other means"
    elif has_methods(dataset):
        why = "has a state_dict with arguments that only its own library's loader knows"
        cure = "derive a class with state_dict() and load_state_dict(state)"
    return (
        f"{type(dataset).__name__} {why}, so a resume replays the epoch up to the loaded position. "
        f"If that takes too long, {cure} [LL308]"
    )


# --- epochs ---


def shared_epoch(stream: object) -> object:
    """Return the epoch of a Hugging Face stream, which torch's persistent workers share; or None.

    Shards are in different epochs: who begins the next would set that of all others.
    """
    # reach: datasets: known by what it is made of
    return getattr(stream, "_epoch", None) if "_ex_iterable" in _attributes(stream) else None


def own_epochs(dataset: object) -> None:
    """In a worker: let ``set_epoch`` of Hugging Face streams count here, and in no other process.

    It adds the difference to what all forked workers share. Two that do so at the same time have
    an epoch that is neither's, and with it another order of the files that they share out.
    """
    for stream in wrapped(dataset, "__iter__"):
        epoch = shared_epoch(stream)
        if isinstance(epoch, torch.Tensor):
            stream._epoch = epoch.clone()


# --- what is said of them ---


def splitter_by_ranks(stream: object) -> str | None:
    """Name what makes a stream, or one within, take its rank's share; None: nothing known."""
    for each in wrapped(stream, "__iter__"):
        # reach: datasets: whether a stream is split by rank already
        if _attributes(each).get("_distributed") is not None:
            return "split_dataset_by_node"
        for stage in _stages(each):
            if getattr(getattr(stage, "func", stage), "__name__", "") == "split_by_node":
                return "split_by_node (pass nodesplitter=None)"
    return None


def _stages(stream: object) -> Sequence[object]:
    """Return the stages of a WebDataset's pipeline; none of any other stream."""
    stages = _attributes(stream).get("pipeline")
    return stages if isinstance(stages, (list, tuple)) else ()


# reach: webdataset: a stage holds its function and the options that this was given
def advice_if_unseeded(stream: object) -> str | None:
    """Say what to pass where a stream shuffles otherwise each time; None: it is not known to."""
    for stage in _stages(stream):
        options = getattr(stage, "kw", {})
        if getattr(getattr(stage, "f", None), "__name__", "") != "_shuffle":
            continue
        if options.get("rng") is None and options.get("seed") is None:
            return (
                f"the shuffle() of this {type(stream).__name__} takes its seed from the time and "
                "the process id, so runs differ, and a resume loses and repeats samples. Pass "
                "shuffle(..., rng=random.Random(0)), which the loader seeds, and "
                "WebDataset(..., seed=0) with shardshuffle [LL305]"
            )
    return None
