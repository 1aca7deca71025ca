"""What counts as a dataset: for the loader, the data modules and mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lit_loader.describe import short_repr
from lit_loader.errors import OptionError

__all__ = ["check_dataset", "is_dataset", "is_list"]


def is_dataset(source: object) -> bool:
    """Whether this can be indexed or iterated; a list or dict of datasets can, too."""
    # A class has these methods for its instances, and is itself a factory. Text names something.
    return not isinstance(source, (type, str, bytes)) and (
        hasattr(source, "__getitem__") or hasattr(source, "__iter__")
    )


def is_list(value: object) -> bool:
    """Whether this is a list or tuple; a Hydra node without ``_convert_`` has others for them."""
    if isinstance(value, (list, tuple)):
        return True
    return isinstance(value, Sequence) and type(value).__module__.startswith("omegaconf.")


def _check_split_once(dataset: Any, config: Any) -> None:
    """Refuse a stream of another library that splits by ranks what the readers split, too.

    A dataset that is split twice gives most of its samples to no one, and nothing shows it.

    Args:
        dataset: The dataset.
        config: The loader's options.

    Raises:
        OptionError: It is one, and there are several ranks.
    """
    if not config.num_shards or (config.num_replicas or 1) == 1:
        return
    splitter = None
    if getattr(dataset, "_distributed", None) is not None:  # of Hugging Face's
        splitter = "split_dataset_by_node"
    stages = getattr(dataset, "pipeline", None)  # of a WebDataset
    for stage in stages if isinstance(stages, (list, tuple)) else ():
        if getattr(getattr(stage, "func", stage), "__name__", "") == "split_by_node":
            splitter = "split_by_node (pass nodesplitter=None)"
    if splitter is not None:
        raise OptionError(
            f"{type(dataset).__name__} is split by ranks already, by {splitter}, and num_shards="
            f"{config.num_shards} readers of {config.num_replicas} ranks would split it once more, "
            "so that most samples come to no rank: leave the one or the other out"
        )


def check_dataset(dataset: Any, config: Any = None) -> None:
    """Refuse what can be neither indexed nor iterated, or would be split twice.

    Args:
        dataset: The dataset.
        config: The loader's options; None: there is no loader yet.

    Raises:
        OptionError: It has none of the methods that samples are read by, or is split already.
    """
    if config is not None:
        _check_split_once(dataset, config)
    # Python looks these two up in the class; a forgotten pair of brackets is found so, too.
    kind = type(dataset)
    if hasattr(kind, "__getitem__"):
        return
    if hasattr(kind, "__iter__"):
        from torch.utils.data import IterableDataset  # not by who only reads options

        if config is None or hasattr(kind, "__getitems__") or isinstance(dataset, IterableDataset):
            return
        raise OptionError(
            "dataset must have __getitem__ (and __len__), or be an IterableDataset, got "
            f"{short_repr(dataset)} ({kind.__name__}): derive a class from "
            "torch.utils.data.IterableDataset whose __iter__ begins it anew for each epoch"
        )
    if isinstance(dataset, type):
        raise OptionError(
            f"dataset must be an object, got the class {dataset.__name__} itself: call it, as in "
            f"{dataset.__name__}()"
        )
    if not hasattr(dataset, "__getitems__"):
        raise OptionError(
            "dataset must have __getitem__ (and __len__), __getitems__ or __iter__, got "
            f"{short_repr(dataset)} ({type(dataset).__name__}): pass a dataset"
        )
