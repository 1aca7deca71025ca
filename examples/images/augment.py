"""Augmentation of one image in a worker: by torchvision where it can be imported, else by Pillow.

All randomness of Pillow's comes from `lit_loader.get_rng`: the same images come out with any number
of workers, processes or threads, and after a resume. torchvision's comes from torch's generator,
which lit_loader seeds for each batch in processes.
"""

from __future__ import annotations

import importlib
import math

from PIL import Image, ImageEnhance

from images.files import Transform
from lit_loader import get_rng

ANGLE, SHIFT, SCALE, LIGHT = 12.0, 0.08, 0.1, 0.25  # degrees; shares of the side, of 1, of 1


def augmentation(library: str = "auto") -> Transform:
    """Returns a transform that turns, shifts and scales an image and varies its light.

    Args:
        library: "pillow", "torchvision", or "auto": torchvision if it can be imported.
    """
    if library == "auto":
        try:
            importlib.import_module("torchvision")
            library = "torchvision"
        except (ImportError, RuntimeError):  # the latter: it was built for another torch
            library = "pillow"
    return {"pillow": WithPillow, "torchvision": _with_torchvision}[library]()


def _with_torchvision() -> Transform:
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.RandomAffine(
                ANGLE, translate=(SHIFT, SHIFT), scale=(1 - SCALE, 1 + SCALE),
                interpolation=v2.InterpolationMode.BILINEAR,
            ),
            v2.ColorJitter(brightness=LIGHT, contrast=LIGHT),
        ]
    )  # fmt: skip


class WithPillow:
    """The same with Pillow alone."""

    def __call__(self, image: Image.Image) -> Image.Image:
        turn, right, down, size, brightness, contrast = (2 * get_rng().random(6) - 1).tolist()
        angle, scale = math.radians(ANGLE * turn), 1 + SCALE * size
        cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
        x, y = image.width / 2, image.height / 2
        from_x, from_y = x + SHIFT * right * image.width, y + SHIFT * down * image.height
        # Where each pixel of the result comes from: the inverse of what is done to the image.
        inverse = (
            cos, sin, x - cos * from_x - sin * from_y,
            -sin, cos, y + sin * from_x - cos * from_y,
        )  # fmt: skip
        image = image.transform(
            image.size, Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR
        )
        image = ImageEnhance.Brightness(image).enhance(1 + LIGHT * brightness)
        return ImageEnhance.Contrast(image).enhance(1 + LIGHT * contrast)
