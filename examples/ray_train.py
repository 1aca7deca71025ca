"""Trains on a Ray cluster: ranks by Ray Train, data also from CPU cores that have no rank.

    python examples/ray_train.py                              # a cluster of this machine alone
    python examples/ray_train.py --kill-at 40                 # a rank is killed mid-epoch
    python examples/ray_train.py --address auto --ranks 8 --gpu --remote-workers 16
    python examples/ray_train.py --address auto --ranks 1-8   # fewer if nodes are lost

Afterwards the samples of each step are compared with those of one process. Exit status 1 if there
is one that is different, or missing. ``--folder`` must be one that all nodes see.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--address", default="local", help="local: start a cluster; auto; host:port"
    )
    parser.add_argument("--cpus", type=int, help="of a local cluster; default: those there are")
    parser.add_argument("--ranks", default="2", help="how many, or from how many to how many: 1-2")
    parser.add_argument("--rank-resources", default="", metavar="NAME=NUMBER,...")
    parser.add_argument("--gpu", action="store_true", help="one for each rank")
    parser.add_argument("--workers", type=int, default=1, help="of each rank, on its machine")
    parser.add_argument("--remote-workers", type=int, default=1, help="of each rank, anywhere")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="of all ranks together")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--kill-at", type=int, default=0, metavar="STEP")
    parser.add_argument("--kill-node", action="store_true", help="and not only a rank on it")
    parser.add_argument("--failures", type=int, default=3, help="restarts before it is given up")
    default = Path("outputs/ray_train", time.strftime("%Y-%m-%d_%H-%M-%S"))
    parser.add_argument("--folder", type=Path, default=default)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    from digits.needs import needs

    needs("ray_train", "ray", "cloudpickle", "pyarrow", "sklearn", "matplotlib")
    import ray
    from cluster import rank, report
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    folder = args.folder.absolute()
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path[1:]])}}
    least, _, most = args.ranks.partition("-")
    pairs = (pair.split("=") for pair in args.rank_resources.split(",") if pair)
    resources = {"CPU": 1.0, **{name: float(number) for name, number in pairs}}
    config: dict[str, Any] = {
        **{name: getattr(args, name) for name in ("batch_size", "workers", "remote_workers")},
        **{name: getattr(args, name) for name in ("epochs", "checkpoint_every", "gpu")},
        **{name: getattr(args, name) for name in ("kill_at", "kill_node")},
        "folder": str(folder),
        "runtime_env": environment,
    }
    ray.init(address=args.address, num_cpus=args.cpus, runtime_env=environment)
    try:
        TorchTrainer(
            rank.train,
            train_loop_config=config,
            scaling_config=ScalingConfig(
                num_workers=(int(least), int(most)) if most else int(least),
                use_gpu=args.gpu,
                resources_per_worker=resources,
            ),
            run_config=RunConfig(
                name="run",
                storage_path=str(folder),
                failure_config=FailureConfig(max_failures=args.failures),
            ),
        ).fit()
    finally:
        ray.shutdown()

    attempts = report.read(folder / "ids")
    with rank.data_module(args.batch_size, num_workers=0).make_loader("train") as loader:
        epochs = itertools.chain.from_iterable(loader for _ in range(args.epochs))
        expected = [sorted(ids.tolist()) for _, _, ids in epochs]
    same, line = report.verdict(attempts, expected)
    report.plot(folder / "ray_train.png", attempts, line)
    print(f"\n{line}\nwritten to {folder / 'ray_train.png'}")
    return not same


if __name__ == "__main__":
    sys.exit(main())
