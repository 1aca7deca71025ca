"""`swapped`: a user's data module whose loaders, of torch's class, are swapped for ours.

Called by `LoaderDataModule.from_datamodule`; passed to the Trainer in the place of the user's::

    Trainer ─ *_dataloader ─▶ SwappedDataModule ─ same hook ─▶ the user's class
                                   ◀── torch.utils.data.DataLoader ┘ (one, or a collection of them)
                                   ╰── options_of ▶ LoaderConfig ▶ lit_loader.DataLoader ─▶ Trainer
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import (
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from lit_loader.config.loader_config import LoaderConfig
from lit_loader.describe import program_stacklevel, short_repr
from lit_loader.errors import OptionError
from lit_loader.lightning.kept_loaders import KeepsLoaders, LoaderHook, Loaders, make
from lit_loader.lightning.names import DATA_MODULES, LightningDataModule, combined, is_hook_of
from lit_loader.loader import DataLoader

__all__ = ["SwappedDataModule", "options_of", "swapped"]

_FOR_WORKERS = ("timeout", "multiprocessing_context", "prefetch_factor", "persistent_workers")

_SAME_OPTIONS = (
    *("batch_size", "num_workers", "pin_memory", "drop_last", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"),
    *("pin_memory_device", "in_order"),
)
"""Options that both classes have, and mean the same by."""


class _WrappedHook(LoaderHook):
    """A hook of the wrapped data module; the loaders it returns are swapped."""

    def __set__(self, module: SwappedDataModule, value: Any) -> None:
        module.__dict__[self._name] = value  # the wrapped one's, too


class SwappedDataModule(KeepsLoaders):
    """Before the class of another data module: the loaders of its hooks are swapped.

    `swapped` makes a class of both, whose objects share their attributes with the wrapped ones. So
    all else is inherited: hooks, hyperparameters, the state in checkpoints.
    """

    _lit_wrapped: LightningDataModule
    _lit_overrides: dict[str, Any]

    train_dataloader = _WrappedHook()
    val_dataloader = _WrappedHook()
    test_dataloader = _WrappedHook()
    predict_dataloader = _WrappedHook()

    def _lit_hook(self, name: str) -> Callable[[], Any]:
        if not is_hook_of(self._lit_wrapped, name):
            raise AttributeError(name)
        return functools.partial(_swap, self, name)

    def __reduce__(self) -> Any:
        return swapped, (self._lit_wrapped, self._lit_overrides)

    def __repr__(self) -> str:
        overrides = (f", {name}={short_repr(x)}" for name, x in self._lit_overrides.items())
        return f"SwappedDataModule({type(self).__name__}{''.join(overrides)})"

    __str__ = __repr__


def swapped(wrapped: LightningDataModule, overrides: Mapping[str, Any]) -> SwappedDataModule:
    """Does what `LoaderDataModule.from_datamodule` says."""
    kind = type(wrapped)
    if not isinstance(wrapped, DATA_MODULES) or isinstance(wrapped, KeepsLoaders):
        raise OptionError(
            "from_datamodule needs a LightningDataModule that makes loaders of torch's class, "
            f"got {kind.__name__}"
        )
    # Unknown names are refused at once, by options that are sure to fit together; whether these do
    # is seen when there is a loader that they are laid over.
    LoaderConfig.from_options(**{name: getattr(LoaderConfig, name, None) for name in overrides})
    # In the class, and not among the attributes, which are the user's. The name is that of the
    # user's class, by which Lightning's checkpoints have a data module's state.
    own = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    own.update(_lit_wrapped=wrapped, _lit_overrides=dict(overrides), _lit_loaders=Loaders())
    if hasattr(kind, "close"):
        own["close"] = kind.close
    made: Any = object.__new__(type(kind.__name__, (SwappedDataModule, kind), own))
    made.__dict__ = vars(wrapped)
    return made  # type: ignore[no-any-return]


def _swap(module: SwappedDataModule, name: str) -> Any:
    """Calls a hook; returns its loader, or its collection of them, with ours in place."""
    given = getattr(module._lit_wrapped, name)()
    if given is None or (isinstance(given, (list, tuple, dict)) and not given):
        return given  # a split without loaders
    several = combined(given)
    several.flattened = [_swapped(module, name, loader) for loader in several.flattened]
    return given if several is given else several.iterables


def _swapped(module: SwappedDataModule, name: str, loader: Any) -> Any:
    """A loader of ours for one of torch's; any other loader as it is, with a warning."""
    if isinstance(loader, DataLoader):
        return loader
    hook, overrides = f"{type(module).__name__}.{name}", module._lit_overrides
    if not isinstance(loader, TorchLoader) or type(loader).__iter__ is not TorchLoader.__iter__:
        rank_zero_warn(
            f"{hook} gives a loader of class {type(loader).__name__}, which stays as it is: only "
            "torch.utils.data.DataLoader and classes that iterate as it does are swapped",
            stacklevel=3 + program_stacklevel(),  # two frames of rank_zero_warn, and its own
        )
        return loader
    options = options_of(loader)
    if not overrides.get("num_workers", loader.num_workers):
        # torch's default for prefetch_factor depends on the workers, and looks like a user's
        # choice; without them none of these means anything.
        options = {key: value for key, value in options.items() if key not in _FOR_WORKERS}
    elif overrides.get("num_workers") == "auto" and loader.prefetch_factor == 2:
        del options["prefetch_factor"]  # torch's default, likewise
    try:
        config = LoaderConfig.from_options(**{**options, **overrides})
        return make(module, name.removesuffix("_dataloader"), loader.dataset, config)
    except OptionError as error:
        raise OptionError(f"{hook}: {error}") from None


def options_of(loader: TorchLoader[Any]) -> dict[str, Any]:
    """Returns the options with which ``lit_loader.DataLoader`` does what a torch loader does.

    Samplers, batch samplers, functions and generators that the user has made are the same objects.
    """
    options = {name: getattr(loader, name) for name in _SAME_OPTIONS}
    if loader.collate_fn not in (default_collate, default_convert):
        options["collate_fn"] = loader.collate_fn
    if isinstance(loader.dataset, IterableDataset):
        return options
    if loader.batch_size is None and loader.batch_sampler is not None:
        return {**options, "batch_size": 1, "batch_sampler": loader.batch_sampler}
    sampler = loader.sampler
    whole = getattr(sampler, "data_source", None) is loader.dataset
    if type(sampler) is RandomSampler and whole and _is_plain(sampler, loader):
        options["shuffle"] = True
    elif not (type(sampler) is SequentialSampler and whole):
        options["sampler"] = sampler
    return options


def _is_plain(sampler: RandomSampler, loader: TorchLoader[Any]) -> bool:
    """Whether a sampler is as ``shuffle=True`` makes it."""
    return (
        not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
        and sampler.generator is loader.generator
    )
