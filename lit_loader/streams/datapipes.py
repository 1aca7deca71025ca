"""torch's DataPipes: what torch's loader tells them of shares and shuffling."""

from __future__ import annotations

from torch.utils.data import IterDataPipe, graph_settings
from torch.utils.data.graph import traverse_dps

from lit_loader.context import get_shard


def set_shuffle(dataset: object, shuffle: bool | None) -> bool:
    """Set whether the ``shuffle()`` of a DataPipe shuffles; return whether it is such a dataset."""
    if type(shuffle) is not bool or not isinstance(dataset, IterDataPipe):
        return False
    graph_settings.apply_shuffle_settings(dataset, shuffle=shuffle)
    return True


def shard(dataset: object) -> None:
    """Set the share of the ``sharding_filter()`` of a DataPipe to that of the reader."""
    if isinstance(dataset, IterDataPipe):
        pipes = graph_settings.get_all_graph_pipes(traverse_dps(dataset))
        # reach: torch: which pipes take a share; those without any give each reader everything
        if any(map(graph_settings._is_sharding_datapipe, pipes)):
            number, count = get_shard()
            graph_settings.apply_sharding(dataset, count, number)
