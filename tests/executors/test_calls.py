"""Calls on ranks that stay: who has not begun a call is late, and who has ended it is idle."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from workbench.common.cell_numbers import CellNumbers
from workbench.errors import MissingRanksError
from workbench.executors.calls import NumberedCalls
from workbench.job import api
from workbench.job.cells import as_cell
from workbench.job.joining import run_threads

LATE_S = 2.0  # longer than a rank may be idle while another one waits


def called(*bodies: Any) -> list[list[Any]]:
    """What two ranks, by rank, have returned from calls of these functions; each call is sent to both."""
    calls = NumberedCalls(2)
    said, end = [calls.next(range(2)) for _ in bodies], threading.Barrier(2, timeout=50.0)

    def one_rank() -> list[Any]:
        numbers, found = CellNumbers(api.rank()), []
        for body, each in zip(bodies, said, strict=True):
            if body is late and api.rank() == 1:
                time.sleep(LATE_S)
            with as_cell(numbers, each):
                found.append(body())
        end.wait()  # nobody has left the job before
        return found

    return run_threads(2, one_rank)


def reduces() -> Any:
    """A collective on both ranks."""
    return api.allreduce(np.ones(1), op=api.Sum).tolist()


def late() -> Any:
    """As ``reduces()``; rank 1 begins the call late."""
    return reduces()


def alone() -> str:
    """A collective on rank 0 only."""
    if api.rank() == 1:
        return "idle"
    with pytest.raises(MissingRanksError, match="Rank 1 is idle"):
        reduces()
    return "told so"


def test_a_rank_that_begins_a_call_late_is_waited_for() -> None:
    """Though it has ended the call before."""
    assert called(reduces, late) == [[[2.0], [2.0]]] * 2


def test_a_rank_that_has_ended_its_last_call_is_named() -> None:
    """Nothing more is sent to it, as far as the driver has said."""
    assert called(reduces, alone) == [[[2.0], "told so"], [[2.0], "idle"]]
