"""What a process tells the engine: uncaught exceptions, and its notebook cells' begin and end.

Each hook calls what was there before it. They are installed by ``init()`` and find the current job through
a function, so init() after shutdown() needs no new ones.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from workbench import config
from workbench.common.cell_numbers import CellNumbers, cell_numbers
from workbench.common.notebook import running_kernel, running_shell
from workbench.errors import WorkbenchError
from workbench.runtime.faults.kernel_replies import Replies


class RunningJob(Protocol):
    """The running job, seen from this rank."""

    def script_raised(self, traceback: str) -> None:
        """The script ends with an exception."""

    def cell_begins(self, numbers: CellNumbers | None = None) -> None:
        """A cell begins; ``numbers``: where it is an engine's."""

    def cells_sent(self, numbers: CellNumbers) -> None:
        """The notebook has said what it has sent; while a cell runs, on another thread."""

    def state(self) -> dict[str, Any]:
        """What this rank is at; asked on another thread."""

    def drifted(self) -> bool:
        """May this rank's numbers of unnamed tensors differ from those of the others since this cell?"""

    def cell_ends(self) -> None:
        """A cell has ended, well or not."""

    def cell_raised(self, traceback: str) -> None:
        """A cell has ended with an exception."""


Find = Callable[[], RunningJob | None]

_MARK = "_workbench_installed"
_MOST_FRAMES = 40  # a RecursionError has a thousand
_OURS = str(Path(__file__).resolve().parents[2])  # the package


def watch_exceptions(find: Find) -> None:
    """Report an uncaught exception to the other ranks before the process ends with it."""
    before = sys.excepthook
    if _taken_over(before, find):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        job = latest()
        if job is not None and issubclass(kind, Exception):
            job.script_raised("".join(traceback.format_exception(kind, error, trace)))
        before(kind, error, trace)
        if isinstance(error, WorkbenchError):
            print(f"More about it: workbench explain {kind.__name__}", file=sys.stderr)

    latest = _latest(hook, find)
    sys.excepthook = hook


def watch_cells(find: Find) -> None:
    """In a notebook's engine: report each cell's begin and end, and what it raised.

    IPython's events tell of ``%px`` and ``view.execute``. ``view.apply`` fires none, so there the kernel's own
    method is wrapped. And Ctrl-C ends a cell from now on, but not the answer to it.
    """
    _watch_numbers(find)
    shell = running_shell()
    if shell is None or _taken_over(shell, find):
        return

    replies, find = Replies(), _latest(shell, find)

    def begins() -> None:
        replies.within = True
        job = find()
        if job is not None:
            job.cell_begins(cell_numbers())

    def ends() -> None:
        replies.within = False
        job = find()
        if job is not None:
            job.cell_ends()

    def ended(result: Any) -> None:
        error, job = result.error_before_exec or result.error_in_exec, find()
        if error is not None and job is not None:
            job.cell_raised(cell_traceback(error))

    shell.events.register("pre_execute", begins)
    shell.events.register("post_execute", ends)
    shell.events.register("post_run_cell", ended)
    apply = getattr(getattr(shell, "kernel", None), "do_apply", None)
    if apply is not None:
        shell.kernel.do_apply = _as_cell(apply, begins, ends, find)
    replies.guard(getattr(shell, "kernel", None))


def _watch_numbers(find: Find) -> None:
    """Report what the notebook has sent: now, for the cell that runs, and whenever it changes."""
    numbers = cell_numbers()
    if numbers is None:
        return

    def changed() -> None:
        job = find()
        if job is not None:
            job.cells_sent(numbers)

    def drifted() -> bool:
        job = find()
        return job is not None and job.drifted()

    def state() -> dict[str, Any]:
        job = find()
        return job.state() if job is not None else {}

    numbers.changed, numbers.drifted, numbers.state = changed, drifted, state
    changed()


def _taken_over(owner: Any, find: Find) -> bool:
    """Are the hooks there? Then they ask ``find`` from now on: this package may have been imported anew."""
    finds = getattr(owner, _MARK, None)
    if finds is not None:
        finds[:] = [find]
    return finds is not None


def _latest(owner: Any, find: Find) -> Find:
    """Asks ``find``, or what takes its place one day; kept at ``owner``, which outlives this module."""
    finds = [find]
    setattr(owner, _MARK, finds)
    return lambda: finds[0]()


def after_a_loss() -> str:
    """What to do where a rank was lost: in a notebook's engine, and in a script.

    Example:
        >>> after_a_loss()
        'Start the job again.'
    """
    if config.launch().launcher == "elastic":
        return "The others can continue without it, in a function under elastic.run."
    if running_kernel() is None:
        return "Start the job again."
    return "Call engines.rescue() in a cell without %%px."


def cell_traceback(error: BaseException) -> str:
    """The traceback of a cell as its author knows it: without IPython's frames and ours.

    Example:
        >>> print(cell_traceback(KeyError("lr")))
        Traceback (most recent call last):
        KeyError: 'lr'
    """
    frames = [
        traceback.FrameSummary(
            "the cell" if "ipykernel_" in frame.filename else frame.filename, frame.lineno, frame.name, line=frame.line
        )
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OURS) and f"{os.sep}IPython{os.sep}" not in frame.filename
    ]
    if len(frames) > _MOST_FRAMES:
        frames = frames[: _MOST_FRAMES // 2] + frames[-_MOST_FRAMES // 2 :]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(type(error), error)]
    return "Traceback (most recent call last):\n" + "".join(lines).rstrip()


def _as_cell(
    apply: Callable[..., Any], begins: Callable[[], None], ends: Callable[[], None], find: Find
) -> Callable[..., Any]:
    def do_apply(*args: Any, **kwargs: Any) -> Any:
        begins()
        try:
            reply, buffers = apply(*args, **kwargs)
        finally:
            ends()
        job = find()
        if reply.get("status") == "error" and job is not None:
            job.cell_raised(f"{reply['ename']}: {reply['evalue']}")
        return reply, buffers

    return do_apply
