"""A DataLoader for PyTorch that resumes mid-epoch exactly and replaces crashed workers.

Every public name is imported at its first use (PEP 562): Hydra loads its plugins, ours among them,
in every application of an environment, and importing this package must therefore not import torch.
"""

from __future__ import annotations

import gc
import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.data import default_convert as default_convert
    from torch.utils.data import get_worker_info as get_worker_info

    from lit_loader.compat.replacement import replace_torch as replace_torch
    from lit_loader.context import *  # noqa: F403
    from lit_loader.core.batch.collate import default_collate as default_collate
    from lit_loader.core.options.loader_config import LoaderConfig as LoaderConfig
    from lit_loader.core.options.loader_config import Retry as Retry
    from lit_loader.data.balance import BalancedBatchSampler as BalancedBatchSampler
    from lit_loader.data.cached_dataset import CachedDataset as CachedDataset
    from lit_loader.data.mixture import MixtureDataset as MixtureDataset
    from lit_loader.data.mixture import MixtureSampler as MixtureSampler
    from lit_loader.data.mixture_stream import MixtureStream as MixtureStream
    from lit_loader.data.packed_stream import PackedStream as PackedStream
    from lit_loader.data.packing import PackCollate as PackCollate
    from lit_loader.data.packing import Packed as Packed
    from lit_loader.data.packing import PackingBatchSampler as PackingBatchSampler
    from lit_loader.data.pad import PadCollate as PadCollate
    from lit_loader.data.pad import Padded as Padded
    from lit_loader.data.sample_errors import SampleError as SampleError
    from lit_loader.data.shared_dataset import shared_dataset as shared_dataset
    from lit_loader.data.shared_sequence import SharedSequence as SharedSequence
    from lit_loader.data.token_budget import TokenBudgetBatchSampler as TokenBudgetBatchSampler
    from lit_loader.errors import *  # noqa: F403
    from lit_loader.lightning.datamodule import LoaderDataModule as LoaderDataModule
    from lit_loader.lightning.monitor import LoaderMonitor as LoaderMonitor
    from lit_loader.lightning.random_state import RandomStateCallback as RandomStateCallback
    from lit_loader.lightning.state_callback import LoaderStateCallback as LoaderStateCallback
    from lit_loader.loader import DataLoader as DataLoader
    from lit_loader.profiling.determinism import check_determinism as check_determinism
    from lit_loader.profiling.statistics import LoaderStatistics as LoaderStatistics
    from lit_loader.remote.ray_workers import RayWorkers as RayWorkers
    from lit_loader.streams.merge_states import merge_states as merge_states

__version__ = "0.5.0"

_NAMES_IN = {
    "lit_loader.core.batch.collate": "default_collate",
    "lit_loader.data.pad": "PadCollate Padded",
    "lit_loader.streams.merge_states": "merge_states",
    "lit_loader.core.options.loader_config": "LoaderConfig Retry",
    "lit_loader.context": "get_epoch get_rng get_shard note",
    "lit_loader.data.balance": "BalancedBatchSampler",
    "lit_loader.data.cached_dataset": "CachedDataset",
    "lit_loader.data.mixture": "MixtureDataset MixtureSampler",
    "lit_loader.data.mixture_stream": "MixtureStream",
    "lit_loader.data.packed_stream": "PackedStream",
    "lit_loader.data.packing": "PackCollate Packed PackingBatchSampler",
    "lit_loader.data.sample_errors": "SampleError",
    "lit_loader.data.shared_dataset": "shared_dataset",
    "lit_loader.data.token_budget": "TokenBudgetBatchSampler",
    "lit_loader.errors": (
        "DeterminismError ExactnessWarning LitLoaderError LoaderError OptionError PinMemoryError "
        "SampleErrorsError StallWarning StateError TransportError WorkerDiedError WorkerError "
        "WorkerRestartWarning WorkerTimeoutError"
    ),
    "lit_loader.lightning.datamodule": "LoaderDataModule",
    "lit_loader.lightning.monitor": "LoaderMonitor",
    "lit_loader.lightning.random_state": "RandomStateCallback",
    "lit_loader.lightning.state_callback": "LoaderStateCallback",
    "lit_loader.loader": "DataLoader",
    "lit_loader.remote.ray_workers": "RayWorkers",
    "lit_loader.compat.replacement": "replace_torch",
    "lit_loader.profiling.determinism": "check_determinism",
    "lit_loader.profiling.statistics": "LoaderStatistics",
    "lit_loader.data.shared_sequence": "SharedSequence",
    "torch.utils.data": "default_convert get_worker_info",
}

_MODULE_OF = {name: module for module, names in _NAMES_IN.items() for name in names.split()}

if not TYPE_CHECKING:  # which takes what is imported above, as itself, for public
    __all__ = sorted(["__version__", *_MODULE_OF])


def _load(module: str) -> ModuleType:
    """Import a module and what it needs, while Python collects no garbage.

    What an import makes is kept. But it may be what brings about the first collection of everything
    after ``import torch``, which takes a tenth of a second: as long as many a small program.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if was_enabled:
            gc.enable()


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_load(_MODULE_OF[name]), name)
    globals()[name] = value  # found at once from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
