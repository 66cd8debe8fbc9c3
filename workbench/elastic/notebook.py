"""Engines of a notebook come and go: those that are there begin the next epoch, newcomers run the cells again.

The others have computed together; a newcomer is alone. So it leaves out what cannot be done alone, and runs the rest:
imports, functions, data, models. A statement is left out as soon as it calls

* a collective, such as ``broadcast_parameters``: the others are not there;
* a function under ``elastic.run``, in a cell that is over: what was trained comes with the next sync;
* ``shutdown()``: the others have begun again since.

``init()`` joins the job: the others take the newcomer in at their next commit, and wait in ``state.sync()`` for it. In
the cell that the others run right now, a function under ``elastic.run`` is where the newcomer meets them: from there on
it does what they do.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from workbench.common.alone import ALONE, Newcomer, NewcomerError, no_collective
from workbench.core.engine import anybody
from workbench.elastic.leaving import end_engine
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.job.process_sets import ProcessSet, registered
from workbench.transport.elastic import Dismissed, ElasticBootstrap

Without = list[tuple[str, str]]
"""For each statement that has failed or was left out its first line, and why."""

_owed: list[Sequence[ProcessSet]] = []
"""The process sets of the job that this engine was in, if the last :func:`join_again` has failed."""


def join_again(epoch: int) -> bool:
    """On an engine: begin the next epoch with the others, unless that was done since; False if it is in no job.

    Args:
        epoch: the one that has lost ranks, or is to take in others.

    Raises:
        LaunchError: the epoch did not begin in time. The next call tries again.
    """
    context = HOLDER.find()
    if context is None and not _owed:
        return False
    if context is not None:
        if not isinstance(context.bootstrap, ElasticBootstrap):
            return False
        if context.bootstrap.epoch > epoch:
            return True
        _owed[:] = [registered()]
        api.leave()
    try:
        api.init(process_sets=_owed[0])
    except Dismissed:
        end_engine()
    _owed.clear()
    return True


def catch_up(cells: Sequence[str], job: bool) -> Without:
    """On a newcomer: run cells that are over.

    Args:
        cells: their text, as it stands in the notebook.
        job: are the others in a job?
    """
    begun, without = ALONE.set(Newcomer(job)), Without()
    try:
        for cell in cells:
            without += _run(cell)
    finally:
        ALONE.reset(begun)
        _with_the_others()
    return without


def take_part(cell: str, job: bool) -> Without:
    """On a newcomer: run the cell that the others run right now, up to the first statement that fails.

    Args:
        cell, job: as for :func:`catch_up`.
    """
    begun = ALONE.set(Newcomer(job, meet=_with_the_others))
    try:
        return _run(cell, current=True)
    finally:
        if ALONE.get():
            _with_the_others()
        ALONE.reset(begun)


def _run(cell: str, current: bool = False) -> Without:
    """Statement by statement; one that fails ends a cell that the others run right now, too."""
    from IPython import get_ipython

    shell, without = get_ipython(), Without()
    for statement in statements(shell.transform_cell(cell)):
        if ALONE.get() and (context := HOLDER.find()):
            context.engine.gate = no_collective  # init() does so, too
        result = shell.run_cell(statement, store_history=False, silent=True)
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            continue
        left_out = isinstance(error, NewcomerError)
        why = f"left out, {error}" if left_out else f"{type(error).__name__}: {error}"
        without.append((statement.strip().splitlines()[0], why))
        if current and not left_out:
            if not ALONE.get():
                shell.events.trigger("post_run_cell", result)  # which the others hear of
            break
    return without


def _with_the_others() -> None:
    """From here on this process does what the others do."""
    if context := HOLDER.find():
        context.engine.gate = anybody
        context.names.restart()  # for it has numbered what was left out


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
