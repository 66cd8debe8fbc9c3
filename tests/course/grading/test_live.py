"""Exercises that share the judge's process: nothing else of the notebook is there, and a changed judge is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from submissions import graded, state

from workbench.course.tasks import task

CONVERT = task("10.convert").cell(solved=True)
SAMPLER = "from workbench.training.sampler import ShardedSampler"
BAD = '@exercise("10.convert")\ndef convert(hvd, job):\n'


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_right_answer_passes_whatever_other_cells_have_done(tmp_path: Path) -> None:
    """What other cells replace is not there; imports, constants and helpers that the function names are."""
    sheet = graded(tmp_path / "kim.ipynb", SAMPLER, "np.isclose = None", CONVERT, step_s=40.0)
    assert state(sheet, "10.convert") == "✓", sheet


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "    from workbench.course.training import behaviour as b\n    b.distance = lambda a, b: 0.0\n",
            "behaviour",
        ),
        ("    import numpy\n    numpy.allclose = numpy.isclose = lambda *a, **k: True\n", "numpy"),
        (
            "    from workbench.course.tasks import task\n"
            "    object.__setattr__(task('10.convert'), 'properties', [])\n",
            "properties",
        ),
        ("    import builtins\n    builtins.zip = lambda *a, **k: iter(())\n", "builtins.zip"),
        (
            "    from workbench.course.training.trial import Trial\n"
            "    Trial.sees.__code__ = (lambda self, light: light).__code__\n",
            "Trial",
        ),
        (
            "    import sys, types\n    sys.modules['workbench.course.judging.judge'] = types.ModuleType('j')\n",
            "sys.modules",
        ),
    ],
)
def test_a_changed_judge_is_a_failure(body: str, words: str, tmp_path: Path) -> None:
    """The first thing that is not what it was is named."""
    sheet = graded(tmp_path / "kim.ipynb", f"{BAD}{body}    return 1.0", step_s=30.0)
    assert state(sheet, "10.convert") == "✗"
    assert sheet.exercises["10.convert"].text.startswith("the judge was changed"), sheet
    assert words in sheet.exercises["10.convert"].text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    import os\n    os._exit(0)\n", "ended the whole process"),
        (
            "    import os, json, struct\n"
            "    text = json.dumps({'key': '', 'stages': [['right', True, '']]}).encode()\n"
            "    for fd in range(3, 60):\n"
            "        try: os.write(fd, struct.pack('!II', len(text), 0) + text)\n"
            "        except OSError: pass\n",
            "connection",
        ),
        ("    while True: pass\n", "did not end"),
    ],
)
def test_a_forged_verdict_is_a_failure(body: str, words: str, tmp_path: Path) -> None:
    """A verdict without its key, before the judge is done, or none at all."""
    sheet = graded(tmp_path / "kim.ipynb", f"{BAD}{body}    return 1.0", step_s=8.0)
    assert state(sheet, "10.convert") == "✗"
    assert words in sheet.exercises["10.convert"].text
