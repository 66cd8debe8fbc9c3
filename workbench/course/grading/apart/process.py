"""The judge's hold on the process that runs a notebook: starting it, hearing from it, ending it with all it started."""

from __future__ import annotations

import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.cli.grade.reaper import descendants, end_descendants
from workbench.config import cache_dir, child_environment
from workbench.course.grading.apart.confine import ProcessLimits, readable
from workbench.course.grading.apart.disk import Disk
from workbench.course.grading.apart.lanes import GoneError, Lane, LaneConnection
from workbench.course.grading.apart.values import ProtocolError
from workbench.course.grading.apart.worker import LearnersFunction, NotebookWorker
from workbench.errors import WorkbenchError

CONTROL = 0
_START_S = 60.0  # python and numpy from a slow disk
_WATCH_S = 0.05
_MOST_EVENTS = 50_000
_PAGE = os.sysconf("SC_PAGE_SIZE")
_KEPT = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "WORKBENCH_CLUSTER")


class StartError(WorkbenchError):
    """There is no process to run a notebook in."""


class Confined:
    """A process with learners' code, with a connection, under a watch.

    Args:
        module: what it runs.
        folder: where it works.
        sandbox: with bubblewrap.
        limits: see :class:`ProcessLimits`.

    Attributes:
        sock: this end of the connection.
        ended: why it was ended from here; "" if it was not.
        spare: processes beside it, which count and end by themselves.
    """

    def __init__(self, module: str, folder: str, sandbox: bool, limits: Mapping[str, int]) -> None:
        self.limits, self.ended, self.spare = ProcessLimits(**limits), "", list[int]()
        self.sock, theirs = socket.socketpair()
        Path(folder).mkdir(exist_ok=True)
        # Empty: in an earlier process's folder there may be a numpy.py, or a sitecustomize.py, of a learner's.
        self.folder = folder = tempfile.mkdtemp(prefix="", dir=folder)
        words = [sys.executable, "-m", module, str(theirs.fileno()), folder]
        with theirs, Path(folder, "..", "..", "last_words").resolve().open("wb") as log:
            self._log = log.name
            self._process = subprocess.Popen(
                [*(bubblewrap(folder) if sandbox else ()), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment(folder),
                cwd="/",  # which Python 3.10 looks for modules in
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._over, self._stopping = threading.Event(), threading.Lock()
        self._disk = Disk(self.folder, self.limits.disk)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Count its processes and their memory: a fork bomb must not be the machine's end."""
        while not self._over.wait(_WATCH_S):
            others = {pid for one in self.spare for pid in (one, *descendants(one))}
            mine = [pid for pid in descendants(os.getpid()) if pid not in others]
            if len(mine) > self.limits.processes:
                self.stop(f"started more than {self.limits.processes} processes")
            elif (used := sum(map(_resident, mine))) > self.limits.memory:
                self.stop(f"took {used >> 20:,} MiB of memory, more than {self.limits.memory >> 20:,}")
            elif wrong := self._disk.look():
                self.stop(wrong)

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self, why: str = "") -> None:
        """End it, and all that it has started."""
        with self._stopping:  # who comes second waits, and does not start the next one among those that are ended
            if self._over.is_set():
                return
            self.ended = why
            self._over.set()
            end_descendants(self.spare)
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
            self.sock.close()

    def last_words(self) -> str:
        """The last line that it has written before it was confined."""
        with suppress(OSError):
            text = Path(self._log).read_bytes()[-4000:].decode(errors="replace")
            return text.strip().rpartition("\n")[2]
        return ""


class NotebookProcess(Confined):
    """The process that runs the cells, and then learners' functions.

    Attributes:
        functions: by exercise, what was handed in.
        unbounded: what the kernel does not bound for it; "" if nothing.
    """

    def __init__(self, folder: str, sandbox: bool, limits: Mapping[str, int]) -> None:
        super().__init__("workbench.course.grading.apart.notebook", folder, sandbox, limits)
        self.functions: dict[str, Any] = {}
        self.unbounded = ""
        self.worker = NotebookWorker()
        self.worker.wire = self.wire = LaneConnection(
            self.sock, self.worker.values, self.worker.answer, lambda error: ""
        )
        self._events: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self._event_count = 0
        self.wire.listen(self._strange)

    def _strange(self, number: int, op: str, fields: dict[str, Any], blobs: memoryview) -> None:
        if number != CONTROL:
            return  # of a call that was given up
        self._event_count += 1
        if self._event_count > _MOST_EVENTS:
            raise ProtocolError("More messages than a notebook can have statements.")
        try:
            self._events.put((op, {name: self.worker.values.unpack(one, blobs) for name, one in fields.items()}))
        except WorkbenchError:
            raise ProtocolError("A message that cannot be read.") from None

    def begin(self, cells: Sequence[str], stops: Mapping[int, int]) -> None:
        """Hand over the cells.

        Raises:
            StartError: it ends, or does not answer.
        """
        control = Lane(self.wire, CONTROL)
        limits = {name: getattr(self.limits, name) for name in ("memory", "file", "processes", "cpu_s")}
        with suppress(GoneError):
            control.send("run", {"cells": list(cells), "stops": dict(stops), "limits": limits})
        event = self.event(_START_S)
        if event is None or event[0] != "confined":
            raise StartError(f"the process that runs it did not start: {self.last_words() or 'it ended'}")
        self.unbounded = str(event[1].get("unbounded"))  # said before anything of the notebook runs

    def event(self, timeout_s: float) -> tuple[str, dict[str, Any]] | None:
        """What it says next; ``("gone", {})`` once it has ended; None if it says nothing in time."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                op, fields = self._events.get(timeout=0.02)
            except queue.Empty:
                if self.wire.gone.is_set() and self._events.empty():
                    return "gone", {}
                if time.monotonic() > until:
                    return None
                continue
            if op == "ready" and isinstance(fields.get("functions"), dict):
                self.functions = fields["functions"]
            return op, fields

    def function(self, handed_in: Mapping[str, Any]) -> LearnersFunction:
        """A function that was handed in, as the judge calls it."""
        number, parameters = handed_in.get("number"), handed_in.get("parameters")
        names = parameters if isinstance(parameters, list) else []
        return LearnersFunction(self.worker, number if isinstance(number, int) else -1, "function", names)

    def answers(self, timeout_s: float) -> bool:
        """Is it there, and free? A loop in C, or one that catches everything, is neither."""
        if self.wire.gone.is_set():
            return False
        lane = self.worker.lane()
        lane.until = time.monotonic() + timeout_s
        try:
            while time.monotonic() < lane.until:
                if not lane.ask("busy").get("value"):
                    return True
                time.sleep(0.02)
        except WorkbenchError:
            return False
        finally:
            lane.until = float("inf")
        return False

    def begun(self, name: str) -> bool:
        """Was a function handed in for this exercise?"""
        return isinstance(self.functions.get(name), dict)


def environment(folder: str) -> dict[str, str]:
    """Of a process with learners' code: what Python needs, and nothing of what this user has set besides."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    here = {"HOME": folder, "TMPDIR": folder, "MPLCONFIGDIR": folder, "MPLBACKEND": "Agg", "PYTHONSAFEPATH": "1"}
    here["PYTHONNOUSERSITE"] = "1"  # it is below HOME, where learners' code writes
    new = {**threads, **here, "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(cache_dir().parent)}
    return {name: text for name, text in child_environment(**new).items() if name in new or name in _KEPT}


def bubblewrap(folder: str) -> list[str]:
    """The words that start a command in a sandbox: all is read-only or hidden but its own folder, and no network."""
    found = shutil.which("bwrap")
    if found is None:
        raise StartError("--sandbox needs bubblewrap: install the package of that name (apt-get install bubblewrap)")
    shown = [
        word for path in readable() if path not in ("/proc", "/sys", "/dev") for word in ("--ro-bind-try", path, path)
    ]
    return [
        *(found, "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", *shown),
        *("--unshare-all", "--die-with-parent", "--new-session", "--bind", folder, folder, "--chdir", folder),
    ]


def _resident(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0
