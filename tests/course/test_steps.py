"""The walk from a serial script to a distributed one: each step runs, is short, and turns its own light on."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from thorough import once_more

from workbench.course.build import ROOT
from workbench.course.training.behaviour import LIGHTS, title
from workbench.course.training.conversion import Watched, watch

STEPS = sorted((ROOT / "lessons" / "steps").glob("*.py"))
pytestmark = pytest.mark.usefixtures("warm_torch")
DEADLINE_S = 100.0
# The last one is run as a learner runs it; the others differ from them in the lines that are watched.
SCRIPTS = [*map(once_more, STEPS[:-1]), STEPS[-1]]
_RESULT = re.compile(r"(\d+\.\d)% of the test digits are read right")


def _run(folder: Path, *words: str) -> str:
    """What a command prints; the folder is its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_there_are_nine_steps() -> None:
    """Numbered 00 to 09, without a gap."""
    assert [path.name[:2] for path in STEPS] == [f"{k:02d}" for k in range(10)]


def test_neighbours_differ_in_few_lines() -> None:
    """Fewer than 12 lines are added or taken away by a step."""
    for k in range(1, 10):
        before, after = (path.read_text().splitlines() for path in STEPS[k - 1 : k + 1])
        changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
        assert 0 < len(changed) < 12, "\n".join(changed)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_runs_on_two_ranks_as_from_the_command_line(script: Path, tmp_path: Path) -> None:
    """``workbench run -np 2 python …`` ends well, and prints a line from each rank until the last step."""
    command = (sys.executable, "-m", "workbench.cli.main", "run", "-np", "2", sys.executable, str(script))
    found = _RESULT.findall(_run(tmp_path, *command))
    assert len(found) == (1 if script == STEPS[-1] else 2)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(120)
@pytest.mark.parametrize("script", STEPS, ids=lambda path: path.stem)
def test_runs_alone(script: Path, tmp_path: Path) -> None:
    """``python …`` ends well, learns the digits, and leaves one file."""
    found = _RESULT.findall(_run(tmp_path, sys.executable, str(script)))
    assert float(found[0]) > 70
    assert [path.name for path in tmp_path.iterdir()] == ["digits.pt"]


@pytest.fixture(scope="module")
def seen(warm_torch: None) -> list[Watched]:
    """All steps on two ranks."""
    return watch(STEPS, n=2)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_each_step_turns_its_own_light_on(seen: list[Watched]) -> None:
    """After step k the first k lights are green and the others red; the result is right from step 7 on."""
    for k, watched in enumerate(seen):
        lights = watched.lights()
        green = [not lights[title(light)] for light in LIGHTS]
        assert green == [*[True] * k, *[False] * (9 - k), k >= 7], str(watched)
