"""skorch: the NeuralNetClassifier of its README."""

import numpy as np
from measured import note, training
from sklearn.datasets import make_classification
from skorch import NeuralNetClassifier
from torch import nn

N = 4000


class MyModule(nn.Module):
    def __init__(self, num_units=10, nonlin=nn.ReLU()):  # noqa: B008, as in the README
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(20, num_units), nonlin, nn.Dropout(0.5), nn.Linear(num_units, num_units),
            nonlin, nn.Linear(num_units, 2), nn.Softmax(dim=-1),
        )  # fmt: skip

    def forward(self, X):
        if self.training:
            note((X[:, 0] * N).round().int())
        return self.layers(X)


X, y = make_classification(N, 20, n_informative=10, random_state=0)
X, y = X.astype(np.float32), y.astype(np.int64)
X[:, 0] = np.arange(N) / N  # the number of the sample

with training(epochs=6):
    net = NeuralNetClassifier(
        MyModule, max_epochs=6, lr=0.1, batch_size=64, verbose=0, iterator_train__shuffle=True,
        iterator_train__num_workers=2, iterator_valid__num_workers=2,
    )  # fmt: skip
    net.fit(X, y)
    net.predict_proba(X)
