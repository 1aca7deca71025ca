"""NeuralForecast: the NHITS of its README, fit and predict."""

import numpy as np
import pandas as pd
import pytorch_lightning as pl
from measured import note, training
from neuralforecast import NeuralForecast
from neuralforecast.models import NHITS

SERIES, LENGTH, EPOCHS = 320, 120, 12


class Noting(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        note(batch["temporal"][:, batch["y_idx"], 0])


frame = pd.DataFrame({
    "unique_id": np.repeat(np.arange(SERIES), LENGTH),
    "ds": np.tile(pd.date_range("2020-01-01", periods=LENGTH, freq="D"), SERIES),
    "y": np.random.default_rng(1).normal(size=SERIES * LENGTH) + 5,
})  # fmt: skip

with training(EPOCHS):
    model = NHITS(
        h=12, input_size=24, max_steps=EPOCHS * SERIES // 32, batch_size=32, random_seed=0,
        mlp_units=3 * [[32, 32]], val_check_steps=20, windows_batch_size=128,
        dataloader_kwargs={"num_workers": 2}, callbacks=[Noting()], logger=False,
        enable_progress_bar=False, enable_checkpointing=False,
    )  # fmt: skip
    forecast = NeuralForecast(models=[model], freq="D")
    forecast.fit(df=frame, val_size=12)
    assert len(forecast.predict()) == SERIES * 12
