"""pytorch-forecasting: the TemporalFusionTransformer of its README."""

import lightning.pytorch as pl
import numpy as np
import pandas as pd
from measured import note, training
from pytorch_forecasting import QuantileLoss, TemporalFusionTransformer, TimeSeriesDataSet

SERIES, LENGTH = 20, 80
CUT = LENGTH - 6


class Noting(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        group, time = batch[0]["groups"][:, 0], batch[0]["decoder_time_idx"][:, 0]
        note((group * 1000 + time) * 100 + batch[0]["encoder_lengths"])


draw = np.random.default_rng(1)
frame = pd.DataFrame({
    "group": np.repeat([f"g{number:02}" for number in range(SERIES)], LENGTH),
    "time_idx": np.tile(np.arange(LENGTH), SERIES),
    "target": draw.normal(size=SERIES * LENGTH) + 10,
    "price": draw.normal(size=SERIES * LENGTH),
})  # fmt: skip
train = TimeSeriesDataSet(
    frame[frame.time_idx < CUT],
    time_idx="time_idx", target="target", group_ids=["group"], static_categoricals=["group"],
    min_encoder_length=12, max_encoder_length=24, max_prediction_length=6,
    time_varying_known_reals=["time_idx", "price"], time_varying_unknown_reals=["target"],
    add_relative_time_idx=True, add_target_scales=True,
)  # fmt: skip
validation = TimeSeriesDataSet.from_dataset(train, frame, min_prediction_idx=CUT)
train_loader = train.to_dataloader(train=True, batch_size=64, num_workers=2)
val_loader = validation.to_dataloader(train=False, batch_size=64, num_workers=2)

with training(epochs=2):
    trainer = pl.Trainer(
        max_epochs=2, gradient_clip_val=0.1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, num_sanity_val_steps=0, callbacks=[Noting()],
    )  # fmt: skip
    model = TemporalFusionTransformer.from_dataset(
        train, hidden_size=8, attention_head_size=1, dropout=0.1, hidden_continuous_size=4,
        loss=QuantileLoss(), learning_rate=0.03,
    )  # fmt: skip
    trainer.fit(model, train_dataloaders=train_loader, val_dataloaders=val_loader)
