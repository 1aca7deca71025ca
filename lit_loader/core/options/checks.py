"""Checks of single options, and of datasets: each returns the value or says what is wrong with it.

Shared by `LoaderConfig` and by every class that takes options of its own (samplers, mixtures,
collation), so that the same mistake is answered in the same words. Imports neither torch nor NumPy.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import operator
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeGuard, TypeVar

from lit_loader.describe import short_repr
from lit_loader.errors import OptionError

_Init = TypeVar("_Init", bound=Callable[..., None])
_T = TypeVar("_T")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

MANY: Final = 100_000
"""Of workers, and of batches ahead for each: as many are a mistake, and no machine has room."""

START_METHODS: Final = ("fork", "spawn", "forkserver")
"""Python's own. From 3.14 on, multiprocessing lists what libraries have added, too."""


def refuse(name: str, constraint: str, value: object) -> NoReturn:
    """Raise the error for an option's value, which must be something else."""
    raise OptionError(f"{name} must be {constraint}, got {name}={short_repr(value)}")


_OWN: Final = frozenset({bool, int, float, str})


def plain(value: Any) -> Any:
    """Return a single value as Python's own bool, int, float or str; anything else as it is.

    NumPy's integers overflow where Python's go on, and ``torch.load(weights_only=True)`` refuses a
    state with any of NumPy's types in it. Arrays and tensors without dimensions are single values;
    so is a string of a subclass, as NumPy's and those of enumerations are.
    """
    if type(value) in _OWN:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None)):
        try:
            return value.item()
        except Exception:  # a tensor without data, say: the caller refuses it as it is
            return value
    return value


def checked(default: object, check: Callable[[str, object], object]) -> Any:
    """Return the field of an option, with its default and its check, for `checks_options`."""
    return dataclasses.field(default=default, metadata={"check": check})


_FORMER: Final = {
    "check_determinism": "lit_loader.check_determinism(loader)",
    "concurrent_reads": "read_threads",
    "costs": "lengths",
    "costs_in": "lengths_from",
    "memory_budget": "prefetch_factor",
    "num_remote_workers": "remote=RayWorkers(num_workers=…)",
    "pad_value": "padding_value",
    "prefetch_next_epoch": "persistent_workers=True with seed=",
    "retry_backoff": "sample_retries=Retry(3, backoff=0.1)",
    "shard_tail": "uneven_ranks",
    "share_lists": "dataset.files = SharedSequence(dataset.files)",
    "transient_errors": "sample_retries=Retry(3, on=[OSError])",
}
"""What to write for options of 0.4, by their names."""


class UnknownOptionError(OptionError, TypeError):
    """Such as Python raises for an unknown keyword."""


def known_options(
    options: Iterable[object],
    known: Collection[str],
    place: str = "",
    elsewhere: Mapping[str, str] = _NOTHING,
) -> None:
    """Refuse options that there are not, naming the nearest one; ``place`` goes before the name.

    ``elsewhere`` says where those are to be passed that belong somewhere else.
    """
    for name in map(str, options):
        if name in known:
            continue
        former = _FORMER.get(name)
        near = [former] if former else difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]}?" if near else f"options are {', '.join(known)}"
        raise UnknownOptionError(f"unknown option '{place}{name}': {elsewhere.get(name, advice)}")


def known_keywords(init: _Init, elsewhere: Mapping[str, str] = _NOTHING) -> _Init:
    """Make a constructor refuse unknown keywords, as `known_options` does."""
    signature = inspect.signature(init)
    known = dict.fromkeys([*signature.parameters][1:])  # without self

    @functools.wraps(init)  # whose signature is shown, and completed by editors
    def checked(*args: object, **kwargs: object) -> None:
        if not kwargs.keys() <= known.keys():
            known_options(kwargs, known, elsewhere=elsewhere)
        init(*args, **kwargs)

    checked.__signature__ = signature  # type: ignore[attr-defined]
    return checked  # type: ignore[return-value]


