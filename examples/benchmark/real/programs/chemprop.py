"""chemprop: its training notebook, a message passing network for a regression."""

import numpy as np
from chemprop import data, featurizers, models, nn
from lightning import pytorch as pl
from measured import note, training

N = 1000
PARTS = ["C", "CC", "O", "N", "c1ccccc1", "C(=O)", "C(F)", "S", "C1CCCC1", "C(Cl)"]


class Noting(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        note((batch.Y[:, 0] * N).round().int())


draw = np.random.default_rng(1)
points = [
    data.MoleculeDatapoint.from_smi("C" + "".join(draw.choice(PARTS, 4)) + "C", [number / N])
    for number in range(N)
]
featurizer = featurizers.SimpleMoleculeMolGraphFeaturizer()
train = data.MoleculeDataset(points, featurizer)
validation = data.MoleculeDataset(points[:100], featurizer)
train_loader = data.build_dataloader(train, num_workers=2, batch_size=32)
val_loader = data.build_dataloader(validation, num_workers=2, shuffle=False)

with training(epochs=5):
    mpnn = models.MPNN(
        nn.BondMessagePassing(d_h=32),
        nn.MeanAggregation(),
        nn.RegressionFFN(input_dim=32, hidden_dim=32),
        batch_norm=False,
    )
    trainer = pl.Trainer(
        max_epochs=5, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        callbacks=[Noting()],
    )  # fmt: skip
    trainer.fit(mpnn, train_loader, val_loader)
