"""The exercises as a learner meets them: ``exercise``, ``show``, ``check``, ``hint``, ``solution``, ``progress``.

    @exercise("03.ring_allreduce")
    def ring_allreduce(comm, x):
        ...

    show("03.ring_allreduce")      runs it on simulated ranks and draws it, the first wrong step in red
    check("03.ring_allreduce")     judges it, up to the first line that is red

Nothing here raises a traceback at a learner whose function is not done, wrong, or hangs.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from workbench.common.junit import JunitCase, document
from workbench.common.junit import suite as _suite
from workbench.common.notebook import running_shell
from workbench.common.notice import Notice
from workbench.common.text import count
from workbench.course import drawing, progress_file
from workbench.course.judging import judge
from workbench.course.judging.real_ranks import ClusterRanks
from workbench.course.judging.task import CommTask, inserted, is_blank
from workbench.course.predictions import book
from workbench.course.predictions.ask import is_somebody_there
from workbench.course.provenance.coding import Coded
from workbench.course.provenance.explain import replay
from workbench.course.provenance.picture import grid
from workbench.course.simulator import DeadlockError
from workbench.course.simulator.deadline import within
from workbench.course.tasks import before, names, task
from workbench.observe.figure import Figure
from workbench.observe.player import play

_MARKS = {True: "✓", False: "✗", None: "–"}
_LEVELS = 3
_NAMED = re.compile(r"""^@exercise\(["']([\w.]+)["']\)""", re.MULTILINE)
_LONGEST = 2000  # letters of a verdict that are kept
IDLE_S = 600.0  # who has not checked an exercise for longer has done something else


@dataclass
class ExerciseProgress:
    """What a learner has done about one exercise.

    Args:
        attempts: checks of something that was not blank.
        hints: how many were read.
        seen: was the solution shown?
        passed: by the last check.
        at: when it first passed, in seconds since 1970; 0 if never.
        cause: of a card, was its cause named?
        causes: how many causes were tried until then, the right one too.
        verdict: what the last check found wrong.
        told: the hint about it that was read.
        began: when it was first checked, in seconds since 1970; 0 if never.
        last: when it was checked last.
        spent: seconds from the first run of its cell to the check that it passed first, of a pause at most ``IDLE_S``.
    """

    attempts: int = 0
    hints: int = 0
    seen: bool = False
    passed: bool = False
    at: float = 0.0
    cause: bool = False
    causes: int = 0
    verdict: str = ""
    told: str = ""
    began: float = 0.0
    last: float = 0.0
    spent: float = 0.0

    def done(self, name: str) -> bool:
        """Is there nothing left to do? A card's cause is to be named, too."""
        return self.passed and (self.cause or not task(name).asks_cause)


@dataclass
class ProgressBoard:
    """A learner's functions, and how far they are. Kept in a file, because each lesson has its own kernel."""

    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)  # the newest cell of these has a SyntaxError
    entries: dict[str, ExerciseProgress] = field(default_factory=dict)
    path: Path | None = None
    opened: dict[str, float] = field(default_factory=dict)  # when this kernel first ran the exercise's cell

    def entry(self, name: str) -> ExerciseProgress:
        """The entry of an exercise; the file is read at the first call."""
        if self.path is None:
            self.path = progress_file.FILE.resolve()
            self.entries = entries(progress_file.read(self.path))
        return self.entries.setdefault(name, ExerciseProgress())

    def save(self, name: str) -> None:
        """Write what this kernel knows of an exercise into the file, beside what others have written there."""
        if self.path is not None:
            entry = asdict(self.entries[name])
            progress_file.update(self.path, lambda contents: contents.update({name: entry}))


def entries(contents: dict[str, Any]) -> dict[str, ExerciseProgress]:
    """The exercises in the contents of a progress file; what is no entry is left out."""
    found = {name: value for name, value in contents.items() if name != progress_file.PREDICTIONS}
    return {name: _entry(value) for name, value in found.items() if isinstance(value, dict)}


def _entry(value: dict[str, Any]) -> ExerciseProgress:
    blank = asdict(ExerciseProgress())
    fitting = {key: value[key] for key in blank.keys() & value.keys() if type(value[key]) is type(blank[key])}
    return ExerciseProgress(**fitting)


BOARD = ProgressBoard()


def exercise(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Say that a function is the answer to an exercise. Who calls it while it is blank is told so, in one line.

    Raises:
        ValueError: there is no exercise of that name.

    Example:
        >>> @exercise("02.tree_broadcast")
        ... def tree_broadcast(comm, value, root):
        ...     return value
    """
    task(name)  # raises where there is none
    _watch_cells()

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        BOARD.functions[name] = function
        BOARD.opened.setdefault(name, time.time())
        BOARD.unread.discard(name)
        return _not_done(name, function) if is_blank(function) else function

    return register


def _watch_cells() -> None:
    """In a notebook, see which cells have a SyntaxError: the function in them is still the one before."""
    shell = running_shell()
    if shell is None or _cell_has_ended in shell.events.callbacks["post_run_cell"]:
        return
    shell.events.register("post_run_cell", _cell_has_ended)


def _cell_has_ended(result: Any) -> None:
    if isinstance(result.error_before_exec, SyntaxError):
        not_read(result.info.raw_cell or "")


def not_read(cell: str) -> None:
    """A cell has a SyntaxError: what its exercises had before is not what stands there."""
    BOARD.unread.update(_NAMED.findall(cell))


class NotDoneError(NotImplementedError):
    """A blank was called. A notebook shows the text alone: a traceback teaches nothing here."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def _not_done(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def blank(*args: Any, **options: Any) -> Any:
        raise NotDoneError(f"{name} is not done yet: fill in the blank above, then run this cell again.")

    return blank


def show(name: str, times: bool = False) -> Any:
    """Run the function on simulated ranks and draw what happened, also if it is wrong or ends in a deadlock.

    What ranks have is drawn step by step, where the exercise's inputs can be coded; the first wrong step is red.

    Args:
        name: of the exercise.
        times: draw messages over time instead.
    """
    todo = task(name)
    function = BOARD.functions.get(name)
    draw = getattr(todo, "draw", None)  # a picture of its own
    if draw is None and (not isinstance(todo, CommTask) or todo.shown is None):
        print(f"{name} has no picture; check({name!r}) says more.")
        return None
    if function is None or is_blank(function):
        print(_missing(name, function))
        return None
    if isinstance(todo, CommTask) and draw is None and todo.coded is not None and not times:
        return _steps(name, function, todo.coded)
    try:
        if draw is not None:
            return within(judge.DEADLINE_S, draw, function)
        assert isinstance(todo, CommTask)
        assert todo.shown is not None
        run = judge.run_case(function, todo.shown)
    except DeadlockError as error:
        print(error)
        return drawing.wait_for(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the learner's
        print(judge.described(error))
        return None
    return drawing.space_time(run, title=f"{name} on {todo.shown.n} simulated ranks")


def _steps(name: str, function: Callable[..., Any], coded: Coded) -> Any:
    """A run with coded inputs, as a grid that is played."""
    run = replay(function, coded, coded.n, coded.length, deadline_s=judge.DEADLINE_S)
    if run.error is not None:
        print(run.error if isinstance(run.error, DeadlockError) else judge.described(run.error))
    return play(grid(run, name)) if run.steps else None


def check(name: str) -> Figure | None:
    """Judge the function: one line per stage, up to the first red one. A deadlock is drawn."""
    todo = task(name)
    function = BOARD.functions.get(name)
    print(name)
    if name in BOARD.unread:
        print(f"  – the last cell with {name} has a SyntaxError: nothing is judged. Mend it, and run that cell first.")
        return None
    if function is None:
        print("  – " + _missing(name, function))
        return None
    entry, picture, passed, verdict = BOARD.entry(name), None, True, ""
    cluster = sys.modules.get("workbench.cluster")  # who has one up has loaded it
    up = cluster.current() if cluster else None
    ranks = ClusterRanks(up) if up and up.mpi and up.healthy() else None
    for stage in _announced(judge.judge(todo, function, ranks), up if ranks else None):
        text = stage.text.replace("\n", "\n      ")
        print(f"  {_MARKS[stage.passed]} {stage.name}{f': {text}' if text else ''}")
        verdict = f"{stage.name}: {stage.text}"[:_LONGEST] if stage.passed is False else verdict
        passed = passed and stage.passed is not False and stage.name != "not done yet"
        if stage.error is not None:
            picture = drawing.wait_for(stage.error)
    if not is_blank(function):
        now = time.time()
        entry.attempts += 1
        entry.began = entry.began or now
        if not entry.at:
            entry.spent += min(max(now - (entry.last or BOARD.opened.get(name, now)), 0.0), IDLE_S)
        entry.last, entry.passed, entry.verdict = now, passed, verdict
        entry.at = entry.at or (now if passed else 0.0)
        BOARD.save(name)
    return picture


def _at_work(engines: Any) -> Callable[[], str]:
    from workbench.cluster.panel.activity import EngineStates, sentence

    states = EngineStates(engines.client, range(engines.n))

    def now() -> str:
        states.poll()
        return sentence({engine: each for engine, each in states.known.items() if each.get("cell_s") is not None})

    return now


def _announced(stages: Iterable[Any], engines: Any) -> Iterator[Any]:
    """The stages. Of one that runs for long a line says so, and what engines are at, where somebody waits for it."""
    told, stages = f"a function that does not end is stopped after {judge.DEADLINE_S:g} s", iter(stages)
    at_work = _at_work(engines) if engines else lambda: ""

    def sign(seconds: float) -> str:
        at = at_work()
        return f"  … still running, {seconds:.0f} s{f'; {at}' if at else ''}: {told}"

    while True:
        with Notice(is_somebody_there()).of(sign):
            stage = next(stages, None)
        if stage is None:
            return
        yield stage


def hint(name: str) -> None:
    """A hint about what the last check found wrong, if there is one; then the next of three, each telling more.

    Reading one of the three is counted, and costs nothing.
    """
    todo, entry = task(name), BOARD.entry(name)
    fitting = todo.helps(entry.verdict)
    if fitting and fitting != entry.told:
        entry.told = fitting
        BOARD.save(name)
        print(f"About what check() found: {fitting}")
        return
    if entry.hints == _LEVELS:
        print(
            f"You have read all {_LEVELS} hints; solution({name!r}) shows the solution. The last one: {todo.hints[-1]}"
        )
        return
    level = entry.hints
    entry.hints += 1
    BOARD.save(name)
    print(f"Hint {level + 1} of {_LEVELS}: {todo.hints[level]}")


def solution(name: str) -> None:
    """The reference solution, as a new cell below this one; only after your own attempt."""
    todo, entry = task(name), BOARD.entry(name)
    if not entry.attempts:
        print(f"First an attempt of your own: write something, and check({name!r}). hint({name!r}) helps.")
        return
    entry.seen = True
    BOARD.save(name)
    shell, cell = running_shell(), f"{inserted(name)}\n{todo.cell(solved=True)}"
    if shell is None:
        print(cell)
    else:
        shell.set_next_input(cell, replace=False)
        print("The solution is in the cell below.")


def progress(lesson: str = "") -> None:
    """All exercises, or one lesson's: done, tried, or open; of a card also what is left to do."""
    BOARD.entry(names()[0])
    chosen = [name for name in names() if name.startswith(lesson)]
    for name in chosen:
        print(f"{name:28} {_state(name):8} {task(name).title}{_tries(name)}")
    done = sum(BOARD.entries.get(name, ExerciseProgress()).done(name) for name in chosen)
    print(f"{done} of {len(chosen)} done")
    for line in book.lines(_guesses(), lesson):
        print(line)


def _guesses() -> dict[str, book.Guess]:
    """The predictions of all lessons."""
    return book.read(BOARD.path) if BOARD.path else {}


def _tries(name: str) -> str:
    """How many causes were tried, if it was more than the right one."""
    entry = BOARD.entries.get(name, ExerciseProgress())
    return f" (cause: {count(entry.causes, 'guess')})" if entry.causes > 1 else ""


def _state(name: str) -> str:
    entry = BOARD.entries.get(name, ExerciseProgress())
    if entry.done(name):
        return "✓ done"
    if entry.passed:
        return "✗ cause?"
    return "✗ tried" if entry.attempts or entry.cause else "– open"


def report(path: str | Path = "workbench-report.json") -> Path:
    """Write what was done, as JSON, or as JUnit if the name ends with ``.xml``; return where."""
    BOARD.entry(names()[0])
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {name: BOARD.entries.get(name, ExerciseProgress()) for name in names()}
    path.write_text(junit(found) if path.suffix == ".xml" else json.dumps(_as_json(found), indent=1) + "\n")
    return path


def catch_up(lesson: str) -> None:
    """Define the solutions of all lessons before this one, for learners who begin later.

    Example:
        >>> catch_up("01")
        Nothing comes before lesson 01.
    """
    lesson, earlier = f"{int(lesson):02}", before(lesson)
    shell = running_shell()
    for name in earlier:
        reference = task(name).reference
        BOARD.functions.setdefault(name, reference)
        if shell is not None:
            shell.user_ns.setdefault(task(name).short, reference)
    print(f"Ready for lesson {lesson}: {', '.join(earlier)}" if earlier else f"Nothing comes before lesson {lesson}.")


def junit(entries: dict[str, ExerciseProgress], suite: str = "workbench") -> str:
    """The entries as JUnit's XML."""
    return document(_suite(suite, (_case(name, entry) for name, entry in entries.items())))


def _case(name: str, entry: ExerciseProgress) -> JunitCase:
    lesson, _, short = name.partition(".")
    if entry.done(name):
        return JunitCase(f"lesson.{lesson}", short)
    outcome = ("failure", "not passed") if entry.attempts else ("skipped", "not tried")
    return JunitCase(f"lesson.{lesson}", short, *outcome)


def _as_json(entries: dict[str, ExerciseProgress]) -> dict[str, Any]:
    points = sum(task(name).points for name, entry in entries.items() if entry.done(name))
    return {
        "exercises": {name: {**asdict(entry), "points": task(name).points} for name, entry in entries.items()},
        "passed": sum(entry.done(name) for name, entry in entries.items()),
        "of": len(entries),
        "points": points,
        "of_points": sum(task(name).points for name in entries),
        "predictions": book.as_json(_guesses()),
    }


def _missing(name: str, function: Callable[..., Any] | None) -> str:
    if function is None:
        return f'not there yet: run the cell that begins with @exercise("{name}")'
    return "not done yet: replace the line “your code here”, and run the cell"
