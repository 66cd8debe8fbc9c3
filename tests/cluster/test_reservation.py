"""When a notebook is told that the hosts of its Slurm job go soon, by what squeue says of limit and time left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.cluster.engines_on_hosts import OnHosts
from workbench.cluster.reservation import Reservation, ShortTime
from workbench.launch.hosts.agent_connections import Target
from workbench.launch.hosts.host_plan import HostPlan
from workbench.launch.hosts.remote_shell import Srun

TARGETS = [Target("a", 1, Srun()), Target("b", 1, Srun())]
OVER_SOON = "its time is nearly over: save what you need"


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A squeue, first on PATH, that reads limit and time left from the files ``limit`` and ``left`` beside it."""
    program = tmp_path / "squeue"
    program.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        f"*%T*) echo '7|RUNNING|None|1|N/A|main';;\n*%l*) cat {tmp_path}/limit;;\n*%L*) cat {tmp_path}/left;;\nesac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def job(squeue: Path, limit: str, left: str) -> Reservation:
    """A job of so much time, of which so much is left."""
    (squeue / "limit").write_text(limit)
    (squeue / "left").write_text(left)
    return Reservation("7", TARGETS)


@pytest.mark.parametrize(
    ("limit", "left", "short"),
    [
        ("5:00", "4:58", False),
        ("5:00", "2:31", False),
        ("5:00", "2:29", True),
        ("1:00", "0:59", False),
        ("10:00", "5:01", False),
        ("10:00", "4:59", True),
        ("8:00:00", "5:01", False),
        ("8:00:00", "4:00", True),
        ("UNLIMITED", "UNLIMITED", False),
    ],
)
def test_a_job_is_nearly_over_at_its_end_and_not_at_its_start(limit: str, left: str, short: bool, squeue: Path) -> None:
    """With five minutes left, or with half its time where that is less."""
    held = job(squeue, limit, left)
    first, *more = OnHosts(2, HostPlan(TARGETS), held).notes(engines=None)  # type: ignore[arg-type]  # not looked at
    assert first.startswith("Slurm job 7 on a, b: "), first
    assert more == ([OVER_SOON] if short else [])


def test_what_up_has_said_is_not_said_again(squeue: Path) -> None:
    """A job that is short of time from the beginning gets no second warning, one that becomes so gets one."""
    said: list[str] = []
    ShortTime(job(squeue, "5:00", "2:00"), said.append).tick()
    assert said == []
    warning = ShortTime(job(squeue, "5:00", "2:30"), said.append)  # due a second later than that
    warning.tick()
    job(squeue, "5:00", "2:29")
    warning._due = 0.1  # that second has passed
    warning.tick()
    warning.tick()
    assert said == ["Slurm job 7 ends in 2 min: save what you need"]
