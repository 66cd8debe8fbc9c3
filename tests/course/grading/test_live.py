"""Exercises that share the judge's process: nothing else of the notebook is there, and a changed judge is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from submissions import graded, state

from workbench.course.tasks import task

CONVERT = task("10.convert").cell(solved=True)
SAMPLER = "from workbench.training.sampler import ShardedSampler"
BAD = '@exercise("10.convert")\ndef convert(hvd, job):\n    '


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_right_answer_passes_whatever_other_cells_have_done(tmp_path: Path) -> None:
    """What other cells replace is not there; imports, constants and helpers that the function names are."""
    sheet = graded(tmp_path / "kim.ipynb", SAMPLER, "np.isclose = None", CONVERT, step_s=40.0)
    assert state(sheet, "10.convert") == "✓", sheet


CHANGES = {
    "behaviour": "from workbench.course.training import behaviour\n    behaviour.distance = lambda a, b: 0.0",
    "numpy": "import numpy\n    numpy.allclose = numpy.isclose = lambda *a, **k: True",
    "properties": "from workbench.course.tasks import task\n"
    "    object.__setattr__(task('10.convert'), 'properties', [])",
    "builtins.zip": "import builtins\n    builtins.zip = lambda *a, **k: iter(())",
    "Trial": "from workbench.course.training.trial import Trial\n"
    "    Trial.sees.__code__ = (lambda self, light: light).__code__",
    "sys.modules": "import sys, types\n    sys.modules['workbench.course.judging.judge'] = types.ModuleType('j')",
}
FORGERIES = {
    "ended the whole process": "import os\n    os._exit(0)",
    "connection": "import os, json, struct\n"
    "    text = json.dumps({'key': '', 'stages': [['right', True, '']]}).encode()\n"
    "    for fd in range(3, 60):\n"
    "        try: os.write(fd, struct.pack('!II', len(text), 0) + text)\n"
    "        except OSError: pass",
    "did not end": "while True: pass",
}
QUICK = ("numpy", "behaviour", "connection")  # each takes 5 seconds; the others are for `make test-all`


def each(bodies: dict[str, str]) -> list[Any]:
    """Parameters: a body, and what is said about it."""
    marks = {words: () if words in QUICK else (pytest.mark.thorough,) for words in bodies}
    return [pytest.param(body, words, id=words, marks=marks[words]) for words, body in bodies.items()]


@pytest.mark.slow
@pytest.mark.parametrize(("body", "words"), each(CHANGES))
def test_a_changed_judge_is_a_failure(body: str, words: str, tmp_path: Path) -> None:
    """The first thing that is not what it was is named."""
    sheet = graded(tmp_path / "kim.ipynb", f"{BAD}{body}\n    return 1.0", step_s=30.0)
    assert state(sheet, "10.convert") == "✗"
    assert sheet.exercises["10.convert"].text.startswith("the judge was changed"), sheet
    assert words in sheet.exercises["10.convert"].text


@pytest.mark.slow
@pytest.mark.parametrize(("body", "words"), each(FORGERIES))
def test_a_forged_verdict_is_a_failure(body: str, words: str, tmp_path: Path) -> None:
    """A verdict without its key, before the judge is done, or none at all."""
    sheet = graded(tmp_path / "kim.ipynb", f"{BAD}{body}\n    return 1.0", step_s=8.0)
    assert state(sheet, "10.convert") == "✗"
    assert words in sheet.exercises["10.convert"].text
