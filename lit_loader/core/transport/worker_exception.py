"""A worker's exception, written down so that it can be raised again in the parent.

An exception keeps its type, its arguments and its attributes wherever those can be carried. The
worker's traceback, the worker and the sample indices become part of its message, so that a log
line with ``str(error)`` has all there is to know; where the type forms its message in a way of its
own, they stand in the exception that is its ``__cause__``.
"""

from __future__ import annotations

import os
import pickle
import traceback
from types import TracebackType
from typing import Any, Final, NamedTuple, cast

import lit_loader
from lit_loader.describe import annotate, class_name, message_of
from lit_loader.errors import WorkerError

_SHOWN_INDICES = 32
_PACKAGE: Final = os.path.dirname(lit_loader.__file__) + os.sep
_ALL_FRAMES: Final = bool(os.environ.get("LIT_LOADER_ALL_FRAMES"))
"""Whether a worker's traceback shows the frames of this package that lead to the user's first."""
_HINT: Final = "(frames of lit_loader are left out: LIT_LOADER_ALL_FRAMES=1 shows them)\n"


class WorkerTraceback(Exception):
    """Holds what was known in the worker; the ``__cause__`` of an exception raised again."""


class _Verbatim(str):
    """A message that ``KeyError``, which shows the repr of its argument, shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class ReaderShare(NamedTuple):
    """Stands for the indices of a batch where one of several readers gives its next samples."""

    shard: int  # the reader's number, as `get_shard` gives it
    of: int  # how many there are

    def __repr__(self) -> str:
        return f"shard {self.shard} of {self.of}"


def describe_indices(indices: object) -> str:
    """Name a batch's sample indices in a message, shortened when there are many."""
    if isinstance(indices, ReaderShare) and indices.of > 1:
        return f"the next samples of {indices!r}"
    if indices is None or isinstance(indices, ReaderShare):
        return "an iterable dataset's next samples"
    if isinstance(indices, list):
        if len(indices) > _SHOWN_INDICES:
            shown = ", ".join(map(repr, indices[:_SHOWN_INDICES]))
            return f"indices [{shown}, … {len(indices)} in all]"
        return f"indices {indices!r}"
    return f"index {indices!r}"


_MAY_START_NONE: Final = (
    ": a worker is a daemonic process, and multiprocessing lets it start none: use threads or "
    "subprocess in the dataset, or num_workers=0"
)


def describe_batch(number: int, indices: Any, progress: Any) -> str:
    """Name a batch and the sample that an exception came from, where samples are read one by one.

    ``batch 3, at index 17 (sample 4 of 32), indices [...]``; samples are counted from 0. Of an
    iterable dataset the indices are None, or whose turn it is.
    """
    at, listed = "", isinstance(indices, list)
    if listed or indices is None or isinstance(indices, ReaderShare):
        position = progress.place
        if position >= 0 and not listed:
            at = f"at sample {position}, "
        elif 0 <= position < len(indices):
            at = f"at index {indices[position]!r} (sample {position} of {len(indices)}), "
    return f"batch {number}, {at}{describe_indices(indices)}"


# reach: python: frames of this package are left out of what is shown
def _of_the_user(error: BaseException) -> TracebackType | None:
    """Return the traceback from the first frame on that is not of this package, if there is one."""
    trace = whole = error.__traceback__
    if _ALL_FRAMES:
        return whole
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return trace or whole


def _portable(value: object) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return False
    return True


