"""`LoaderDataModule`: a Trainer's loaders, made of datasets or in the place of torch's.

Made by users and by Hydra, passed to the Trainer::

    datasets[split] ── dataset ───────────────────┐
                  └─── factory ─┐                 │
    make_dataset(split) ────────┴─ setup(stage) ─▶ dataset ─▶ make_loader ──┐
    loader ─ common options ─┐                                              │
    train, val, test, predict ┴▶ LoaderConfig of each split ────────────────┼─▶ DataLoader
    from_datamodule: the user's hooks ─▶ torch's loaders ─▶ options_of ─────┘      ▲
                                                 Trainer: ranks, overfitting ──────╯

Loaders are not held here: Lightning alone decides how long one lives. The callback closes those of
the Trainer, and a loader without any reference closes itself.
"""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import (
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from lit_loader.core.options.checks import flag, is_dataset, is_list, known_keywords
from lit_loader.core.options.loader_config import FOR_WORKERS, LoaderConfig, check_option
from lit_loader.describe import program_stacklevel, public, short_repr
from lit_loader.errors import OptionError
from lit_loader.lightning.names import DATA_MODULES, TRAINERS, LightningDataModule, is_hook_of
from lit_loader.lightning.noted_batches import wrappable
from lit_loader.lightning.state_callback import LoaderStateCallback
from lit_loader.lightning.state_hooks import StateHooks
from lit_loader.lightning.trainers import combined
from lit_loader.loader import DataLoader

__all__ = ["SPLITS", "LoaderDataModule", "SwappedDataModule", "options_of"]

SPLITS = ("train", "val", "test", "predict")

# Trainer function -> the split it cannot do without, and what it uses besides where it is given.
_STAGES = {"fit": SPLITS[:2], "validate": ("val",), "test": ("test",), "predict": ("predict",)}

_OPTIONS = [*LoaderConfig.__dataclass_fields__]
_IN_LOADER = {
    name: f"it is an option of the loaders: pass loader={{{name!r}: ...}}, in Hydra loader.{name}="
    for name in _OPTIONS
}

Options = Mapping[str, Any] | LoaderConfig
_Source = Dataset[Any] | Callable[[], Dataset[Any]]
DatasetSource = _Source | Sequence[_Source] | Mapping[str, _Source]
_Base: Any = LightningDataModule if TYPE_CHECKING else object


class LoaderHook:
    """A ``*_dataloader`` method of a `MakesLoaders`; there is none where there is no loader.

    Lightning asks whether a hook is overridden, not what it returns: validation is left out of
    ``fit`` only if the data module seems not to define ``val_dataloader`` at all. Lightning's own
    hook will not do: by its docstring, each of its two names takes that of the other for another.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, module: Any, owner: type) -> Any:
        return self if module is None else module._lit_hook(self._name)


class MakesLoaders(_Base):  # type: ignore[misc]
    """Makes loaders for the Trainer.

    Stands before LightningDataModule, or a class of the user's, among the bases.
    """

    train_dataloader = LoaderHook()
    val_dataloader = LoaderHook()
    test_dataloader = LoaderHook()
    predict_dataloader = LoaderHook()

    def _lit_hook(self, name: str) -> Callable[[], object]:
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
            callbacks: list[object] = value.callbacks  # type: ignore[attr-defined]
            if not any(isinstance(each, StateHooks) for each in callbacks):
                value.callbacks = [LoaderStateCallback(), *callbacks]  # type: ignore[attr-defined]

    def _lit_make(
        self, split: str, dataset: Any, config: LoaderConfig, device_prefetch: bool = False
    ) -> DataLoader[Any]:
        """A loader of a split, with what the Trainer has to add to its options."""
        trainer = self.trainer
        config = config.merged(**_asked_by(trainer, split, config))
        if split == "predict":
            made = config.with_samplers_for(dataset)
            config = made.merged(batch_sampler=wrappable(made.batch_sampler))
        config = config.with_samplers_for(dataset)
        # A batch sampler that asks for it learns what batches an optimizer step is made of.
        if callable(fit_step := getattr(config.batch_sampler, "fit_step", None)):
            ranks = config.replica[1] if config.replica else 1
            steps = 1
            if trainer is not None and split == "train":
                steps = trainer.accumulate_grad_batches
            fit_step(ranks, steps)
        loader = DataLoader(dataset, **config.as_kwargs())
        loader.role = split
        if device_prefetch and trainer is not None:
            loader._copy_ahead(trainer.strategy.root_device, move_data_to_device)
        return loader

    def __str__(self) -> str:
        return repr(self)  # Lightning's own makes and measures every loader


def _asked_by(trainer: Trainer | None, split: str, config: LoaderConfig) -> dict[str, object]:
    """The options that the Trainer's strategy and options ask for."""
    asked: dict[str, object] = {}
    if split == "predict":
        # As Lightning does with torch's DataLoader: each sample has one prediction.
        asked.update(drop_last=False, uneven_ranks="keep")
    if trainer is None:
        return asked
    # Lightning acts on this option for torch's DataLoader alone.
    # reach: lightning: use_distributed_sampler is kept nowhere else
    connector = getattr(trainer, "_accelerator_connector", None)
    shares = config.num_replicas is None and getattr(connector, "use_distributed_sampler", True)
    if shares or config.num_replicas == "auto":
        # None on a single device; on others the ranks among which the data is parallel, which are
        # fewer than all where a model is split over several.
        asked.update(trainer.distributed_sampler_kwargs or {"num_replicas": None})
    ordered = config.shuffle or config.sampler is not None
    overfit: float = trainer.overfit_batches  # type: ignore[attr-defined]
    if overfit > 0 and split in ("train", "val") and ordered:
        # Lightning can do so for torch's DataLoader only, and overfitting on other batches in each
        # epoch would be no overfitting.
        asked.update(shuffle=None, sampler=None)
        rank_zero_info(
            f"lit_loader: overfit_batches={overfit}: the {split} split is read in the dataset's "
            "own order, so every epoch has the same batches"
        )
    return asked


@public
class LoaderDataModule(MakesLoaders, LightningDataModule):
    """A LightningDataModule that loads every split through ``lit_loader.DataLoader``.

    Each call of a hook makes a new loader. Ranks and replicas come from the Trainer's strategy,
    unless you pass them or the Trainer has ``use_distributed_sampler=False``. With
    ``overfit_batches`` the order is the dataset's own. The "predict" split yields every sample
    once, whatever ``drop_last`` and ``uneven_ranks`` say, and prediction writers get its index.

    A subclass may make the datasets in `make_dataset`, or define ``*_dataloader`` hooks as any
    LightningDataModule, and then calls the constructor without datasets.

    Args:
        datasets: Split ("train", "val", "test", "predict") to dataset, or to a factory without
            arguments. `setup` calls a factory once in each process that needs the split. A class
            is a factory; anything that can be indexed or iterated is a dataset. A list or dict of
            torch Datasets and factories makes one loader for each, and Lightning combines them.
        loader: Options of all splits: a mapping or a `LoaderConfig`. None takes the defaults.
        train: Options of the training split. A mapping overrides the common options, a
            `LoaderConfig` replaces them, None keeps them.
        val: The same for validation.
        test: The same for testing.
        predict: The same for prediction.
        device_prefetch: True copies the next batch to the CUDA device while a step computes, on a
            stream of its own; one batch more is on the device then. Set it with ``pin_memory``.
            It has no effect without a CUDA device.
        batch_size: Short for this option of ``loader``, which it overrides. None keeps it.
        num_workers: The same.
        pin_memory: The same.
        seed: The same.

    Attributes:
        splits: The splits that a subclass's `make_dataset` can make; a class attribute.
        datasets: The datasets, and the factories of those that are not built yet.
        configs: The `LoaderConfig` of each split.

    Raises:
        OptionError: A split or option is unknown or refused.

    Examples:
        >>> from lit_loader import LoaderDataModule
        >>> datasets = {"train": range(8), "val": range(4)}
        >>> data = LoaderDataModule(datasets, loader={"batch_size": 2}, train={"shuffle": True})
        >>> data.setup("fit")  # the Trainer calls this
        >>> [batch.tolist() for batch in data.val_dataloader()]
        [[0, 1], [2, 3]]
    """

    splits: Sequence[str] = SPLITS

    @functools.partial(known_keywords, elsewhere=_IN_LOADER)
    def __init__(
        self,
        datasets: Mapping[str, DatasetSource] | None = None,
        loader: Options | None = None,
        train: Options | None = None,
        val: Options | None = None,
        test: Options | None = None,
        predict: Options | None = None,
        device_prefetch: bool = False,
        batch_size: int | None = None,
        num_workers: int | Literal["auto"] | None = None,
        pin_memory: bool | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.device_prefetch = flag("device_prefetch", device_prefetch)
        if datasets is None and (self._makes_datasets or self._own_hooks()):
            datasets = {}
        if not isinstance(datasets, Mapping):
            raise OptionError(
                "datasets must be a mapping from split to dataset or factory, "
                f"got {type(datasets).__name__}: pass one, or override make_dataset or "
                "*_dataloader in a subclass"
            )
        for split, source in datasets.items():
            if split not in SPLITS:
                raise OptionError(f"datasets has an unknown split {split!r}: use {_listed(SPLITS)}")
            _check_source(split, source)
        short = {"batch_size": batch_size, "num_workers": num_workers, "pin_memory": pin_memory}
        short["seed"] = seed
        short = {name: check_option(name, x) for name, x in short.items() if x is not None}
        common = _laid_over(_options("loader", loader), short)
        given = {"train": train, "val": val, "test": test, "predict": predict}
        self.datasets: dict[str, DatasetSource] = dict(datasets)
        self._built: dict[str, tuple[object, object]] = {}  # what is built, and its `_shape`
        self.configs = {name: _config(name, given[name], common) for name in SPLITS}
        # Primitives alone: a callable or a dataset among them would make a checkpoint that
        # torch.load(weights_only=True) refuses. A Namespace, because Lightning compares a mapping
        # with each argument of this constructor, and comparing datasets may fail.
        self.save_hyperparameters(
            Namespace(
                loader=_primitives(common),
                **{name: _primitives(vars(self.configs[name])) for name in self.given_splits},
            )
        )

    @classmethod
    def from_datasets(
        cls,
        train_dataset: object = None,
        val_dataset: object = None,
        test_dataset: object = None,
        predict_dataset: object = None,
        batch_size: int | None = 1,
        num_workers: int | Literal["auto"] = 0,
        **options: Any,
    ) -> Any:
        """Makes a data module of datasets, as ``LightningDataModule.from_datasets`` does.

        As there, the training split is shuffled, unless it is an IterableDataset or has a sampler;
        and memory is pinned if there is an accelerator.

        Args:
            train_dataset: A dataset, or a list or dict of datasets. None makes no such split.
            val_dataset: The same for validation.
            test_dataset: The same for testing.
            predict_dataset: The same for prediction.
            batch_size: Samples in a batch, in every split.
            num_workers: Worker processes of each loader.
            **options: Options of `LoaderConfig`, for every split (``shuffle`` for the training
                split alone); everything else is passed to the constructor.

        Raises:
            OptionError: An option, or a combination of options, is refused.
        """
        given = train_dataset, val_dataset, test_dataset, predict_dataset
        datasets = {name: one for name, one in zip(SPLITS, given, strict=True) if one is not None}
        loader = _options("loader", options.pop("loader", None))
        loader |= {name: options.pop(name) for name in _OPTIONS if name in options}
        loader |= {"batch_size": batch_size, "num_workers": num_workers}
        loader.setdefault("pin_memory", torch.accelerator.is_available())
        train = _options("train", options.pop("train", None))
        decided = {*loader, *train} & {"sampler", "batch_sampler"}
        is_stream = isinstance(train_dataset, IterableDataset)
        shuffle = loader.pop("shuffle", None if decided or is_stream else True)
        train = {"shuffle": shuffle, **train}
        return cls(**{**options, "datasets": datasets, "loader": loader, "train": train})

    @staticmethod
    def from_datamodule(
        datamodule: LightningDataModule, **loader_overrides: object
    ) -> SwappedDataModule:
        """Wraps a data module that makes loaders of torch's class, and swaps these for ours.

        ::

            data = LoaderDataModule.from_datamodule(MyDataModule(), num_workers=8)

        Lightning calls its hooks as before. Each ``torch.utils.data.DataLoader`` that one returns,
        alone or in a list, dict or CombinedLoader, is replaced by a loader with the same arguments,
        samplers and functions. Anything else stays, with a warning.

        Args:
            datamodule: Used through the returned one from now on.
            **loader_overrides: Options of `LoaderConfig` that replace those of every loader.

        Raises:
            OptionError: An option is unknown; later, in a hook, one does not fit the loader.
        """
        return swapped(datamodule, loader_overrides)

    @property
    def given_splits(self) -> list[str]:
        """The splits that there are datasets for."""
        made = self.splits if self._makes_datasets else ()
        return [split for split in SPLITS if split in self.datasets or split in made]

    @property
    def _makes_datasets(self) -> bool:
        return type(self).make_dataset is not LoaderDataModule.make_dataset

    @classmethod
    def _own_hooks(cls) -> list[str]:
        names = [f"{split}_dataloader" for split in SPLITS]
        return [name for name in names if getattr(cls, name) is not vars(MakesLoaders)[name]]

    def make_dataset(self, split: str) -> Any:
        """Makes the dataset of a split; called once, in `setup`, in each process that needs it.

        A subclass that makes its datasets here names the splits it has, if not all four, in the
        class attribute `splits`.

        Args:
            split: One of `given_splits`, for which no dataset has been given or made.

        Returns:
            A dataset, or a list or dict of them; unless overridden, what the factory makes.
        """
        return self.datasets[split]()  # type: ignore[operator]

    def setup(self, stage: str | None = None) -> None:
        """Builds the datasets that `stage` needs; those that exist are kept.

        Args:
            stage: "fit", "validate", "test" or "predict"; None: every split is built.

        Raises:
            OptionError: The stage's split is missing, or a factory did not make a dataset.
        """
        if stage is not None and stage not in _STAGES:
            raise OptionError(f"stage must be one of {_listed(_STAGES)} or None, got {stage!r}")
        used = SPLITS if stage is None else _STAGES[stage]
        if stage is not None and not is_hook_of(self, f"{used[0]}_dataloader"):
            raise self._missing_split(used[0], f", which {str.__str__(stage)!r} needs")
        for split in used:
            if split in self.given_splits:
                self.dataset(split)
        super().setup(stage)  # type: ignore[arg-type]

    def _missing_split(self, split: str, reason: str = "") -> OptionError:
        return OptionError(
            f"datasets has no {split!r} split{reason}: given are {_listed(self.given_splits)}; "
            f"add {split!r} to datasets"
        )

    def dataset(self, split: str) -> Any:
        """Returns the dataset of a split, or its list or dict of them; made now if need be.

        Raises:
            OptionError: The factory, or `make_dataset`, did not make a dataset, or there is none.
        """
        if split not in self.given_splits:
            raise self._missing_split(split)
        source: object = self.datasets.get(split)
        if source is not None and source is self._built.get(split, (None,))[0]:
            return source
        if not is_dataset(source):
            source = self.make_dataset(split)

        def checked(one: Any) -> Any:
            made = one if one is source or is_dataset(one) else one()
            if is_dataset(made):
                return made
            what = f"datasets[{split!r}]" if split in self.datasets else f"make_dataset({split!r})"
            raise OptionError(
                f"{what} must make a dataset, got {type(made).__name__}: where there is none, "
                f"leave {split!r} out of datasets, or of the class attribute splits"
            )

        shape = _shape(source)
        self.datasets[split] = made = _each(shape, source, checked)
        self._built[split] = made, shape
        return made

    def _lit_hook(self, name: str) -> Callable[[], object]:
        split = name.removesuffix("_dataloader")
        if split not in self.given_splits:
            raise AttributeError(str(self._missing_split(split)))
        return functools.partial(self._loaders_of, split)

    def _loaders_of(self, split: str) -> object:
        """The loader of a split; where it has several datasets, as many loaders."""
        dataset = self.dataset(split)
        return _each(self._built[split][1], dataset, lambda one: self.make_loader(split, one))

    def make_loader(
        self, split: str, dataset: Dataset[Any] | None = None, **options: Any
    ) -> DataLoader[Any]:
        """Makes a new loader with the options of a split and what the Trainer has to add.

        Args:
            split: "train", "val", "test" or "predict".
            dataset: Loaded instead of the split's own, for hooks that return several loaders.
            **options: Laid over the split's.

        Raises:
            OptionError: The options do not fit the dataset, or the split is unknown, has no
                dataset or has several.
        """
        if split not in SPLITS:
            raise OptionError(f"split must be one of {_listed(SPLITS)}, got {split!r}")
        shape = _shape(dataset)
        if dataset is None:
            dataset, shape = self.dataset(split), self._built[split][1]
        if shape is not None:
            raise OptionError(f"{split!r} has several datasets: pass one of them to make_loader")
        config = self.configs[split].merged(**options)
        return self._lit_make(split, dataset, config, self.device_prefetch)

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of the training split (of the first given one without it).

        Setting it changes every split; Lightning's batch size finder does so.
        """
        return self.configs[next(iter(self.given_splits), "train")].batch_size

    @batch_size.setter
    def batch_size(self, value: int | None) -> None:
        self.configs = {s: c.merged(batch_size=value) for s, c in self.configs.items()}

    def __repr__(self) -> str:
        splits = (
            f"{split}: {_described(self.datasets.get(split, self.make_dataset))}, "
            f"batch_size={self.configs[split].batch_size}"
            for split in self.given_splits
        )
        return f"{type(self).__name__}({'; '.join(splits)})"


def _shape(source: Any) -> Any:
    """Return a list or dict of the shapes of several datasets; None: this is one.

    Several are a list, tuple or dict of nothing but torch Datasets and factories. Any other is
    itself a dataset, of what it holds.
    """
    if not (isinstance(source, Mapping) or is_list(source)) or not source:
        return None
    shapes = {}
    for name in source if isinstance(source, Mapping) else range(len(source)):
        one = source[name]
        shapes[name] = shape = _shape(one)
        if not (shape or isinstance(one, Dataset) or (callable(one) and not is_dataset(one))):
            return None
    return shapes if isinstance(source, Mapping) else [*shapes.values()]


def _each(shape: Any, source: Any, function: Callable[[Any], Any]) -> Any:
    """The function's result; of several datasets theirs, under the same keys or in a list."""
    if shape is None:
        return function(source)
    if isinstance(shape, dict):
        return {name: _each(shape[name], source[name], function) for name in shape}
    return [_each(*pair, function) for pair in zip(shape, source, strict=True)]


def _check_source(split: str, source: object) -> None:
    """Refuse what is neither a dataset nor a factory: a class's name, say."""
    _check_instantiated(f"datasets[{split!r}]", source)
    if not (is_dataset(source) or callable(source)):
        raise OptionError(
            f"datasets[{split!r}] must be a dataset or a factory without arguments, got "
            f"{short_repr(source)}: pass a dataset, or a callable that makes it, such as "
            f"functools.partial(Dataset, ...), in Hydra {{_target_: package.module.Dataset}}"
        )


def _check_instantiated(name: str, node: object) -> None:
    """Refuse a node of a Hydra configuration that nobody has made an object of."""
    if isinstance(node, Mapping) and "_target_" in node:
        raise OptionError(
            f"{name} is a node of a Hydra configuration (_target_: {node['_target_']}) that was "
            "not instantiated: call hydra.utils.instantiate without _recursive_=False"
        )


def _described(source: object) -> str:
    """A dataset by its class, and a factory by its own name, for messages."""
    if is_dataset(source):
        return type(source).__name__
    inner = getattr(source, "func", source)  # a functools.partial is named by what it calls
    return f"factory {getattr(inner, '__name__', type(inner).__name__)}"


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _options(name: str, given: Options | None) -> dict[str, object]:
    """Return options as a new dict; an OptionError, in the name of an argument, if it is none."""
    if isinstance(given, LoaderConfig):
        return given.as_kwargs()
    if not isinstance(given, Mapping | None):
        raise OptionError(
            f"{name} must be a mapping of options or a LoaderConfig, got {type(given).__name__}"
        )
    _check_instantiated(name, given)
    return dict(given or {})


def _laid_over(common: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Lay options over others, of which those for workers give way to ``num_workers=0``."""
    if own.get("num_workers") == 0:
        common = {name: value for name, value in common.items() if name not in FOR_WORKERS}
    return {**common, **own}


def _config(name: str, own: Options | None, common: Mapping[str, object]) -> LoaderConfig:
    """Return the options of a split, over the common ones; a refusal says whose they are."""
    if isinstance(own, LoaderConfig):
        return own
    own = _options(name, own)
    try:
        return LoaderConfig().merged(**_laid_over(common, own))
    except OptionError as error:
        raise OptionError(f"{name}: {error.text}") from None


def _primitives(options: Mapping[str, object]) -> dict[str, object]:
    """The options that are numbers, strings, booleans or None: what a checkpoint may hold."""
    return {
        name: value
        for name, value in options.items()
        if value is None or isinstance(value, (bool, int, float, str))
    }


# --- in the place of torch's loaders ---

_OF_TORCH = _OPTIONS[: _OPTIONS.index("in_order") + 1]
_SAME_OPTIONS = {*_OF_TORCH} - {"shuffle", "sampler", "batch_sampler", "collate_fn"}
"""Options that both classes have, and mean the same by."""


class SwappedDataModule(MakesLoaders):
    """Before the class of another data module: the loaders of its hooks are swapped.

    `swapped` makes a class of both, whose objects share their attributes with the wrapped ones. So
    all else is inherited: hooks, hyperparameters, the state in checkpoints.
    """

    _lit_wrapped: LightningDataModule
    _lit_overrides: dict[str, object]

    def _lit_hook(self, name: str) -> Callable[[], object]:
        if not is_hook_of(self._lit_wrapped, name):
            raise AttributeError(name)
        return functools.partial(_swap, self, name)

    def __reduce__(self) -> tuple[object, ...]:
        return swapped, (self._lit_wrapped, self._lit_overrides)

    def __repr__(self) -> str:
        overrides = (f", {name}={short_repr(x)}" for name, x in self._lit_overrides.items())
        return f"SwappedDataModule({type(self).__name__}{''.join(overrides)})"


def swapped(wrapped: LightningDataModule, overrides: Mapping[str, object]) -> SwappedDataModule:
    """Does what `LoaderDataModule.from_datamodule` says."""
    kind = type(wrapped)
    if not isinstance(wrapped, DATA_MODULES) or isinstance(wrapped, MakesLoaders):
        raise OptionError(
            "from_datamodule needs a LightningDataModule that makes loaders of torch's class, "
            f"got {kind.__name__}"
        )
    # Unknown names are refused at once, by options that are sure to fit together; whether these do
    # is seen when there is a loader that they are laid over.
    LoaderConfig().merged(**{name: getattr(LoaderConfig, name, None) for name in overrides})
    # In the class, and not among the attributes, which are the user's. The name is that of the
    # user's class, by which Lightning's checkpoints have a data module's state.
    own = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    own.update(_lit_wrapped=wrapped, _lit_overrides=dict(overrides))
    made: SwappedDataModule = object.__new__(type(kind.__name__, (SwappedDataModule, kind), own))
    made.__dict__ = vars(wrapped)
    return made


def _swap(module: SwappedDataModule, name: str) -> object:
    """Calls a hook; returns its loader, or its collection of them, with ours in place."""
    given = getattr(module._lit_wrapped, name)()
    if given is None or (isinstance(given, (list, tuple, dict)) and not given):
        return given  # a split without loaders
    several = combined(given)
    several.flattened = [_swapped(module, name, loader) for loader in several.flattened]
    return given if several is given else several.iterables


def _swapped(module: SwappedDataModule, name: str, loader: object) -> object:
    """A loader of ours for one of torch's; any other loader as it is, with a warning."""
    hook, overrides = f"{type(module).__name__}.{name}", module._lit_overrides
    if isinstance(loader, DataLoader):
        if overrides:
            raise OptionError(
                f"{hook} returns a lit_loader.DataLoader already, so from_datamodule does not lay "
                f"{', '.join(overrides)} over it. Set options where the loader is made"
            )
        return loader
    if not isinstance(loader, TorchLoader) or type(loader).__iter__ is not TorchLoader.__iter__:
        rank_zero_warn(
            f"lit_loader: {hook} gives a loader of class {type(loader).__name__}, which stays as "
            "it is: only torch.utils.data.DataLoader and classes that iterate as it does are "
            "swapped",
            stacklevel=3 + program_stacklevel(),  # two frames of rank_zero_warn, and its own
        )
        return loader
    options = options_of(loader)
    if not overrides.get("num_workers", loader.num_workers):
        # torch's default for prefetch_factor depends on the workers, and looks like a user's
        # choice; without them none of these means anything.
        options = {key: value for key, value in options.items() if key not in FOR_WORKERS}
    elif overrides.get("num_workers") == "auto" and loader.prefetch_factor == 2:
        del options["prefetch_factor"]  # torch's default, too
    try:
        config = LoaderConfig().merged(**{**options, **overrides})
        return module._lit_make(name.removesuffix("_dataloader"), loader.dataset, config)
    except OptionError as error:
        raise OptionError(f"{hook}: {error.text}") from None


def options_of(loader: TorchLoader[object]) -> dict[str, object]:
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


def _is_plain(sampler: RandomSampler, loader: TorchLoader[object]) -> bool:
    """Whether a sampler is as ``shuffle=True`` makes it."""
    return (
        not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
        and sampler.generator is loader.generator
    )
