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
DEADLINE_S = 120.0
RESULT = re.compile(r"epoch (\d): loss (\S+), accuracy (\S+)")


def results(text: str) -> dict[int, tuple[float, float]]:
    """Loss and accuracy by epoch."""
    return {int(epoch): (float(loss), float(accuracy)) for epoch, loss, accuracy in RESULT.findall(text)}


def well(job: Job) -> str:
    """What its ranks have printed; it ended well."""
    assert (job.code, job.left) == (0, ()), job.report()
    return "".join(job.out(rank) for rank in range(3))


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_it_goes_on_with_other_ranks(name: str, jobs: Runner, tmp_path: Path) -> None:
    """Two ranks begin, three go on from their checkpoint, under torchrun: what one process does over Gloo."""
    script = str(EXAMPLES / f"{name}.py")
    words = [script, "--checkpoint", str(tmp_path / "checkpoint")]
    run = ["-m", "workbench.cli.main", "run", "-np", "2", sys.executable, *words, "--epochs", "1"]
    first = results(well(jobs.python(*run, deadline_s=DEADLINE_S)))
    rest = results(well(jobs.torchrun(3, *words, "--epochs", "3", deadline_s=DEADLINE_S)))
    alone = [script, "--checkpoint", str(tmp_path / "alone"), "--backend", "gloo", "--epochs", "3"]
    wanted = results(well(jobs.torchrun(1, *alone, deadline_s=DEADLINE_S)))
    assert ([*first], [*rest], [*wanted]) == ([1], [2, 3], [1, 2, 3])
    assert wanted[3][1] > 0.85
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
            assert 2 in results(text), text
