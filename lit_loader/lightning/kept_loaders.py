"""`make` and `KeepsLoaders`: the loaders of a data module, made for its Trainer, and closed.

What `LoaderDataModule`, which makes loaders of datasets, and `SwappedDataModule`, which makes them
of torch's loaders, have in common::

    Trainer ── ranks, overfitting, predicting ──▶ options ── make ──▶ DataLoader ──▶ Trainer
       ├── attached: its first callback, LoaderStateCallback, saves and restores ─┤
       ╰── teardown, on_exception ── close ───────────────────────────────────────╯

Loaders are held by weak references only, so that Lightning alone decides how long one lives;
`teardown` and `on_exception` close those that are left, and a loader without any reference closes
itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import Dataset, IterableDataset

from lit_loader.config.loader_config import LoaderConfig
from lit_loader.lightning.names import TRAINERS, LightningDataModule
from lit_loader.lightning.state_callback import LoaderStateCallback, our_loaders
from lit_loader.loader import DataLoader
from lit_loader.sampling.shown_samplers import wrappable_by_lightning

__all__ = ["KeepsLoaders", "LoaderHook", "Loaders", "make"]

_Base: Any = LightningDataModule if TYPE_CHECKING else object


class Loaders(weakref.WeakSet[DataLoader[Any]]):
    """Those that are still alive; ddp_spawn pickles the data module, and they stay here."""

    def __reduce__(self) -> Any:
        return Loaders, ()


class LoaderHook:
    """A ``*_dataloader`` method of a `KeepsLoaders`; there is none where there is no loader.

    Lightning asks whether a hook is overridden, not what it returns: validation is left out of
    ``fit`` only if the data module seems not to define ``val_dataloader`` at all. Lightning's own
    hook will not do: by its docstring, each of its two names takes that of the other for another.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, module: Any, owner: type) -> Any:
        return self if module is None else module._lit_hook(self._name)


class KeepsLoaders(_Base):  # type: ignore[misc]
    """Stands before LightningDataModule, or a class of the user's, among the bases."""

    _lit_loaders: Loaders

    def _lit_hook(self, name: str) -> Callable[[], Any]:
        """What a `LoaderHook` is called as; AttributeError: it has nothing to give."""
        raise NotImplementedError

    # A property, and not an override of setup: that one belongs to the subclasses, which may forget
    # to call it.
    @property
    def trainer(self) -> Trainer | None:
        """The Trainer; it gets the callback that keeps the training loaders' states."""
        return self.__dict__.get("trainer")

    @trainer.setter
    def trainer(self, value: Trainer | None) -> None:
        self.__dict__["trainer"] = value
        if isinstance(value, TRAINERS):  # and not a test's stand-in for one
            callbacks: list[Any] = value.callbacks  # type: ignore[attr-defined]
            if not any(isinstance(each, LoaderStateCallback) for each in callbacks):
                value.callbacks = [LoaderStateCallback(), *callbacks]  # type: ignore[attr-defined]

    def close(self) -> None:
        """Closes every loader that is still alive: workers, threads and memory. Idempotent."""
        loaders = [*self._lit_loaders]
        if self.trainer is not None:
            # For predictions it makes another loader out of each of ours.
            loaders += our_loaders(self.trainer.predict_dataloaders)
        for loader in loaders:
            loader.close()

    def teardown(self, stage: str | None = None) -> None:
        """Closes the loaders; Lightning calls it after a run that ended by itself."""
        KeepsLoaders.close(self)
        super().teardown(stage)

    def on_exception(self, exception: BaseException) -> None:
        """Closes the loaders; after an error or Ctrl-C Lightning calls this *instead of* teardown.

        Their iterators are still referenced then, so that nothing would be freed by itself.
        """
        KeepsLoaders.close(self)
        super().on_exception(exception)


def make(
    module: KeepsLoaders,
    split: str,
    dataset: Dataset[Any],
    config: LoaderConfig,
    device_prefetch: bool = False,
) -> DataLoader[Any]:
    """Makes a loader of a split, with what the Trainer has to add to its options."""
    trainer = module.trainer
    config = config.merged(**_asked_by(trainer, split, config))
    config.check_dataset_kind(isinstance(dataset, IterableDataset))
    options = config.with_samplers_for(dataset).as_kwargs()
    if split == "predict":
        options["batch_sampler"] = wrappable_by_lightning(options["batch_sampler"])
    loader = DataLoader(dataset, **options)
    loader._core.role = split
    if trainer is not None and loader._core.auto is not None:
        loader._core.auto.ranks = trainer.num_devices
    if device_prefetch and trainer is not None:
        loader.copy_ahead(trainer.strategy.root_device, move_data_to_device)
    module._lit_loaders.add(loader)
    return loader


def _asked_by(trainer: Trainer | None, split: str, config: LoaderConfig) -> dict[str, Any]:
    """The options that the Trainer's strategy and options ask for."""
    asked: dict[str, Any] = {}
    if split == "predict":
        # As Lightning does with torch's DataLoader: each sample has one prediction.
        asked.update(drop_last=False, shard_tail="keep")
    if trainer is None:
        return asked
    if config.num_replicas is None and _shards(trainer):
        # None on a single device; on others the ranks among which the data is parallel, which are
        # fewer than all where a model is split over several.
        asked.update(trainer.distributed_sampler_kwargs or {})
    ordered = config.shuffle or config.sampler is not None
    overfit: float = trainer.overfit_batches  # type: ignore[attr-defined]
    if overfit > 0 and split in ("train", "val") and ordered:
        # Lightning can do so for torch's DataLoader only, and overfitting on other batches in each
        # epoch would be no overfitting.
        asked.update(shuffle=None, sampler=None)
        rank_zero_info(
            f"overfit_batches={overfit}: the {split} split is read in the dataset's own order, so "
            "that every epoch has the same batches"
        )
    return asked


def _shards(trainer: Trainer) -> bool:
    """Whether the Trainer wants data split over the ranks; ``use_distributed_sampler`` says so."""
    # Lightning acts on it for torch's DataLoader alone.
    # reach: lightning: use_distributed_sampler is kept nowhere else
    connector = getattr(trainer, "_accelerator_connector", None)
    return bool(getattr(connector, "use_distributed_sampler", True))
