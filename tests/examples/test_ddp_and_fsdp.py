"""``examples/ddp.py`` and ``fsdp.py``: the same training in a job, under torchrun and in a cell, with any ranks."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from live_kernel import live_kernel
from loading import EXAMPLES

if TYPE_CHECKING:
    from running import Job, Runner

pytestmark = [pytest.mark.usefixtures("warm_torch"), pytest.mark.parallel, pytest.mark.slow, pytest.mark.timeout(300)]
RESULT = re.compile(r"epoch (\d): loss (\S+), accuracy (\S+)")


def results(job: Job) -> dict[str, list[float]]:
    """Loss and accuracy by epoch."""
    assert (job.code, job.left) == (0, ()), job.report()
    return {epoch: [*map(float, both)] for epoch, *both in RESULT.findall("".join(map(job.out, range(3))))}


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_it_goes_on_with_other_ranks(name: str, jobs: Runner, tmp_path: Path) -> None:
    """Two ranks begin, three go on from their checkpoint, under torchrun: what one process does over Gloo."""
    script, run = str(EXAMPLES / f"{name}.py"), ("-m", "workbench.cli.main", "run", "-np", "2", sys.executable)
    words = (script, "--checkpoint", str(tmp_path / "checkpoint"), "--epochs")
    first = results(jobs.python(*run, *words, "1", deadline_s=120))
    rest = results(jobs.torchrun(3, *words, "3", deadline_s=120))
    alone = (script, "--checkpoint", str(tmp_path / "alone"), "--backend", "gloo", "--epochs", "3")
    wanted = results(jobs.torchrun(1, *alone, deadline_s=120))
    assert ("".join(first), "".join(rest), "".join(wanted)) == ("1", "23", "123")
    assert wanted["3"][1] > 0.85
    for epoch, pair in {**first, **rest}.items():
        assert pair == pytest.approx(wanted[epoch], abs=0.003)


@pytest.mark.thorough
def test_in_cells(tmp_path: Path) -> None:
    """One after the other: a group begins in the notebook's job, and the next cell begins another."""
    with live_kernel(2) as kernel:
        for name in ("ddp", "fsdp"):
            code = f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\nimport {name}\n"
            call = f"{name}.main(epochs=2, checkpoint={str(tmp_path / name)!r})"
            text = "".join(each.text for each in kernel.run(f"%%px\n{code}{call}"))
            assert "epoch 2: loss" in text, text
