"""What a rank writes for the job's report when it leaves the job: ``workbench run --report`` makes a page of it."""

from __future__ import annotations

import json
import logging
import platform
import socket
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from workbench._version import __version__
from workbench.common.extras import loaded
from workbench.common.text import first_line
from workbench.common.whole_file import write_whole
from workbench.machine import cores
from workbench.runtime.trace.recorder import KEPT

log = logging.getLogger("workbench")

_MOST = 2048
_PACKAGES = ("numpy", "torch", "tensorflow", "keras", "jax", "lightning", "mpi4py", "cupy")


class StepTimes:
    """When an optimizer's steps have ended; of a long training every second, fourth, … one.

    Attributes:
        number: of all steps.
        every: which of them are kept.
        ends: of those, in seconds of ``time.perf_counter()``.

    Example:
        >>> times = StepTimes()
        >>> for _ in range(5000):
        ...     times.ended()
        >>> times.number, times.every, len(times.ends)
        (5000, 4, 1250)
    """

    def __init__(self) -> None:
        self.number, self.every = 0, 1
        self.ends: list[float] = []

    def ended(self) -> None:
        if self.number % self.every == 0:
            self.ends.append(time.perf_counter())
            if len(self.ends) > _MOST:
                del self.ends[1::2]
                self.every *= 2
        self.number += 1

    def seconds(self) -> list[float]:
        """How long a step took, between those that are kept."""
        return [(end - begin) / self.every for begin, end in zip(self.ends, self.ends[1:], strict=False)]


def write(context: Any, together: bool, folder: str, more: Mapping[str, Any] | None = None) -> None:
    """Write this rank's part of a report; a warning, if that cannot be.

    Args:
        context: the :class:`workbench.job.context.Context` of the job that is left.
        together: have all ranks left it together?
        folder: of the parts.
        more: what this report is about.
    """
    world, steps = context.world, context.part(StepTimes)
    found: dict[str, Any] = {
        "rank": world.rank,
        "size": world.size,
        "epoch": getattr(context.bootstrap, "epoch", 0),
        "host": socket.gethostname(),
        "cores": len(cores()),
        "command": sys.orig_argv[1:],
        "began": context.began,
        "ended": time.time(),
        "together": together,
        "error": _error(),
        "steps": steps.number,
        "step_s": steps.seconds(),
        "memory": _memory(),
        "gpu_memory": _gpu_memory(),
        "versions": _versions(),
        "snapshot": context.timeline.recorder.snapshot(KEPT),
        **(more or {}),
    }
    path = Path(folder, f"{found['epoch']}.{world.rank}.json")
    try:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps(found).encode())
    except OSError as error:
        log.warning("This rank is missing in the job's report: %s cannot be written: %s", path, error.strerror)


def _error() -> str:
    """Of an exception that ends this process: its class and the first line of its text."""
    error = getattr(sys, "last_value", None)
    return f"{type(error).__name__}: {first_line(str(error), 200)}" if error is not None else ""


def _memory() -> int:
    """The most bytes that this process has had in memory; 0 where nothing says it."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _gpu_memory() -> int:
    torch = loaded("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.max_memory_allocated())


def _versions() -> dict[str, str]:
    found = {"workbench": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        if loaded(name) is not None:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = str(getattr(loaded(name), "__version__", "?"))
    return found
