"""Run an elastic job: start workers where there are slots, tell them of each epoch, and go on when one is lost.

::

    discovery ──► slots ──► start a worker ──► membership ──► epoch ──► all have ended well ──► done
                    ▲                              ▲            │
                    └── rests ◄── a worker is lost ┘◄───────────┘  too few for too long ──► failed

The job ends when its workers have: well, if one of them has ended well after it belonged to an epoch.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from signal import SIGKILL, SIGTERM

from workbench.common.messages import Message
from workbench.common.text import count
from workbench.launch.elastic.discovery import FindsHosts
from workbench.launch.elastic.membership import Membership, Out
from workbench.launch.elastic.slots import Slots
from workbench.launch.elastic.workers import Silence, Workers
from workbench.launch.ranks.ending import Ending, how_it_ended, signal_name
from workbench.launch.ranks.events import HostLost, LauncherEvent, RankEnded, WorkerMessage
from workbench.launch.ranks.output import Printer
from workbench.launch.start.run import Outcome, RunningJob
from workbench.launch.start.starters import Placement

_TOGETHER_S = 10.0
"""So long a newcomer waits for those that were started with it; the members train meanwhile."""
_REASON_S = 5.0  # between two looks at why nothing goes on
GRACE_S = 25.0
"""From SIGTERM to SIGKILL: Slurm's and Kubernetes' own grace is 30 s."""
RESET_LIMIT = "Horovod was shutdown because number of resets during elastic job exceeded limit: {}"
"""As Horovod says it; scripts look for it."""


@dataclass(frozen=True)
class Limits:
    """What an elastic job may do.

    Args:
        least, most: ranks of an epoch; most 0: as many as there are slots.
        resets: so many epochs after the first; None: any number.
        timeout_s: how long it waits for ``least`` ranks.
        rest_s: the shortest and the longest rest of a host after a failure.
        peer_timeout_s: a rank for which the others wait, and that says nothing for so long, is killed.
    """

    least: int = 1
    most: int = 0
    resets: int | None = None
    timeout_s: float = 600.0
    rest_s: tuple[float, float] = (1.0, 60.0)
    peer_timeout_s: float = 30.0


@dataclass
class _Life:
    """What the launcher knows of a worker, also when it has ended.

    Args:
        belonged: has it been in an epoch?
        leaving: has it got SIGTERM?
        unlisted: is its slot there no more?
        dismissed: was it sent away?
        finished: its rank, if it has ended well; -1 of one that never had any.
    """

    belonged: bool = False
    leaving: bool = False
    unlisted: bool = False
    dismissed: bool = False
    finished: int | None = None


class ElasticRun(RunningJob):
    """One elastic job.

    Args:
        limits: see there.
        workers: start and end processes, and carry messages.
        discovery: says which hosts there are.
        printer: gets the workers' lines.
        log: gets the launcher's own messages.
    """

    def __init__(
        self, limits: Limits, workers: Workers, discovery: FindsHosts, printer: Printer, log: Callable[[str], None]
    ) -> None:
        super().__init__(printer, workers, Ending(0, GRACE_S))
        self._limits, self._workers, self._discovery, self._log = limits, workers, discovery, log
        self._members = Membership(limits.least, limits.most, more=self._may_fill)
        self._slots = Slots(limits.most, limits.rest_s)
        self._lives: dict[int, _Life] = {}
        self._silence = Silence(workers, limits.peer_timeout_s, self._kill_silent)
        self._last: tuple[int, str] | None = None  # who was lost last, and how
        self._failure = ""
        self._reason_at = time.monotonic() + _REASON_S
        self._short_since: float | None = None
        self._batches, self._together_since = 0, float("inf")

    def attend(self) -> None:
        self._find_slots()
        while not self._over():
            now = time.monotonic()
            self._find_slots()
            self._fill(now)
            self._check(now)
            self._take_next(now)

    def outcome(self) -> Outcome:
        ending, left = self._ending, self._members.left and not self._ending.asked
        if self._failure or (self._last and not (self._finished() or left or ending.asked)):
            worker, how = self._last or (None, "")
            words = self._printer.last_words(worker) if worker is not None else ""
            text = self._failure or f"No rank is left. The last one {how}."
            code = ending.exit_code(worker) if worker in ending.codes else 1
            text += f" Its last words:\n{words}" if words else ""
            return Outcome(code or 1, worker, text, ending.asked, files=dict(self._workers.files))
        text = f"The job was ended by {signal_name(ending.asked)}." if ending.asked else ""
        if left:
            text = "All ranks have left the job after a commit, because of SIGTERM or because their hosts left."
            return Outcome(128 + SIGTERM, None, text)
        files, ranks = dict(self._workers.files), self._finished()
        return Outcome(ending.exit_code(None), None, text, ending.asked, files=files, ranks=ranks)

    def _handle(self, event: LauncherEvent, now: float) -> None:
        match event:
            case RankEnded(worker, code):
                self._end(worker, code, now)
            case WorkerMessage(worker, message):
                with contextlib.suppress(KeyError, TypeError):  # it makes no sense
                    self._receive(worker, message)
            case HostLost(host, workers, why):
                began = bool(self._started & set(workers))
                self._log(f"host {host} {'was lost' if began else 'cannot be used'}: {why}.")
                for worker in workers[1:]:  # one failure of one host
                    self._slots.left(worker)
                for worker in workers:
                    self._end(worker, -SIGKILL, now, f"its host {host} was lost" if began else f"{host}: {why}")

    def _over(self) -> bool:
        if self._ending.running:
            return self._ending.over
        return self._closing or bool(self._lives and not self._slots.may_start())

    def _finished(self) -> dict[int, int]:
        """The workers that have ended well, with their ranks."""
        return {worker: life.finished for worker, life in self._lives.items() if life.finished is not None}

    @property
    def _closing(self) -> bool:
        """The job is about to end: nothing more is started."""
        return bool(self._failure or self._finished() or self._members.left or self._ending.asked)

    # --- workers come and go --------------------------------------------------------------------------

    def _find_slots(self) -> None:
        """Take note of hosts that came or went."""
        found, complaint = self._discovery.news()
        if complaint:
            self._log(f"{complaint} The hosts stay as they were.")
        if found is not None:
            elsewhere = [host for host, _ in found if not self._workers.takes(host)]
            if elsewhere:
                self._log(f"{', '.join(elsewhere)}: the job began only on this machine, and stays there.")
            gone = set(self._slots.found({host: slots for host, slots in found if host not in elsewhere}))
            if new := [worker for worker in gone if not self._lives[worker].unlisted]:
                self._log(f"{count(len(new), 'worker')} will leave at a commit, when others can go on: slots are gone.")
            for worker, life in self._lives.items():
                life.unlisted = worker in gone
            self._send(self._members.unlist(gone))

    def _may_fill(self) -> bool:
        """Will others be started, now or after a rest?"""
        return bool(not self._closing and self._slots.free(math.inf))

    def _fill(self, now: float) -> None:
        """Start workers in free slots, unless the job is about to end."""
        if self._closing or (not self._lives and self._slots.total < self._limits.least):
            return
        free = self._slots.free(now)
        self._batches += 1
        if free:
            self._send(self._members.announce_started())
        for host, slot in free:
            worker = len(self._lives)
            self._lives[worker] = _Life()
            self._slots.take(worker, host, slot)
            self._printer.add(worker, host if len(self._slots.hosts) > 1 else "")
            self._ending.running.add(worker)
            self._send(self._members.started(worker, host, self._batches))
            number, total = self._slots.before(host) + slot, min(self._slots.total, self._limits.most or math.inf)
            self._workers.start(
                worker, Placement(host, slot, number, number, int(total), self._slots.hosts[host].slots)
            )

    def _end(self, worker: int, code: int, now: float, why: str = "") -> None:
        """A worker has ended; ``why`` if its host did, which has been said already."""
        ending, life = self._ending, self._lives[worker]
        ending.running.discard(worker)
        ending.codes[worker] = code
        rank = self._members.rank_of(worker)
        if code == 0 or life.dismissed:
            if life.leaving:  # whoever ended it wants it to rest
                self._slots.failed(worker, True, now)
            else:
                self._slots.left(worker)
            if not life.dismissed:
                life.finished = rank
            self._send(self._members.ended(worker))
            return
        how = why or f"it {how_it_ended(code)}"
        who = f"worker {worker}" + (f" (rank {rank})" if rank >= 0 else "") + self._printer.where(worker)
        host = self._slots.failed(worker, life.belonged, now)
        if not (self._failure or ending.asked):
            self._last = worker, f"{who}: {how}"
        self._send(self._members.gone(worker, how))
        if self._failure or ending.asked:
            return
        if not why:
            self._log(f"{who} was lost: {how}. {count(len(self._members.alive()), 'worker')} left.")
        if host and self._slots.hosts[host].given_up:
            self._log(f"{host} is not used: its workers are ended before they join the job.")
        if code > 0 and self._finished():
            self._fail(f"{who} failed after others had finished: {how}.", now)
        elif life.belonged and self._members.left and not self._finished():
            self._fail(
                f"All ranks of epoch {self._members.epoch} were lost, and with them the trained state; the last was "
                f"{who}: {how}. Start the job again: it continues from its newest checkpoint, if there is one.",
                now,
            )

    def _receive(self, worker: int, message: Message) -> None:
        """What a worker says; how it ended, its supervisor will say."""
        if message.kind == "leaving":
            self._log(f"worker {worker} got SIGTERM, and leaves at its next commit.")
            self._lives[worker].leaving = True
        self._send(self._members.receive(worker, message))

    def _send(self, out: Out) -> None:
        epoch = 0
        for worker, message in out:
            life = self._lives.get(worker, _Life())  # anybody may say that it is a worker
            if message.kind == "epoch":
                epoch = message.fields["epoch"]
                life.belonged = True
            elif message.kind == "dismissed":
                life.dismissed = True
            elif message.kind == "refused":
                self._log(f"worker {worker} was refused: {message.fields['why']}.")
            self._workers.send(worker, message)
        if epoch > 1:
            self._log(f"epoch {epoch} begins with {count(len(self._members.ranks), 'rank')}.")
        if epoch and self._members.lost_all_state:
            self._log(
                "all ranks with trained state are lost: the others read the newest checkpoint, or begin from the start."
            )
        if epoch and self._limits.resets is not None and epoch - 1 > self._limits.resets:
            self._fail(RESET_LIMIT.format(self._limits.resets), time.monotonic())
        elif epoch:
            self._last = None  # whoever was lost before, the job goes on

    # --- what is due ----------------------------------------------------------------------------------

    def _check(self, now: float) -> None:
        limits, why = self._limits, self._members.why_waiting()
        if not self._lives:
            why = f"{count(self._slots.total, 'slot')} of at least {limits.least} (--min-np)"
        stuck = why and (self._members.is_blocked() or not self._lives)
        self._short_since = (self._short_since or now) if stuck else None
        self._silence.look(self._members.awaited(), now)
        self._together_since = min(self._together_since, now) if self._members.awaits_followers() else float("inf")
        if now - self._together_since > _TOGETHER_S:
            self._send(self._members.announce(late=True))
        if stuck and now >= self._reason_at:
            self._reason_at = now + _REASON_S
            if now - (self._short_since or now) > _REASON_S:
                self._log(f"waiting: {why}.")
                for worker in self._members.alive():
                    self._workers.send(worker, Message("waiting", {"why": why}))
        if self._short_since is not None and not self._failure and now - self._short_since > limits.timeout_s:
            self._fail(f"The job waited longer than {limits.timeout_s:g} s (--elastic-timeout): {why}.", now)
        elif not self._failure and len(self._members.alive()) < limits.least and not self._slots.may_start():
            self._fail(f"Fewer than {limits.least} ranks (--min-np) are left, and no host can start another.", now)

    def _kill_silent(self, worker: int) -> None:
        """A stopped process is killed, so that the others can go on."""
        self._log(f"worker {worker} has said nothing for {self._limits.peer_timeout_s:g} s, and is killed.")
        self._workers.signal([worker], SIGKILL)

    def _fail(self, text: str, now: float) -> None:
        if not self._failure:
            self._failure = text
            self._ending.terminate(now)


def run(
    limits: Limits, workers: Workers, discovery: FindsHosts, printer: Printer, log: Callable[[str], None]
) -> Outcome:
    """Run an elastic job to its end; see :class:`ElasticRun`."""
    job = ElasticRun(limits, workers, discovery, printer, log)
    with contextlib.closing(printer), discovery:
        try:
            job.attend()
        finally:
            job.take(workers.stop())
    return job.outcome()
