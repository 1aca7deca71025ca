"""Small ordinary programs, written as tutorials write them.

Each program is a generator. What stands before its ``yield`` prepares: it imports libraries, makes
the data and the model. What follows is measured, until the workers have ended. A program returns
the number of samples that it has seen. ``run.py`` changes one import: that of ``DataLoader``.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)


class Model:
    """A linear model with its optimizer. It counts the samples that it has seen."""

    def __init__(self, features, classes):
        self.layer, self.loss = nn.Linear(features, classes), nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.1)
        self.seen = 0

    def train(self, x, y):
        self.optimizer.zero_grad()
        self.loss(self.layer(x), y).backward()
        self.optimizer.step()
        self.seen += len(x)

    @torch.no_grad()
    def evaluate(self, loader):
        right = 0
        for x, y in loader:
            right += (self.layer(x).argmax(1) == y).sum().item()
            self.seen += len(x)
        return right / len(loader.dataset)


# --- digits ---


class Digits(Dataset):
    def __init__(self):
        from sklearn.datasets import load_digits

        self.images, self.labels = load_digits(return_X_y=True)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return torch.tensor(self.images[index] / 16, dtype=torch.float32), self.labels[index]


def digits(**workers):
    data, model = Digits(), Model(64, 10)
    yield
    loader = DataLoader(data, batch_size=16, shuffle=True, **workers)
    for _ in range(5):
        for x, y in loader:
            model.train(x, y)
    return model.seen


def k_fold():
    from sklearn.model_selection import KFold

    data, model = Digits(), Model(64, 10)
    yield
    for train, test in KFold(5, shuffle=True).split(data.images):
        for _ in range(2):
            for x, y in DataLoader(Subset(data, train), batch_size=32, shuffle=True):
                model.train(x, y)
        model.evaluate(DataLoader(Subset(data, test), batch_size=64))
    return model.seen


def train_and_validation():
    data, model = Digits(), Model(64, 10)
    yield
    train, validation = random_split(data, [0.8, 0.2])
    loader = DataLoader(train, batch_size=32, shuffle=True, num_workers=2)
    for _ in range(3):
        for x, y in loader:
            model.train(x, y)
    model.evaluate(DataLoader(validation, batch_size=64, num_workers=2))
    return model.seen


def validation_each_epoch(**workers):
    data, model = Digits(), Model(64, 10)
    yield
    train = DataLoader(Subset(data, range(320)), batch_size=32, shuffle=True, **workers)
    validation = DataLoader(Subset(data, range(320, 420)), batch_size=50, **workers)
    for _ in range(40):
        for x, y in train:
            model.train(x, y)
        model.evaluate(validation)
    return model.seen


def ten_trials():
    data, model = Subset(Digits(), range(400)), Model(64, 10)
    yield
    for batch_size in (8, 16, 24, 32, 40, 48, 56, 64, 72, 80):
        for x, y in DataLoader(data, batch_size=batch_size, shuffle=True, num_workers=2):
            model.train(x, y)
    return model.seen


def ten_predictions():
    data, model = Digits(), Model(64, 10)
    yield
    for number in range(10):
        part = Subset(data, range(100 * number, 100 * number + 100))
        model.evaluate(DataLoader(part, batch_size=25, num_workers=2))
    return model.seen


# --- tables and numbers ---


def table(**workers):
    data = TensorDataset(torch.randn(10_000, 20), torch.randint(0, 3, (10_000,)))
    model = Model(20, 3)
    yield
    loader = DataLoader(data, batch_size=64, shuffle=True, **workers)
    for _ in range(5):
        for x, y in loader:
            model.train(x, y)
    return model.seen


def weighted_sampler():
    labels = (torch.rand(8_000) < 0.05).long()
    data, model = TensorDataset(torch.randn(8_000, 20), labels), Model(20, 2)
    weights = 1 / torch.bincount(labels)[labels]
    yield
    loader = DataLoader(data, batch_size=64, sampler=WeightedRandomSampler(weights, 8_000))
    for _ in range(5):
        for x, y in loader:
            model.train(x, y)
    return model.seen


class Windows(Dataset):
    def __init__(self, length):
        self.series = torch.sin(torch.arange(length) / 24) + 0.1 * torch.randn(length)

    def __len__(self):
        return len(self.series) - 48

    def __getitem__(self, index):
        return self.series[index : index + 48], self.series[index + 48]


def time_series():
    data, seen = Windows(10_000), 0
    yield
    loader = DataLoader(data, batch_size=64, shuffle=True)
    for _ in range(4):
        for window, following in loader:
            error = (window.mean(1) - following).square().mean()
            assert error > 0
            seen += len(window)
    return seen


class Noise(Dataset):
    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        return torch.randn(32)


def noise():
    data, seen = Noise(), 0
    yield
    loader = DataLoader(data, batch_size=32)
    for _ in range(5):
        for batch in loader:
            seen += len(batch)
    return seen


def next_batch(times, **workers):
    data, seen = Noise(), 0
    yield
    loader = DataLoader(data, batch_size=128, shuffle=True, **workers)
    for _ in range(times):
        seen += len(next(iter(loader)))
    return seen


class Episode(Dataset):
    """Five classes, each with ten examples: a few-shot task."""

    def __init__(self, features, members):
        self.features, self.members = features, members
        self.classes = random.sample(sorted(members), 5)

    def __len__(self):
        return 50

    def __getitem__(self, index):
        label = index % 5
        return self.features[random.choice(self.members[self.classes[label]])], label


def episodes():
    features = torch.randn(100_000, 16)
    members = {label: list(range(1_000 * label, 1_000 * label + 1_000)) for label in range(100)}
    model = Model(16, 5)
    yield
    for _ in range(200):
        for x, y in DataLoader(Episode(features, members), batch_size=25, shuffle=True):
            model.train(x, y)
    return model.seen


# --- texts ---


class Tokens(Dataset):
    def __init__(self, texts):
        lengths = torch.randint(5, 60, (texts,)).tolist()
        self.texts = [torch.randint(1, 5_000, (length,)) for length in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index]


def pad(texts):
    lengths = torch.tensor([len(text) for text in texts])
    return nn.utils.rnn.pad_sequence(texts, batch_first=True), lengths


def padded_tokens():
    data, seen = Tokens(6_000), 0
    yield
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2, collate_fn=pad)
    for _ in range(3):
        for _texts, lengths in loader:
            seen += len(lengths)
    return seen


class SimilarLengths:
    """A batch sampler: texts of similar length, in batches in random order."""

    def __init__(self, data, batch_size):
        order = sorted(range(len(data)), key=lambda index: len(data[index]))
        self.batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(random.sample(self.batches, len(self.batches)))


def batch_sampler():
    data, seen = Tokens(6_000), 0
    yield
    loader = DataLoader(data, batch_sampler=SimilarLengths(data, 32), collate_fn=pad)
    for _ in range(10):
        for _texts, lengths in loader:
            seen += len(lengths)
    return seen


class Lines(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        with open(self.path) as file:
            for line in itertools.islice(file, first, None, step):
                yield line.strip()


def text_lines(**workers):
    with tempfile.TemporaryDirectory() as folder:
        path, words, seen = Path(folder, "text.txt"), 0, 0
        path.write_text("the quick brown fox jumps over the lazy dog\n" * 40_000)
        yield
        loader = DataLoader(Lines(path), batch_size=64, **workers)
        for _ in range(5):
            for lines in loader:
                words += sum(len(line.split()) for line in lines)
                seen += len(lines)
        return seen


def hugging_face():
    import datasets

    datasets.disable_progress_bars()
    rows = {"ids": [[row % 97] * 32 for row in range(3_000)], "label": [0, 1, 2] * 1_000}
    data, seen = datasets.Dataset.from_dict(rows).with_format("torch"), 0
    yield
    loader = DataLoader(data, batch_size=16, shuffle=True)
    for _ in range(3):
        for batch in loader:
            seen += len(batch["label"])
    return seen


# --- images and graphs ---


class Photos(Dataset):
    def __init__(self, folder, files):
        from PIL import Image

        self.open, self.paths = Image.open, [Path(folder, f"{i}.jpg") for i in range(files)]
        for path in self.paths:
            pixels = np.random.randint(0, 256, (15, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((320, 240)).save(path)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = self.open(self.paths[index]).convert("RGB")
        left, top = random.randint(0, 96), random.randint(0, 16)
        pixels = np.asarray(image.crop((left, top, left + 224, top + 224)))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1) / 255, index % 10


def photos():
    with tempfile.TemporaryDirectory() as folder:
        data, seen = Photos(folder, 160), 0
        yield
        loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2)
        for _ in range(3):
            for images, _labels in loader:
                seen += len(images)
        return seen


class TwoViews(Dataset):
    def __init__(self):
        self.images = np.random.rand(2_000, 3, 32, 32).astype(np.float32)

    def __len__(self):
        return len(self.images)

    def view(self, image):
        if np.random.rand() < 0.5:
            image = image[:, :, ::-1]
        return torch.from_numpy(image + 0.1 * np.random.randn(3, 1, 1).astype(np.float32))

    def __getitem__(self, index):
        return self.view(self.images[index]), self.view(self.images[index])


def contrastive_pairs():
    data, seen = TwoViews(), 0
    yield
    loader = DataLoader(data, batch_size=64, shuffle=True, drop_last=True, num_workers=2)
    for _ in range(4):
        for one, _other in loader:
            seen += len(one)
    return seen


def random_graph(number):
    nodes = 5 + number % 20
    edges = torch.randint(0, nodes, (2, 3 * nodes))
    return {"x": torch.randn(nodes, 8), "edges": edges, "y": torch.tensor(number % 2)}


def one_graph(graphs):
    sizes = torch.tensor([len(graph["x"]) for graph in graphs])
    starts = (sizes.cumsum(0) - sizes).tolist()
    edges = [graph["edges"] + start for graph, start in zip(graphs, starts, strict=True)]
    return {
        "x": torch.cat([graph["x"] for graph in graphs]),
        "edges": torch.cat(edges, dim=1),
        "y": torch.stack([graph["y"] for graph in graphs]),
    }


def graphs():
    data, seen = [random_graph(number) for number in range(1_000)], 0
    yield
    loader = DataLoader(data, batch_size=32, shuffle=True, collate_fn=one_graph)
    for _ in range(25):
        for batch in loader:
            seen += len(batch["y"])
    return seen


# --- Lightning ---


def lightning(**workers):
    import lightning as L
    from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    # The first fit of a process is preparation: Lightning and torch import more there.
    L.Trainer(fast_dev_run=True, accelerator="cpu", **quiet).fit(BoringModel())
    with tempfile.TemporaryDirectory() as folder:
        yield
        train = DataLoader(RandomDataset(32, 640), batch_size=16, shuffle=True, **workers)
        validation = DataLoader(RandomDataset(32, 160), batch_size=16, **workers)
        trainer = L.Trainer(max_epochs=5, accelerator="cpu", default_root_dir=folder, **quiet)
        trainer.fit(BoringModel(), train, validation)
        return trainer.global_step * 16


TWO = {"num_workers": 2}
PERSISTENT = {"num_workers": 2, "persistent_workers": True}

PROGRAMS = {
    "digits": digits,
    "digits, 2 workers": partial(digits, **TWO),
    "digits, 2 persistent workers": partial(digits, **PERSISTENT),
    "k-fold": k_fold,
    "random split, 2 workers": train_and_validation,
    "validation each epoch": validation_each_epoch,
    "validation each epoch, 2 persistent workers": partial(validation_each_epoch, **PERSISTENT),
    "ten trials, 2 workers": ten_trials,
    "ten short predictions, 2 workers": ten_predictions,
    "table": table,
    "table, 2 workers": partial(table, **TWO),
    "weighted sampler": weighted_sampler,
    "time series": time_series,
    "noise": noise,
    "next(iter(loader)), 400 times": partial(next_batch, 400),
    "next(iter(loader)), 20 times, 2 workers": partial(next_batch, 20, **TWO),
    "episodes": episodes,
    "padded tokens, 2 workers": padded_tokens,
    "custom batch sampler": batch_sampler,
    "text lines": text_lines,
    "text lines, 2 workers": partial(text_lines, **TWO),
    "Hugging Face": hugging_face,
    "JPEG with crops, 2 workers": photos,
    "contrastive pairs, 2 workers": contrastive_pairs,
    "graphs": graphs,
    "Lightning": lightning,
    "Lightning, 2 workers": partial(lightning, **TWO),
    "Lightning, 2 persistent workers": partial(lightning, **PERSISTENT),
}
"""By its title each program, with its options."""
