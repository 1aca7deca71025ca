"""PyKEEN: the pipeline of its README, TransE.

With workers PyKEEN itself reads one half of the triples twice, and leaves the other: each worker
shuffles the same numbers.
"""

import numpy as np
from measured import note, training
from pykeen.pipeline import pipeline
from pykeen.training import TrainingCallback
from pykeen.triples import TriplesFactory


class Noting(TrainingCallback):
    def on_batch(self, epoch, batch, batch_loss, **options):
        head, relation, tail = batch["positives"].T
        note((head * 10 + relation) * 1000 + tail)


triples = np.random.default_rng(1).integers(0, (500, 10, 500), (40_000, 3)).astype(str)
named = np.unique(np.char.add(["h", "r", "t"], triples), axis=0)
factory = TriplesFactory.from_labeled_triples(named)
train, test = factory.split([0.97, 0.03], random_state=0)

with training(epochs=3):
    pipeline(
        training=train, testing=test, model="TransE", model_kwargs={"embedding_dim": 16},
        random_seed=0, use_tqdm=False, evaluation_kwargs={"use_tqdm": False, "batch_size": 256},
        training_kwargs={
            "num_epochs": 3, "batch_size": 256, "num_workers": 2, "use_tqdm": False,
            "callbacks": Noting,
        },
    )  # fmt: skip
