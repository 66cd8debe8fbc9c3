"""On what was it measured, and who else was busy there meanwhile?"""

from __future__ import annotations

import mmap
import os
import platform
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import numpy as np
import psutil

from workbench.launch.start import mpi

_TRIPS = 1000


def about() -> dict[str, object]:
    """Processor, cores, versions, date, and what the environment changes about the workbench."""
    versions = {"python": platform.python_version()}
    for name in ("numpy", "torch", "mpi4py", "mpich"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "cpu": cpu(),
        "cores": mpi.usable_cores(),
        **speeds(),
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


def speeds() -> dict[str, float]:
    """What bounds a collective on one machine, so that rows of two machines can be compared; medians.

    ``copy_gb_s``: bytes copied by one core, 64 MiB that no cache holds. ``flag_us``: half the time from a number that
    one process writes in shared memory to the answer of another, which polls; in Python. ``wake_us``: the same where
    both sleep at a pipe.
    """
    large, target = np.ones(64 << 20, np.uint8), np.empty(64 << 20, np.uint8)
    copies = [timed(lambda: np.copyto(target, large)) for _ in range(7)]
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    flags = np.frombuffer(memory, np.int64, 2)
    ours, theirs = (os.pipe() for _ in range(2))
    child = os.fork()
    if not child:
        answer(flags, ours[0], theirs[1])
    flag = [timed(lambda i=i: ask(flags, i)) for i in range(1, _TRIPS)]
    ask(flags, -1)

    def wake() -> None:
        os.write(ours[1], b"x")
        os.read(theirs[0], 1)

    woken = [timed(wake) for _ in range(_TRIPS)]
    for each in (*ours, *theirs):
        os.close(each)
    os.waitpid(child, 0)
    return {
        "copy_gb_s": round(large.nbytes / median(copies) / 1e9, 1),
        "flag_us": round(median(flag) / 2 * 1e6, 1),
        "wake_us": round(median(woken) / 2 * 1e6, 1),
    }


def ask(flags: Any, number: int) -> None:
    """Write a number, and poll until it is answered, or for two seconds."""
    flags[0], until = number, time.monotonic() + 2
    while flags[1] != number and time.monotonic() < until:
        pass


def answer(flags: Any, asked: int, told: int) -> NoReturn:
    """The other process: answers each number until -1, then each byte of a pipe until it is closed."""
    until = time.monotonic() + 20
    while flags[1] != -1 and time.monotonic() < until:
        flags[1] = flags[0]
    for _ in range(_TRIPS):
        os.write(told, os.read(asked, 1))
    os._exit(0)


def timed(act: Callable[[], object]) -> float:
    """Seconds of a call."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


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
