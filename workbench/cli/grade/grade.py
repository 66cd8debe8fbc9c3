"""``workbench grade``: each notebook has a judge of its own, which runs the cells in yet another process.

All notebooks are read before the first one runs, so that none can change another. The judge
(``workbench/course/grading``) knows the exercises and their points, and runs no learner's code; this process reads its
reports through a pipe that no other process has. If the judge is ended all the same, what it was at is recorded and
left out, and a new one goes on.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.cli.grade import reaper
from workbench.cli.grade.results import ExerciseResult, ExerciseState, NotebookResult, clean
from workbench.cli.grade.submissions import Submission
from workbench.errors import LaunchError
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.start import mpi

_COURSE = "workbench.course"  # started as a program, never imported here
_GRACE_S = 30.0  # to start, and to end by itself
_STATES = {"passed": ExerciseState.PASSED, "failed": ExerciseState.FAILED, "not done": ExerciseState.NOT_DONE}


@dataclass(frozen=True)
class How:
    """How to grade.

    Args:
        deadline_s: for one notebook.
        step_s: for one statement of a cell, and for one exercise; at most half of what is left of the whole.
        sandbox: with bubblewrap.
        limits: of memory and so on, see ``workbench/course/grading/apart/confine.py``.
    """

    deadline_s: float = 300.0
    step_s: float = 30.0
    sandbox: bool = False
    limits: dict[str, int] = field(default_factory=dict)


class Grading:
    """Grades one notebook.

    Args:
        submission: what was read.
        how: see :class:`How`.

    Attributes:
        result: so far.
    """

    def __init__(self, submission: Submission, how: How) -> None:
        self.result = NotebookResult(submission.path, problem=clean(submission.problem))
        self._cells, self._how = submission.cells, how
        self._until = time.monotonic() + how.deadline_s
        self._stops: dict[int, int] = {}
        self._at: list[Any] = []  # the judge's position; empty before the first
        self._since = 0.0
        self._why = f"the notebook reached its limit of {how.deadline_s:g} s before"
        self._over = bool(submission.problem)

    def run(self) -> NotebookResult:
        """Start judges until each exercise is judged, or the deadline has passed."""
        while not self._over:
            self._attempt()
        for exercise in self.result.exercises.values():
            if exercise.state is ExerciseState.NOT_JUDGED and not exercise.text:
                exercise.text = f"not judged: {self._why}"
        return self.result

    def _attempt(self) -> None:
        """One judge, from its start to its end."""
        job = ProcessTree(mpi.environment(1) | {"MPLBACKEND": "Agg", "PYTHONSAFEPATH": "1"})
        self._at, self._since = [], time.monotonic()
        try:
            job.folder.chmod(0o700)
            judge = [sys.executable, "-m", f"{_COURSE}.grading"]
            process = job.start_with_pipes("judge", [sys.executable, reaper.__file__, *judge])
            assert process.stdin is not None
            assert process.stdout is not None
            with process.stdout as reports:
                with suppress(BrokenPipeError), process.stdin as order:
                    order.write(json.dumps(self._order(job.folder / "work")).encode())
                self._follow(reports.fileno(), job)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)  # the reaper, while it ends what is left
        finally:
            job.stop()

    def _order(self, folder: Path) -> dict[str, Any]:
        return {
            "cells": self._cells,
            "deadline_s": max(0.1, self._until - time.monotonic()),
            "step_s": self._how.step_s,
            "folder": str(folder),
            "stops": self._stops,
            "done": [
                each.name for each in self.result.exercises.values() if each.state is not ExerciseState.NOT_JUDGED
            ],
            "sandbox": self._how.sandbox,
            "limits": self._how.limits,
        }

    def _follow(self, pipe: int, job: ProcessTree) -> None:
        """Read the judge's reports until it ends, or has to be killed."""
        part, ended = b"", False
        with selectors.DefaultSelector() as waiting:
            waiting.register(pipe, selectors.EVENT_READ)
            while not (self._over or ended):
                if time.monotonic() > self._until + _GRACE_S:
                    self._over = True
                    self._leave_out(f"did not end before the notebook's {self._how.deadline_s:g} s were over", job)
                    return
                if waiting.select(0.2):
                    got = os.read(pipe, 1 << 16)
                    ended = not got
                    *lines, part = (part + got).split(b"\n")
                    self._over = any(self._take(json.loads(line)) for line in lines)
        if not self._over:
            self._leave_out("ended the process that grades it", job)

    def _take(self, event: dict[str, Any]) -> bool:
        """One event; True if it is the last."""
        if "at" in event:
            self._at, self._since = event["at"], time.monotonic()
        elif "exercises" in event:
            for name, points in event["exercises"]:
                self.result.exercises.setdefault(name, ExerciseResult(name, points))
            self.result.missing = dict(event.get("missing", ()))
        elif "cell" in event:
            self.result.notes.setdefault(event["cell"], clean(event["text"]))
        elif "exercise" in event:
            exercise = self.result.exercises[event["exercise"]]
            exercise.state, exercise.text = _STATES[event["state"]], clean(event["text"])
            exercise.seconds, exercise.flags = event["seconds"], [clean(one) for one in event["flags"]]
        elif "unbounded" in event:
            self.result.unbounded = clean(event["unbounded"])
        elif "problem" in event:
            self.result.problem = clean(event["problem"])
        return "end" in event or "problem" in event

    def _leave_out(self, why: str, job: ProcessTree) -> None:
        """Record the judge's position; the next one leaves it out."""
        if not self._at:
            self._over = True
            last = job.log("judge").read_text(errors="replace").strip().rpartition("\n")[2]
            self._why = clean(f"the process that grades it {why}{'; ' if last else ''}{last}")
            self.result.problem = "" if self.result.exercises else self._why
        elif self._at[0] == "cell":
            _, cell, self._stops[cell] = self._at
            self.result.notes[cell] = why
        else:
            exercise = self.result.exercises[self._at[1]]
            exercise.state, exercise.text = ExerciseState.FAILED, f"runs: {why}"
            exercise.seconds = time.monotonic() - self._since


