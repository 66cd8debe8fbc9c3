"""On what was it measured, and who else was busy there meanwhile?"""

from __future__ import annotations

import os
import platform
import resource
import time
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import psutil

from workbench.launch.start import mpi


def about() -> dict[str, object]:
    """Processor, cores, versions, date, and what the environment changes about the workbench."""
    versions = {"python": platform.python_version()}
    for name in ("numpy", "torch", "mpi4py", "mpich"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "cpu": cpu(),
        "cores": mpi.usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": {
            name: text
            for name, text in os.environ.items()
            if name.startswith(("WORKBENCH_", "HOROVOD_")) and name not in ("HOROVOD_PYTHON", "HOROVOD_MPIRUN")
        },
    }


def cpu() -> str:
    """The processor's own name, or its architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def load() -> list[float]:
    """The load averages of the last 1, 5 and 15 minutes."""
    return [round(each, 2) for each in os.getloadavg()]


class Others:
    """How much of the machine's CPU time goes to processes that are not ours.

    Load averages count our own ranks, too. So: all time that was not idle, minus that of our ended children.
    """

    def __init__(self) -> None:
        self._begun, self._busy, self._ours = time.monotonic(), busy_s(), ours_s()

    def percent(self) -> float:
        """Since the beginning, of all cores together."""
        everything = (time.monotonic() - self._begun) * (psutil.cpu_count() or 1)
        others = (busy_s() - self._busy) - (ours_s() - self._ours)
        return round(100 * max(0.0, others) / everything, 1)


def busy_s() -> float:
    """Seconds in which a core was not idle; time that the host took away (steal) is in it, for it is not ours."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def ours_s() -> float:
    """CPU seconds of this process and of its children, and theirs, that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


__all__ = ["Others", "about", "load"]
