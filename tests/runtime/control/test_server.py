"""Rank 0's server: an exception in it reaches all ranks, and nobody waits in vain."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pytest

import workbench as wb
from workbench.errors import CollectiveError, MismatchError
from workbench.job.joining import run_threads
from workbench.runtime.faults.supervision import SupervisingCoordinator
from workbench.runtime.steady import stack


def defect(*_: Any, **__: Any) -> NoReturn:
    """As a mistake of ours would raise."""
    raise ZeroDivisionError("a defect")


@pytest.mark.parametrize("where", ["a rank's announcement", "what is late"])
def test_a_defect_ends_the_job_with_an_error_on_every_rank(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was only logged, and each rank waited for the answer for ever."""
    if where == "a rank's announcement":
        monkeypatch.setattr(stack, "explain", defect)

    def until_it_ends() -> str:
        if where == "what is late" and wb.rank() == 0:
            monkeypatch.setattr(SupervisingCoordinator, "stalled", defect)
        while True:
            try:
                wb.allreduce(np.ones(3 + wb.rank()), name="x")
            except MismatchError:  # the usual answer
                continue
            except CollectiveError as error:
                return str(error)

    for text in run_threads(2, until_it_ends):
        assert "because of a defect of the workbench: ZeroDivisionError('a defect')" in text
    assert "ZeroDivisionError: a defect" in caplog.text
