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
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from workbench.common.text import count, plural, size
from workbench.errors import LaunchError
from workbench.launch.ranks.ending import Ending, how_it_ended, shell_code, signal_name
from workbench.launch.ranks.events import HostLost, LauncherEvent, RankEnded, Signalled, Signals, Started, Wrote
from workbench.launch.ranks.output import Printer
from workbench.launch.start import shared_memory
from workbench.launch.start.local_ranks import FixedRanks, LocalRanks, Ranks
from workbench.launch.start.starters import JobSpec
from workbench.machine import make_room

TERMINAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S = 0.25  # interval of the check that mpiexec still runs


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
        ranks: of an elastic job: by worker, the ranks of those that ended well.
    """

    code: int
    culprit: int | None = None
    text: str = ""
    signal: int = 0
    late: bool = False
    killed: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    ranks: dict[int, int] = field(default_factory=dict)


def run(
    task: JobSpec,
    printer: Printer,
    log: Callable[[str], None],
    verbose: bool = False,
    numbers: Iterable[int] = TERMINAL,
    ranks: Callable[[JobSpec, Signals], FixedRanks] = LocalRanks,
) -> Outcome:
    """Start the ranks, print what they print, and return when all have ended.

    Args:
        task: what to start.
        printer: gets the ranks' lines; it is closed at the end.
        log: gets the launcher's own messages.
        verbose: report each command that is started.
        numbers: signals that are passed on to the ranks; SIGINT must be among them.
        ranks: makes the ranks of the job; by default they are on this machine.

    Raises:
        LaunchError: the ranks did not start, mpiexec ended before them, or they need more open files than are allowed.
    """
    # Two pipes a rank here; mpiexec, which takes over the limit, needs about three.
    make_room(4 * task.n + 32, f"{count(task.n, 'rank')} need")
    with Signals(numbers) as signals, contextlib.closing(printer):
        printer.heed(lambda: signals.came)
        mine = ranks(task, signals)
        job = _FixedJob(task, printer, mine)
        try:
            job.attend(log, verbose)
        finally:
            job.take(mine.stop())
        return job.outcome()


class RunningJob:
    """A job that runs: its ranks, what they print, and the plan for its end.

    Args:
        printer: gets the ranks' lines.
        ranks: they.
        ending: the plan.
    """

    def __init__(self, printer: Printer, ranks: Ranks, ending: Ending) -> None:
        self._printer, self._ranks, self._ending = printer, ranks, ending
        self._started: set[int] = set()

    def take(self, events: Iterable[LauncherEvent]) -> None:
        """Print what ranks have written, and handle what has happened to them."""
        now = time.monotonic()
        for event in events:
            match event:
                case Wrote():
                    self._print(self._printer.feed, event.rank, event.stream, event.data)
                    continue
                case Started(rank, _):
                    self._started.add(rank)
                case Signalled(number):
                    self._ending.signalled(number, now)
            self._handle(event, now)
        self._print(self._printer.flush)

    def _handle(self, event: LauncherEvent, now: float) -> None:
        raise NotImplementedError

    def _take_next(self, now: float) -> None:
        """Send the signals that are due, and wait for what happens next, at most :data:`_LOOK_S`."""
        for number in self._ending.due(now):
            self._ranks.signal(sorted(self._ending.running & self._started), number)
        self.take(self._ranks.wait(self._printer.pause_s(self._ending.pause_s(now, _LOOK_S))))

    def _print(self, act: Callable[..., None], *args: Any) -> None:
        try:
            act(*args)
        except BrokenPipeError:  # `workbench run … | head` has seen enough
            self._printer.mute()
            self._ending.signalled(signal.SIGPIPE, time.monotonic())


class _FixedJob(RunningJob):
    """A job that ends when one of its ranks fails."""

    def __init__(self, task: JobSpec, printer: Printer, ranks: FixedRanks) -> None:
        super().__init__(printer, ranks, Ending(task.n))
        self._task, self._fixed = task, ranks
        self._lost: tuple[str, int] | None = None
        self._lost_hosts: list[HostLost] = []
        self._begun = self._progressed = time.monotonic()

    def attend(self, log: Callable[[str], None], verbose: bool) -> None:
        """Start the ranks, and handle events until all have ended, or are to be killed."""
        self._fixed.start_all(log, verbose)
        self._progressed = time.monotonic()  # the ranks' own deadline begins when all hosts have been asked for theirs
        while not self._ending.over and not self._lost:
            now = time.monotonic()
            self._check_deadlines(now)
            self._take_next(now)
            if self._fixed.ended() and not self._ending.over:
                self._lose()

    def outcome(self) -> Outcome:
        ending, files = self._ending, dict(self._ranks.files)
        if self._lost and not ending.failed:
            name, code = self._lost
            text = f"{name} ended with exit code {code} before its ranks: did one call MPI_Abort?"
            return Outcome(shell_code(code) or 1, text=text, signal=ending.asked, late=ending.late, files=files)
        # The first to end may have failed because of another rank, whose error it was told and which ended later.
        causes = [rank for rank in ending.failed if not self._printer.follows(rank)]
        culprit = next(iter(causes or ending.failed), None)
        words = self._printer.last_words(culprit) if culprit is not None else ""
        lost = next((lost for lost in self._lost_hosts if culprit in lost.ranks), None)
        text = (_describe_host(lost) if lost else _describe(ending, culprit, self._printer.where)) + (
            f" Its last words:\n{words}" if words else ""
        )
        killed = culprit is not None and ending.codes[culprit] < 0
        return Outcome(ending.exit_code(culprit), culprit, text, ending.asked, ending.late, killed, files)

    def _handle(self, event: LauncherEvent, now: float) -> None:
        match event:
            case Started():
                self._progressed = now
            case RankEnded(rank, code):
                self._ending.ended(rank, code, now)
            case HostLost():
                self._lost_hosts.append(event)
                for rank in sorted(self._ending.running & set(event.ranks)):
                    self._ending.ended(rank, -signal.SIGKILL, now)
            case Signalled(number) if self._ending.running - self._started:  # not all have started to get the signal
                self._ending.signalled(number, now)

    def _check_deadlines(self, now: float) -> None:
        task, ending = self._task, self._ending
        if task.timeout_s is not None and not ending.late and now - self._begun > task.timeout_s:
            ending.out_of_time(now)
        missing = sorted(ending.running - self._started)
        if missing and not ending.asked and now - self._progressed > task.start_timeout_s:
            since = " after the last one before them" if self._started else ""
            self._fail_to_start(f"Ranks {missing} of {task.n} did not start within {task.start_timeout_s:g} s{since}.")

    def _lose(self) -> None:
        """Mpiexec has ended before its ranks: a rank called MPI_Abort, or somebody killed it."""
        self.take(self._ranks.wait(_LOOK_S))
        name, code = next(iter(self._fixed.ended().items()))
        if self._ending.running - self._started:
            self._fail_to_start(f"{name} ended with exit code {code} before its ranks had started.")
        self._lost = (name, code)

    def _fail_to_start(self, what: str) -> NoReturn:
        report = self._fixed.report()
        raise LaunchError(
            f"{what}\n{report}\nNothing was left running. On a slow machine give more time: --start-timeout."
        )


def _describe_host(lost: HostLost) -> str:
    ranks = f"{plural('rank', len(lost.ranks))} {', '.join(map(str, lost.ranks))}"
    return f"Host {lost.host} was lost with {ranks}, which ends the job: {lost.why}."


def _describe(ending: Ending, culprit: int | None, where: Callable[[int], str]) -> str:
    if culprit is None:
        return f"The job was ended by {signal_name(ending.asked)}." if ending.asked else ""
    code, rank = ending.codes[culprit], f"Rank {culprit}{where(culprit)}"
    if code == -signal.SIGKILL:
        return f"{rank} was killed by SIGKILL (out of memory?), which ends the job."
    if code == -signal.SIGBUS:
        free = shared_memory.free_bytes() or 0
        return (
            f"{rank} was killed by SIGBUS, which ends the job: usually /dev/shm was full, of which "
            f"{size(free)} are free now. {shared_memory.CURE}"
        )
    return f"{rank} {how_it_ended(code)}, which ends the job."
