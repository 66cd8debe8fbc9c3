"""Where ranks of one job wait for each other without a collective, which a failed cell may have left in disorder."""

from __future__ import annotations

import os
import tempfile
import time
from itertools import count
from pathlib import Path

from workbench.config import launch

_NUMBERS = count()
_TIMEOUT_S = 40.0


def wait_for_all() -> None:
    """Until each rank has come here as often as this one: a notebook begins a cell when all have ended the last."""
    # The ranks of a job that was started by hand have the launcher in common.
    folder = Path(os.environ.get("WORKBENCH_TEST_OUT") or f"{tempfile.gettempdir()}/wb-ranks-{os.getppid()}") / "came"
    folder.mkdir(parents=True, exist_ok=True)
    number, here = next(_NUMBERS), launch()
    (folder / f"{number}.{here.rank}").touch()
    missing, until = set(range(here.size)), time.monotonic() + _TIMEOUT_S
    while missing := {rank for rank in missing if not (folder / f"{number}.{rank}").exists()}:
        assert time.monotonic() < until, f"ranks {sorted(missing)} have not come to the end of their cell"
        time.sleep(0.01)
