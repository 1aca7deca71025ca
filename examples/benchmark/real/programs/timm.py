"""timm: the loop of its train.py, with create_loader and its transforms."""

from pathlib import Path

import numpy as np
import timm
import torch
from measured import note, training
from PIL import Image
from timm.data import ImageDataset, create_loader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler

draw = np.random.default_rng(1)
for number in range(600):  # each image is of a class of its own, which is its number
    folder = Path(f"images/{number:03}")
    folder.mkdir(parents=True)
    pixels = draw.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "image.png")

options = {
    "input_size": (3, 64, 64), "batch_size": 25, "num_workers": 2, "device": torch.device("cpu"),
}  # fmt: skip
train = create_loader(
    ImageDataset("images"), is_training=True, auto_augment="rand-m9-mstd0.5", re_prob=0.2, **options
)
evaluation = create_loader(ImageDataset("images"), **options)
model = timm.create_model("test_resnet", pretrained=False, num_classes=5)
optimizer = create_optimizer_v2(model, opt="sgd", lr=0.01)
scheduler = CosineLRScheduler(optimizer, t_initial=2)
criterion = LabelSmoothingCrossEntropy()

with training(epochs=2):
    for epoch in range(2):
        model.train()
        for image, target in train:
            note(target)
            loss = criterion(model(image), target % 5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step(epoch + 1)
        model.eval()
        with torch.no_grad():
            assert sum(len(model(image)) for image, _ in evaluation) == 600
