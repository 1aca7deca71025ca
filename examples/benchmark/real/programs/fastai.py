"""fastai: a Learner. Its DataLoader is a class of its own, over iterators of torch."""

import fastai.callback.progress  # noqa: F401, adds no_bar() to Learner
import torch
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat
from measured import training
from synthetic import Digits, note_digits
from torch import nn

model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
model.register_forward_pre_hook(note_digits)
dls = DataLoaders.from_dsets(
    Digits(2000), Digits(500), bs=32, num_workers=2, device=torch.device("cpu"), drop_last=False
)
learner = Learner(dls, model, loss_func=CrossEntropyLossFlat())

with training(epochs=6), learner.no_bar(), learner.no_logging():
    learner.fit(6)
