"""Kills a training mid-epoch, resumes it, and compares it with an uninterrupted one.

    python examples/resume.py                              # the digits, killed after step 157
    python examples/resume.py --resume-with loader.num_workers=3
    python examples/resume.py --kill-at 50 experiment=tabular    # any recipe, any override

Three trainings, each in a process of its own, one after the other. The second is ended by SIGKILL,
the third continues from its newest checkpoint (one is written every ten steps). Exit status 1 if
the curves are not the same to the last bit.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

TRAIN = Path(__file__).with_name("train.py")


def train(directory: Path, name: str, *overrides: str) -> int:
    """Trains in ``directory/name``; returns the exit status, negative if a signal was its end."""
    print(f"\n--- {name}: {' '.join(overrides)}", flush=True)
    arguments = [*overrides, f"hydra.run.dir={directory / name}", f"task_name=resume_{name}"]
    # last.ckpt is written with any other one, so that each epoch needs one.
    arguments.append("++callbacks.model_checkpoint.save_top_k=-1")
    # The resumed training has a directory of its own, which Lightning would remark upon.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore:The dirpath has changed"}
    command = [sys.executable, str(TRAIN), "test=false", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kill-at", type=int, default=157, metavar="STEP")
    parser.add_argument("--directory", type=Path, default=Path("outputs/resume"))
    parser.add_argument("--resume-with", action="append", default=[], metavar="OVERRIDE")
    parser.add_argument("overrides", nargs="*", help="of all three, as for train.py")
    args, further = parser.parse_known_args()
    overrides = [*args.overrides, *further]
    directory = args.directory.absolute()
    kill = ["+interruption=kill", f"callbacks.kill.step={args.kill_at}"]

    if train(directory, "whole", *overrides, "+interruption=none"):
        sys.exit("the uninterrupted training failed: see above")
    if train(directory, "killed", *overrides, *kill) != -signal.SIGKILL:
        sys.exit(
            f"the training ended before step {args.kill_at}, at which it was to be killed: "
            "see above, or give a smaller --kill-at"
        )
    checkpoint = directory / "killed" / "checkpoints" / "step.ckpt"
    again = ["+interruption=none", f"ckpt_path={checkpoint}", *args.resume_with]
    if train(directory, "resumed", *overrides, *again):
        sys.exit("the resumed training failed: see above")

    from interruption import compare

    names = ("whole", "killed", "resumed")
    curves = [compare.read(directory / name / "losses.jsonl") for name in names]
    same, line = compare.verdict(*curves)
    last = [directory / name / "checkpoints" / "last.ckpt" for name in ("whole", "resumed")]
    weights = compare.same_weights(*last)
    line += f"; final weights {'identical' if weights else 'different'}"
    compare.plot(directory / "resume.png", *curves, line)
    print(f"\n{line}\nwritten to {directory / 'resume.png'}")
    sys.exit(not (same and weights))


if __name__ == "__main__":
    main()
