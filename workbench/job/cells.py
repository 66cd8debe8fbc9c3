"""A call of a driver that is not a notebook: seen by the other ranks as a notebook's cell is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.common.cell_numbers import CellNumbers
from workbench.job.context import HOLDER
from workbench.runtime.faults.notebook_hooks import cell_traceback


@contextlib.contextmanager
def as_cell(numbers: CellNumbers, carried: Mapping[str, Any] | None) -> Iterator[None]:
    """What happens in the block is told to the other ranks, as of a cell.

    Args:
        numbers: what this rank knows of the driver's calls.
        carried: what the call carries; None if somebody else than the driver has made it.
    """
    numbers.begin(carried)
    if (job := HOLDER.find()) is not None:
        job.cell_begins(numbers)
    try:
        yield
    except Exception as error:
        if (job := HOLDER.find()) is not None:
            job.cell_raised(cell_traceback(error))
        raise
    finally:
        if (job := HOLDER.find()) is not None:
            if numbers.numbered:
                job.cells_sent(numbers)  # the job may have begun in this call
            job.cell_ends()
