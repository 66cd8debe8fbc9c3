"""Engines of a notebook come and go: those that are there begin the next epoch, newcomers run the cells again.

The others have computed together; a newcomer is alone. So it leaves out what cannot be done alone, and runs the rest:
imports, functions, data, models. A statement is left out as soon as it calls

* a collective, such as ``broadcast_parameters``: the others are not there;
* a function under ``elastic.run``: what was trained comes with the next sync, or is over;
* ``shutdown()``: the others have begun again since.

``init()`` joins the job: the others take the newcomer in at their next commit, and wait in ``state.sync()`` for it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from workbench.common.alone import ALONE, LeftOutError, no_collective
from workbench.context import HOLDER
from workbench.elastic import restart
from workbench.elastic.leaving import end_engine
from workbench.transport.elastic import Dismissed, ElasticBootstrap


def join_again(epoch: int) -> bool:
    """On an engine: begin the next epoch with the others, unless that was done since; False if it is in no job.

    Args:
        epoch: the one that has lost ranks, or is to take in others.
    """
    context = HOLDER.find()
    if context is None or not isinstance(context.bootstrap, ElasticBootstrap):
        return False
    if context.bootstrap.epoch > epoch:
        return True
    try:
        restart()
    except Dismissed:
        end_engine()
    return True


def catch_up(cells: Sequence[str]) -> list[tuple[str, str]]:
    """On an engine: run the cells; for each statement that has failed or was left out its first line, and why.

    Args:
        cells: their text, as it stands in the notebook.
    """
    from IPython import get_ipython

    shell, without = get_ipython(), list[tuple[str, str]]()
    begun = ALONE.set(True)
    try:
        for cell in cells:
            for statement in statements(shell.transform_cell(cell)):
                if why := _run(shell, statement):
                    without.append((statement.strip().splitlines()[0], why))
    finally:
        ALONE.reset(begun)
        if context := HOLDER.find():
            vars(context.engine).pop("submit", None)
            context.restart_names()  # for it has numbered what was left out
    return without


def _run(shell: Any, statement: str) -> str:
    if context := HOLDER.find():
        context.engine.submit = no_collective  # type: ignore[method-assign]  # init() does so, too
    result = shell.run_cell(statement, store_history=False, silent=True)
    error = result.error_before_exec or result.error_in_exec
    if error is None:
        return ""
    return f"left out, {error}" if isinstance(error, LeftOutError) else f"{type(error).__name__}: {error}"


def statements(cell: str) -> list[str]:
    r"""The statements of a cell, each with its decorators; the whole cell where it is no Python.

    Example:
        >>> statements("import os\n\n@cache\ndef f():\n    return 1\nx = f(); y = 2")
        ['import os', '@cache\ndef f():\n    return 1', 'x = f()', 'y = 2']
    """
    try:
        body = ast.parse(cell).body
    except SyntaxError:
        return [cell]
    return [_source(cell, each) for each in body]


def _source(cell: str, statement: ast.stmt) -> str:
    text = ast.get_source_segment(cell, statement) or ""
    decorators = [f"@{ast.get_source_segment(cell, each)}" for each in getattr(statement, "decorator_list", ())]
    return "\n".join([*decorators, text])


__all__ = ["catch_up", "join_again", "statements"]
