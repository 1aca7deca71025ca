"""Avalanche: the Naive strategy of its README, two experiences of two epochs."""

import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.models import SimpleMLP
from avalanche.training import Naive
from measured import training
from synthetic import Digits, note_digits

model = SimpleMLP(num_classes=10, hidden_size=64)
model.register_forward_pre_hook(note_digits)
benchmark = nc_benchmark(Digits(5000), Digits(500), n_experiences=2, task_labels=False, seed=0)
strategy = Naive(
    model, torch.optim.SGD(model.parameters(), lr=0.001), torch.nn.CrossEntropyLoss(),
    train_mb_size=32, train_epochs=2, eval_mb_size=64, evaluator=None,
)  # fmt: skip

with training(epochs=4):
    for experience in benchmark.train_stream:
        strategy.train(experience, num_workers=2)
        strategy.eval(benchmark.test_stream, num_workers=2)
