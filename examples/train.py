"""Trains a model through LoaderDataModule: by default on scikit-learn's handwritten digits.

    python examples/train.py                              # two worker processes, about 15 seconds
    python examples/train.py experiment=text              # another recipe: see conf/experiment/
    python examples/train.py loader.num_workers=4 data.val.batch_size=512
    python examples/train.py lit_loader/loader@loader=debug    # everything in this process
    python examples/train.py --cfg job --package loader        # every loader option
    python examples/train.py --info defaults                   # where the configuration comes from

Everything is written into Hydra's run directory (``hydra.run.dir``), which is named at the end.
"""

from __future__ import annotations

import os
import sys

import hydra
from omegaconf import DictConfig

from lit_loader.hydra.calls import MAIN_OPTIONS  # Hydra 1.3 and 1.4 want others

# torch and lightning are imported inside main: --help, --cfg and completion stay quick.


@hydra.main(**MAIN_OPTIONS, config_path="conf", config_name="train")
def main(cfg: DictConfig) -> float | None:
    """Trains, tests and reports; returns the metric that a sweeper is to optimise."""
    if cfg.threads:  # for libraries that read it when they are loaded
        os.environ.setdefault("OMP_NUM_THREADS", str(cfg.threads))

    from digits import pipeline

    return pipeline.run(cfg)


if __name__ == "__main__":
    if any("hparams_search=optuna" in argument for argument in sys.argv):
        from digits.needs import needs  # before Hydra, which would only say what it cannot find

        needs("hparams_search=optuna", "hydra_plugins.hydra_optuna_sweeper")
    main()
