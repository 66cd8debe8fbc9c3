"""In the process that grades one notebook: run its cells, then judge its exercises. ``workbench grade`` starts it.

What happens is told line by line, in JSON, where standard output was; what the notebook itself prints goes nowhere::

    {"exercises": [["03.ring_allreduce", 3], …]}      what is in it, with the points
    {"at": ["cell", 4, 1]}                            begins with statement 1 of code cell 4
    {"cell": 4, "text": "NameError: …"}               the cell raised
    {"at": ["exercise", "03.ring_allreduce"]}         begins to judge
    {"exercise": "03.ring_allreduce", "state": "passed", "text": "", "seconds": 0.1}
    {"end": true}                                     or {"problem": "…"}: it cannot be graded

There is no deadline in here, for a notebook can do anything to its own process: loop in C, end it, kill it. Whoever
started it sees where it was then, and starts it anew with that statement or exercise left out.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_NAMED = re.compile(r"""(?:@exercise|\bcheck)\(\s*["']([^"'\n]+)["']""")
_DEFINED = r"""@exercise\(\s*["']{}["']"""
_RUN_ANYWAY = ("%%time", "%%capture")  # cell magics whose cell is plain Python
_TASKS = str(Path(__file__).resolve().parent / "tasks")


class NotebookError(ValueError):
    """A file that is no notebook with exercises in it."""


# --- the notebook -------------------------------------------------------------------------------------


def code_cells(text: bytes) -> list[str]:
    r"""The sources of a notebook's code cells.

    Raises:
        NotebookError: that is no notebook.

    Example:
        >>> code_cells(b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": ["x = 1\\n", "x"]}]}')
        ['x = 1\nx']
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotebookError(f"it is not JSON, so not a notebook ({error})") from None
    cells = found.get("cells") if isinstance(found, dict) else None
    if not isinstance(cells, list):
        raise NotebookError("it is JSON, but has no cells: not a notebook, or one of a format before 4")
    sources = [cell.get("source") for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    return ["".join(map(str, one)) if isinstance(one, list) else str(one or "") for one in sources]


def exercises_in(sources: Sequence[str], known: Sequence[str]) -> list[str]:
    """The exercises that cells define or check, each once: one whose cell was deleted still counts.

    Example:
        >>> exercises_in(['@exercise("03.a")', 'check("03.b"); check("9.x")', 'check("03.a")'], ["03.a", "03.b"])
        ['03.a', '03.b']
    """
    named = [name for source in sources for name in _NAMED.findall(source) if name in known]
    return list(dict.fromkeys(named))


# --- its cells ----------------------------------------------------------------------------------------


class Nothing:
    """In the place of engines and of IPython: takes every call and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Nothing."""
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def disarm(space: dict[str, Any]) -> None:
    """Let ``check``, ``show`` and the like, and engines, do nothing in this process, however they are imported.

    Args:
        space: the notebook's names, for :func:`catch_up`, which must not hand in what it defines.
    """
    from workbench import cluster
    from workbench.course import exercise, tasks

    def catch_up(lesson: str) -> None:
        for name in tasks.before(lesson):
            space.setdefault(tasks.task(name).short, tasks.task(name).reference)

    for name in ("check", "show", "hint", "solution"):
        setattr(exercise, name, lambda *args, **options: None)
    exercise.catch_up = catch_up
    for name in ("up", "down", "rescue"):
        setattr(cluster, name, Nothing())
    space["get_ipython"] = space["display"] = Nothing()


def parsed(number: int, source: str) -> Sequence[ast.stmt]:
    """A cell's statements. None of a cell magic's cell, such as ``%%px``, unless an exercise is defined there.

    Raises:
        SyntaxError: and whatever else Python's parser raises.
    """
    from IPython.core import inputtransformer2

    transformer: Any = inputtransformer2.TransformerManager  # not typed
    if source.lstrip().startswith("%%"):
        head, _, body = source.partition("\n")
        if not (head.strip().startswith(_RUN_ANYWAY) or "@exercise(" in body):
            return []
        source = f"\n{body}"
    text: str = transformer().transform_cell(source)  # %magics and !commands become calls of get_ipython()
    lines = text.splitlines(keepends=True)
    linecache.cache[_filename(number)] = (len(text), None, lines, _filename(number))  # for inspect.getsource
    return ast.parse(text, _filename(number)).body


def _filename(number: int) -> str:
    return f"<code cell {number}>"


def run_cell(number: int, source: str, stop: int | None, module: ModuleType, say: Callable[..., None]) -> str:
    """Run a cell statement by statement; return what it raised, in a line.

    Args:
        number: counted from 1, code cells only.
        source: the cell's text.
        stop: the statement where it is known not to come to an end.
        module: the notebook's names.
        say: told where it is.
    """
    try:
        for i, statement in enumerate(parsed(number, source)):
            if i == stop:
                return ""
            say(at=["cell", number, i])
            exec(compile(ast.Module([statement], []), _filename(number), "exec"), module.__dict__)
    except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt: they end a cell, no more
        return _told(error)
    return ""


def _told(error: BaseException) -> str:
    from workbench.course.judging import judge

    try:
        return judge.told(error)
    except Exception:  # noqa: BLE001 - a learner's exception may be unable to say what it is
        return type(error).__name__


# --- its exercises ------------------------------------------------------------------------------------


def verdict(name: str, function: Callable[..., Any] | None, why: str = "") -> tuple[str, str]:
    """What becomes of an exercise: ``passed``, ``failed`` or ``not done``; and the first red line.

    Args:
        name: of the exercise.
        function: the learner's; None if no cell defined it.
        why: what the cell raised that should have.
    """
    from workbench.course import exercise
    from workbench.course.judging import judge
    from workbench.course.tasks import task

    if function is None:
        return ("failed", why) if why else ("not done", "no cell defines it")
    code = getattr(function, "__code__", None)
    if code is not None and code.co_filename.startswith(_TASKS):
        return "failed", "this is the course's own solution, imported"
    try:
        for stage in judge.judge(task(name), function):
            if stage.passed is False:
                return "failed", f"{stage.name}: {stage.text}"
            if stage.name == "not done yet":
                return "not done", stage.text
    except BaseException as error:  # noqa: BLE001 - SystemExit in a learner's function
        return "failed", f"runs: {_told(error)}"
    if not exercise.Entry(passed=True, cause=exercise.BOARD.entry(name).cause).done(name):
        return "failed", f'cause: it is repaired, but what was wrong is not named: cause("{name}", …)'
    return "passed", ""


# --- the process --------------------------------------------------------------------------------------


class Voice:
    """Tells events where standard output was, and silences everything else."""

    def __init__(self) -> None:
        self._pid, self._out = os.getpid(), os.dup(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)

    def __call__(self, **event: Any) -> None:
        """One event; a child that the notebook forked, and that came here, ends."""
        if os.getpid() != self._pid:
            os._exit(0)
        os.write(self._out, (json.dumps(event) + "\n").encode())


def grade(path: Path, stops: Mapping[int, int], done: Sequence[str], say: Callable[..., None]) -> None:
    """Run the cells and judge the exercises.

    Args:
        path: the notebook.
        stops: code cell → the statement that is left out, with all after it.
        done: exercises that have their mark.
        say: told what happens.
    """
    from workbench.course import exercise, tasks

    try:
        if path.is_dir():
            raise NotebookError("there is no notebook in this folder")
        sources = code_cells(path.read_bytes())
        names = exercises_in(sources, tasks.names())
        if not names:
            raise NotebookError("no exercise is in it: hand in a notebook of exercises/")
    except OSError as error:
        return say(problem=f"it cannot be read: {error.strerror}")
    except NotebookError as error:
        return say(problem=str(error))
    say(exercises=[[name, tasks.task(name).points] for name in names])
    exercise.BOARD.entry(names[0])  # a board of its own, in this folder, before a cell goes elsewhere
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    disarm(module.__dict__)
    raised = {}
    for number, source in enumerate(sources, 1):
        if text := run_cell(number, source, stops.get(number), module, say):
            raised[number] = text
            say(cell=number, text=text)
    for name in names:
        if name not in done:
            say(at=["exercise", name])
            begun = time.perf_counter()
            why = next((text for n, text in raised.items() if _defines(sources[n - 1], name)), "")
            state, text = verdict(name, exercise.BOARD.functions.get(name), why)
            say(exercise=name, state=state, text=text, seconds=time.perf_counter() - begun)
    return say(end=True)


def _defines(source: str, name: str) -> bool:
    return re.search(_DEFINED.format(re.escape(name)), source) is not None


def main() -> None:
    """``python -m workbench.course.grading NOTEBOOK FOLDER {"stops": …, "done": …}``; FOLDER is to work in."""
    from workbench.course import tasks

    tasks.names()  # imported while an error of this process can still be read
    path, folder, known = Path(sys.argv[1]).resolve(), sys.argv[2], json.loads(sys.argv[3])
    os.chdir(folder)
    grade(path, {int(cell): stop for cell, stop in known["stops"].items()}, known["done"], Voice())
    os._exit(0)  # not waiting for threads that the notebook has left


if __name__ == "__main__":
    main()
