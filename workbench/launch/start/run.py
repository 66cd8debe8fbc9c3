"""Run a command on N ranks until all have ended: ``workbench run`` and ``workbench.run`` without their options.

::

    starting ──► all ranks run ──► a rank failed, or the launcher was told to end ──► the others are told, then killed
        │              └── all ranks have ended ──┐                                        │
        └── too late ──► LaunchError              └───────────────► outcome ◄──────────────┘

No process outlives the run: every process has the job's tag and is killed at the end, by this process or, if this
process was killed, by its watchdog.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from workbench import config
from workbench.common.text import count
from workbench.errors import LaunchError
from workbench.launch.ranks.ending import Ending, shell_code
from workbench.launch.ranks.events import Ended, LauncherEvent, RankPipes, Signalled, Signals, Started, Wrote
from workbench.launch.ranks.output import Printer
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.start import mpi
from workbench.launch.start.binding import Binding, bind
from workbench.launch.start.starters import FILES, Task, processes
from workbench.machine import make_room

TERMINAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S = 0.25  # interval of the check that mpiexec still runs
_LEAVE_S = 0.1  # deadline for mpiexec to end after its ranks: MPICH's sometimes does not notice for 1 or 2 s


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Args:
        code: 0, or the exit code of the rank that failed first; 128 + its number for a signal.
        culprit: the rank that failed first, or None.
        text: what happened, in one line, and the culprit's last words; "" after success.
        signal: the signal that told the launcher to end, or 0.
        late: was the deadline missed?
        killed: was the culprit killed by a signal?
        files: by name, the contents of the folder of the task's files at the end.
    """

    code: int
    culprit: int | None = None
    text: str = ""
    signal: int = 0
    late: bool = False
    killed: bool = False
    files: dict[str, bytes] = field(default_factory=dict)


def run(
    task: Task, printer: Printer, say: Callable[[str], None], verbose: bool = False, numbers: Iterable[int] = TERMINAL
) -> Outcome:
    """Start the ranks, print what they print, and return when all have ended.

    Args:
        task: what to start.
        printer: gets the ranks' lines; it is closed at the end.
        say: gets the launcher's own messages.
        verbose: report each command that is started.
        numbers: signals that are passed on to the ranks; SIGINT must be among them.

    Raises:
        LaunchError: the ranks did not start, mpiexec ended before them, or they need more open files than are allowed.
    """
    # Two pipes a rank here; mpiexec, which takes over the limit, needs about three.
    make_room(4 * task.n + 32, f"{count(task.n, 'rank')} need")
    way = config.settings(task.env).bind
    # The cores are looked at before the first process of the job, which would be taken for another's.
    with Signals(numbers) as signals, contextlib.closing(printer), bind(task.n, way) as binding:
        running = _Run(task, printer, signals, binding)
        try:
            running.start(say, verbose)
            running.attend()
        finally:
            running.stop()
        return running.outcome()


class _Processes(ProcessTree):
    """The job's processes and their exit codes."""

    def codes(self) -> dict[str, int]:
        """Exit codes by name."""
        return {name: process.returncode for name, process in self._processes.items() if process.poll() is not None}


