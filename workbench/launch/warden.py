"""The warden: no process of a cluster outlives the notebook that started it.

A cluster is a dozen processes that daemonise, start sessions of their own and get new parents, so neither
process groups nor a parent's death reach them all. Instead each carries a mark in its environment,
``WORKBENCH_CLUSTER=<id>``, which children inherit and nothing takes away. :class:`Traces` finds and kills
what carries the mark.

The notebook's kernel calls it in ``down()``. When the kernel dies without a word (``kill -9``), a tiny
process of its own session does: this file, run as a program. It sleeps until its standard input ends,
whose write end the kernel alone holds, or until the kernel's pidfd says that it is gone (a child forked by
the kernel may still hold the write end). Nothing is ever killed by a program's name.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

MARK = "WORKBENCH_CLUSTER"
DISMISSED = "dismissed"
# MPI libraries unlink these segments in MPI_Finalize, which a killed rank never reaches: 1 MB per rank would stay.
_SEGMENT = re.compile(r"/dev/shm/(?:mpich_shm|ucx_shm|vader_segment|sm_segment)\S*$", re.MULTILINE)
# A process between fork and exec does not show its mark yet: only several empty scans in a row mean peace.
_CALM_SCANS, _SCAN_S = 3, 0.05


class Traces:
    """All that a cluster leaves on a machine: marked processes, their shared memory, one folder.

    Args:
        mark: the cluster's random id; processes with ``WORKBENCH_CLUSTER=<mark>`` belong to it.
        folder: its folder, deleted at the end; "" for none.

    Example:
        >>> Traces("no-such-id").wipe()
        []
    """

    def __init__(self, mark: str, folder: str = "") -> None:
        self.mark = mark
        self.folder = folder
        self._known: list[psutil.Process] = []
        self._segments: set[str] = set()

    def follow(self, pid: int, created: float) -> None:
        """Remember a process. ``created`` is its time of creation, for the pid may be used again by another."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if abs(process.create_time() - created) < 1:
                self._known.append(process)
                self._segments |= _segments(pid)

    def processes(self) -> list[psutil.Process]:
        """The living processes that carry the mark or were followed, and their descendants. Never the caller."""
        everyone = {process.pid: process for process in psutil.process_iter()}
        family = {process.pid for process in self._known if process.is_running()}
        family |= {pid for pid, process in everyone.items() if self._marked(process)}
        children: dict[int, list[int]] = {}
        for process in everyone.values():
            with contextlib.suppress(psutil.Error):
                children.setdefault(process.ppid(), []).append(process.pid)
        ahead = list(family)
        while ahead:
            new = set(children.get(ahead.pop(), ())) - family
            family |= new
            ahead += new
        return [everyone[pid] for pid in sorted(family - {os.getpid()}) if pid in everyone and _alive(everyone[pid])]

    def _marked(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get(MARK) == self.mark)
        except (psutil.Error, OSError):
            return False

    def wipe(self, timeout_s: float = 10.0) -> list[int]:
        """Kill the processes, unlink their shared memory, delete the folder; call it as often as you like.

        Returns:
            The pids that outlived SIGKILL until the deadline: processes stuck in the kernel of the machine.
        """
        deadline, calm = time.monotonic() + timeout_s, 0
        while calm < _CALM_SCANS and time.monotonic() < deadline:
            family = self.processes()
            for process in family:  # all of them before the first death, which tears down the others' maps
                self._segments |= _segments(process.pid)
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            calm = 0 if family else calm + 1
            time.sleep(_SCAN_S)
        for path in self._segments:
            Path(path).unlink(missing_ok=True)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        return [process.pid for process in self.processes()]


def _alive(process: psutil.Process) -> bool:
    """A zombie is dead: only its parent has not heard of it yet."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _segments(pid: int) -> set[str]:
    try:
        return set(_SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text(errors="replace")))
    except OSError:
        return set()


class Warden:
    """The kernel's end: starts the warden process, tells it pids, dismisses it.

    Args:
        traces: what the warden wipes away when this process dies.
        env: its environment, less the mark.
    """

    def __init__(self, traces: Traces, env: Mapping[str, str]) -> None:
        self._traces = traces
        self._process = subprocess.Popen(
            # By its path and not with -m, which would import the package: 17 MB instead of 40.
            [sys.executable, __file__, str(os.getpid()), traces.mark, traces.folder],
            stdin=subprocess.PIPE,  # its write end is not inherited by what this process starts later
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: text for name, text in env.items() if name != MARK},
            cwd="/",
            start_new_session=True,
        )

    def follow(self, pids: Iterable[int]) -> None:
        """Remember processes of the cluster on both ends: in this process's traces and in the warden's."""
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                created = psutil.Process(pid).create_time()
                self._traces.follow(pid, created)
                self._say(f"{pid} {created!r}")

    def alive(self) -> bool:
        """Is the warden process there?"""
        return self._process.poll() is None

    def dismiss(self, timeout_s: float = 5.0) -> None:
        """All is clean: let the warden go without another look."""
        self._say(DISMISSED)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # a warden that is gone already needs no news
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()


def keep_watch(kernel: int, traces: Traces) -> bool:
    """Sleep until the kernel dismisses this warden (True) or is gone (False); read pids meanwhile."""
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
                traces.follow(int(pid), float(created))


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none (macOS)."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def main(arguments: list[str]) -> None:
    """``python warden.py <kernel's pid> <mark> <folder>``."""
    kernel, mark, folder = arguments
    traces = Traces(mark, folder)
    if not keep_watch(int(kernel), traces):
        traces.wipe()


if __name__ == "__main__":
    main(sys.argv[1:])
