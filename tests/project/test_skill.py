"""What agents are told to do works: the programs in the skill, as one."""

from __future__ import annotations

import re
from pathlib import Path

from tests.project.readmes import ROOT, fenced, text_of
from tests.support.commands import run_python

SKILL = ROOT / ".agents" / "skills" / "lit-loader" / "SKILL.md"


def test_the_programs_of_the_skill_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("\n".join(fenced(SKILL, "python")))
    said = run_python(tmp_path, program)
    assert "20 batches (640 samples)" in said and "of the time" in said


def test_the_skill_has_a_name_and_says_when_it_is_for() -> None:
    head = text_of(SKILL).split("---\n")[1]
    assert re.search(r"^name: lit-loader$", head, flags=re.MULTILINE)
    (about,) = re.findall(r"^description: (.+)$", head, flags=re.MULTILINE)
    assert 100 < len(about) <= 1024


def test_the_files_that_it_names_exist() -> None:
    named = re.findall(r"`([\w/]+\.md)`", text_of(SKILL))
    assert len(named) >= 3 and all((ROOT / path).is_file() for path in named)


MOVED = """
import random, sys
import numpy, torch
from torch.utils.data import Dataset, Sampler
from lit_loader import DataLoader

class Augmented(Dataset):
    def __init__(self): self.rng = numpy.random.default_rng(7)
    def __len__(self): return 24
    def __getitem__(self, index):
        drawn = [random.random(), numpy.random.rand(), float(torch.rand(())), self.rng.random()]
        return index, torch.tensor(drawn)

class Shuffled(Sampler):
    def __len__(self): return 24
    def __iter__(self): return iter(torch.randperm(24).tolist())

def made(workers):
    return DataLoader(Augmented(), batch_size=4, sampler=Shuffled(), seed=1, num_workers=workers)

def train(workers, stop=None, held=None):
    loader, seen, epoch = made(workers), [], 0
    if held is not None:
        epoch = held["epoch"]
        loader.load_state_dict(held["loader"])
    with loader:
        while epoch < 2:
            for indices, drawn in loader:
                seen.append((epoch, indices.tolist(), drawn.tolist()))
                if len(seen) == stop:
                    torch.save({"epoch": epoch, "loader": loader.state_dict()}, sys.argv[1])
                    return seen
            epoch += 1
            seen.append("validated")
    return seen

if __name__ == "__main__":
    whole = train(0)
    assert train(2) == whole
    for stop in (3, 6, 9):  # in mid-epoch, behind its last batch, in the second one
        assert train(2, stop) == whole[:stop]
        assert train(1, held=torch.load(sys.argv[1])) == whole[stop:]
    print("the same")
"""


def test_a_moved_loop_gives_the_same_with_any_workers_and_resumed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(MOVED)
    assert "the same" in run_python(tmp_path, program, tmp_path / "state.pt")
