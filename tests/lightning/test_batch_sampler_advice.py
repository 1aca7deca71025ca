"""A batch sampler with arguments of its own, which Lightning cannot divide among its ranks."""

from pathlib import Path

from tests.support import batch_sampler_fit
from tests.support.programs import run_program

SCRIPT = Path(batch_sampler_fit.__file__)
ADVICE = (
    "(Lightning makes the batch sampler Buckets anew, around a sampler of its own, to divide the "
    "data among its ranks: pass Trainer(use_distributed_sampler=False), and num_replicas= and "
    "rank= to lit_loader.DataLoader, which then divides the batches)"
)


def test_the_error_names_what_to_do_and_that_works(tmp_path: Path) -> None:
    printed = run_program(SCRIPT, tmp_path)
    assert f"__init__() got an unexpected keyword argument 'batch_size' {ADVICE}\n" in printed
    assert printed.endswith("[[0, 1], [2, 3], [4, 5], [6, 7]]\n")
