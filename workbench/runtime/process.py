"""What a process tells the engine: uncaught exceptions, cells that fail, its end.

Each hook calls what was there before it. They are installed by ``init()`` and find the current engine through
a function, so init() after shutdown() needs no new ones.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from workbench.runtime.engine import Engine
from workbench.runtime.messages import Raised, Resumed

Find = Callable[[], tuple[int, Engine] | None]
"""Returns (rank, engine) of the running job, or None."""

_MARK = "_workbench_installed"


def watch_exceptions(find: Find) -> None:
    """Report an uncaught exception to the other ranks before the process ends with it."""
    before = sys.excepthook
    if getattr(before, _MARK, False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        found = find()
        if found is not None and issubclass(kind, Exception):
            rank, engine = found
            engine.report(Raised(rank, "".join(traceback.format_exception(kind, error, trace)), final=True))
        before(kind, error, trace)

    setattr(hook, _MARK, True)
    sys.excepthook = hook


def watch_cells(find: Find) -> None:
    """In a notebook's engine: report a cell that raised, and that the next cell begins."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or getattr(shell, _MARK, False):
        return
    raised: list[bool] = []

    def begins(*_: Any) -> None:
        found = find()
        if found is not None and raised:
            raised.clear()
            found[1].report(Resumed(found[0]))

    def ended(result: Any) -> None:
        error, found = result.error_before_exec or result.error_in_exec, find()
        if error is not None and found is not None:
            raised.append(True)
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            found[1].report(Raised(found[0], text, final=False))

    shell.events.register("pre_run_cell", begins)
    shell.events.register("post_run_cell", ended)
    setattr(shell, _MARK, True)
