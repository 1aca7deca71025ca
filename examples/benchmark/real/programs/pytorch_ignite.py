"""Ignite: trainer and evaluator of its quick start."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from measured import training
from synthetic import Digits, note_digits
from torch import nn
from torch.utils.data import DataLoader

model = nn.Sequential(
    nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.ReLU(), nn.Flatten(),
    nn.Linear(256, 50), nn.ReLU(), nn.Linear(50, 10), nn.LogSoftmax(-1),
)  # fmt: skip
model.register_forward_pre_hook(note_digits)
train = DataLoader(Digits(4000), batch_size=64, shuffle=True, num_workers=2)
val = DataLoader(Digits(1000), batch_size=256, shuffle=False, num_workers=2)
criterion = nn.NLLLoss()
trainer = create_supervised_trainer(model, torch.optim.SGD(model.parameters(), 0.01), criterion)
evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy(), "nll": Loss(criterion)})


@trainer.on(Events.EPOCH_COMPLETED)
def validate(engine):
    evaluator.run(val)


with training(epochs=3):
    trainer.run(train, max_epochs=3)
