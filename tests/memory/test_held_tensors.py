"""Held batches: what the consumer has dropped of them is free."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_loader import DataLoader
from tests.support.programs import run_program
from tests.support.samples import Call

KB, MB = 1 << 10, 1 << 20
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd here")


def sample(index: int) -> dict[str, Any]:
    """A batch of 8 of these takes 1.8 MB."""
    return {
        "image": torch.full((128 * KB,), index % 251, dtype=torch.uint8),
        "label": torch.tensor(index),
        "mask": torch.full((96 * KB,), index % 13, dtype=torch.uint8),
        "box": torch.full((4 * KB,), index % 7, dtype=torch.uint8),
    }


def blocks(loader: DataLoader[Any]) -> int:
    """Bytes that the arena's file takes."""
    assert loader._core.keeper.pool is not None
    return os.fstat(loader._core.keeper.pool.arena.fd).st_blocks * 512


def private() -> int:
    """Bytes of memory that are this process's alone."""
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("RssAnon")]
    return int(line.split()[1]) * KB


def check(kept: list[Any], keep: str) -> None:
    """Hold what was kept of the batches against what was sent."""
    for number, part in enumerate(kept):
        indices = np.arange(8 * number, 8 * number + 8)
        if keep == "label":
            assert part.tolist() == indices.tolist()
        else:
            values = indices % {"image": 251, "mask": 13, "box": 7}[keep]
            assert np.asarray(part)[:, ::997].tolist() == [
                [value] * len(np.asarray(part)[0, ::997]) for value in values
            ]


@pytest.mark.parametrize("keep", ["label", "box", "mask"])
def test_what_is_not_kept_is_free(keep: str) -> None:
    """Also of as many batches as no arena has slots for."""
    batches = 200
    with DataLoader(
        Call(sample, 8 * batches), batch_size=8, num_workers=2, persistent_workers=True,
    ) as loader:  # fmt: skip
        kept, before = [], private()
        for batch in loader:
            kept.append(batch[keep])
        del batch
        check(kept, keep)
        size = {"label": 64, "box": 32 * KB, "mask": 768 * KB}[keep]
        # What is kept, a page or two for each, and the batches that are under way or just dropped.
        assert blocks(loader) + private() - before <= batches * size * 1.1 + 40 * 2 * MB


LABELS_KEPT = """
import gc, os, sys
import torch

if sys.argv[1] == "torch":
    from torch.utils.data import DataLoader
else:
    from lit_loader import DataLoader

SIZE = int(sys.argv[2])

class Images:
    def __len__(self):
        return 16 * 300
    def __getitem__(self, index):
        return torch.full((SIZE,), index % 251, dtype=torch.uint8), index

def memory(pid):
    # Not Pss_File: that of libraries changes as others who use them come and go.
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        pss = sum(int(s.split()[1]) for s in lines if s.startswith(("Pss_Anon:", "Pss_Shmem:")))
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as children:
            pss += sum(memory(int(child)) for child in children.read().split())
    return pss

kept = []
loader = DataLoader(Images(), 16, num_workers=1, multiprocessing_context="fork")
iterator = iter(loader)
for number in range(300):
    image, label = next(iterator)
    if number == 20:  # all has been started and imported, also what shows the figures of a slow run
        if sys.argv[1] != "torch":
            str(loader.statistics())
        before = memory(os.getpid())
    kept.append((label, label.numpy()[3:9], memoryview(label.numpy())[1:]))
taken = memory(os.getpid()) - before
assert (image == (torch.arange(4784, 4800) % 251)[:, None]).all()
del iterator, loader
gc.collect()
for batch, (label, array, view) in enumerate(kept):
    assert label.tolist() == list(range(16 * batch, 16 * batch + 16))
    assert array.tolist() == label[3:9].tolist() and view.tolist() == label[1:].tolist()
print(taken)
"""


@pytest.mark.parametrize("size", [3 << 10, 48 << 10])  # those of larger batches are copied
def test_labels_that_are_kept_take_no_more_than_with_torch(tmp_path: Path, size: int) -> None:
    """Whatever the size of the images, which are dropped. All processes count."""
    program = tmp_path / "program.py"
    program.write_text(LABELS_KEPT)
    ours, theirs = (int(run_program(program, loader, size)) for loader in ("lit_loader", "torch"))
    # KB, with the workers; how many slots are in use depends on who is quicker. The images of all
    # batches would be 13 MB, or 210.
    assert ours <= 1.1 * theirs + 4096


def boxes_of(samples: list[dict[str, Any]]) -> Any:
    images = torch.stack([each["image"] for each in samples])
    corners = torch.arange(4)
    return images, [{name: corners + n for name in "abcd"} for n in range(len(samples))]


def test_the_boxes_of_each_image_hold_no_image() -> None:
    """64 small tensors beside 2 MB of images, which are dropped."""
    with DataLoader(
        Call(sample, 16 * 60), 16, num_workers=1, persistent_workers=True, collate_fn=boxes_of
    ) as loader:
        kept = [targets for _, targets in loader]
        assert blocks(loader) <= 8 * 2 * MB  # with those that are under way; 60 batches are 120 MB
        for targets in kept:
            assert [each["d"].tolist() for each in targets] == [
                [*range(n, n + 4)] for n in range(16)
            ]


def test_last_batches_that_are_held_cost_no_descriptor() -> None:
    """Of fifty epochs, each with workers and shared memory of its own."""
    loader = DataLoader(Call(sample, 8), batch_size=4, num_workers=1)
    kept, counts = [], []
    for _ in range(50):
        *_, last = loader
        kept.append(last["image"])
        counts.append(len(os.listdir("/proc/self/fd")))
    assert max(counts) == counts[0]
    assert all(image[:, 0].tolist() == [4, 5, 6, 7] for image in kept)
    with open("/proc/self/maps") as maps:
        assert sum("memfd:lit_loader" in line for line in maps) >= 50  # all of them are held
