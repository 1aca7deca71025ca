"""Streams of other libraries that do not do what their methods promise: all that is known of them.

**Hugging Face.** A stream with ``.shuffle()`` reads ahead into a buffer, and its state says how far
it has read, not what it has given: who goes on from it never gets what was in the buffer (with
several input shards the library's own ``load_state_dict`` fails, besides). So such a state is not
taken (`forgets`). The stream is read again up to the place, which is slower and loses nothing.

It also notes the state that it is given, and goes on there whenever it is iterated in the state's
epoch: also where it is to begin anew, as a source of a mixture that repeats it, or as a loader's
dataset in the same epoch once more. What was before that place would be lost. So one that has been
given a state, and is to begin at its start, gets back what it had before (`begin_at_start`).

Its epoch lies in memory that copies share (`shared_epoch`), and forked workers, who would all add
to it at once (`epochs_of_their_own`). ``split_dataset_by_node`` makes it take its rank's share by
itself (`splitter_by_ranks`). One of several Parquet files that are shuffled or interleaved sleeps
for five seconds at its end (`advice_if_it_sleeps`).

**WebDataset.** A pipeline may have a stage that takes its rank's share (`splitter_by_ranks`), and
one that shuffles by a seed of the time and the process id (`advice_if_unseeded`).

**LitData, Mosaic.** Their ``state_dict`` is of another protocol: their own loaders call it with
what they have counted, which no other loader knows. It is not called (`wants_arguments`).

There is no public way to say what a stream is made of, and what it has been given.
A version that calls it otherwise is taken at its word, as before.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from lit_loader.core.state import stateful
from lit_loader.core.state.fingerprint import has_methods
from lit_loader.core.state.stateful import wants_arguments
from lit_loader.data.wrapped import wrapped

__all__ = [
    *("advice_if_it_sleeps", "advice_if_unseeded", "advice_on_reading_again", "begin_at_start"),
    "epochs_of_their_own",
    *("forgets", "note_start", "shared_epoch", "splitter_by_ranks"),
]

_BUFFERS: Final = "BufferShuffledExamplesIterable"
_INTERLEAVED: Final = ("CyclingMultiSourcesExamplesIterable", "InterleavedShardsExamplesIterable")
_MOST: Final = 10_000
_SLEEP: Final = "SLEEP_TIME_ON_THREADS_SHUTDOWN"
# reach: datasets: where a stream notes the state that it is given
_START: Final = "_starting_state_dict"

_noted: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _attributes(stream: Any) -> dict[str, Any]:
    return getattr(stream, "__dict__", {})


def forgets(stream: Any) -> bool:
    """Whether this is a stream whose state is known to leave out samples."""
    return any(type(stage).__name__ == _BUFFERS for stage in _examples(stream))


# reach: datasets: the stages of a stream, among them a buffer that its state leaves out
def _examples(stream: Any) -> Iterator[Any]:
    """Give the stages of a Hugging Face stream; none of any other."""
    waiting = [getattr(stream, "_ex_iterable", None)]
    for _ in range(_MOST):
        if not waiting:
            return
        stage = waiting.pop()
        yield stage
        parts = getattr(stage, "ex_iterables", None)  # of concatenated and interleaved streams
        waiting += parts if isinstance(parts, (list, tuple)) else ()
        waiting += [part] if (part := getattr(stage, "ex_iterable", None)) is not None else []


def advice_if_it_sleeps(stream: Any) -> str | None:
    """Say what to set where a stream sleeps whenever a reader ends; None: it is not known to."""
    seconds = getattr(getattr(sys.modules.get("datasets"), "config", None), _SLEEP, 0)
    stages = (stage for each in wrapped(stream, "__iter__") for stage in _examples(each))
    if not seconds or not any(
        type(stage).__name__.endswith(_INTERLEAVED)
        and getattr(stage, "sleep_on_threads_shutdown", False)
        for stage in stages
    ):
        return None
    return (
        f"datasets sleeps {seconds} s at the end of each reader of this {type(stream).__name__}, "
        "for it interleaves Parquet files, and the worker's other readers wait; set "
        f"datasets.config.{_SLEEP} = 0 before the first epoch, and set it back if workers crash "
        "when they end [LL208]"
    )


def advice_on_reading_again(dataset: Any, knows_epoch: bool = True) -> str:
    """Say why a resume reads again what was given out, and what to do about it.

    Behind its first epoch, unless it is told that (``knows_epoch``), one that counts its epochs,
    in itself or in memory that processes share, may begin to count anew.
    """
    name, advice = type(dataset).__name__, "if that takes too long"
    if forgets(dataset):
        why = f"the state_dict of this {name} leaves out what is in its shuffle buffer"
        advice = f"shuffle by other means {advice}"
    elif has_methods(dataset) and wants_arguments(dataset):
        why = f"{name} has a state_dict with arguments, which only its own library's loader knows"
        advice = f"{advice}, derive a class whose state_dict() and load_state_dict(state) take none"
    else:
        if getattr(dataset, "state_is_that_of_sources", False):
            name += " has a source that"
        why = f"{name} has no state_dict and load_state_dict"
        advice = f"add these methods {advice}"
    text = f"{why}: resuming reads again all that it has given out before; {advice} [LL308]"
    if not knows_epoch:
        text += (
            f". And this is not its first epoch: if {type(dataset).__name__} counts them itself, "
            "the count may begin again, and samples be lost or come twice; have it take the epoch "
            "from lit_loader.get_epoch(), or from set_epoch(epoch), which loader.set_epoch calls"
        )
    return text


def splitter_by_ranks(stream: Any) -> str | None:
    """Name what makes a stream, or one within, take its rank's share; None: nothing known."""
    for each in wrapped(stream, "__iter__"):
        # reach: datasets: whether a stream is split by rank already
        if _attributes(each).get("_distributed") is not None:
            return "split_dataset_by_node"
        for stage in _stages(each):
            if getattr(getattr(stage, "func", stage), "__name__", "") == "split_by_node":
                return "split_by_node (pass nodesplitter=None)"
    return None


