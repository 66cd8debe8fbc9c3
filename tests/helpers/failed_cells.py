"""A cell that an interrupt ends on some ranks, for tests in the ranks of a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from all_ranks import wait_for_all

from workbench.core.messages import Raised
from workbench.job import api
from workbench.job.context import HOLDER


def interrupted_cell(code: Callable[[], Any]) -> None:
    """Run a cell, which ends with KeyboardInterrupt on one rank; all ranks have begun the next one then."""
    cell = HOLDER.get()
    cell.cell_begins()
    before = cell.engine.failures
    try:
        code()
    except KeyboardInterrupt:
        cell.cell_raised("KeyboardInterrupt")
    else:
        cell.cell_ends()
    while cell.engine.failures == before:
        time.sleep(0.01)
    cell.cell_begins()
    api.barrier()


@contextmanager
def cell(*expected: type[Exception]) -> Iterator[list[Exception]]:
    """A notebook's cell: what it raises is reported to the others, and the next one begins when all have ended theirs.

    Yields:
        A list, in which the exception is put at the end.
    """
    caught: list[Exception] = []
    job = HOLDER.get()
    try:
        yield caught
    except expected as error:
        caught.append(error)
        time.sleep(0.2)  # it takes a moment to print the traceback
        job.engine.report(Raised(api.rank(), repr(error), final=False))
    wait_for_all()
    time.sleep(0.5)  # nobody says when what was reported has been taken in
    job.cell_begins()
