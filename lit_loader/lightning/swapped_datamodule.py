"""`SwappedDataModule`: wraps a user's data module, and swaps the loaders it makes for ours.

Made by `LoaderDataModule.from_datamodule`, passed to the Trainer in the place of the wrapped one::

    Trainer ─hook─▶ SwappedDataModule ─same hook─▶ the user's data module
                          │                              │
                          ◀── torch.utils.data.DataLoader ┘ (one, or a list or dict of them)
                          ╰── options_of ▶ LoaderConfig ▶ lit_loader.DataLoader ──▶ Trainer
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import (
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from lit_loader.checkpoint.untrusted_state import damaged, resuming
from lit_loader.config.loader_config import LoaderConfig
from lit_loader.describe import program_stacklevel, short_repr
from lit_loader.errors import OptionError
from lit_loader.lightning.base_datamodule import BaseDataModule
from lit_loader.lightning.names import DATA_MODULES, LightningDataModule, combined, is_hook_of
from lit_loader.loader import DataLoader

__all__ = ["SwappedDataModule", "options_of"]

_FOR_WORKERS = ("timeout", "multiprocessing_context", "prefetch_factor", "persistent_workers")

_SAME_OPTIONS = (
    *("batch_size", "num_workers", "pin_memory", "drop_last", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"),
    *("pin_memory_device", "in_order"),
)
"""Options that both classes have, and mean the same by."""


class _PassedOn:
    """An attribute of the wrapped data module: a hook is Lightning's own if not overridden there.

    Lightning asks whether a hook is overridden, and decides by that whose hook it calls.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, module: SwappedDataModule | None, owner: type) -> Any:
        return self if module is None else getattr(module.wrapped, self._name)

    def __set__(self, module: SwappedDataModule, value: Any) -> None:
        setattr(module.wrapped, self._name, value)


class _LoaderHook(_PassedOn):
    """A ``*_dataloader`` hook of the wrapped data module; the loaders it returns are swapped."""

    def __get__(self, module: SwappedDataModule | None, owner: type) -> Any:
        if module is None:
            return self
        if not is_hook_of(module.wrapped, self._name):
            raise AttributeError(self._name)  # as in LoaderDataModule
        return functools.partial(module._swap, self._name, super().__get__(module, owner))