def _stages(stream: Any) -> Sequence[Any]:
    """The stages of a WebDataset's pipeline; none of any other stream."""
    stages = _attributes(stream).get("pipeline")
    return stages if isinstance(stages, (list, tuple)) else ()


# reach: webdataset: a stage holds its function and the options that this was given
def advice_if_unseeded(stream: Any) -> str | None:
    """Say what to pass where a stream shuffles otherwise each time; None: it is not known to."""
    for stage in _stages(stream):
        options = getattr(stage, "kw", {})
        if getattr(getattr(stage, "f", None), "__name__", "") != "_shuffle":
            continue
        if options.get("rng") is None and options.get("seed") is None:
            return (
                f"the shuffle() of this {type(stream).__name__} takes its seed from the time and "
                "the process id: no run is like another, and a resume loses samples and gives "
                "others twice; pass shuffle(..., rng=random.Random(0)), which the loader seeds "
                "in each epoch, and WebDataset(..., seed=0) with shardshuffle [LL305]"
            )
    return None


def shared_epoch(stream: Any) -> Any:
    """Give the epoch of a Hugging Face stream, which torch's persistent workers share; else None.

    Readers are in different epochs: who begins the next would set that of all others.
    """
    # reach: datasets: known by what it is made of
    return getattr(stream, "_epoch", None) if "_ex_iterable" in _attributes(stream) else None


def epochs_of_their_own() -> None:
    """In a worker: let ``set_epoch`` of a Hugging Face stream count here, and in no other process.

    It adds the difference to what all forked workers share. Two that do so at the same time have
    an epoch that is neither's, and with it another order of the shards that they share out.
    """
    module = sys.modules.get("datasets.iterable_dataset")
    stream: Any = getattr(module, "IterableDataset", None)

    def set_epoch(self: Any, epoch: int) -> None:
        self._epoch = epoch  # in place of a tensor in shared memory

    if hasattr(stream, "set_epoch"):
        stream.set_epoch = set_epoch


def note_start(stream: Any) -> None:
    """Note where a stream begins that is about to be given a state."""
    kept = _attributes(stream)
    if _START in kept:
        with contextlib.suppress(TypeError):  # it cannot be noted
            _noted.setdefault(stream, kept[_START])


def begin_at_start(stream: Any) -> None:
    """Let a stream begin, at the next ``iter()``, where it did before it was given a state."""
    with contextlib.suppress(TypeError):
        if stream in _noted:
            stream.load_state_dict(_noted.pop(stream))


stateful.ADAPTERS.append(sys.modules[__name__])
