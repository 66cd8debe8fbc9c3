"""``workbench grade``: each notebook in a process of its own, which may do what it likes and still ends in time.

The process runs the cells and judges the exercises (``workbench/course/grading.py``), and says at each moment where it
is. If it stays there for too long, or is gone, that place is noted, everything that it started is killed, and a new
process does the same again without that place. So one endless loop, ``os._exit`` or crash costs its own cell or
exercise, and nothing else. Each process leaves out one place more, so this comes to an end; and there is a deadline.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.errors import LaunchError
from workbench.launch import mpi
from workbench.launch.job import Job
from workbench.launch.marks import Mark, Sheet, State, clean

_START_S = 60.0  # python, numpy and torch from a slow disk
_POLL_S = 0.03
_STATES = {"passed": State.PASSED, "failed": State.FAILED, "not done": State.NOT_DONE}


class Grading:
    """One notebook's.

    Args:
        path: of the notebook.
        deadline_s: for all of it.
        step_s: for one statement of a cell, and for one exercise; at most half of what is left of the whole.

    Attributes:
        sheet: what is known by now.
    """

    def __init__(self, path: str, deadline_s: float, step_s: float) -> None:
        self.sheet = Sheet(path)
        self._deadline_s, self._until, self._step_s = deadline_s, time.monotonic() + deadline_s, step_s
        self._stops: dict[int, int] = {}
        self._at: list[Any] = []  # where the process is; empty: nowhere yet
        self._since = self._limit_s = 0.0
        self._why = f"the notebook's {deadline_s:g} s were over before"
        self._read, self._over = 0, False

    def run(self) -> Sheet:
        """Start processes until each exercise has its mark, or the time is over."""
        while not self._over:
            self._attempt()
        for mark in self.sheet.marks.values():
            if mark.state is State.NOT_JUDGED and not mark.text:
                mark.text = f"not judged: {self._why}"
        return self.sheet

    def _attempt(self) -> None:
        """One process, from its start to its end."""
        job = Job(mpi.environment(1) | {"MPLBACKEND": "Agg", "PYTHONSAFEPATH": "1"})
        self._read, self._at = 0, []
        self._since, self._limit_s = time.monotonic(), _START_S
        try:
            work = job.folder / "work"
            work.mkdir()
            known = {"stops": self._stops, "done": [mark.exercise for mark in self._judged()]}
            words = [sys.executable, "-m", "workbench.course.grading", self.sheet.path, str(work), json.dumps(known)]
            job.start("notebook", words)
            self._follow(job)
        finally:
            job.stop()

    def _judged(self) -> list[Mark]:
        return [mark for mark in self.sheet.marks.values() if mark.state is not State.NOT_JUDGED]

    def _follow(self, job: Job) -> None:
        """Hear what the process says, until it has ended or has to."""
        while True:
            there = job.running()  # asked first: what it said before its end is in the file then
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
        """Take in what is new; True if that was all."""
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
                self.sheet.marks.setdefault(name, Mark(name, points))
        elif "cell" in event:
            self.sheet.notes.setdefault(event["cell"], clean(event["text"]))
        elif "exercise" in event:
            mark = self.sheet.marks[event["exercise"]]
            mark.state, mark.text, mark.seconds = _STATES[event["state"]], clean(event["text"]), event["seconds"]
        elif "problem" in event:
            self.sheet.problem = clean(event["problem"])
        return "end" in event or "problem" in event

    def _leave_out(self, why: str, job: Job) -> None:
        """Note where the process was; the next one leaves that out."""
        if not self._at:
            self._over = True
            last = job.log("notebook").read_text(errors="replace").strip().rpartition("\n")[2]
            self._why = clean(f"the process that grades it {why}{'; ' if last else ''}{last}")
            self.sheet.problem = "" if self.sheet.marks else self._why
        elif self._at[0] == "cell":
            _, cell, self._stops[cell] = self._at
            self.sheet.notes[cell] = why
        else:
            mark = self.sheet.marks[self._at[1]]
            mark.state, mark.text, mark.seconds = State.FAILED, f"runs: {why}", time.monotonic() - self._since


def notebooks(words: Sequence[str]) -> list[str]:
    """The files that are meant; a folder stands for all notebooks in it and below, if there are any."""
    found: list[str] = []
    for word in words:
        below = sorted(one for one in Path(word).rglob("*.ipynb") if ".ipynb_checkpoints" not in one.parts)
        found += map(str, below) if Path(word).is_dir() and below else [word]
    return list(dict.fromkeys(found))


def writable(path: str) -> Path:
    """A file to write later; whether that is possible is found out now.

    Raises:
        LaunchError: it is not.
    """
    try:
        with Path(path).open("a"):
            return Path(path)
    except OSError as error:
        raise LaunchError(f"{path} cannot be written: {error.strerror}.") from error


__all__ = ["Grading", "notebooks", "writable"]
