"""Does the job of a notebook's engines work? Each engine reports its state and tests it. Runs on engines.

Nothing here begins the workbench on an engine that has not used it.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from workbench.common.backoff import Backoff

_TIMES = 10  # a sum that is wrong now and then is found, too
_PAUSE_S = 0.001


@dataclass(frozen=True)
class Standing:
    """What an engine says about its job.

    Args:
        size: of the job; 0 if the engine is in none.
        problem: what does not work there, in one line; "" if all does.
        lost: does only a new process help?
    """

    size: int = 0
    problem: str = ""
    lost: bool = False


def standing(timeout_s: float) -> Standing:
    """This engine's; where it is in a job, all ranks of that call this at the same time.

    Example:
        >>> standing(timeout_s=5)
        Standing(size=0, problem='', lost=False)
    """
    module = sys.modules.get("workbench.job.context")
    context = module.HOLDER.find() if module else None
    if context is not None:
        return Standing(context.world.size, _problem(context.world.rank, context.world.size, timeout_s))
    if any(thread.name == "workbench-engine" for thread in threading.enumerate()):
        return Standing(problem="its job goes on in threads that nothing reaches", lost=True)
    begun = getattr(sys.modules.get("workbench.transport.mpi_process"), "mpi_process", None)
    if begun is not None and begun.cache_info().currsize and begun().duplicates:
        return Standing(problem="an init() was given up there")
    return Standing()


def _problem(rank: int, size: int, timeout_s: float) -> str:
    """Add up the ranks' numbers some times."""
    import numpy as np

    from workbench.errors import WorkbenchError
    from workbench.job import api

    until, right = time.monotonic() + timeout_s, size * (size + 1) / 2
    try:
        number = np.array([rank + 1.0])
        handles = [api.allreduce_async(number, op=api.Sum, name=f"workbench.rescue.{i}") for i in range(_TIMES)]
        totals = [float(handle.wait(max(0.1, until - time.monotonic()))[0]) for handle in handles]
    except WorkbenchError as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    wrong = [total for total in totals if total != right]
    return f"a sum was {wrong[0]:g} instead of {right:g}" if wrong else ""


def passes_barrier(timeout_s: float) -> bool:
    """Does a barrier of MPI's own world complete? All engines call it at the same time."""
    from mpi4py import MPI

    request: Any = MPI.COMM_WORLD.Ibarrier()
    backoff = Backoff(timeout_s, longest_s=_PAUSE_S)
    while not request.Test():
        if not backoff.pause():
            return False
    return True


def begin_again() -> None:
    """Leave the job, if there is one, and begin a new one; all engines call it."""
    from workbench.job import api

    api.shutdown()
    api.init()
