"""`BaseDataModule`: what both data modules of ours do for their loaders.

The base of `LoaderDataModule`, which makes loaders of datasets, and of `SwappedDataModule`, which
makes them of torch's loaders. Options and a dataset come in, a loader goes out, which is looked
after as long as the Trainer has it::

    Trainer ── ranks, overfitting, predicting ──▶ options ──▶ DataLoader ──▶ Trainer
       │                                                          │
       ├── attached: its first callback, LoaderStateCallback, commits and restores┤
       ├── checkpoint ◀─▶ state_dict, load_state_dict ◀── states ─────────────────┤
       ╰── teardown, on_exception ── close ───────────────────────────────────────╯

Loaders are held by weak references only, so that Lightning alone decides how long one lives;
`close`, `teardown` and `on_exception` close those that are left, and a loader without any reference
closes itself.
"""

from __future__ import annotations

import weakref
from typing import Any

from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import Dataset, IterableDataset

from lit_loader.config.loader_config import LoaderConfig
from lit_loader.lightning.names import TRAINERS, LightningDataModule
from lit_loader.lightning.state_callback import LoaderStateCallback, our_loaders, put_first
from lit_loader.loader import DataLoader
from lit_loader.sampling.shown_samplers import wrappable_by_lightning

__all__ = ["SPLITS", "BaseDataModule"]

SPLITS = ("train", "val", "test", "predict")


class BaseDataModule(LightningDataModule):
    """A LightningDataModule that makes, saves, restores and closes the loaders of a Trainer."""

    def __init__(self) -> None:
        super().__init__()
        self._loaders: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        self._state_callback = LoaderStateCallback()
        self.device_prefetch = False

    # A property, and not an override of setup: that one belongs to the subclasses, which may forget
    # to call it.
    @property
    def trainer(self) -> Trainer | None:
        """The Trainer; it gets the callback that keeps the training loaders' states."""
        return self._trainer

    @trainer.setter
    def trainer(self, value: Trainer | None) -> None:
        self._trainer = value
        self._attach(value)

    def _attach(self, trainer: Trainer | None) -> None:
        if isinstance(trainer, TRAINERS):  # and not a test's stand-in for one
            put_first(self._state_callback, trainer)

    def state_dict(self) -> dict[str, Any]:
        """Returns the training loaders' states, as they were after the last whole step."""
        return {} if self.trainer is None else self._state_callback.state(self.trainer)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps the training loaders' states, which are restored when training starts.

        Args:
            state_dict: What `state_dict` returned, from a checkpoint of the Trainer's.
        """
        # A checkpoint that is tested or validated with says nothing about a later fit.
        if self.trainer is not None and self.trainer.state.fn == "fit":
            self._state_callback.restore(state_dict)

    def _make(self, split: str, dataset: Dataset[Any], config: LoaderConfig) -> DataLoader[Any]:
        """Makes a loader of a split, with what the Trainer has to add to its options.

        Raises:
            OptionError: The options do not fit the dataset.
        """
        config = self._with_trainer(split, config)
        config.check_dataset_kind(isinstance(dataset, IterableDataset))
        options = config.with_samplers_for(dataset).as_kwargs()
        if split == "predict":
            options["batch_sampler"] = wrappable_by_lightning(options["batch_sampler"])
        loader = DataLoader(dataset, **options)
        loader._core.role = split
        auto = loader._core.auto
        if auto is not None and self.trainer is not None:
            auto.ranks = self.trainer.num_devices
        if self.device_prefetch and self.trainer is not None:
            loader.copy_ahead(self.trainer.strategy.root_device, move_data_to_device)
        self._loaders.add(loader)
        return loader

    def _with_trainer(self, split: str, config: LoaderConfig) -> LoaderConfig:
        """The options of a split, changed as the Trainer's strategy and options ask for."""
        overrides: dict[str, Any] = {}
        if split == "predict":
            # As Lightning does with torch's DataLoader: each sample has one prediction.
            overrides.update(drop_last=False, shard_tail="keep")
        if self.trainer is not None:
            if config.num_replicas is None and _shards(self.trainer):
                # None on a single device; on others the ranks among which the data is parallel,
                # which are fewer than all where a model is split over several.
                overrides.update(self.trainer.distributed_sampler_kwargs or {})
            ordered = config.shuffle or config.sampler is not None
            overfit: float = self.trainer.overfit_batches  # type: ignore[attr-defined]
            if overfit > 0 and split in ("train", "val") and ordered:
                # Lightning can do so for torch's DataLoader only, and overfitting on other batches
                # in each epoch would be no overfitting.
                overrides.update(shuffle=None, sampler=None)
                rank_zero_info(
                    f"overfit_batches={overfit}: the {split} split is read in the dataset's own "
                    "order, so that every epoch has the same batches"
                )
        return config.merged(**overrides) if overrides else config

    def close(self) -> None:
        """Closes every loader that is still alive: workers, threads and memory. Idempotent."""
        loaders = [*self._loaders]
        if self.trainer is not None:
            # For predictions it makes another loader out of each of ours.
            loaders += our_loaders(self.trainer.predict_dataloaders)
        for loader in loaders:
            loader.close()

    def teardown(self, stage: str | None = None) -> None:
        """Closes the loaders; Lightning calls it after a run that ended by itself."""
        self.close()

    def on_exception(self, exception: BaseException) -> None:
        """Closes the loaders; after an error or Ctrl-C Lightning calls this *instead of* teardown.

        Their iterators are still referenced then, so that nothing would be freed by itself.
        """
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # ddp_spawn pickles the data module; its loaders stay in this process.
        return {**self.__dict__, "_loaders": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _loaders=weakref.WeakSet())


def _shards(trainer: Trainer) -> bool:
    """Whether the Trainer wants data split over the ranks; ``use_distributed_sampler`` says so."""
    # Lightning acts on it for torch's DataLoader alone. Where it is kept elsewhere, its default
    # holds.
    # reach: lightning: use_distributed_sampler is kept nowhere else
    connector = getattr(trainer, "_accelerator_connector", None)
    return bool(getattr(connector, "use_distributed_sampler", True))
