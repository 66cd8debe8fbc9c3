"""Where ranks of one job wait for each other without a collective, which a failed cell may have left in disorder."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from workbench.config import launch
from workbench.job.context import HOLDER

_NUMBERS = count()
_TIMEOUT_S = 40.0


def wait_for_all() -> None:
    """Until each rank has come here as often as this one: a notebook begins a cell when all have ended the last.

    And until this rank has read what the others have: of each failure that one of them has been told. Else their
    unnamed tensors would have other numbers.
    """
    threads = sys.modules.get("thread_ranks")
    if threads is not None and threads.wait_for_all():
        return
    # The ranks of a job that was started by hand have the launcher in common.
    folder = Path(os.environ.get("WORKBENCH_TEST_OUT") or f"{tempfile.gettempdir()}/wb-ranks-{os.getppid()}") / "came"
    folder.mkdir(parents=True, exist_ok=True)
    number, here, engine = next(_NUMBERS), launch(), HOLDER.get().engine
    written = folder / f"{here.rank}.new"
    written.write_text(str(engine.failures))
    written.rename(folder / f"{number}.{here.rank}")
    until = time.monotonic() + _TIMEOUT_S
    while missing := {rank for rank in range(here.size) if not (folder / f"{number}.{rank}").exists()}:
        assert time.monotonic() < until, f"ranks {sorted(missing)} have not come to the end of their cell"
        time.sleep(0.01)
    failures = max(int((folder / f"{number}.{rank}").read_text()) for rank in range(here.size))
    while engine.failures < failures:
        assert time.monotonic() < until, f"this rank knows of {engine.failures} failures of {failures}"
        time.sleep(0.01)
