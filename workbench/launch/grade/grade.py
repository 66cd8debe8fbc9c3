"""``workbench grade``: each notebook in a process of its own, with deadlines.

The process runs the cells and judges the exercises (``workbench/course/grading.py``), and reports each position before
it goes there. If it stays at a position too long, or ends there, that position is recorded, everything that it started
is killed, and a new process repeats the work without that position. So an endless loop, ``os._exit`` or a crash costs
its own cell or exercise, and nothing else. Each process leaves out one position more, so the repetition ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.errors import LaunchError
from workbench.launch.grade.results import ExerciseResult, NotebookResult, State, clean
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.start import mpi

_COURSE = "workbench.course"  # started as a program, never imported here
_START_S = 60.0  # python, numpy and torch from a slow disk
_POLL_S = 0.03
_STATES = {"passed": State.PASSED, "failed": State.FAILED, "not done": State.NOT_DONE}


class Grading:
    """Grades one notebook.

    Args:
        path: of the notebook.
        deadline_s: for all of it.
        step_s: for one statement of a cell, and for one exercise; at most half of what is left of the whole.

    Attributes:
        result: so far.
    """

    def __init__(self, path: str, deadline_s: float, step_s: float) -> None:
        self.result = NotebookResult(path)
        self._deadline_s, self._until, self._step_s = deadline_s, time.monotonic() + deadline_s, step_s
        self._stops: dict[int, int] = {}
        self._at: list[Any] = []  # the process's position; empty before the first
        self._since = self._limit_s = 0.0
        self._why = f"the notebook's {deadline_s:g} s were over before"
        self._read, self._over = 0, False

    def run(self) -> NotebookResult:
        """Start processes until each exercise is judged, or the deadline has passed."""
        while not self._over:
            self._attempt()
        for exercise in self.result.exercises.values():
            if exercise.state is State.NOT_JUDGED and not exercise.text:
                exercise.text = f"not judged: {self._why}"
        return self.result

    def _attempt(self) -> None:
        """One process, from its start to its end."""
        job = ProcessTree(mpi.environment(1) | {"MPLBACKEND": "Agg", "PYTHONSAFEPATH": "1"})
        self._read, self._at = 0, []
        self._since, self._limit_s = time.monotonic(), _START_S
        try:
            work = job.folder / "work"
            work.mkdir()
            known = {"stops": self._stops, "done": [exercise.name for exercise in self._judged()]}
            words = [sys.executable, "-m", f"{_COURSE}.grading", self.result.path, str(work), json.dumps(known)]
            job.start("notebook", words)
            self._follow(job)
        finally:
            job.stop()

    def _judged(self) -> list[ExerciseResult]:
        return [exercise for exercise in self.result.exercises.values() if exercise.state is not State.NOT_JUDGED]

    def _follow(self, job: ProcessTree) -> None:
        """Read the process's reports until it ends or has to be killed."""
        while True:
            there = job.running()  # asked first, so that its last reports are in the file
            if self._hear(job.log("notebook")):
                self._over = True
                return
            now = time.monotonic()
            if not there:
                return self._leave_out("ended the whole process: os._exit(), a signal or a crash", job)
            if now > self._until:
                self._over = True
                return self._leave_out(f"did not end before the notebook's {self._deadline_s:g} s were over", job)
            if now - self._since > self._limit_s:
                return self._leave_out(f"did not end within {self._limit_s:.3g} s", job)
            time.sleep(_POLL_S)

    def _hear(self, log: Path) -> bool:
        """Read the new reports; True after the last one."""
        with log.open("rb") as file:
            file.seek(self._read)
            *lines, _part = file.read().split(b"\n")
        self._read += sum(len(line) + 1 for line in lines)
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):  # a line that is none of ours, such as a traceback
                if self._take(json.loads(line)):
                    return True
        return False

    def _take(self, event: dict[str, Any]) -> bool:
        """One event; True if it is the last."""
        if "at" in event:
            self._at = event["at"]
            self._since = time.monotonic()
            self._limit_s = max(0.5, min(self._step_s, (self._until - self._since) / 2))
        elif "exercises" in event:
            for name, points in event["exercises"]:
                self.result.exercises.setdefault(name, ExerciseResult(name, points))
        elif "cell" in event:
            self.result.notes.setdefault(event["cell"], clean(event["text"]))
        elif "exercise" in event:
            exercise = self.result.exercises[event["exercise"]]
            exercise.state, exercise.text, exercise.seconds = (
                _STATES[event["state"]],
                clean(event["text"]),
                event["seconds"],
            )
        elif "problem" in event:
            self.result.problem = clean(event["problem"])
        return "end" in event or "problem" in event

    def _leave_out(self, why: str, job: ProcessTree) -> None:
        """Record the process's position; the next process leaves it out."""
        if not self._at:
            self._over = True
            last = job.log("notebook").read_text(errors="replace").strip().rpartition("\n")[2]
            self._why = clean(f"the process that grades it {why}{'; ' if last else ''}{last}")
            self.result.problem = "" if self.result.exercises else self._why
        elif self._at[0] == "cell":
            _, cell, self._stops[cell] = self._at
            self.result.notes[cell] = why
        else:
            exercise = self.result.exercises[self._at[1]]
            exercise.state, exercise.text, exercise.seconds = (
                State.FAILED,
                f"runs: {why}",
                time.monotonic() - self._since,
            )


def notebooks(words: Sequence[str]) -> list[str]:
    """The notebooks to grade; a folder stands for all notebooks in it and below, if there are any."""
    found: list[str] = []
    for word in words:
        below = sorted(one for one in Path(word).rglob("*.ipynb") if ".ipynb_checkpoints" not in one.parts)
        found += map(str, below) if Path(word).is_dir() and below else [word]
    return list(dict.fromkeys(found))


def check_installed() -> None:
    """See to it that there is something to start: a production install need not have the course.

    Raises:
        LaunchError: ``workbench.course`` is not installed.
    """
    if find_spec(_COURSE) is None:
        raise LaunchError(
            f"workbench grade runs the exercises of {_COURSE}, which is not installed here. "
            "Grade where the whole package is: pip install it from a checkout."
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


__all__ = ["Grading", "check_installed", "notebooks", "writable"]