def checks_options(kind: type[_T], prefix: str = "") -> type[_T]:
    """Make a frozen dataclass, whose fields `checked` makes, check what it is constructed with.

    All values are set at once, and those that are defaults are not checked: each loader makes a
    config, and is given few options. ``prefix`` goes before the options' names.
    """
    init: Callable[..., None] = kind.__init__
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    defaults = {name: field.default for name, field in fields.items()}
    check_together = getattr(kind, "__post_init__", lambda self: None)

    @functools.wraps(init)
    def checked(self: object, *args: object, **options: object) -> None:
        if not options.keys() <= defaults.keys():
            known_options(options, defaults, prefix)
        if args:
            options = inspect.signature(init).bind(self, *args, **options).arguments
            del options["self"]
        values = vars(self)  # past its __setattr__, which refuses
        values.update(defaults)
        for name, value in options.items():
            if value is not defaults[name]:
                values[name] = fields[name].metadata["check"](prefix + name, value)
        check_together(self)

    kind.__init__ = checked  # type: ignore[method-assign]
    return kind


def or_none(check: Callable[[str, object], _T]) -> Callable[[str, object], _T | None]:
    """Make a check accept None."""
    return lambda name, value: None if value is None else check(name, value)


def flag(name: str, value: object) -> bool:
    """Check True or False; 0 and 1 count, NumPy's too."""
    if type(value) is bool:
        return value
    value = plain(value)
    if isinstance(value, numbers.Integral):
        return bool(value)
    refuse(name, "True or False", value)


def flag_or_none(name: str, value: object) -> bool:
    """Check True or False; None is False, as torch's loader takes it."""
    return value is not None and flag(name, value)


def whole_number(
    name: str, value: Any, low: int | None = None, below: float = math.inf, of: str = ""
) -> int:
    """Check a whole number, from ``low`` on; ``of`` says what is counted, for the message.

    It may be anything that can be an index, NumPy's integers too.
    """
    number: int | None
    number = value = plain(value)
    if type(value) is not int:
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
    if number is None or (low is not None and number < low) or number >= below:
        constraint = f"a whole number{of and f' ({of})'}"
        constraint += "" if low is None else f" of at least {low}"
        constraint += "" if below == math.inf else f" and below {below}"
        refuse(name, constraint, value)
    return number


count = functools.partial(whole_number, low=0)
positive = functools.partial(whole_number, low=1)


def or_auto(low: int, below: float = math.inf) -> Callable[[str, object], int | str]:
    """Return the check of a whole number, or "auto".

    The number may be text, of an environment variable, say: Hydra does not convert it.
    """

    def check(name: str, value: object) -> int | str:
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if not isinstance(value, str):
            return whole_number(name, value, low, below)
        return one_of(name, value, ["auto"], f"a whole number of at least {low}, or 'auto'")

    return check


def memory_size(name: str, value: object, low: int = 0, below: float = 2**42) -> int:
    """Check an amount of memory: a number of bytes, or text such as "2 GB" or "512 MiB"."""
    if not isinstance(value, str):
        return whole_number(name, value, low, below, of="bytes")
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?\s*", value, re.IGNORECASE)
    if found is None:
        refuse(name, "a number of bytes, or text such as '2 GB' or '512 MiB'", value)
    amount, prefix, binary = found.groups()
    unit = (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " ")
    return whole_number(name, int(float(amount) * unit), low, below, of="bytes")


def number(name: str, value: Any, of: str = "") -> float:
    """Check a number that is 0 or more; ``of`` says what is counted, for the message."""
    value = plain(value)
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    # NaN fails both comparisons; an int may be larger than any float.
    too_large = isinstance(value, int) and value > sys.float_info.max
    if too_large or not (real and 0 <= value < math.inf):
        refuse(name, f"a finite number{of}, 0 or more", value)
    return int(value) if isinstance(value, int) else float(value)


seconds = functools.partial(number, of=" of seconds")


def text(name: str, value: object) -> str:
    """Check a string."""
    return plain(value) if isinstance(value, str) else refuse(name, "a string", value)  # type: ignore[no-any-return]


def filled_text(name: str, value: object) -> str:
    """Check a string that is not empty."""
    return text(name, value) or refuse(name, "a string that is not empty", value)


def path(name: str, value: object) -> Path:
    """Check the name of a file or folder; returns the absolute one."""
    return (value if isinstance(value, Path) else Path(filled_text(name, value))).absolute()


