"""`LoaderDataModule`: datasets and loader options in, Lightning's four ``*_dataloader`` hooks out.

::

    datasets[split] ── dataset ──────────────────────┐
                  └─── factory ── setup(stage) ─▶ dataset ─▶ make_loader ─▶ DataLoader
    loader ─ common options ─┐                                 ▲   ▲
    train, val, test, predict ┴▶ LoaderConfig of each split ───┘   └── Trainer: ranks, overfitting

The data module keeps the loaders it made by weak references only, so that Lightning alone decides
how long one lives; `close`, `teardown` and `on_exception` close those that are left, and a loader
that nobody holds any more closes itself.
"""

from __future__ import annotations

import functools
import weakref
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import Dataset, IterableDataset

from lit_loader.callbacks import LoaderStateCallback
from lit_loader.config import LoaderConfig
from lit_loader.errors import OptionError
from lit_loader.loader import DataLoader

__all__ = ["SPLITS", "LoaderDataModule"]

SPLITS = ("train", "val", "test", "predict")

# Trainer function -> the split it cannot do without, and the ones it uses where they are given.
_STAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "fit": ("train", ("train", "val")),
    "validate": ("val", ("val",)),
    "test": ("test", ("test",)),
    "predict": ("predict", ("predict",)),
}

Options = Mapping[str, Any] | LoaderConfig
DatasetSource = Dataset[Any] | Callable[[], Dataset[Any]]


class _SplitHook:
    """The ``*_dataloader`` method of one split; Lightning's own where there is no dataset.

    Lightning asks whether a hook is overridden, not what it returns: validation is left out of
    ``fit`` only if the data module seems not to define ``val_dataloader`` at all.
    """

    def __init__(self, split: str) -> None:
        self._split = split

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, module: LoaderDataModule | None, owner: type) -> Any:
        if module is None:
            return self
        if self._split not in module.datasets:
            return getattr(super(LoaderDataModule, module), self._name)

        return functools.partial(module._open, self._split)


