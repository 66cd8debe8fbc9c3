"""A job: processes that are started one by one and end together, whatever happens to their parent."""

from __future__ import annotations

import atexit
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from workbench.errors import LaunchError
from workbench.launch.warden import MARK, Traces, Warden

_POLL_S = 0.02
_STOP_TIMEOUT_S = 10.0
_LOG_LINES = 15


class Job:
    """Processes with a common mark, a folder for their files and logs, and a warden.

    Args:
        env: the processes' environment, to which the mark is added.

    Attributes:
        id: the random mark that every process carries in ``WORKBENCH_CLUSTER``.
        env: what the next process gets; a caller may add to it.
        folder: a temporary folder, deleted by :meth:`stop`.

    Example:
        >>> job = Job(os.environ)
        >>> job.start("sleeper", ["sleep", "60"])
        >>> job.running(), job.stop(), job.running()
        (True, None, False)
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.id = secrets.token_hex(8)
        self.folder = Path(tempfile.mkdtemp(prefix="workbench-job-"))
        self.env = dict(env) | {MARK: self.id}
        self._owner = os.getpid()
        self._stopped = False
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._traces = Traces(self.id, str(self.folder))
        self._warden = Warden(self._traces, self.env)
        atexit.register(self.stop)

    def start(self, name: str, command: list[str]) -> None:
        """Start a process; what it prints goes to ``<folder>/<name>.log``.

        Raises:
            LaunchError: the program does not exist or may not be run.
        """
        self._commands[name] = command
        with self.log(name).open("ab") as log:
            try:
                self._processes[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.env,
                    start_new_session=True,  # Ctrl-C in a terminal is for the program, not for its job
                )
            except OSError as error:
                raise LaunchError(f"{command[0]} cannot be run: {error}.") from error
        self.follow([self._processes[name].pid])

    def follow(self, pids: Iterable[int]) -> None:
        """Remember processes that belong to the job, in case one loses its mark and its parents.

        Raises:
            LaunchError: the warden is gone, so nobody would end the job in the parent's stead.
        """
        self._warden.follow(pids)
        if not self._warden.alive():
            raise LaunchError("the warden, which ends the job when its parent dies, has died itself.")

    def owned(self) -> bool:
        """Does the job belong to this process, and not to the one that this was forked from?"""
        return os.getpid() == self._owner

    def running(self) -> bool:
        """Has no process ended? False in a forked child, which cannot know."""
        return (
            self.owned() and not self._stopped and all(process.poll() is None for process in self._processes.values())
        )

    def wait(self, what: str, done: Callable[[], bool], deadline: float) -> None:
        """Wait, asking every 20 ms, as long as all processes run.

        Args:
            what: names in errors what is waited for.
            done: asks whether it has come.
            deadline: a time of ``time.monotonic()``.

        Raises:
            LaunchError: a process ended meanwhile, or the deadline passed.
        """
        while not done():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise LaunchError(f"{name} ended with exit code {process.returncode} before {what}.")
            if time.monotonic() > deadline:
                raise LaunchError(f"the deadline passed before {what}.")
            time.sleep(_POLL_S)

    def report(self) -> str:
        """For each process that was started: its command, and the last lines that it wrote."""
        lines = []
        for name, command in self._commands.items():
            lines += [f"{name}: {' '.join(command)}"]
            tail = self.log(name).read_text(errors="replace").splitlines()[-_LOG_LINES:]
            lines += [f"  | {line}" for line in tail or ["(no output)"]]
        return "\n".join(lines)

    def stop(self) -> None:
        """Kill every process and delete every file of the job; called again or in a forked child, do nothing.

        The processes are killed, not asked: a rank that waits in MPI would never answer.

        Raises:
            LaunchError: processes outlived SIGKILL; the text names them.
        """
        if self._stopped or not self.owned():  # a forked child must not end its parent's job
            return
        self._stopped = True
        atexit.unregister(self.stop)
        left = self._traces.wipe(_STOP_TIMEOUT_S)
        if left:  # the warden stays: it tries again when this process ends
            raise LaunchError(
                f"Processes {left} survived SIGKILL for {_STOP_TIMEOUT_S:.0f} s, so they hang in the operating system "
                "(a device or a network disk). They are tried again when this process ends."
            )
        for process in self._processes.values():
            process.wait(_STOP_TIMEOUT_S)
        self._warden.dismiss()

    def log(self, name: str) -> Path:
        """Where a process writes what it prints; others may append to it."""
        return self.folder / f"{name}.log"