def one_of(name: str, value: object, choices: Iterable[str], constraint: str = "") -> str:
    """Check a string that must be one of a few."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        refuse(name, constraint or f"one of {', '.join(map(repr, choices))}", value)
    return plain(value)  # type: ignore[no-any-return]


def function(name: str, value: object) -> Callable[..., object]:
    """Check a function, or anything else that can be called."""
    if isinstance(value, str):
        raise OptionError(
            f"{name} must be a callable, got the string {short_repr(value)}: pass the function "
            f"itself, in Hydra as {{_target_: hydra.utils.get_method, path: {value}}}"
        )
    if not callable(value):
        refuse(name, "a callable", value)
    return undeferred(value)


def undeferred(value: Callable[..., object]) -> Callable[..., object]:
    """A plain functools.partial in place of the one that Hydra makes of ``_partial_: true``.

    Hydra's checks its target policy again at every call (about 150 µs, and a spawned worker would
    import Hydra for it). The target was checked when it was made, and these functions run once for
    each batch. Dataset and sampler factories, which run once, are left as they are.
    """
    if isinstance(value, functools.partial) and type(value).__module__.startswith("hydra."):
        return functools.partial(value.func, *value.args, **value.keywords)
    return value


def is_iterable(value: object) -> bool:
    """Whether this can be iterated."""
    # A class has an __iter__ of its instances, and old-style sequences have __getitem__ alone.
    # NumPy's single numbers have the latter, arrays and tensors without dimensions have both.
    return (
        not isinstance(value, type)
        and getattr(value, "ndim", None) != 0
        and (isinstance(value, Iterable) or hasattr(value, "__getitem__"))
    )


def is_factory(value: object) -> TypeGuard[Callable[..., Any]]:
    """Whether this makes a sampler when it is called with the dataset."""
    return callable(value) and not is_iterable(value)


def indices(name: str, value: object) -> object:
    """Check a sampler or batch sampler, or what makes one."""
    if isinstance(value, str) or not (is_iterable(value) or is_factory(value)):
        refuse(name, "an iterable, or a callable that makes one from the dataset", value)
    if is_factory(value) and (missing := _needed(value)[1:]):
        constraint = f"a callable that takes the dataset alone ({', '.join(missing)} missing: give "
        constraint += f"it to the callable, in Hydra as data.train.{name}.{missing[0]}=…)"
        refuse(name, constraint, value)
    return value


def _needed(value: Callable[..., object]) -> list[str]:
    """Return the names of the arguments that a callable has to be given."""
    try:
        every = inspect.signature(value, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # of what is not written in Python
        return []
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [each.name for each in every if each.default is each.empty and each.kind not in several]


def start_method(name: str, value: object) -> object:
    """Check a start method or a multiprocessing context."""
    if not isinstance(value, BaseContext) and value not in START_METHODS:
        methods = ", ".join(map(repr, START_METHODS))
        refuse(name, f"a multiprocessing context or one of {methods}", value)
    started = getattr(value, "Process", None)
    if isinstance(started, type) and issubclass(started, threading.Thread):  # MONAI has one
        refuse(name, "a context of processes (for threads set worker_method='thread')", value)
    return plain(value)


def generator(name: str, value: object) -> object:
    """Check a torch.Generator."""
    import torch  # not by who only reads options

    return value if isinstance(value, torch.Generator) else refuse(name, "a torch.Generator", value)


def remote_workers(name: str, value: object) -> object:
    """Check what makes batches on other machines: a `RayWorkers`, or its options."""
    import lit_loader  # an add-on's class, by its public name

    return lit_loader.RayWorkers.taken(name, value)


# --- what is taken for a dataset ---


def is_dataset(source: object) -> bool:
    """Whether this can be indexed or iterated; a list or dict of datasets can, too."""
    # A class has these methods for its instances, and is itself a factory. Text names something.
    return not isinstance(source, (type, str, bytes)) and (
        hasattr(source, "__getitem__") or hasattr(source, "__iter__")
    )


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether this is a list or tuple; a Hydra node without ``_convert_`` has others for them."""
    if isinstance(value, (list, tuple)):
        return True
    return isinstance(value, Sequence) and type(value).__module__.startswith("omegaconf.")


def check_dataset(dataset: object, loading: bool = False) -> None:
    """Refuse what can be neither indexed nor iterated; and what cannot by a loader, if it loads."""
    # Python looks these up in the class; a forgotten pair of brackets is found so, too.
    kind = type(dataset)
    iterates = hasattr(kind, "__iter__")
    if hasattr(kind, "__getitem__") or (hasattr(dataset, "__getitems__") and kind is not type):
        return
    if iterates and loading:
        from torch.utils.data import IterableDataset  # not by who only reads options

        iterates = isinstance(dataset, IterableDataset)
    if not iterates:
        raise OptionError(
            "dataset must be an object that has __getitem__ (and __len__), or an IterableDataset, "
            f"got {short_repr(dataset)} ({kind.__name__}): pass an instance of a dataset"
        )
