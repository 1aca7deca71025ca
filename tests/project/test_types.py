"""Programs as users write them, before type checkers: a change of the import breaks none.

Each is checked as it is, and those of `PORTED` with torch's loader in the place of ours too.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

DATA = """
# mypy: allow-untyped-calls
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, Sampler, Subset, random_split
from torch.utils.data.distributed import DistributedSampler
from lit_loader import DataLoader


class Images(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(3), index


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


class Lines(IterableDataset[str]):
    def __iter__(self) -> Iterator[str]:
        yield "line"

"""

PORTED = {
    "training": """
model, device = nn.Linear(3, 2), torch.device("cpu")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(Images(), batch_size=4, shuffle=True, num_workers=2, pin_memory=True)
for epoch in range(3):
    for step, (images, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, step, loss.item(), labels.float().mean(), len(loader))
""",
    "samplers": """
dataset = Images()
sampler: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(dataset, 2, 0)
loader = DataLoader(dataset, sampler=sampler, persistent_workers=True, num_workers=1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for images, _ in loader:
        print(images.mean())


class Every(Sampler[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


train, test = random_split(dataset, [8, 2])
loaders = {"train": DataLoader(train, 2, sampler=Every(8)), "test": DataLoader(test)}
first = DataLoader(Subset(dataset, [0, 1]), batch_sampler=[[0], [1]])
""",
    "annotations": """
class Data:
    def train_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        return DataLoader(Images(), 4, generator=torch.Generator().manual_seed(3))

    def loaders(self) -> list[DataLoader[Any]]:
        return [self.train_dataloader(), DataLoader(Numbers())]


def evaluate(loader: torch.utils.data.DataLoader[Any]) -> float:
    return float(sum(labels.float().sum().item() for _, labels in loader))


class Endless(DataLoader[int]):
    def __init__(self, dataset: Dataset[int], **options: Any) -> None:
        super().__init__(dataset, **options)


print(evaluate(Data().train_dataloader()), Endless(Numbers(), batch_size=3).dataset[0] + 1)
""",
}

OWN = {
    "options": """
from typing import Literal

from lit_loader import LoaderConfig

policy: Literal["skip", "replace"] = "skip"
loader = DataLoader(Images(), seeding="sample", on_sample_error=policy, uneven_ranks="drop")
config = LoaderConfig(seeding="sample", uneven_ranks="keep", num_workers="auto")
again = DataLoader(Images(), **config.as_kwargs())
state = loader.state_dict()
loader.load_state_dict(state)
print(loader.statistics().batches)
""",
    "caches": """
from lit_loader import CachedDataset


def flip(sample: tuple[Tensor, int]) -> tuple[Tensor, int]:
    return sample[0].flip(0), sample[1]


cached = CachedDataset(Images(), "1 MB")
cached[0][0].flip(0)
label: int = cached[0][1]
flipped = cached.map(flip)
pixels: Tensor = flipped[0][0]
labels: int = flipped.map(lambda sample: sample[1])[3]
plain = CachedDataset([1.5, 2.5], 1000)
number: float = plain[0]
loader: DataLoader[tuple[Tensor, int]] = DataLoader(flipped, 4)
""",
}

WRONG = """
from lit_loader import CachedDataset, LoaderConfig

DataLoader(Images(), seeding="bach")
DataLoader(Images(), on_sample_error="skp")
DataLoader(Images(), uneven_ranks="padd")
DataLoader(Images(), num_worker=2)
LoaderConfig(seeding="bach")
LoaderConfig(on_sample_error="skp")
LoaderConfig(uneven_ranks="padd")
CachedDataset(Images(), 1000)[0].upper()
CachedDataset(Images(), 1000).map(len)[0].upper()
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    texts = {name: DATA + text for name, text in {**PORTED, **OWN, "wrong": WRONG}.items()}
    for name, text in PORTED.items():
        torchs = DATA.replace("from lit_loader import", "from torch.utils.data import")
        texts[f"torchs_{name}"] = torchs + text
    folder = tmp_path_factory.mktemp("programs")
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return {name: folder / f"{name}.py" for name in texts}


def errors(checker: list[str], programs: dict[str, Path]) -> list[tuple[str, int]]:
    """What is wrong, as program and line; all of it is shown where a test fails."""
    folder = programs["wrong"].parent
    done = subprocess.run(
        [sys.executable, "-m", *checker, str(folder)],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    print(done.stdout)
    found = re.findall(r"(\w+)\.py:(\d+):(?:\d+ -)? error: ", done.stdout)
    return [(name, int(line)) for name, line in found]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "checker",
    [
        # Half a minute where the cache is cold: .ci/run has it after `mypy --strict lit_loader`.
        pytest.param(["mypy", "--strict"], id="mypy", marks=pytest.mark.slow),
        pytest.param(["pyright", "--pythonpath", sys.executable], id="pyright"),
    ],
)
def test_programs_before_a_type_checker(checker: list[str], programs: dict[str, Path]) -> None:
    pytest.importorskip(checker[0])
    text = programs["wrong"].read_text()
    first = text.count("\n", 0, text.index("DataLoader(Images()")) + 1
    wrong = [("wrong", first + line) for line in range(9)]
    assert sorted({*errors(checker, programs)}) == wrong
