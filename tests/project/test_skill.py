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
