"""Streams of the recipes: stopped, resumed with other workers, every sample compared.

The reference is one process that reads the whole epoch. That other ranks go on, too, and that
killed workers lose nothing, is in tests/exactness/test_num_shards.py. Mixtures and streams of
Hugging Face are stopped and resumed in training, by test_recipes.py.
"""

import functools
import gc
import hashlib
import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from torch import Tensor

import lit_loader
from lit_loader import DataLoader
from tests.support.exact import through_file

pytestmark = [
    pytest.mark.pages,
    pytest.mark.usefixtures("examples"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::lit_loader.WorkerRestartWarning"),
]


Batch = tuple[int, list[str]]
"""The reader, and its samples by their names."""


SHARDS = 4
LEGS = ((2, 5), (0, 3), (3, 1), (1, None))
"""Workers, and how many batches are taken of them; None: all that are left."""


class Stream(NamedTuple):
    """What is read."""

    make: Callable[[], Any]  # makes the dataset; can be pickled
    size: int  # samples of a batch
    epoch: int = 1

    def loader(self, workers: int) -> DataLoader[Any]:
        """Read it by workers."""
        loader = DataLoader(
            self.make(), self.size, num_workers=workers, num_shards=SHARDS, uneven_ranks="keep",
            seed=5, collate_fn=named,
        )  # fmt: skip
        loader.set_epoch(self.epoch)
        return loader


def named(samples: Sequence[Any]) -> Batch:
    """A collate_fn: names the reader and each sample, by all that there is of it."""
    return lit_loader.get_shard()[0], [name(sample) for sample in samples]


def name(sample: Any) -> str:
    """An id is its own name, anything larger goes by its bytes."""
    if isinstance(sample, (int, str)):
        return str(sample)
    if isinstance(sample, dict):
        return ",".join(f"{key}={name(sample[key])}" for key in sorted(sample))
    if isinstance(sample, (tuple, list)):
        return f"({','.join(map(name, sample))})"
    data = sample.numpy() if isinstance(sample, Tensor) else np.asarray(sample)
    if data.ndim == 0:
        return str(data)
    return hashlib.blake2b(data.tobytes(), digest_size=8).hexdigest()


def whole(stream: Stream) -> list[Batch]:
    """The epoch, in one process that is not interrupted."""
    with stream.loader(0) as loader:
        return list(loader)


def check_resumes(stream: Stream) -> list[Batch]:
    """Go through an epoch in legs, and compare it with one that was left alone, which is given."""
    expected = whole(stream)
    found, state = list[Batch](), None
    for workers, count in LEGS:
        with stream.loader(workers) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found += itertools.islice(loader, count)
            state = through_file(loader.state_dict())
    assert found == expected
    # What a library leaves open is closed here, and not in another test, which may not ignore it.
    gc.collect()
    return expected


# Text, packed ------------------------------------------------------------------------------------

DOCUMENTS, LENGTH = 90, 24


def packed_text(directory: Path) -> Any:
    from text.stream import packed

    return packed(str(directory), "a", "train", LENGTH, seed=3)


def test_packed_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small corpus, whose documents have up to 12 bytes."""
    from text import corpus

    def documents() -> Iterator[tuple[str, bytes]]:
        for number in range(20 * DOCUMENTS):  # one of twenty files is for another split
            yield f"{number % DOCUMENTS}", bytes([65, 97 + number % 26]) * (number % 7)

    monkeypatch.setattr(corpus, "_DOCUMENTS", {"a": documents})
    corpus.write(tmp_path, "a")
    expected = check_resumes(Stream(functools.partial(packed_text, tmp_path), 5))
    assert len(expected) > 40


# Parquet by row groups ---------------------------------------------------------------------------


def row_groups(path: Path) -> Any:
    from tabular.row_groups import RowGroups

    return RowGroups(path, "id", shuffle=True, seed=5)


# Other libraries' --------------------------------------------------------------------------------


def web_dataset(root: Path) -> Any:
    """Tar shards, shuffled through a buffer, decoded and augmented."""
    from webshards.shards import pipeline

    return pipeline(root, "train", 5, "pillow")


def torchdata_nodes(root: Path) -> Any:
    """Nodes that read JPEG files ahead, in threads."""
    from nodes.pipeline import Pipeline

    return Pipeline(root, "train", seed=5, augment_with="pillow", threads=2)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves them so
@pytest.mark.filterwarnings("ignore:.*LL308")  # it has no state
@pytest.mark.parametrize(
    ("library", "make", "written_by"),
    [
        ("webdataset", web_dataset, "webshards.shards"),
        pytest.param("torchdata.nodes", torchdata_nodes, "images.files", marks=pytest.mark.slow),
    ],
)
def test_images(library: str, make: Any, written_by: str, tmp_path: Path) -> None:
    """Augmented images are all different."""
    pytest.importorskip(library)
    importlib.import_module(written_by).write(tmp_path)
    expected = check_resumes(Stream(functools.partial(make, tmp_path), 32))
    samples = [sample for _, batch in expected for sample in batch]
    assert len(set(samples)) == len(samples) == 1078
