"""Following a job in Slurm, from what squeue and scontrol say of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.launch.slurm import batch

# What squeue says each time it is asked; in the last one Slurm has forgotten the tasks that ended first.
ARRAY = (
    "7_0|PENDING|None|1|N/A|main\n7_1|PENDING|None|1|N/A|main\n7_2|PENDING|None|1|N/A|main\n",
    "7_0|RUNNING|None|1|N/A|main\n7_1|FAILED|None|1|N/A|main\n7_2|PENDING|Resources|1|N/A|main\n",
    "7_2|RUNNING|None|1|N/A|main\n",
    "7_2|COMPLETED|None|1|N/A|main\n",
)
WORDS = ["3 pending", "1 failed, 1 pending, 1 running, because of Resources", "1 completed, 1 failed, 1 running"]


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A squeue and a scontrol, first on PATH, that print one file after another of the folder ``said``."""
    said = tmp_path / "said"
    said.mkdir()
    programs = {
        "squeue": f'case "$*" in *%Q\\ %i*) exit;; esac\ncd {said} && set -- * && cat $1 && [ $# = 1 ] || rm $1',
        "scontrol": f"for i in 0 1 2; do echo StdOut={tmp_path}/$i.out; done",
    }
    for name, lines in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(batch, "_LOOK_S", 0.0)
    return said


def test_an_array_is_over_when_all_tasks_are(squeue: Path, tmp_path: Path) -> None:
    """Its state is that of the task that failed, also after Slurm has forgotten it; each task's output is shown."""
    for i, text in enumerate(ARRAY):
        (squeue / str(i)).write_text(text)
    for i in range(3):
        (tmp_path / f"{i}.out").write_text(f"task {i}\n")
    words, shown = list[str](), list[str]()
    assert batch.follow("7", words.append, shown.append) == "FAILED"
    assert words == [f"job 7: {each}" for each in [*WORDS, "2 completed, 1 failed"]]
    assert sorted(shown) == ["task 0\n", "task 1\n", "task 2\n"]


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (["COMPLETED", "COMPLETED"], "COMPLETED"),
        (["COMPLETED", "TIMEOUT"], "TIMEOUT"),
        (["FAILED", "PENDING", "RUNNING"], "RUNNING"),
        (["FAILED", "PENDING"], "PENDING"),
        (["RUNNING"], "RUNNING"),
        ([], ""),
    ],
    ids=str,
)
def test_the_state_of_several_tasks(states: list[str], state: str, squeue: Path) -> None:
    """What goes on comes before what has ended, and a failure before a success."""
    (squeue / "0").write_text("".join(f"7_{i}|{each}|None|1|N/A|main\n" for i, each in enumerate(states)))
    assert batch.look("7")[0] == state
