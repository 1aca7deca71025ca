"""Datasets of other libraries, and as their users write them: the bytes that processes give."""

import io
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, get_worker_info

from lit_loader import DataLoader
from tests.support.samples import OfLength

THREADS: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def compare(make: Callable[[], Any], number_counts: bool = False, **options: Any) -> Any:
    """Two epochs, by threads and by processes, and by another number of threads; returns them."""

    def epochs(**kind: Any) -> Any:
        loader = DataLoader(make(), batch_size=4, seed=3, **options, **kind)
        return [[plain(batch) for batch in loader] for _ in range(2)]

    found = epochs(**THREADS)
    assert found == epochs(num_workers=2)
    if not number_counts:
        assert found == epochs(**THREADS | {"num_workers": 3})
    return found


class NumPy(OfLength):
    def __init__(self) -> None:
        super().__init__(30)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return index, self.rng.normal(size=2)


class Legacy(NumPy):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.RandomState(0)  # type: ignore[assignment]


class Python(NumPy):
    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(0)

    def __getitem__(self, index: int) -> Any:
        return index, self.random.random(), self.random.choice("abc")


class Torch(NumPy):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(2, generator=self.generator)


class Flip:
    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __call__(self, image: Any) -> Any:
        return image[::-1].copy() if self.rng.random() < 0.5 else image


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image * torch.rand((), generator=self.generator)


class Compose:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Transformed(NumPy):
    """Transforms in a list, with generators in their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = Compose(Flip(), torch.from_numpy, Scale())

    def __getitem__(self, index: int) -> Any:
        return self.transform(np.arange(index, index + 4.0))


class Asking(NumPy):
    """Draws as torch's worker threads are to."""

    def __getitem__(self, index: int) -> Any:
        rng: Any = getattr(get_worker_info(), "rng", None)
        if rng is None:  # before torch 2.13
            return index
        own = torch.rand((), generator=rng.torch_generator)
        return index, own, rng.numpy_generator.random(), rng.random_generator.random()


def joined() -> Any:
    return ConcatDataset([NumPy(), Subset(Python(), range(0)), Subset(NumPy(), range(1, 30, 2))])


@pytest.mark.parametrize("make", [NumPy, Legacy, Python, Torch, Transformed, Asking, joined])
def test_generators_that_a_dataset_holds(make: Callable[[], Any]) -> None:
    first, second = compare(make, shuffle=True)
    assert first != second


class Jitter:
    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __call__(self, samples: Any) -> Any:
        return torch.tensor([index + self.rng.random() for index, _ in samples])


def test_a_collate_fn_s_generator() -> None:
    compare(NumPy, shuffle=True, collate_fn=Jitter())


def test_albumentations() -> None:
    albumentations = pytest.importorskip("albumentations")

    class Augmented(NumPy):
        def __init__(self) -> None:
            super().__init__()
            transforms = [albumentations.RandomCrop(8, 8), albumentations.ColorJitter(p=0.8)]
            self.augment = albumentations.Compose(transforms)
            self.image = np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)

        def __getitem__(self, index: int) -> Any:
            return self.augment(image=self.image + np.uint8(index))["image"]

    first, second = compare(Augmented, shuffle=True)
    assert first != second


def test_hugging_face_datasets() -> None:
    datasets = pytest.importorskip("datasets")

    def table() -> Any:
        return datasets.Dataset.from_dict({"x": [*range(30)], "y": [str(n) for n in range(30)]})

    def augmented() -> Any:
        def transform(rows: Any) -> Any:
            drawn = [x + np.random.default_rng(x).random() for x in rows["x"]]
            return {"x": rows["x"], "z": drawn}

        return table().with_transform(transform)

    compare(lambda: table().with_format("torch"), shuffle=True)
    compare(augmented, shuffle=True)
    stream = compare(lambda: table().to_iterable_dataset(6), number_counts=True)
    assert sorted(x for batch in stream[0] for x in batch["x"]) == [*range(30)]
    compare(lambda: table().to_iterable_dataset(6).shuffle(1, buffer_size=4), num_shards=6)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset's own
def test_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    for shard in range(4):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as file:
            for number in range(6):
                data = str(6 * shard + number).encode()
                member = tarfile.TarInfo(f"{6 * shard + number:03}.txt")
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))

    def stream() -> Any:
        urls = [str(tmp_path / f"{shard}.tar") for shard in range(4)]
        return webdataset.WebDataset(urls, shardshuffle=False).decode().to_tuple("txt")

    found = compare(stream, number_counts=True)
    assert sorted(int(text) for [texts] in found[0] for text in texts) == [*range(24)]
    compare(stream, num_shards=4)