class _Run:
    """One run: the job's processes, the pipes from its ranks, and the plan for its end."""

    def __init__(self, task: Task, printer: Printer, signals: Signals, binding: Binding) -> None:
        self._task, self._printer, self._binding = task, printer, binding
        self._processes = _Processes(task.env)
        self._pipes = RankPipes(self._processes.folder, task.n, signals)
        self._ending = Ending(task.n)
        self._pids: dict[int, int] = {}
        self._lost: tuple[str, int] | None = None
        self._files: dict[str, bytes] = {}
        self._begun = time.monotonic()

    def start(self, say: Callable[[str], None], verbose: bool) -> None:
        """Start mpiexec, or the supervisors."""
        folder = self._processes.folder
        self._processes.env |= mpi.session_folder(str(folder)) | self._binding.env
        if verbose or self._binding.notable:
            say(self._binding.line())
        (folder / FILES).mkdir()
        for name, content in self._task.files.items():
            (folder / FILES / name).write_bytes(content)
        common = dict(self._processes.env)
        for process in processes(self._task, folder, say):
            if verbose:
                say(f"starting {shlex.join(process.command)}")
            self._processes.env = common | process.env
            self._processes.start(process.name, process.command)

    def attend(self) -> None:
        """Handle events until all ranks have ended, or are to be killed."""
        while not self._ending.over and not self._lost:
            self._check_deadlines(time.monotonic())
            self._take(self._pipes.wait(self._ending.pause_s(time.monotonic(), _LOOK_S)))
            if not self._processes.running() and not self._ending.over:
                self._lose()
        self._pipes.release_supervisors()
        until = time.monotonic() + _LEAVE_S
        while not any(self._ending.codes.values()) and self._processes.running() and time.monotonic() < until:
            self._take(self._pipes.wait(0.005))
        self._files = {path.name: path.read_bytes() for path in (self._processes.folder / FILES).iterdir()}

    def stop(self) -> None:
        """Kill every process, delete every file, read the rest of the output."""
        try:
            self._processes.stop()
        finally:
            self._take(self._pipes.drain())
            self._pipes.close()

    def outcome(self) -> Outcome:
        """The result."""
        ending, files = self._ending, self._files
        if self._lost and not ending.failed:
            name, code = self._lost
            text = f"{name} ended with exit code {code} before its ranks: did one call MPI_Abort?"
            return Outcome(shell_code(code) or 1, text=text, signal=ending.asked, late=ending.late, files=files)
        # The first to end may have failed because of another rank, whose error it was told and which ended later.
        causes = [rank for rank in ending.failed if not self._printer.follows(rank)]
        culprit = next(iter(causes or ending.failed), None)
        words = self._printer.last_words(culprit) if culprit is not None else ""
        text = _describe(ending, culprit) + (f" Its last words:\n{words}" if words else "")
        killed = culprit is not None and ending.codes[culprit] < 0
        return Outcome(ending.exit_code(culprit), culprit, text, ending.asked, ending.late, killed, files)

    def _take(self, events: Iterable[LauncherEvent]) -> None:
        now = time.monotonic()
        for event in events:
            match event:
                case Wrote(rank, stream, data):
                    self._print(rank, stream, data)
                case Started(rank, pid):
                    self._pids[rank] = pid
                    self._processes.follow([pid])
                case Ended(rank, code):
                    self._ending.ended(rank, code, now)
                    if code:
                        self._note_shared_memory()
                case Signalled(number):
                    self._ending.signalled(number, now)
                    if self._ending.running - self._pids.keys():  # not all have started to get the signal
                        self._ending.signalled(number, now)
        self._flush()

    def _check_deadlines(self, now: float) -> None:
        if numbers := self._ending.due(now):
            self._note_shared_memory()
        for number in numbers:
            for rank in self._ending.running & self._pids.keys():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._pids[rank], number)  # its session: a shell as rank does not forward signals
        task, ending = self._task, self._ending
        if task.timeout_s is not None and not ending.late and now - self._begun > task.timeout_s:
            ending.out_of_time(now)
        missing = sorted(ending.running - self._pids.keys())
        if missing and not ending.asked and now - self._begun > task.start_timeout_s:
            self._fail_to_start(f"Ranks {missing} of {task.n} did not start within {task.start_timeout_s:g} s.")

    def _note_shared_memory(self) -> None:
        """Record the shared memory of ranks that are about to die without MPI_Finalize, to remove it later."""
        self._processes.follow(self._pids[rank] for rank in self._ending.running & self._pids.keys())

    def _lose(self) -> None:
        """Mpiexec or a supervisor has ended before its ranks: a rank called MPI_Abort, or somebody killed it."""
        self._take(self._pipes.wait(_LOOK_S))
        name, code = next(iter(self._processes.codes().items()))
        if self._ending.running - self._pids.keys():
            self._fail_to_start(f"{name} ended with exit code {code} before its ranks had started.")
        self._lost = (name, code)

    def _fail_to_start(self, what: str) -> NoReturn:
        report = self._processes.report()
        raise LaunchError(
            f"{what}\n{report}\nNothing was left running. On a slow machine give more time: --start-timeout."
        )

    def _print(self, rank: int, stream: str, data: bytes) -> None:
        with self._muted_without_reader():
            self._printer.feed(rank, stream, data)

    def _flush(self) -> None:
        with self._muted_without_reader():
            self._printer.flush()

    @contextlib.contextmanager
    def _muted_without_reader(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # `workbench run … | head` has seen enough
            self._printer.mute()
            self._ending.signalled(signal.SIGPIPE, time.monotonic())


def _describe(ending: Ending, culprit: int | None) -> str:
    if culprit is None:
        return f"The job was ended by {_name(ending.asked)}." if ending.asked else ""
    code = ending.codes[culprit]
    if code == -signal.SIGKILL:
        return f"Rank {culprit} was killed by SIGKILL (out of memory?), which ends the job."
    how = f"was killed by {_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return f"Rank {culprit} {how}, which ends the job."


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


__all__ = ["TERMINAL", "Outcome", "run"]
