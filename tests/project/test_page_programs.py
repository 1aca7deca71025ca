"""The programs of the pages run as a user runs them, and print what the page says.

They are a job of their own: ``pytest -m pages``, as ``.ci/run`` runs it.
"""

import re
from pathlib import Path

import pytest
from hydra import __version__ as HYDRA

from tests.project.readmes import GUIDE, OPTIONS, PAGES, ROOT, SKILL, TOP, WORKERS, fenced
from tests.support.programs import run_python

pytestmark = [pytest.mark.pages, pytest.mark.timeout(600)]

LIGHTNING, RESUME = GUIDE / "lightning.md", GUIDE / "resume.md"


def run(program: str, folder: Path, *options: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(program)
    return run_python(folder, *options, "program.py", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))


def program_of(page: Path, number: int = 0) -> str:
    """Return a whole program of a page."""
    return [code for code in fenced(page, "python") if "__main__" in code][number]


def test_each_program_of_a_page_is_run_here() -> None:
    programs = {page: sum("__main__" in code for code in fenced(page, "python")) for page in
                PAGES.values()}  # fmt: skip
    assert {page: count for page, count in programs.items() if count} == {
        **dict.fromkeys([TOP, OPTIONS, SKILL, WORKERS, RESUME, GUIDE / "quickstart.md"], 1),
        LIGHTNING: 2,
    }


@pytest.mark.parametrize(
    ("page", "number"), [(GUIDE / "quickstart.md", 0), (TOP, 0), (LIGHTNING, 1)]
)
def test_it_runs(page: Path, number: int, tmp_path: Path) -> None:
    run(program_of(page, number), tmp_path)


def test_the_application_runs(tmp_path: Path) -> None:
    """As it is shown; for Hydra 1.4 changed as the page says: Hydra warns of nothing."""
    (tmp_path / "conf").mkdir()
    (application,) = fenced(OPTIONS, "yaml")
    (tmp_path / "conf" / "config.yaml").write_text(application)
    program, base = program_of(OPTIONS), 'version_base="1.3"'
    (admitted,) = re.findall(r"`(execution_whitelist=\[.*?\])`", OPTIONS.read_text())
    assert base in program
    if not HYDRA.startswith("1.3"):
        program = program.replace(base, admitted)
    said = run(program, tmp_path, "-W", "default")
    assert "`Trainer.fit` stopped" in said
    assert not re.findall(r".*Warning: .*hydra.*|.*hydra.*Warning: .*", said), said


def test_a_killed_worker_changes_nothing(tmp_path: Path) -> None:
    """The page shows what its program prints, and a part of the warning."""
    said = run(program_of(WORKERS), tmp_path)
    (shown,) = fenced(WORKERS, "text")
    assert [line for line in said.splitlines() if line in shown] == shown.splitlines()
    assert "was killed by SIGKILL" in said and not (tmp_path / "kill").exists()


def test_a_trainer_that_is_killed_resumes(tmp_path: Path) -> None:
    """As lightning.md says: twenty steps are done, and the progress bar starts there."""
    program = program_of(LIGHTNING)
    assert "every_n_train_steps=20" in program
    ends = {}
    for name, stops in {"whole": [False], "resumed": [True, False]}.items():
        for stop in stops:
            dies = "        import os; self.trainer.global_step == 30 and os._exit(0)\n"
            begin = "def training_step(self, batch, batch_idx):\n"
            text = program.replace(begin, begin + dies * stop)
            text += "    print('ended at', trainer.global_step, trainer.callback_metrics)\n"
            text += "    print([p.sum().item() for p in trainer.model.parameters()])\n"
            text = text.replace("    checkpoint =", "    torch.manual_seed(1)\n    checkpoint =")
            ends[name] = run(text, tmp_path / name)
    assert ends["whole"].splitlines()[-2:] == ends["resumed"].splitlines()[-2:]
    assert "Restored all states from the checkpoint" in ends["resumed"]


def test_a_training_loop_resumes(tmp_path: Path) -> None:
    """Stopped between two checkpoints, and run again, it ends as if it had been left alone."""
    program = program_of(RESUME)
    exits = r"\g<0>\1import os\n\1_ = step < 77 or os._exit(0)\n"
    stopped, places = re.subn(r"( +)step \+= 1.*\n", exits, program)
    assert places == 1
    whole = run(program, tmp_path / "whole")
    run(stopped, tmp_path / "resumed")
    assert run(program, tmp_path / "resumed") == whole and whole.startswith("96 ")


def test_what_agents_are_told_to_do_works(tmp_path: Path) -> None:
    """The programs in the skill, as one."""
    said = run("\n".join(fenced(SKILL, "python")), tmp_path)
    assert "20 batches (640 samples)" in said and "of the time" in said
    head = re.search(r"^name: lit-loader\ndescription: (.+)$", SKILL.read_text(), re.MULTILINE)
    assert head and 100 < len(head[1]) <= 1024
