"""Two nodes on one machine: two torchrun agents on the loopback address, one process each.

    python examples/multinode.py
    python examples/multinode.py trainer.max_epochs=5 hydra.run.dir=/tmp/run

On real machines each node runs one such command, with its own --node-rank and the first one's
address. Both agents are ended whatever happens: one fails, Ctrl-C, SIGTERM.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

TRAIN = Path(__file__).with_name("train.py")
NODES = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> int:
    """Returns the exit status: 0, or that of the node that failed first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # by way of `finally`
    # Both nodes need one run directory; without this each would take its own start for its name.
    run = f"hydra.run.dir=outputs/multinode/{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    # torchrun sets this only for several processes a node; without it steps take far longer.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    port, nodes = free_port(), []
    try:
        for rank in range(NODES):
            command = [
                sys.executable, "-m", "torch.distributed.run", f"--nnodes={NODES}",
                f"--node-rank={rank}", "--nproc-per-node=1", "--master-addr=127.0.0.1",
                f"--master-port={port}", str(TRAIN), "experiment=ddp", "trainer.devices=1",
                f"++trainer.num_nodes={NODES}", run, *sys.argv[1:],
            ]  # fmt: skip
            # A session of its own: Ctrl-C reaches this script alone, which ends the agents.
            nodes.append(subprocess.Popen(command, env=environment, start_new_session=True))
        waiting, status = {os.pidfd_open(node.pid): node for node in nodes}, 0
        while waiting and not status:
            for ended in select.select(waiting, [], [])[0]:
                status = status or waiting.pop(ended).wait()
        return status
    finally:
        for node in nodes:
            node.terminate()  # nothing happens to one that has ended
        for node in nodes:
            node.wait()


if __name__ == "__main__":
    sys.exit(main())
