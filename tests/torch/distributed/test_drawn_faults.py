"""Faults that a seed draws, in every kind of training: the right rank and line are told at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from fork_server import TORCH, ForkServer
from loading import load
from thorough import quick

faults = load("faults_of_ddp")

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    """A Python that has imported what the trainings need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_C10D", "1")  # it is read where torch is imported
        server = ForkServer((*TORCH, *faults.MODULES))
    yield server.python
    server.close()


@pytest.mark.parametrize("number", quick(range(40), 2, 16, 26, 35))
def test_a_fault_that_is_drawn(number: int, python: str, tmp_path: Path) -> None:
    """Real ranks, a script that knows nothing of this package, sums that are right until then."""
    draw = faults.Draw.of(random.Random(f"2.{number}"))
    verdict = faults.run(draw, python, tmp_path)
    assert not verdict.wrong, f"{draw}: {verdict.wrong}\n{verdict.text}"


def test_a_wrong_rank_and_a_wrong_line_are_seen() -> None:
    """The judge of these tests: what was told of a run, with another rank, another line, and nothing at all."""
    draw = faults.Draw("ddp", "raises", 2, 1, 3, "before")
    script = draw.script(Path("said"))
    at, waits = ([line.strip() for line in script.splitlines()].index(each) + 1 for each in RAISED)
    text = TOLD.format(at=at, waits=waits)

    def wrong(told: str) -> list[str]:
        said = [{"rank": 1, "at": 1.0, "fault": True}, {"rank": 0, "at": 1.2, "told": told, "kind": "RankFailedError"}]
        return faults.judge(draw, script, said[: 1 + bool(told)], "", 1).wrong

    assert wrong(text) == []
    assert wrong(text.replace("Rank 1", "Rank 0")) == ["rank 0 is not told of rank 1"]
    assert wrong(text.replace(f"line {at}", f"line {at + 1}")) == ["rank 0 is not told the line that raised"]
    assert wrong(text.replace(f"waiting in train.py, line {waits}", "waiting in train.py, line 1")) == [
        f"rank 0 is told that rank 0 waits in line 1, not {waits}"
    ]
    assert wrong("") == ["nobody was told"]


RAISED = 'raise ValueError("planted")  # fault', "dist.all_reduce(total)"
TOLD = """Traceback (most recent call last):
  File "/tmp/train.py", line {waits}, in main
    dist.all_reduce(total)
workbench.errors.RankFailedError: Rank 1 raised an exception, so 'allreduce.0.2' can never complete.
  rank 0: waiting in train.py, line {waits}: dist.all_reduce(total)
  rank 1: raised ValueError: planted
Its traceback:
Traceback (most recent call last):
  File "/tmp/train.py", line {at}, in main
"""
