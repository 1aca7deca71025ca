"""scvi-tools: SCVI of its introductory tutorial."""

import anndata
import numpy as np
import scvi
from measured import note, training

N = 3000

draw = np.random.default_rng(1)
counts = draw.poisson(2, (N, 100)).astype(np.float32)
counts[:, 0], counts[:, 1] = np.arange(N) % 60, np.arange(N) // 60  # the number of the cell
adata = anndata.AnnData(counts)
adata.layers["counts"] = counts.copy()
adata.obs["batch"] = draw.choice(["a", "b"], N)
scvi.settings.seed = 0
scvi.settings.dl_num_workers = 2
scvi.model.SCVI.setup_anndata(adata, layer="counts", batch_key="batch")
model = scvi.model.SCVI(adata, n_layers=2, n_latent=10, n_hidden=32, gene_likelihood="nb")


def noting(module, arguments):
    if module.training:
        cells = arguments[0]["X"]
        note((cells[:, 0] + 60 * cells[:, 1]).int())


model.module.register_forward_pre_hook(noting)

with training(epochs=8):
    model.train(max_epochs=8, train_size=0.9, batch_size=128, enable_progress_bar=False)
    assert model.get_latent_representation().shape == (N, 10)
