"""darts: the NBEATSModel of its README."""

import numpy as np
import pytorch_lightning as pl
from darts import TimeSeries
from darts.models import NBEATSModel
from measured import note, training


class Noting(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        note(batch.past_target[:, -1, 0])


noise = np.random.default_rng(1).normal(size=4000)
series = TimeSeries.from_values((noise + np.sin(np.arange(4000) / 10)).astype(np.float32))
train, val = series[:-200], series[-200:]

with training(epochs=5):
    model = NBEATSModel(
        input_chunk_length=24, output_chunk_length=12, n_epochs=5, random_state=0,
        num_stacks=2, num_blocks=1, num_layers=2, layer_widths=32,
        pl_trainer_kwargs={"callbacks": [Noting()], "enable_progress_bar": False},
    )  # fmt: skip
    model.fit(train, val_series=val, dataloader_kwargs={"num_workers": 2})
