"""Lightning: the autoencoder of its README, with a validation loop."""

import lightning as L
import torch
import torch.nn.functional as F
from measured import training
from synthetic import Digits, note_digits
from torch import nn, utils


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 28 * 28))

    def forward(self, x):
        x = x.view(x.size(0), -1)
        return F.mse_loss(self.decoder(self.encoder(x)), x)

    def training_step(self, batch, batch_idx):
        note_digits(self, batch)
        loss = self(batch[0])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self(batch[0]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


train, val = utils.data.random_split(Digits(4000), [3500, 500])

with training(epochs=6):
    trainer = L.Trainer(
        max_epochs=6, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(
        LitAutoEncoder(),
        utils.data.DataLoader(train, batch_size=32, shuffle=True, num_workers=2),
        utils.data.DataLoader(val, batch_size=64, num_workers=2),
    )