class LoaderDataModule(LightningDataModule):
    """A LightningDataModule that loads every split through ``lit_loader.DataLoader``.

    A loader is made afresh at each call of a hook. Ranks and number of replicas come from the
    Trainer's strategy unless they are given; with ``overfit_batches`` the order is fixed here.

    Args:
        datasets: Split ("train", "val", "test", "predict") to dataset, or to a factory without
            arguments that is called once, in `setup`, in each process that needs the split. A
            class is a factory; anything that can be indexed or iterated is a dataset.
        loader: Options common to all splits: a mapping or a `LoaderConfig`.
        train: Options of the training split: a mapping is laid over the common options, a
            `LoaderConfig` replaces them.
        val: The same for validation.
        test: The same for testing.
        predict: The same for prediction.

    Attributes:
        datasets: The datasets, and the factories of those that are not built yet.
        configs: The `LoaderConfig` of each split.

    Raises:
        OptionError: A split or option is unknown or refused.
    """

    train_dataloader = _SplitHook("train")
    val_dataloader = _SplitHook("val")
    test_dataloader = _SplitHook("test")
    predict_dataloader = _SplitHook("predict")

    def __init__(
        self,
        datasets: Mapping[str, DatasetSource],
        loader: Options | None = None,
        train: Options | None = None,
        val: Options | None = None,
        test: Options | None = None,
        predict: Options | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(datasets, Mapping):
            raise OptionError(
                "datasets must be a mapping from split to dataset or factory, "
                f"got {type(datasets).__name__}"
            )
        for split, source in datasets.items():
            if split not in SPLITS:
                raise OptionError(f"datasets has an unknown split {split!r}: use {_listed(SPLITS)}")
            if not (_is_dataset(source) or callable(source)):
                raise OptionError(
                    f"datasets[{split!r}] must be a dataset or a factory without arguments, "
                    f"got {type(source).__name__}"
                )
        common = _config("loader", loader, LoaderConfig())
        given = {"train": train, "val": val, "test": test, "predict": predict}
        self.datasets: dict[str, DatasetSource] = dict(datasets)
        self.configs = {name: _config(name, given[name], common) for name in SPLITS}
        self._loaders: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
        self._positions = LoaderStateCallback()
        # Primitives alone: a callable or a dataset among them would make a checkpoint that
        # torch.load(weights_only=True) refuses. A Namespace, because Lightning compares a mapping
        # with each argument of this constructor, and comparing datasets may fail.
        self.save_hyperparameters(
            Namespace(
                loader=_primitives(common),
                **{name: _primitives(self.configs[name]) for name in self.datasets},
            )
        )

    def setup(self, stage: str | None = None) -> None:
        """Builds the datasets that `stage` needs; those that exist are kept.

        Args:
            stage: "fit", "validate", "test" or "predict"; None: every split is built.

        Raises:
            OptionError: The stage's split is missing, or a factory did not make a dataset.
        """
        if stage is not None and stage not in _STAGES:
            raise OptionError(f"stage must be one of {_listed(_STAGES)} or None, got {stage!r}")
        needed, used = _STAGES[stage] if stage is not None else (None, SPLITS)
        if needed is not None and not is_overridden(f"{needed}_dataloader", self):
            raise OptionError(
                f"datasets has no {needed!r} split, which {stage!r} needs: "
                f"given are {_listed(self.datasets)}"
            )
        for split in used:
            if split in self.datasets:
                self.dataset(split)
        if stage == "fit" and self.trainer is not None:
            self._positions.restore({})
            callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
            if self._positions not in callbacks:
                callbacks.insert(0, self._positions)

    def state_dict(self) -> dict[str, Any]:
        """Returns the training loaders' positions, as they were after the last whole step."""
        return {} if self.trainer is None else self._positions.state(self.trainer)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the training loaders' positions in; they are restored when training starts.

        Args:
            state_dict: What `state_dict` returned, from a checkpoint of the Trainer's.
        """
        # A checkpoint that is tested or validated with says nothing about a later fit.
        if self.trainer is not None and self.trainer.state.fn == "fit":
            self._positions.restore(state_dict)

    def dataset(self, split: str) -> Dataset[Any]:
        """Returns the dataset of a split, built now if its factory was not called yet.

        Raises:
            OptionError: The factory did not make a dataset.
        """
        source = self.datasets[split]
        if not _is_dataset(source):
            source = source()  # type: ignore[operator]
            if not _is_dataset(source):
                raise OptionError(
                    f"datasets[{split!r}] factory must make a dataset, got {type(source).__name__}"
                )
            self.datasets[split] = source
        return source  # type: ignore[return-value]

    def _open(self, split: str) -> DataLoader[Any]:
        """The loader that a hook which was not overridden returns."""
        loader = self.make_loader(split)
        if split == "train":
            self._positions.restore_single(loader)
        return loader

    def make_loader(self, split: str, dataset: Dataset[Any] | None = None) -> DataLoader[Any]:
        """Makes a new loader with the options of a split and what the Trainer has to add.

        Args:
            split: "train", "val", "test" or "predict".
            dataset: Loaded instead of the split's own, for hooks that return several loaders.

        Raises:
            OptionError: The options do not fit the dataset.
        """
        dataset = self.dataset(split) if dataset is None else dataset
        config = self._with_trainer(split, self.configs[split])
        config.check_dataset_kind(isinstance(dataset, IterableDataset))
        loader = DataLoader(dataset, **config.with_samplers_for(dataset).as_kwargs())
        self._loaders.add(loader)
        return loader

    def _with_trainer(self, split: str, config: LoaderConfig) -> LoaderConfig:
        if self.trainer is None:
            return config
        overrides: dict[str, Any] = {}
        if config.num_replicas is None:
            # None on a single device; on others the ranks among which the data is parallel,
            # which are fewer than all where a model is split over several.
            overrides.update(self.trainer.distributed_sampler_kwargs or {})
        ordered = config.shuffle or config.sampler is not None
        overfit: float = self.trainer.overfit_batches  # type: ignore[attr-defined]
        if overfit > 0 and split in ("train", "val") and ordered:
            # Lightning can do so for torch's DataLoader only, and overfitting on other batches
            # in each epoch would be no overfitting.
            overrides.update(shuffle=None, sampler=None)
            rank_zero_info(f"overfit_batches: the {split} split is read in the dataset's own order")
        return config.merged(**overrides) if overrides else config

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of the training split (of the first given one without it).

        Setting it changes every split; Lightning's batch size finder does so.
        """
        return self.configs[next((s for s in SPLITS if s in self.datasets), "train")].batch_size

    @batch_size.setter
    def batch_size(self, value: int | None) -> None:
        self.configs = {s: c.merged(batch_size=value) for s, c in self.configs.items()}

    def close(self) -> None:
        """Closes every loader that is still alive: workers, threads and memory. Idempotent."""
        for loader in list(self._loaders):
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

    def __repr__(self) -> str:
        # Lightning's own __str__ makes and measures every loader.
        splits = (
            f"{split}: {_described(source)}, batch_size={self.configs[split].batch_size}"
            for split, source in self.datasets.items()
        )
        return f"{type(self).__name__}({'; '.join(splits)})"

    __str__ = __repr__


def _is_dataset(source: object) -> bool:
    # A class has these methods for its instances, and is itself a factory.
    return not isinstance(source, type) and (
        hasattr(source, "__getitem__") or hasattr(source, "__iter__")
    )


def _described(source: object) -> str:
    if _is_dataset(source):
        return type(source).__name__
    inner = getattr(source, "func", source)  # a functools.partial is named by what it calls
    return f"factory {getattr(inner, '__name__', type(inner).__name__)}"


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"


def _config(name: str, options: Options | None, common: LoaderConfig) -> LoaderConfig:
    """The options of `name` laid over the common ones; refusals say whose options they are."""
    if options is None:
        return common
    if isinstance(options, LoaderConfig):
        return options
    if not isinstance(options, Mapping):
        raise OptionError(
            f"{name} must be a mapping of options or a LoaderConfig, got {type(options).__name__}"
        )
    try:
        return common.merged(**options)
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from None


def _primitives(config: LoaderConfig) -> dict[str, Any]:
    return {
        name: value
        for name, value in config.as_kwargs().items()
        if value is None or isinstance(value, (bool, int, float, str))
    }
