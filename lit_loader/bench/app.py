"""The Hydra application: ``lit-loader-bench``, ``python -m lit_loader.bench``.

Finds its configuration, ``conf/lit_loader/bench/default.yaml``. torch, rich and matplotlib are
imported in `runner`: ``--help`` stays quick.

Exit codes: 0; 1: ratios are worse than those of ``check``; 2: options are refused; 130: Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from lit_loader.errors import OptionError
from lit_loader.hydra.calls import MAIN_OPTIONS
from lit_loader.hydra.conf_folder import conf_folder

__all__ = ["main"]


@hydra.main(**MAIN_OPTIONS, config_path=str(conf_folder()), config_name="lit_loader/bench/default")
def main(cfg: DictConfig) -> None:
    """Measure what the configuration asks for; ends with the exit code."""
    from hydra.core.hydra_config import HydraConfig

    from lit_loader.bench import runner

    sys.path.insert(0, os.getcwd())  # the user's own modules, as python -m has it
    directory = Path(HydraConfig.get().runtime.output_dir)
    try:
        code = runner.run(cfg, directory)
    except OptionError as error:
        print(f"lit-loader-bench: {error.text}", file=sys.stderr)
        with contextlib.suppress(OSError):  # Hydra has made it; an earlier run may lie in it
            directory.rmdir()
        code = 2
    if code:
        raise SystemExit(code)
