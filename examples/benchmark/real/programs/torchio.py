"""TorchIO: its README, SubjectsLoader with augmentations, then a Queue of patches."""

import torch
import torchio as tio
from measured import note, training
from torch import nn


def subject(number):
    image = torch.rand(1, 24, 24, 24)
    label = tio.LabelMap(tensor=(image > 0.7).int())
    return tio.Subject(mri=tio.ScalarImage(tensor=image), label=label, number=number)


transform = tio.Compose([
    tio.RescaleIntensity((0, 1)), tio.RandomFlip(), tio.RandomNoise(p=0.5),
    tio.OneOf({tio.RandomAffine(): 0.8, tio.RandomElasticDeformation(): 0.2}),
])  # fmt: skip
data = tio.SubjectsDataset([subject(number) for number in range(40)], transform=transform)
model = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 1, 1))
optimizer = torch.optim.Adam(model.parameters())


def step(batch):
    output = model(batch["mri"][tio.DATA].float())
    optimizer.zero_grad()
    nn.functional.mse_loss(output, batch["label"][tio.DATA].float()).backward()
    optimizer.step()


with training(epochs=2):
    loader = tio.SubjectsLoader(data, batch_size=4, shuffle=True, num_workers=2)
    for _ in range(2):
        for batch in loader:
            note(batch["number"])
            step(batch)
    queue = tio.Queue(
        data, max_length=40, samples_per_volume=4, sampler=tio.UniformSampler(12), num_workers=2
    )
    for batch in tio.SubjectsLoader(queue, batch_size=8, num_workers=0):
        step(batch)
