"""The jobs: for each one class, which is its dataset; its data is made on the spot.

A sample depends on its index alone, so that two loaders can be compared byte by byte. What is
random in such a job otherwise (flips, crops) is taken from the index. Where a library is not
installed a plain stand-in takes its place, and `library` says so.
"""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset


def has(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


class Job(Dataset):
    """`batches` batches of `batch_size` samples an epoch, each followed by a step.

    Args:
        folder: For files; the runner removes it.
        batch_size: Samples of a batch.
        batches: Of an epoch.
    """

    library: ClassVar[str] = "torch"
    options: ClassVar[dict[str, Any]] = {"persistent_workers": True}
    own_options: ClassVar[dict[str, Any]] = {}  # that lit_loader alone has
    collate_fn: Any = None
    beside: ClassVar[str | None] = None  # the loader that `loader_beside` makes

    def __init__(self, folder: str, batch_size: int, batches: int = 100_000) -> None:
        self.folder, self.batch_size, self.batches = Path(folder), batch_size, batches
        self.make()

    def make(self) -> None:
        """Make what the samples are made from."""

    def __len__(self) -> int:
        return self.batch_size * self.batches

    def loader(self, loader_class: Any, num_workers: int | str) -> Any:
        """The one import: `loader_class` is torch's DataLoader or lit_loader's."""
        options = dict(self.options) if num_workers else {}
        if loader_class.__module__.startswith("lit_loader"):
            options |= self.own_options
        return loader_class(
            self, self.batch_size, num_workers=num_workers, collate_fn=self.collate_fn, **options
        )

    def loader_beside(self, num_workers: int) -> Any:
        """What people use for such a job: the library's own loader, or threads by hand."""
        raise NotImplementedError


class Detection(Job):
    """Images with boxes: padded into one tensor with a mask, and a dict of 7 tensors an image."""

    def make(self) -> None:
        self.images = torch.from_numpy(pixels(16, 3, 384, 384))

    def __getitem__(self, index: int) -> Any:
        height, width = 320 + index * 7 % 64, 320 + index * 11 % 64
        image = self.images[index % 16, :, :height, :width].float().div_(255)
        count = 1 + index % 12
        boxes = torch.arange(count * 4, dtype=torch.float32).view(count, 4)
        target = {
            "boxes": boxes,
            "labels": torch.arange(count),
            "image_id": torch.tensor([index]),
            "area": boxes.prod(1),
            "iscrowd": torch.zeros(count, dtype=torch.int64),
            "orig_size": torch.tensor([480, 640]),
            "size": torch.tensor([height, width]),
        }
        return image, target

    @staticmethod
    def collate_fn(samples: Any) -> Any:
        images, targets = zip(*samples, strict=True)
        height, width = (max(image.shape[side] for image in images) for side in (1, 2))
        padded = torch.zeros(len(images), 3, height, width)
        mask = torch.ones(len(images), height, width, dtype=torch.bool)
        for number, image in enumerate(images):
            padded[number, :, : image.shape[1], : image.shape[2]] = image
            mask[number, : image.shape[1], : image.shape[2]] = False
        return padded, mask, targets


class Volumes(Job):
    """3D volumes of 27 MB as float32, with labels of 7 MB; scaled and flipped."""

    library = "MONAI" if has("monai") else "NumPy for MONAI"
    beside = "MONAI's ThreadDataLoader" if has("monai") else None

    def make(self) -> None:
        side = 190
        base = np.arange(side, dtype=np.int16)
        self.scans = [(base[:, None, None] * (k + 1) + base[None, :, None] - base)[None]
                      for k in range(2)]  # fmt: skip
        self.labels = [(scan > 100).astype(np.uint8) for scan in self.scans]
        if has("monai"):
            from monai.transforms import Compose, EnsureTyped, Flipd, ScaleIntensityRanged

            self.transform = Compose([
                EnsureTyped(["image", "label"], dtype=[torch.float32, torch.uint8],
                            track_meta=False),
                ScaleIntensityRanged("image", -200, 600, 0, 1),
            ])  # fmt: skip
            self.flip = Flipd(["image", "label"], spatial_axis=0)

    def __getitem__(self, index: int) -> Any:
        sample = {"image": self.scans[index % 2], "label": self.labels[index % 2]}
        if has("monai"):
            sample = self.transform(sample)
            return self.flip(sample) if index % 2 else sample
        image = (sample["image"].astype(np.float32) + 200) / 800
        step = -1 if index % 2 else 1
        return {"image": image[:, ::step].copy(), "label": sample["label"][:, ::step].copy()}

    def loader_beside(self, num_workers: int) -> Any:
        """0: one thread that loads ahead, as MONAI advises; else threads as workers."""
        from monai.data import ThreadDataLoader

        given = {"batch_size": self.batch_size, "num_workers": num_workers}
        return ThreadDataLoader(self, **given, use_thread_workers=num_workers > 0)


class Molecules(Job):
    """Molecules whose atoms and bonds differ in number: a batch is a list of dicts of 4 tensors."""

    def make(self) -> None:
        self.molecules = []
        for number in range(500):
            atoms = 9 + number % 20
            bonds = torch.stack([torch.arange(atoms * 2) % atoms, torch.arange(atoms * 2) // 2])
            self.molecules.append({
                "x": torch.full((atoms, 11), float(number)), "edge_index": bonds,
                "edge_attr": torch.ones(atoms * 2, 4), "y": torch.tensor([[float(number)]]),
            })  # fmt: skip

    def __getitem__(self, index: int) -> Any:
        return {key: each.clone() for key, each in self.molecules[index % 500].items()}

    collate_fn: Any = staticmethod(list)


class Graphs(Molecules):
    """The same molecules as PyG's Data, collated by PyG into one graph."""

    library = "PyG" if has("torch_geometric") else "cat for PyG"
    beside = "PyG's DataLoader" if has("torch_geometric") else None

    def make(self) -> None:
        super().make()
        self.kind: Any = dict
        if has("torch_geometric"):
            from torch_geometric.data import Data

            self.kind = Data

    def __getitem__(self, index: int) -> Any:
        return self.kind(**super().__getitem__(index))

    @staticmethod
    def collate_fn(samples: Any) -> Any:
        if has("torch_geometric"):
            from torch_geometric.loader.dataloader import Collater

            return Collater(samples)(samples)
        sizes = torch.tensor([len(sample["x"]) for sample in samples])
        offsets = (sizes.cumsum(0) - sizes).tolist()
        bonds = [s["edge_index"] + at for s, at in zip(samples, offsets, strict=True)]
        rest = {key: torch.cat([s[key] for s in samples]) for key in ("x", "edge_attr", "y")}
        batch = torch.repeat_interleave(torch.arange(len(samples)), sizes)
        return {**rest, "edge_index": torch.cat(bonds, 1), "batch": batch}

    def loader_beside(self, num_workers: int) -> Any:
        """Torch's, with PyG's collate, which in a worker writes into shared memory at once."""
        from torch_geometric.loader import DataLoader

        return DataLoader(self, self.batch_size, num_workers=num_workers, **self.options)


class RobotUint8(Job):
    """Frames of four cameras as uint8, with state and 50 actions ahead."""

    as_float = False

    def make(self) -> None:
        self.frames = torch.from_numpy(pixels(32, 3, 224, 224))
        self.motion = torch.arange(100 * 14, dtype=torch.float32).view(100, 14)

    def __getitem__(self, index: int) -> Any:
        sample = {}
        for camera in range(4):
            frame = self.frames[(index + camera * 5) % 32]
            frame = frame.float().div_(255) if self.as_float else frame.clone()
            sample[f"observation.images.{camera}"] = frame
        at = index % 50
        sample["observation.state"] = self.motion[at].clone()
        sample["action"] = self.motion[at : at + 50].clone()
        sample["index"] = index
        return sample


class RobotFloat32(RobotUint8):
    """The same as float32 from 0 to 1, which is four times as large."""

    as_float = True


class Columns(Job):
    """Rows of 38 columns: 20 numbers, 14 categories, 4 vectors of 8."""

    def make(self) -> None:
        self.numbers = np.arange(1000 * 20, dtype=np.float32).reshape(1000, 20)
        self.vectors = torch.arange(1000 * 8, dtype=torch.float32).view(1000, 8)

    def __getitem__(self, index: int) -> Any:
        numbers = self.numbers[index % 1000]
        row: dict[str, Any] = {f"number_{k}": torch.tensor(numbers[k]) for k in range(20)}
        row |= {f"category_{k}": torch.tensor(index * (k + 1) % 97) for k in range(14)}
        return row | {f"vector_{k}": self.vectors[(index + k) % 1000] for k in range(4)}


class ShortEpochs(Job):
    """Many short epochs by spawn, workers not kept, over a long list of paths."""

    options: ClassVar[dict[str, Any]] = {"multiprocessing_context": "spawn"}

    def __init__(self, folder: str, batch_size: int, batches: int, paths: int) -> None:
        self.many = paths
        super().__init__(folder, batch_size, batches)

    def make(self) -> None:
        self.paths = [f"/data/train/scene_{k % 4000:05d}/frame_{k:09d}.png"
                      for k in range(self.many)]  # fmt: skip

    def __getitem__(self, index: int) -> Any:
        index = index * 2971 % self.many
        return torch.full((3, 64, 64), len(self.paths[index])), index


class Tokens(Job):
    """Packed tokens from a memory map, blocks of 1,024."""

    def make(self) -> None:
        path = self.folder / "tokens.bin"
        if not path.exists():
            (np.arange(4_000_000, dtype=np.uint32) % 50_257).astype(np.uint16).tofile(path)
        self.tokens = np.memmap(path, np.uint16, "r")

    def __getitem__(self, index: int) -> Any:
        at = index * 1024 % (len(self.tokens) - 1025)
        block = torch.from_numpy(self.tokens[at : at + 1025].astype(np.int64))
        return block[:-1], block[1:]


class Jpeg(Job):
    """JPEG images of 500x375: decoded, cropped to 224, flipped, to float32."""

    library = "Pillow"

    def make(self) -> None:
        from samples import jpeg_files

        self.files = jpeg_files()

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        image = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        left, top = index * 7 % 200, index * 11 % 100
        image = image.crop((left, top, left + 256, top + 256)).resize((224, 224))
        if index % 2:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255), index % 1000


class Latents(Job):
    """Latents of images and the text's embeddings as float16, from memory maps."""

    def make(self) -> None:
        self.maps = {}
        for name, shape in (("latent", (4, 64, 64)), ("text", (77, 768))):
            path = self.folder / f"{name}.npy"
            if not path.exists():
                one = np.arange(np.prod(shape), dtype=np.float32) % 1000
                np.save(path, np.stack([(one + k).reshape(shape) for k in range(100)])
                        .astype(np.float16))  # fmt: skip
            self.maps[name] = np.load(path, mmap_mode="r")

    def __getitem__(self, index: int) -> Any:
        return {k: torch.from_numpy(each[index % 100].copy()) for k, each in self.maps.items()}


class Transitions(Job):
    """Offline RL: a batch of 256 transitions out of a TensorDict, taken by `__getitems__`."""

    library = "tensordict" if has("tensordict") else "a dict of tensors for tensordict"

    def make(self) -> None:
        rows = 20_000
        columns = {
            "observation": torch.arange(rows * 64, dtype=torch.float32).view(rows, 64),
            "action": torch.ones(rows, 8), "reward": torch.arange(rows, dtype=torch.float32),
            "done": torch.zeros(rows, dtype=torch.bool), "next_observation": torch.ones(rows, 64),
            "log_prob": torch.zeros(rows), "value": torch.zeros(rows),
        }  # fmt: skip
        self.data: Any = columns
        if has("tensordict"):
            from tensordict import TensorDict

            self.data = TensorDict(columns, batch_size=[rows])

    def __getitems__(self, indices: Any) -> Any:
        rows = torch.tensor(indices) % 20_000
        if has("tensordict"):
            return self.data[rows]
        return {key: column[rows] for key, column in self.data.items()}

    @staticmethod
    def collate_fn(batch: Any) -> Any:
        return batch


class TimeSeries(Job):
    """Windows of series: past and what is ahead, padded, as forecasting models take them."""

    library = "NumPy for pytorch-forecasting"

    def make(self) -> None:
        self.series = torch.arange(50 * 1000 * 12, dtype=torch.float32).view(50, 1000, 12)

    def __getitem__(self, index: int) -> Any:
        at, past, ahead = index * 13 % 900, 24 + index % 36, 12
        window = self.series[index % 50, at : at + past + ahead]
        x = {
            "encoder": window[:past], "decoder": window[past:], "past": past, "ahead": ahead,
            "groups": torch.tensor([index % 50]), "time": torch.arange(at, at + past + ahead),
            "scale": window[:past, 0].std().view(1), "centre": window[:past, 0].mean().view(1),
        }  # fmt: skip
        return x, window[past:, 0]

    @staticmethod
    def collate_fn(samples: Any) -> Any:
        xs = [x for x, _ in samples]

        def padded(key: str) -> torch.Tensor:
            return torch.nn.utils.rnn.pad_sequence([x[key] for x in xs], batch_first=True)

        return {
            **{key: padded(key) for key in ("encoder", "decoder", "time")},
            **{key: torch.tensor([x[key] for x in xs]) for key in ("past", "ahead")},
            **{key: torch.stack([x[key] for x in xs]) for key in ("groups", "scale", "centre")},
        }, (torch.stack([y for _, y in samples]), None)


class Faces(Job):
    """PyTorch's data-loading tutorial: faces from files with landmarks, rescaled and cropped."""

    library = "Pillow for scikit-image"

    def make(self) -> None:
        from PIL import Image
        from samples import jpeg_files

        self.names = [self.folder / f"face_{k}.jpg" for k in range(32)]
        if not self.names[-1].exists():
            for name, content in zip(self.names, jpeg_files(), strict=True):
                name.write_bytes(content)
        self.landmarks = np.arange(32 * 136, dtype=np.float64).reshape(32, 68, 2) % 300
        self.open = Image.open

    def __getitem__(self, index: int) -> Any:
        image = self.open(self.names[index % 32]).convert("RGB").resize((341, 256))
        left, top = index * 7 % 117, index * 5 % 32
        image = np.asarray(image)[top : top + 224, left : left + 224].transpose(2, 0, 1)
        landmarks = self.landmarks[index % 32] * [341 / 500, 256 / 375] - [left, top]
        return {"image": torch.from_numpy(image / 255.0), "landmarks": torch.from_numpy(landmarks)}