class WorkerException(NamedTuple):
    """An exception taken apart, for its way from the worker to the parent."""

    kind: type[BaseException] | None  # its class; None: it cannot be carried
    name: str  # … and that by its qualified name
    message: str
    args: tuple[object, ...] | None  # to rebuild it with; None: they cannot be carried
    attributes: dict[str, object]  # as many as can be carried
    trace: str  # the traceback as text
    where: str  # worker, batch, indices, stage, for a reader

    @classmethod
    def capture(cls, error: BaseException, where: str) -> WorkerException:
        """Write ``error`` down, with its traceback."""
        kind = type(error)
        attributes = getattr(error, "__dict__", {})
        # An OSError keeps its file names out of ``args``, and puts them in where it is pickled.
        args = error.args
        if isinstance(error, OSError):
            args = cast("tuple[object, ...]", OSError.__reduce__(error)[1])
        shown = _of_the_user(error)
        hint = "" if shown is error.__traceback__ else _HINT
        where = "\n".join([where, *getattr(error, "__notes__", ())])
        if kind is AssertionError and "daemonic processes" in str(error):  # multiprocessing's
            where += _MAY_START_NONE
        written = traceback.TracebackException(kind, error, shown)
        written.__notes__ = None  # type: ignore[attr-defined]  # they are in ``where``
        return cls(
            kind=kind if _portable(kind) else None,
            name=class_name(kind),
            message=message_of(error),
            args=args if _portable(args) else None,
            attributes={k: v for k, v in attributes.items() if k != "__notes__" and _portable(v)},
            trace="".join(written.format()) + hint,
            where=where,
        )

    def pack(self, capacity: int) -> bytes:
        """Write it as at most ``capacity`` bytes; what does not fit is shortened."""
        data = self._dumps()
        if len(data) <= capacity:
            return data
        room = capacity // 16  # characters, of up to 4 bytes each, three times
        texts = self.trace[-room:], self.where[:room]
        name, message = self.name[:200], self.message[:room]
        return WorkerException(None, name, message, None, {}, *texts)._dumps()

    def _dumps(self) -> bytes:
        # The user's own parts in a pickle apart: the parent may not know their classes.
        original = pickle.dumps((self.kind, self.args, self.attributes), pickle.HIGHEST_PROTOCOL)
        text = (self.name, self.message, self.trace, self.where)
        return pickle.dumps((original, text), pickle.HIGHEST_PROTOCOL)

    @classmethod
    def unpack(cls, data: bytes) -> WorkerException:
        """Read what :meth:`pack` wrote; what cannot be had in this process is left out."""
        original, (name, message, trace, where) = pickle.loads(data)
        try:
            kind, args, attributes = pickle.loads(original)
        except Exception:
            kind, args, attributes = None, None, {}
        return cls(kind, name, message, args, attributes, trace, where)

    @property
    def report(self) -> str:
        """Everything known, for a reader."""
        return f"{self.where}\nThe worker's traceback:\n{self.trace.rstrip()}"

    def error(self) -> BaseException:
        """Build the exception to raise.

        A `WorkerError` that names the type, if that cannot be carried, or would mean something else
        where it is raised again (StopIteration would end the consumer's loop, SystemExit the
        program).
        """
        error = self._original()
        if error is None:
            shown = f"{self.name}: {self.message}" if self.message else self.name
            return WorkerError(f"{shown}\n{self.report}")
        text = error.args[0] if error.args else ""
        if len(error.args) < 2 and isinstance(text, str) and str(error) in (text, repr(text)):
            # As it is shown: a KeyError shows its key's repr.
            told = f"{self.message}\n{self.report}" if error.args else self.report
            error.args = (_Verbatim(told),)
        else:
            error.__cause__ = WorkerTraceback(f"\n{self.report}")
            annotate(error, self.where)  # type: ignore[arg-type]
        return error

    def _original(self) -> BaseException | None:
        if (
            self.kind is None
            or self.args is None
            or not issubclass(self.kind, Exception)
            or issubclass(self.kind, StopIteration)
        ):
            return None
        try:
            # Not kind(*args): a class with arguments of its own puts others into args.
            error = self.kind.__new__(self.kind, *self.args)
            if not isinstance(error, OSError):
                error.args = self.args
            error.__dict__.update(self.attributes)
            if str(error) != self.message:
                error = self.kind(*self.args)  # types such as UnicodeError keep fields elsewhere
                error.__dict__.update(self.attributes)
            return error if str(error) == self.message else None
        except Exception:
            return None
