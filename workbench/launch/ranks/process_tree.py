"""A process tree: processes that are started one by one and end together, even when their parent is killed."""

from __future__ import annotations

import atexit
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from workbench.common.backoff import Backoff
from workbench.common.notebook import apart_from_debugger
from workbench.errors import LaunchError
from workbench.launch.ranks import job_folder
from workbench.launch.ranks.watchdog import TAG, Leftovers, Watchdog

_POLL_S = 0.02
_STOP_TIMEOUT_S = 10.0
_LOG_LINES = 15


class ProcessTree:
    """Processes with a common tag, a folder for their files and logs, and a watchdog.

    Args:
        env: the processes' environment, to which the tag is added.
        tag, folder: of a job on several hosts, the same on each; by default they are made here.

    Raises:
        FileExistsError: there is such a folder.

    Attributes:
        id: the random tag; every process has it in its variable ``WORKBENCH_CLUSTER``.
        env: the environment of the next process; a caller may add to it.
        folder: a temporary folder, deleted by :meth:`stop`.

    Example:
        >>> job = ProcessTree(os.environ)
        >>> job.start("sleeper", ["sleep", "60"])
        >>> job.running(), job.stop(), job.running()
        (True, None, False)
    """

    def __init__(self, env: Mapping[str, str], tag: str = "", folder: str = "") -> None:
        self.id = tag or os.urandom(8).hex()
        self.folder, self._lock = job_folder.make(folder)
        self.env = dict(env) | {TAG: self.id}
        self._owner = os.getpid()
        self._stopped = False
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._former: list[subprocess.Popen[bytes]] = []  # whose name another has now
        self._leftovers = Leftovers(self.id, str(self.folder))
        with apart_from_debugger():
            self._watchdog = Watchdog(self._leftovers, self.env, self._lock)
        atexit.register(self.stop)

    def start(self, name: str, command: list[str]) -> None:
        """Start a process; what it prints goes to ``<folder>/<name>.log``.

        Raises:
            LaunchError: the program does not exist or may not be run.
        """
        self._start(name, command, stdin=subprocess.DEVNULL, stdout=None)

    def start_with_pipes(self, name: str, command: list[str], apart: bool = False) -> subprocess.Popen[bytes]:
        """The same, with pipes as stdin and stdout. Only what it prints on stderr goes to the log.

        Args:
            name, command: see :meth:`start`.
            apart: it is no part of the tree, but ends by itself when the pipes are closed, and cleans up after itself:
                the watchdog would end it before it has.
        """
        return self._start(name, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, apart=apart)

    def _start(
        self, name: str, command: list[str], stdin: int, stdout: int | None, apart: bool = False
    ) -> subprocess.Popen[bytes]:
        self._commands[name] = command
        self._former = [each for each in self._former if each.poll() is None]
        if name in self._processes:
            self._former.append(self._processes[name])
        with self.log(name).open("ab") as log, apart_from_debugger():
            try:
                self._processes[name] = process = subprocess.Popen(
                    command,
                    bufsize=0,
                    stdin=stdin,
                    stdout=log if stdout is None else stdout,
                    stderr=log,
                    env={key: text for key, text in self.env.items() if key != TAG} if apart else self.env,
                    start_new_session=True,  # Ctrl-C in a terminal is for the program, not for its job
                )
            except OSError as error:
                raise LaunchError(f"{command[0]} cannot be run: {error}.") from error
        self.follow([] if apart else [process.pid])
        return process

    def follow(self, pids: Iterable[int]) -> None:
        """Record processes that belong to the job, in case one loses its tag and its parents.

        Raises:
            LaunchError: the watchdog has died, so nothing would end the job after the parent's death.
        """
        self._watchdog.follow(pids)
        if not self._watchdog.alive():
            raise LaunchError("the watchdog, which ends the job when its parent dies, has died.")

    def owned(self) -> bool:
        """Did this process start the job? False in a forked child."""
        return os.getpid() == self._owner

    def running(self) -> bool:
        """Do all processes run? False in a forked child, which cannot know."""
        return self.owned() and not self._stopped and not self.codes()

    def stopped(self) -> bool:
        """Has :meth:`stop` been called? Then the folder is deleted."""
        return self._stopped

    def ended(self) -> list[str]:
        return list(self.codes())

    def codes(self) -> dict[str, int]:
        """Those, with their exit codes."""
        found = dict(self._processes)  # another thread may start one meanwhile
        return {name: process.returncode for name, process in found.items() if process.poll() is not None}

    def pid(self, name: str) -> int:
        """Of a process.

        Raises:
            ProcessLookupError: it was ended.
        """
        if name not in self._processes:
            raise ProcessLookupError(name)
        return self._processes[name].pid

    def wait(self, what: str, done: Callable[[], bool], deadline: float) -> None:
        """Wait, asking every 20 ms at least, as long as all processes run.

        Args:
            what: the event's name in error texts.
            done: has it happened?
            deadline: a time of ``time.monotonic()``.

        Raises:
            LaunchError: a process ended first, or the deadline passed.
        """
        backoff = Backoff(deadline - time.monotonic(), longest_s=_POLL_S)
        while not done():
            for name, process in dict(self._processes).items():
                if process.poll() is not None:
                    raise LaunchError(f"{name} ended with exit code {process.returncode} before {what}.")
            if not backoff.pause():
                raise LaunchError(f"the deadline passed before {what}.")

    def end(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait(_STOP_TIMEOUT_S)
        del self._commands[name]
        self.log(name).unlink(missing_ok=True)

    def report(self) -> str:
        """For each process: its command, and the last lines of its log."""
        lines = []
        for name, command in dict(self._commands).items():  # another thread may end one meanwhile
            lines += [f"{name}: {' '.join(command)}"]
            log = self.log(name)
            tail = log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if log.exists() else []
            lines += [f"  | {line}" for line in tail or ["(no output)"]]
        return "\n".join(lines)

    def stop(self) -> None:
        """Kill every process and delete every file of the job. A second call does nothing, nor one in a forked child.

        The processes get SIGKILL at once: a rank that waits in MPI does not react to SIGTERM.

        Raises:
            LaunchError: processes outlived SIGKILL; the text names them.
        """
        if self._stopped or not self.owned():  # a forked child must not end its parent's job
            return
        self._stopped = True
        atexit.unregister(self.stop)
        left = self._leftovers.wipe(_STOP_TIMEOUT_S)
        if left:  # the watchdog keeps running, and tries again when this process ends
            raise LaunchError(
                f"Processes {left} survived SIGKILL for {_STOP_TIMEOUT_S:.0f} s, so they hang in the operating system "
                "(a device or a network disk). They get SIGKILL again when this process ends."
            )
        for process in (*self._processes.values(), *self._former):
            process.wait(_STOP_TIMEOUT_S)
        self._watchdog.dismiss()
        os.close(self._lock)

    def log(self, name: str) -> Path:
        """The log of a process: its stdout and stderr; others may append to it."""
        return self.folder / f"{name}.log"
