"""A cell that an interrupt ends on some ranks, for tests in the ranks of a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

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
