"""Ultralytics: YOLO(…).train of its README, with a tiny model and no weights."""

from pathlib import Path

import numpy as np
from measured import note, training
from PIL import Image
from ultralytics import YOLO
from ultralytics.models.yolo.detect import DetectionTrainer

TINY = """
nc: 2
backbone:
  - [-1, 1, Conv, [8, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
  - [-1, 1, C2f, [16, True]]
  - [-1, 1, Conv, [16, 3, 2]]
head:
  - [[2, 3], 1, Detect, [nc]]
"""

draw = np.random.default_rng(1)
for part, count in (("train", 48), ("val", 16)):
    images, labels = Path("images", part), Path("labels", part)
    images.mkdir(parents=True)
    labels.mkdir(parents=True)
    for number in range(count):
        pixels = draw.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"{number:02}.png")
        box = " ".join(f"{value:.3f}" for value in draw.uniform(0.3, 0.6, 4))
        (labels / f"{number:02}.txt").write_text(f"{number % 2} {box}\n")
Path("tiny.yaml").write_text(TINY)
Path("data.yaml").write_text(
    f"path: {Path.cwd()}\ntrain: images/train\nval: images/val\nnames: {{0: a, 1: b}}\n"
)


class Noting(DetectionTrainer):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.args.workers = 2  # without a GPU it sets 0

    def preprocess_batch(self, batch):
        note([int(Path(name).stem) for name in batch["im_file"]])
        return super().preprocess_batch(batch)


with training(epochs=2):
    YOLO("tiny.yaml").train(
        trainer=Noting, data="data.yaml", epochs=2, imgsz=64, batch=8, device="cpu", plots=False,
        amp=False, save=False, pretrained=False, verbose=False, project="runs",
    )  # fmt: skip
