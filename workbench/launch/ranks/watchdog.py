"""The watchdog: it kills all processes of a process tree when the process that started them dies.

A cluster is a dozen processes that daemonise, start sessions of their own and get new parents, so neither
process groups nor a parent's death reach them all. Instead each has a tag in its environment,
``WORKBENCH_CLUSTER=<id>``, which children inherit and nothing removes. :class:`Leftovers` finds and kills
the processes with the tag.

The notebook's kernel calls it in ``down()``. If the kernel is killed (``kill -9``), a small process in a
session of its own does: this file, run as a program. It sleeps until its standard input ends, whose write
end only the kernel holds, or until the kernel's pidfd reports its end (a child forked by the kernel may
still hold the write end). Nothing is ever killed by a program's name.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

TAG = "WORKBENCH_CLUSTER"
DISMISSED = "dismissed"
# MPI libraries unlink these segments in MPI_Finalize, which a killed rank never reaches: 1 MB per rank would stay.
_SEGMENT = re.compile(r"/dev/shm/(?:mpich_shm|ucx_shm|vader_segment|sm_segment)\S*$", re.MULTILINE)
# A process that is forked while a scan goes on may be missed, so only several empty scans in a row count.
_CALM_SCANS, _SCAN_S = 3, 0.01

_LAST_S = 60.0
_KERNEL = (0, 2)  # parents of the kernel's own threads, which never have variables


class Leftovers:
    """What a cluster occupies on a machine: tagged processes, their shared memory, one folder.

    Args:
        tag: the cluster's random id; processes with ``WORKBENCH_CLUSTER=<tag>`` belong to it.
        folder: its folder, deleted at the end; "" for none.

    Example:
        >>> Leftovers("no-such-id").wipe()
        []
    """

    def __init__(self, tag: str, folder: str = "") -> None:
        self.tag = tag
        self.folder = folder
        self._known: list[psutil.Process] = []
        self._segments: set[str] = set()
        self._unsure = False  # was there a process in the last scan that may be one of these?

    def follow(self, pid: int, created: float) -> None:
        """Record a process. ``created`` is its creation time, because the system reuses pids."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if abs(process.create_time() - created) < 1:
                self._known.append(process)
                self._segments |= _segments(pid)

    def processes(self) -> list[psutil.Process]:
        """The living processes that carry the tag or were followed, and their descendants. Never the caller."""
        self._unsure = False
        everyone = {process.pid: process for process in psutil.process_iter()}
        family = {process.pid for process in self._known if process.is_running()}
        family |= {pid for pid, process in everyone.items() if self._tagged(process)}
        children: dict[int, list[int]] = {}
        for process in everyone.values():
            with contextlib.suppress(psutil.Error):
                children.setdefault(process.ppid(), []).append(process.pid)
        ahead = list(family)
        while ahead:
            new = set(children.get(ahead.pop(), ())) - family
            family |= new
            ahead += new
        return [everyone[pid] for pid in sorted(family - {os.getpid()}) if pid in everyone and runs(pid)]

    def _tagged(self, process: psutil.Process) -> bool:
        try:
            env = process.environ()
            if not env:  # it is starting a program, whose variables are not there yet; or it has none at all
                self._unsure |= not process.cmdline() and process.ppid() not in _KERNEL
            return bool(env.get(TAG) == self.tag)
        except (psutil.Error, OSError):
            return False

    def wipe(self, timeout_s: float = 10.0) -> list[int]:
        """Kill the processes, unlink their shared memory, delete the folder. Calling it again is harmless.

        Returns:
            The pids that survived SIGKILL until the deadline: processes stuck in a system call.
        """
        deadline, calm = time.monotonic() + timeout_s, 0
        while calm < _CALM_SCANS and time.monotonic() < deadline:
            family = self.processes()
            for process in family:  # all of them before the first death, which tears down the others' maps
                self._segments |= _segments(process.pid)
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            calm = 0 if family or self._unsure else calm + 1
            if calm < _CALM_SCANS:
                time.sleep(_SCAN_S)
        for path in self._segments:
            Path(path).unlink(missing_ok=True)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        return [] if calm else [process.pid for process in self.processes()]


def runs(pid: int) -> bool:
    """Does a process run? A zombie does not: its parent has not yet read its exit code."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _segments(pid: int) -> set[str]:
    try:
        return set(_SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text(errors="replace")))
    except OSError:
        return set()


class Watchdog:
    """The notebook kernel's handle on the watchdog process: start it, send it pids, dismiss it.

    Args:
        leftovers: removed by the watchdog when this process dies.
        env: its environment; the tag is removed.
        lock: a descriptor that it holds open as long as it lives: the lock of the leftovers' folder; -1: none.
        last: a command that it runs at the end, such as one that gives back what was reserved elsewhere.
    """

    def __init__(self, leftovers: Leftovers, env: Mapping[str, str], lock: int = -1, last: Sequence[str] = ()) -> None:
        self._leftovers = leftovers
        self._process = subprocess.Popen(
            # By its path and not with -m, which would import the package: 17 MB instead of 40.
            [sys.executable, __file__, str(os.getpid()), leftovers.tag, leftovers.folder, *last],
            stdin=subprocess.PIPE,  # its write end is not inherited by what this process starts later
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: text for name, text in env.items() if name != TAG},
            cwd="/",
            pass_fds=[lock] if lock >= 0 else [],
            start_new_session=True,
        )

    def follow(self, pids: Iterable[int]) -> None:
        """Record processes of the cluster here and in the watchdog."""
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                created = psutil.Process(pid).create_time()
                self._leftovers.follow(pid, created)
                self._write_line(f"{pid} {created!r}")

    def alive(self) -> bool:
        return self._process.poll() is None

    def dismiss(self, timeout_s: float = 5.0) -> None:
        """End the watchdog; it does not scan again, for everything is removed."""
        self._write_line(DISMISSED)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write_line(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the watchdog has ended already
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()


def keep_watch(kernel: int, leftovers: Leftovers) -> bool:
    """Read pids until the kernel dismisses this watchdog (True) or ends (False)."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(sys.stdin.fileno(), selectors.EVENT_READ)
        watch = _pidfd(kernel)
        if watch is not None:
            waiting.register(watch, selectors.EVENT_READ)
        text = b""
        while True:
            ready = {key.fd for key, _ in waiting.select()}
            if sys.stdin.fileno() not in ready:
                return False
            chunk = os.read(sys.stdin.fileno(), 65536)
            if not chunk:
                return False
            *lines, text = (text + chunk).split(b"\n")
            for line in lines:
                if line.decode() == DISMISSED:
                    return True
                pid, created = line.split()
                leftovers.follow(int(pid), float(created))


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none (macOS)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def main(arguments: list[str]) -> None:
    """``python watchdog.py <kernel's pid> <tag> <folder> [<last command>…]``."""
    kernel, tag, folder, *last = arguments
    for number in (signal.SIGTERM, signal.SIGHUP):  # Slurm sends them to every process of a job: not before the others
        signal.signal(number, signal.SIG_IGN)
    leftovers = Leftovers(tag, folder)
    if not keep_watch(int(kernel), leftovers):
        leftovers.wipe()
        if last:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(last, stdin=subprocess.DEVNULL, timeout=_LAST_S)


if __name__ == "__main__":
    main(sys.argv[1:])
