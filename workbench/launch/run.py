"""Run a command on N ranks and stay with it to its end: ``workbench run`` and ``workbench.run`` without their options.

::

    starting ──► all ranks run ──► a rank failed, or the launcher was told to end ──► the others are told, then killed
        │              └── all ranks have ended ──┐                                        │
        └── too late ──► LaunchError              └───────────────► outcome ◄──────────────┘

Nothing outlives the run: every process carries the job's mark and is swept away at the end, by this process or,
when it was killed, by its warden.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from workbench.errors import LaunchError
from workbench.launch import mpi
from workbench.launch.ending import Ending, shell_code
from workbench.launch.job import Job
from workbench.launch.output import Printer
from workbench.launch.ways import FILES, Task, processes
from workbench.launch.wires import Ended, Event, Signalled, Signals, Started, Wires, Wrote

TERMINAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S = 0.25  # so often the launcher looks whether mpiexec still runs
_LEAVE_S = 2.0  # so long mpiexec may take to end after its ranks


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Args:
        code: 0, or the exit code of the rank that failed first; 128 + its number for a signal.
        culprit: the rank that failed first, or None.
        text: one line that says what happened, and the culprit's last words; "" after success.
        signal: the signal that told the launcher to end, or 0.
        late: was the deadline missed?
        killed: was the culprit killed by a signal?
        files: what the ranks left in the folder of the task's files, by name.
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
        say: gets what the launcher itself has to say on its way.
        verbose: say what is started, too.
        numbers: signals that are passed on to the ranks; Ctrl-C's must be among them.

    Raises:
        LaunchError: the ranks did not start, or mpiexec ended before them.
    """
    with Signals(numbers) as signals, contextlib.closing(printer):
        running = _Run(task, printer, signals)
        try:
            running.start(say, verbose)
            running.attend()
        finally:
            running.stop()
        return running.outcome()


class _Processes(Job):
    """The job's processes, and how those have ended that should not."""

    def codes(self) -> dict[str, int]:
        """Exit codes by name."""
        return {name: process.returncode for name, process in self._processes.items() if process.poll() is not None}


class _Run:
    """One run: the job's processes, the wires from its ranks, and the plan for its end."""

    def __init__(self, task: Task, printer: Printer, signals: Signals) -> None:
        self._task, self._printer = task, printer
        self._processes = _Processes(task.env)
        self._wires = Wires(self._processes.folder, task.n, signals)
        self._ending = Ending(task.n)
        self._pids: dict[int, int] = {}
        self._lost: tuple[str, int] | None = None
        self._files: dict[str, bytes] = {}
        self._begun = time.monotonic()

    def start(self, say: Callable[[str], None], verbose: bool) -> None:
        """Start mpiexec, or the keepers."""
        folder = self._processes.folder
        self._processes.env |= mpi.session_folder(str(folder))
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
        """Until all ranks have ended, or are to be killed."""
        while not self._ending.over and not self._lost:
            self._take(self._wires.wait(self._ending.pause_s(time.monotonic(), _LOOK_S)))
            self._look_at_the_clock(time.monotonic())
            if not self._processes.running() and not self._ending.over:
                self._lose()
        self._wires.let_go()
        until = time.monotonic() + _LEAVE_S
        while not any(self._ending.codes.values()) and self._processes.running() and time.monotonic() < until:
            self._take(self._wires.wait(0.005))
        self._files = {path.name: path.read_bytes() for path in (self._processes.folder / FILES).iterdir()}

    def stop(self) -> None:
        """Leave nothing: no process, no file, no output unread."""
        try:
            self._processes.stop()
        finally:
            self._take(self._wires.drain())
            self._wires.close()

    def outcome(self) -> Outcome:
        """What came out."""
        ending, files = self._ending, self._files
        if self._lost and not ending.failed:
            name, code = self._lost
            text = f"{name} ended with exit code {code} before its ranks: did one call MPI_Abort?"
            return Outcome(shell_code(code) or 1, text=text, signal=ending.asked, late=ending.late, files=files)
        # The first to end may have failed because of another, which told it so and ended a moment later.
        causes = [rank for rank in ending.failed if not self._printer.follows(rank)]
        culprit = next(iter(causes or ending.failed), None)
        words = self._printer.last_words(culprit) if culprit is not None else ""
        text = _describe(ending, culprit) + (f" Its last words:\n{words}" if words else "")
        killed = culprit is not None and ending.codes[culprit] < 0
        return Outcome(ending.exit_code(culprit), culprit, text, ending.asked, ending.late, killed, files)

    def _take(self, events: Iterable[Event]) -> None:
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
                        self._note_traces()
                case Signalled(number):
                    self._ending.signalled(number, now)
                    if self._ending.running - self._pids.keys():  # not all have started, so not all would hear of it
                        self._ending.signalled(number, now)
        self._flush()

    def _look_at_the_clock(self, now: float) -> None:
        if numbers := self._ending.due(now):
            self._note_traces()
        for number in numbers:
            for rank in self._ending.running & self._pids.keys():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._pids[rank], number)  # its session: a shell as rank does not pass signals on
        task, ending = self._task, self._ending
        if task.timeout_s is not None and not ending.late and now - self._begun > task.timeout_s:
            ending.out_of_time(now)
        missing = sorted(ending.running - self._pids.keys())
        if missing and not ending.asked and now - self._begun > task.start_timeout_s:
            self._fail_to_start(f"Ranks {missing} of {task.n} did not start within {task.start_timeout_s:g} s.")

    def _note_traces(self) -> None:
        """Ranks are about to die without MPI_Finalize: look now which shared memory they have open, to remove it."""
        self._processes.follow(self._pids[rank] for rank in self._ending.running & self._pids.keys())

    def _lose(self) -> None:
        """Mpiexec or a keeper has ended before its ranks: a rank called MPI_Abort, or somebody killed it."""
        self._take(self._wires.wait(_LOOK_S))
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
        with self._unless_nobody_reads():
            self._printer.feed(rank, stream, data)

    def _flush(self) -> None:
        with self._unless_nobody_reads():
            self._printer.flush()

    @contextlib.contextmanager
    def _unless_nobody_reads(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # `workbench run … | head` has seen enough
            self._printer.mute(io.StringIO())
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