def check_installed() -> None:
    """See to it that there is something to start: a production install need not have the course.

    Raises:
        LaunchError: ``workbench.course`` is not installed.
    """
    if find_spec(_COURSE) is None:
        raise LaunchError(
            f"workbench grade runs the exercises of {_COURSE}, which is not installed here. "
            "Grade where the whole package is installed: pip install it from a checkout."
        )


def check_user(as_root: bool) -> None:
    """Refuse to run strangers' code with all rights.

    Raises:
        LaunchError: this is root, and nobody has said that it is meant.
    """
    if os.geteuid() == 0 and not as_root:
        raise LaunchError(
            "workbench grade runs learners' code, and you are root: this account may change every file, end every "
            "process and ignore most limits. Grade under an account that owns nothing else. In a container that you "
            "delete afterwards, pass --as-root."
        )


def check_sandbox() -> None:
    """See to it that bubblewrap is there, and works here.

    Raises:
        LaunchError: it is not, or does not; the text says what to do.
    """
    found = shutil.which("bwrap")
    if found is None:
        raise LaunchError("--sandbox needs bubblewrap, which is not installed: apt-get install bubblewrap")
    words = [found, "--ro-bind", "/", "/", "--unshare-all", "--die-with-parent", "true"]
    tried = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if tried.returncode:
        raise LaunchError(
            f"--sandbox: bubblewrap cannot make namespaces here ({tried.stderr.strip()}). Allow unprivileged user "
            "namespaces (sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0), "
            "run in a container that allows them, or grade without --sandbox under an account that owns nothing."
        )


def writable(path: str) -> Path:
    """A file that will be written later; checked now.

    Raises:
        LaunchError: it cannot be written.
    """
    try:
        with Path(path).open("a"):
            return Path(path)
    except OSError as error:
        raise LaunchError(f"{path} cannot be written: {error.strerror}.") from error
