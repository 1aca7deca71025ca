"""MONAI: its 3D segmentation tutorial, with CacheDataset and random transforms."""

import numpy as np
import torch
from measured import note, training
from monai.data import CacheDataset, DataLoader, create_test_image_3d
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    EnsureTyped,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandRotate90d,
    ScaleIntensityd,
)

items = []
for number in range(48):
    image, label = create_test_image_3d(
        48, 48, 48, rad_max=10, num_seg_classes=1, random_state=np.random.RandomState(number)
    )
    items.append({"img": image, "seg": label, "number": number})
keys = ["img", "seg"]
transforms = Compose([
    EnsureChannelFirstd(keys, channel_dim="no_channel"),
    ScaleIntensityd("img"),
    EnsureTyped(keys),
    RandCropByPosNegLabeld(keys, label_key="seg", spatial_size=[32, 32, 32], num_samples=2),
    RandRotate90d(keys, prob=0.5, spatial_axes=[0, 2]),
    RandFlipd(keys, prob=0.5),
])  # fmt: skip
data = CacheDataset(items, transforms, num_workers=0, progress=False)
loader = DataLoader(data, batch_size=2, shuffle=True, num_workers=2)
model = UNet(spatial_dims=3, in_channels=1, out_channels=1, channels=(4, 8, 16), strides=(2, 2))
loss_function = DiceLoss(sigmoid=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)

with training(epochs=3):
    for _ in range(3):
        for batch in loader:
            note(batch["number"])  # two crops of each image
            optimizer.zero_grad()
            loss_function(model(batch["img"]), batch["seg"]).backward()
            optimizer.step()