class SwappedDataModule(BaseDataModule):
    """Another data module, with every loader of torch's class swapped for ``lit_loader``'s.

    All hooks are passed on; attributes that this class has not are those of the wrapped data
    module. Lightning's checkpoints have its state under the name of this class, which must stay.

    Args:
        wrapped: The data module; belongs to this one from now on.
        overrides: Loader options that replace those of the swapped loaders.

    Attributes:
        wrapped: The data module.

    Raises:
        OptionError: An option is unknown, or `wrapped` is not a data module with torch's loaders.
    """

    batch_size = _PassedOn()  # which Lightning's batch size finder sets
    hparams = _PassedOn()
    hparams_initial = _PassedOn()
    prepare_data = _PassedOn()
    transfer_batch_to_device = _PassedOn()
    on_before_batch_transfer = _PassedOn()
    on_after_batch_transfer = _PassedOn()
    train_dataloader = _LoaderHook()
    val_dataloader = _LoaderHook()
    test_dataloader = _LoaderHook()
    predict_dataloader = _LoaderHook()

    def __init__(self, wrapped: LightningDataModule, overrides: Mapping[str, Any]) -> None:
        if not isinstance(wrapped, DATA_MODULES) or isinstance(wrapped, BaseDataModule):
            raise OptionError(
                "from_datamodule needs a LightningDataModule that makes loaders of torch's class, "
                f"got {type(wrapped).__name__}"
            )
        # Unknown names are refused at once, by options that are sure to fit together; whether these
        # do is seen when there is a loader that they are laid over.
        LoaderConfig.from_options(**{name: getattr(LoaderConfig, name, None) for name in overrides})
        self.wrapped = wrapped
        super().__init__()
        self.overrides = dict(overrides)
        self.prepare_data_per_node = wrapped.prepare_data_per_node
        self.allow_zero_length_dataloader_with_multiple_devices = (
            wrapped.allow_zero_length_dataloader_with_multiple_devices
        )
        # Hyperparameters are those of the wrapped one, and so is whether loggers get them.
        self._log_hyperparams = getattr(wrapped, "_log_hyperparams", False)

    def __getattr__(self, name: str) -> Any:
        # The wrapped one is not there yet while this is being unpickled.
        if name == "wrapped" or isinstance(getattr(type(self), name, None), _LoaderHook):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self.wrapped, name)

    @property
    def trainer(self) -> Trainer | None:
        """The Trainer, of both data modules."""
        return self.wrapped.trainer

    @trainer.setter
    def trainer(self, value: Trainer | None) -> None:
        self.wrapped.trainer = value
        self._attach(value)

    def setup(self, stage: str | None = None) -> None:
        """Sets up both data modules."""
        self.wrapped.setup(stage)  # type: ignore[arg-type]
        super().setup(stage)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the wrapped data module and of the training loaders."""
        return {"wrapped": self.wrapped.state_dict(), "loaders": super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what `state_dict` returned.

        Raises:
            StateError: It is something else.
        """
        if not isinstance(state_dict, Mapping) or not {"wrapped", "loaders"} <= state_dict.keys():
            raise damaged(
                "data module's part must be a dict with 'wrapped' and 'loaders'",
                state_dict,
                "checkpoint",
            )
        super().load_state_dict(state_dict["loaders"])
        with resuming(self.wrapped, "data module"):
            self.wrapped.load_state_dict(state_dict["wrapped"])

    def teardown(self, stage: str | None = None) -> None:
        """Closes the loaders, then tears the wrapped data module down."""
        super().teardown(stage)
        self.wrapped.teardown(stage)  # type: ignore[arg-type]

    def on_exception(self, exception: BaseException) -> None:
        """Closes the loaders, then calls the wrapped data module's hook."""
        super().on_exception(exception)
        self.wrapped.on_exception(exception)

    def _swap(self, name: str, hook: Any) -> Any:
        """Calls a hook; returns its loader, or its collection of them, with ours in place."""
        given = hook()
        if given is None or (isinstance(given, (list, tuple, dict)) and not given):
            return given  # a split without loaders
        several = combined(given)
        several.flattened = [self._swapped(name, loader) for loader in several.flattened]
        return given if several is given else several.iterables

    def _swapped(self, name: str, loader: Any) -> Any:
        """A loader of ours for one of torch's; any other loader as it is, with a warning."""
        if isinstance(loader, DataLoader):
            return loader
        if not isinstance(loader, TorchLoader) or type(loader).__iter__ is not TorchLoader.__iter__:
            rank_zero_warn(
                f"{type(self.wrapped).__name__}.{name} gives a loader of class "
                f"{type(loader).__name__}, which stays as it is: only torch.utils.data.DataLoader "
                "and classes that iterate as it does are swapped",
                stacklevel=3 + program_stacklevel(),  # two frames of rank_zero_warn, and its own
            )
            return loader
        options = options_of(loader)
        if not self.overrides.get("num_workers", loader.num_workers):
            # torch's default for prefetch_factor depends on the workers, and looks like a user's
            # choice; without them none of these means anything.
            options = {key: value for key, value in options.items() if key not in _FOR_WORKERS}
        elif self.overrides.get("num_workers") == "auto" and loader.prefetch_factor == 2:
            del options["prefetch_factor"]  # torch's default, likewise
        try:
            config = LoaderConfig.from_options(**{**options, **self.overrides})
            return self._make(name.removesuffix("_dataloader"), loader.dataset, config)
        except OptionError as error:
            raise OptionError(f"{type(self.wrapped).__name__}.{name}: {error}") from None

    def __repr__(self) -> str:
        overrides = "".join(
            f", {name}={short_repr(value)}" for name, value in self.overrides.items()
        )
        return f"{type(self).__name__}({type(self.wrapped).__name__}{overrides})"

    __str__ = __repr__


def options_of(loader: TorchLoader[Any]) -> dict[str, Any]:
    """Returns the options with which ``lit_loader.DataLoader`` does what a torch loader does.

    Samplers, batch samplers, functions and generators that the user has made are the same objects.

    Args:
        loader: Only looked at.
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
