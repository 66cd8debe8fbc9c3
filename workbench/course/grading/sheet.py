"""The judge of one notebook: a process that runs no learner's code. It tells its parent what happens, in lines of JSON.

    {"exercises": [["03.ring_allreduce", 3], …], "missing": […]}      what is in it, with the points; what is not
    {"at": ["cell", 4, 1]}                            statement 1 of code cell 4 begins
    {"cell": 4, "text": "NameError: …"}               the cell raised
    {"at": ["exercise", "03.ring_allreduce"]}         judging begins
    {"exercise": "03.ring_allreduce", "state": "passed", "text": "", "seconds": 0.1, "flags": []}
    {"unbounded": "files …"}                          what the kernel does not bound, and there is no sandbox
    {"end": true}                                     or {"problem": "…"}: it cannot be graded

The cells run in a process of their own, see ``notebook.py``. If that one stays too long at a statement, ends there or
starts too many processes, the statement is noted and left out, and a new process begins anew. Each leaves out one
statement more, so it comes to an end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from workbench.course.grading import flags, fresh
from workbench.course.grading.apart.lanes import GoneError
from workbench.course.grading.apart.process import NotebookProcess, StartError
from workbench.course.grading.apart.worker import LearnersFunction, OnRanks
from workbench.course.grading.cells import defines, described, exercises_in, missing_from
from workbench.course.grading.live import verdict as live
from workbench.course.judging import judge
from workbench.course.judging.task import Task

_LONGEST = 2000
_MOST_STATEMENTS = 1_000_000
_PING_S = 2.0
_SPARE = 2.0  # times the cells' own time is left, or they do not run again
ENDED = "ended the whole process: os._exit(), a signal or a crash"


@dataclass
class Order:
    """What is to be graded, and how.

    Args:
        cells: sources of the code cells.
        deadline_s, step_s: for all of it; for one statement of a cell, and one exercise.
        folder: to work in.
        stops: code cell → the statement that is left out, with all after it.
        done: exercises that have their mark.
        sandbox: with bubblewrap.
        limits: see ``confine.Limits``.
    """

    cells: list[str]
    deadline_s: float
    step_s: float
    folder: str
    stops: dict[int, int] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    sandbox: bool = False
    limits: dict[str, int] = field(default_factory=dict)


class Sheet:
    """Grades one notebook.

    Args:
        order: what to do.
        tasks: all exercises by name.
        report: told what happens.
    """

    def __init__(self, order: Order, tasks: Mapping[str, Task], report: Callable[..., None]) -> None:
        self.order, self.tasks, self.report = order, tasks, report
        self.names = exercises_in(order.cells, tuple(tasks))
        self._until = time.monotonic() + order.deadline_s
        self._raised: dict[int, str] = {}
        self._causes: dict[str, set[str]] = {}
        self._process: NotebookProcess | None = None
        self._second: NotebookProcess | None = None  # with other ranks of the same functions
        self._cells_s = 0.0  # that they took
        self._timer = threading.Timer(0.0, lambda: None)  # ends the exercise that is being judged
        self._seen: list[str] = []  # flags of the exercise that is being judged

    def run(self) -> None:
        """Say the rows, run the cells, judge the exercises."""
        if not self.names:
            return self.report(problem="no exercise is in it: hand in a notebook of exercises/")
        missing = missing_from(self.names, tuple(self.tasks))
        here, gone = ([[name, self.tasks[name].points] for name in some] for some in (self.names, missing))
        self.report(exercises=here, missing=gone)
        flagged = self._flags()
        try:
            for name in sorted(self.names, key=lambda name: self.tasks[name].live):  # they end the others' process
                if name in self.order.done:
                    continue
                process = self._ready()
                if process is None:
                    break
                self._judge(name, process, flagged.get(name, []))
        except StartError as error:
            return self.report(problem=str(error))
        finally:
            self._stop()
        return self.report(end=True)

    def _flags(self) -> dict[str, list[str]]:
        try:
            return flags.flags(self.order.cells, {name: self.tasks[name] for name in self.names}, self.tasks)
        except RecursionError:
            return {name: ["its cells are nested too deeply to be read"] for name in self.names}

    # --- the cells ------------------------------------------------------------------------------------

    def _limit_s(self) -> float:
        return max(0.5, min(self.order.step_s, (self._until - time.monotonic()) / 2))

    def _stop(self) -> None:
        for process in filter(None, (self._process, self._second)):
            process.stop()
        self._process = self._second = None

    def _ready(self) -> NotebookProcess | None:
        """A process that has run the cells; None if the time is over before."""
        both = [one for one in (self._process, self._second) if one is not None]
        if both and all(one.answers(_PING_S) for one in both):
            return self._process
        while time.monotonic() < self._until:
            self._stop()
            begun = time.monotonic()
            self._process = NotebookProcess(self.order.folder, self.order.sandbox, self.order.limits)
            if self._cells(self._process):
                self._cells_s = time.monotonic() - begun
                return self._process
        return None

    def _cells(self, process: NotebookProcess) -> bool:
        """Run the cells; False if the process has to begin anew."""
        process.begin(self.order.cells, self.order.stops)
        self._unbounded(process.unbounded)
        at: tuple[int, int] | None = None
        limit_s = self._limit_s()
        since = time.monotonic()
        while True:
            event = process.event(min(since + limit_s, self._until) - time.monotonic())
            if event is None or event[0] == "gone":
                if at is None:
                    raise StartError(f"the process that runs it {process.last_words() or 'did not start'}")
                self._leave_out(at, process.ended or (self._slow(limit_s) if event is None else ENDED))
                return False
            if event[0] == "ready":
                return True
            found = self._note(*event)
            if found is not None:
                at, since, limit_s = found, time.monotonic(), self._limit_s()

    def _beside(self) -> NotebookProcess | None:
        """A second process that has run the cells; None if it has not come through them as the first one has."""
        if self._second is not None or self._process is None:
            return self._second
        if self._until - time.monotonic() < _SPARE * self._cells_s:
            return None
        second = NotebookProcess(self.order.folder, self.order.sandbox, self.order.limits)
        second.spare, self._process.spare = [self._process.pid], [second.pid]
        second.begin(self.order.cells, self.order.stops)
        while (event := second.event(self._until - time.monotonic())) is not None and event[0] != "gone":
            if event[0] == "ready":
                self._second = second
                return second
        second.stop()
        self._process.spare = []
        return None

    def _unbounded(self, what: str) -> None:
        if what and not self.order.sandbox:
            self.report(unbounded=what)

    def _note(self, op: str, fields: Mapping[str, Any]) -> tuple[int, int] | None:
        """What a notebook's process says, where it makes sense; its position, if it is that."""
        cell, statement = fields.get("cell"), fields.get("statement")
        if isinstance(cell, int) and 1 <= cell <= len(self.order.cells):
            if op == "at" and isinstance(statement, int) and 0 <= statement < _MOST_STATEMENTS:
                self.report(at=["cell", cell, statement])
                return cell, statement
            if op == "raised" and cell not in self._raised:
                self._raised[cell] = text = str(fields.get("text"))[:_LONGEST]
                self.report(cell=cell, text=text)
        named = fields.get("of")
        if op == "cause" and isinstance(named, list) and len(named) == 2:
            self._causes.setdefault(str(named[0]), set()).add(str(named[1]).strip().lower())
        return None

    def _slow(self, limit_s: float) -> str:
        if time.monotonic() > self._until:
            return f"did not end before the notebook's {self.order.deadline_s:g} s were over"
        return f"did not end within {limit_s:.3g} s"

    def _leave_out(self, at: tuple[int, int], why: str) -> None:
        cell, self.order.stops[cell] = at
        self.report(cell=cell, text=why)

    # --- the exercises --------------------------------------------------------------------------------

    def _judge(self, name: str, process: NotebookProcess, flagged: list[str]) -> None:
        """One exercise, from its beginning to its row."""
        self.report(at=["exercise", name])
        begun, limit_s = time.monotonic(), self._limit_s()
        with self._deadline(process, limit_s):
            state, text = self._verdict(name, process, limit_s)
        both = [one for one in (process, self._second) if one is not None]
        over = any(one.wire.gone.is_set() for one in both) and not self.tasks[name].live
        if over and state != "passed" and process.begun(name):
            state, text = "failed", f"runs: {next((one.ended for one in both if one.ended), ENDED)}"
        used = set[str]().union(*(one.worker.used for one in both))
        flagged = [*flagged, *self._seen, *flags.used(self.tasks[name], used, state == "passed")]
        for one in both:
            one.worker.used.clear()
        self._seen.clear()
        seconds = time.monotonic() - begun
        self.report(
            exercise=name, state=state, text=text[:_LONGEST], seconds=seconds, flags=list(dict.fromkeys(flagged))
        )

    @contextmanager
    def _deadline(self, process: NotebookProcess, limit_s: float) -> Iterator[None]:
        self._count(process, limit_s)
        try:
            yield
        finally:
            self._timer.cancel()

    def _count(self, process: NotebookProcess, limit_s: float) -> None:
        self._timer.cancel()
        self._timer = threading.Timer(limit_s, self._end, [process, f"did not end within {limit_s:.3g} s"])
        self._timer.start()

    def _end(self, process: NotebookProcess, why: str) -> None:
        for one in filter(None, (process, self._second)):
            one.stop(why)

    def _verdict(self, name: str, process: NotebookProcess, limit_s: float) -> tuple[str, str]:
        """What becomes of an exercise: ``passed``, ``failed`` or ``not done``; and the first red line."""
        task, handed_in = self.tasks[name], process.functions.get(name)
        if not isinstance(handed_in, dict):
            why = next((text for n, text in self._raised.items() if defines(self.order.cells[n - 1], name)), "")
            return ("failed", why) if why else ("not done", "no cell defines it")
        if handed_in.get("imported"):
            return "failed", "this is the course's own solution, imported"
        if handed_in.get("blank"):
            return "not done", "replace the line “your code here”, run the cell, and check again"
        state, text = first_red(self._stages(task, handed_in, process, limit_s))
        if state == "passed" and task.asks_cause and getattr(task, "right", "") not in self._causes.get(name, set()):
            return "failed", f'cause: it is repaired, but what was wrong is not named: cause("{name}", …)'
        return state, text

    def _in_two(
        self, task: Task, function: LearnersFunction, process: NotebookProcess, limit_s: float
    ) -> Callable[..., Any]:
        """The function in two processes, which divide the ranks among them. Their start is not the exercise's time."""
        self._timer.cancel()
        second = self._beside()
        self._count(process, limit_s)
        same = second.functions.get(task.name) if second is not None else None
        if second is None or not isinstance(same, dict):
            self._seen.append("its cells do not come through twice: all of its ranks were in one process")
            return function
        return OnRanks(function, second.function(same))

    def _stages(
        self, task: Task, handed_in: Mapping[str, object], process: NotebookProcess, limit_s: float
    ) -> Iterable[judge.Stage]:
        if not task.live:
            function = process.function(handed_in)
            return fresh.stages(task, function, lambda: self._in_two(task, function, process, limit_s))
        self._stop()
        order = self.order
        described = self._unbounded
        return live.stages(
            task, order.cells, order.folder, order.sandbox, order.limits, limit_s, described, self._seen.append
        )


def first_red(stages: Iterable[judge.Stage]) -> tuple[str, str]:
    """What the judge's stages come to. None at all is no pass."""
    seen = 0
    try:
        for stage in stages:
            if stage.passed is False:
                return "failed", f"{stage.name}: {stage.text}"
            if stage.name == "not done yet":
                return "not done", stage.text
            seen += stage.passed is True
    except StartError:
        raise  # no fault of the learner's
    except GoneError as error:
        return "failed", f"runs: {error}"
    except BaseException as error:  # noqa: BLE001 - SystemExit in a learner's function
        return "failed", f"runs: {described(error)}"
    return ("passed", "") if seen else ("failed", "judged: not one property was looked at, so nothing has passed")
