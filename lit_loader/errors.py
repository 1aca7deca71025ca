"""The exceptions of lit_loader, all in one tree.

::

    LitLoaderError                      everything below; never raised itself
    ├── OptionError (ValueError)        an option, or a combination of options, is refused
    ├── StateError (ValueError)         a checkpoint state does not fit this loader
    └── LoaderError (RuntimeError)      something went wrong while data was being loaded
        ├── WorkerError                 a worker's exception that cannot be raised as its own type
        ├── WorkerDiedError             a worker process is gone (signal, exit code)
        ├── WorkerTimeoutError          a worker hangs for ``timeout`` seconds (TimeoutError)
        ├── SampleErrorsError           more samples were bad than allowed, or all were
        ├── TransportError (TypeError)  a batch or dataset holds something that cannot be carried
        └── PinMemoryError              the pin-memory thread is gone

    ExactnessWarning (UserWarning)         a rebuilt or replayed batch differs
    StallWarning (RuntimeWarning)          no worker has sent a batch for ``stall_warning`` seconds
    WorkerRestartWarning (RuntimeWarning)  a worker was replaced and nothing is lost

An exception that user code raised in a worker keeps its own type: ``except KeyError`` around the
training loop works as if the dataset had been indexed there. The branches also derive from the
builtin that programs written for ``torch.utils.data.DataLoader`` catch (RuntimeError, ValueError).
"""

from __future__ import annotations

from typing import Any, Final

from lit_loader.describe import public

__all__ = [
    "DeterminismError",
    "ExactnessWarning",
    "LitLoaderError",
    "LoaderError",
    "OptionError",
    "PinMemoryError",
    "SampleErrorsError",
    "StallWarning",
    "StateError",
    "TransportError",
    "WorkerDiedError",
    "WorkerError",
    "WorkerRestartWarning",
    "WorkerTimeoutError",
]

PREFIX: Final = "lit_loader: "


class LitLoaderError(Exception):
    """Root of every exception that lit_loader raises on its own account.

    Its text begins with ``lit_loader: ``. If Troubleshooting says more, an id such as ``[LL010]``
    comes last.
    """

    def __init__(self, *args: object) -> None:
        if args and isinstance(args[0], str) and not args[0].startswith(PREFIX):
            args = (f"{PREFIX}{args[0]}", *args[1:])
        super().__init__(*args)

    @property
    def text(self) -> str:
        """The message without ``lit_loader: ``, to be put into another one."""
        return str(self).removeprefix(PREFIX)


class OptionError(LitLoaderError, ValueError):
    """An option or a combination of options is refused; one line: option, constraint, value."""


class StateError(LitLoaderError, ValueError):
    """A state given to ``load_state_dict`` does not fit the loader that should take it."""


class LoaderError(LitLoaderError, RuntimeError):
    """Loading failed for a reason that lies outside of the user's own code."""


class WorkerError(LoaderError):
    """User code failed in a worker with an exception that cannot be raised here as its own type.

    The message names the original type and holds its message, the worker's traceback and the
    sample indices.
    """


class WorkerDiedError(LoaderError):
    """A worker process ended unexpectedly: killed by a signal, or exited by itself."""


class WorkerTimeoutError(LoaderError, TimeoutError):
    """A worker made no progress within ``timeout`` seconds."""


class SampleErrorsError(LoaderError):
    """An epoch has more bad samples than the options allow, or none that is good.

    Attributes:
        errors: The last of them (at most 100), each a `SampleError`.
    """

    errors: tuple[Any, ...] = ()


class TransportError(LoaderError, TypeError):
    """Something cannot travel between the processes; the message names it and its place."""


class PinMemoryError(LoaderError):
    """The pin-memory thread ended before the epoch did."""


class DeterminismError(LoaderError):
    """`check_determinism` found that a rebuilt batch differs."""


class ExactnessWarning(UserWarning):
    """Something was seen that makes batches differ from run to run, or after a resume."""


class StallWarning(RuntimeWarning):
    """The consumer waits, and no worker has sent a batch for ``stall_warning`` seconds."""


class WorkerRestartWarning(RuntimeWarning):
    """A worker died or hung and was replaced; the batches stay the same.

    Also: workers on other machines are missing or lost.
    """


for _name in __all__:
    public(globals()[_name])
