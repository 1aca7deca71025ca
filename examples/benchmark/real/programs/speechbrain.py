"""SpeechBrain: a Brain with DynamicItemDatasets, of its tutorials on both."""

import speechbrain as sb
import torch
from measured import note, training
from speechbrain.dataio.dataset import DynamicItemDataset


@sb.utils.data_pipeline.takes("length", "number")
@sb.utils.data_pipeline.provides("signal")
def signal(length, number):
    noise = torch.randn(length, generator=torch.Generator().manual_seed(number))
    return noise + torch.sin(torch.arange(length) * 0.01 * (1 + number % 5))


@sb.utils.data_pipeline.takes("word")
@sb.utils.data_pipeline.provides("target")
def target(word):
    return torch.tensor([word])


def dataset(count):
    lengths = torch.randint(1000, 4000, (count,)).tolist()
    rows = {
        f"utterance{i}": {"length": length, "number": i, "word": i % 5}
        for i, length in enumerate(lengths)
    }
    keys = ["id", "signal", "target", "number"]
    return DynamicItemDataset(rows, dynamic_items=[signal, target], output_keys=keys)


class Words(sb.Brain):
    def compute_forward(self, batch, stage):
        signals, _lengths = batch.signal
        if stage == sb.Stage.TRAIN:
            note(batch.number)
        return self.modules.out(self.modules.conv(signals[:, None]).relu().mean(-1))

    def compute_objectives(self, predictions, batch, stage):
        return torch.nn.functional.cross_entropy(predictions, batch.target.data[:, 0])


modules = {"conv": torch.nn.Conv1d(1, 16, 80, 20), "out": torch.nn.Linear(16, 5)}
brain = Words(modules, opt_class=lambda parameters: torch.optim.Adam(parameters, 1e-3))
options = {"batch_size": 16, "num_workers": 2}
train, valid = dataset(1000), dataset(100)

with training(epochs=5):
    brain.fit(
        range(5), train, valid, progressbar=False,
        train_loader_kwargs={**options, "shuffle": True}, valid_loader_kwargs=options,
    )  # fmt: skip
