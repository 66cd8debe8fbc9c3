"""A coordinator that finds out which names can never be complete, and ends them with an error that says why.

What it knows of the ranks is in ``deadlock_detection.py``, ``cells.py`` and ``stall.py``; here is what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable

from workbench.common.text import rank_list
from workbench.core.coordinator import JOIN, Error, join_ended
from workbench.core.messages import Announce, Broke, Decision, Done, Event, Key, Kind, Left, Raised, Request, Response
from workbench.runtime.coordinators import Agreement, Coordinator, Terms
from workbench.runtime.events import Beat, Began, Ended, Lost, Overdue
from workbench.runtime.faults.cells import Cells, announced_by
from workbench.runtime.faults.deadlock_detection import Attendance, Missed
from workbench.runtime.faults.notebook_hooks import after_a_loss
from workbench.runtime.faults.stall import Stalled, StallInspector


class SupervisingCoordinator:
    """Wraps the coordinator that decides.

    Args:
        inner: decides; its ``veto`` is that of ``cells``.
        size: number of ranks.
        cells: of all ranks.
        expand: the requests of an announcement, some of which may be cache ids.
        grace_s: how long a name waits for a rank that is idle, or whose last cell raised.
        stall: what to do about names that wait for a rank that is busy elsewhere.
        slots: where the ranks agree by themselves in steady steps; None if they do not.

    Attributes:
        over: has the job ended?
    """

    def __init__(
        self,
        inner: Coordinator,
        size: int,
        cells: Cells,
        expand: Callable[[Announce], list[Request]],
        grace_s: float = 0.5,
        stall: StallInspector | None = None,
        slots: Agreement | None = None,
    ) -> None:
        self._inner, self.size, self._cells, self._expand = inner, size, cells, expand
        self._attendance, self._stall = Attendance(grace_s), stall or StallInspector(0, 0)
        self._newest = float("-inf")  # when the last name was announced
        self.over = False
        self._gone: set[int] = set()  # ranks whose engines have ended
        self.slots, self._terms = slots, Terms(size)

    def take(self, event: Event, now: float) -> Decision:
        """Account for one event; what all ranks do next."""
        if self.slots is None:
            return self._take(event, now)
        decision = Decision() if isinstance(event, (Beat, Done)) else self._close_slots()
        decision += self._take(event, now)
        if isinstance(event, (Announce, Beat)) and not self.slots.is_open():
            self._terms.heard(event.rank, event.seen, decision)
            if self._terms.alike and not (self._inner.busy or self._attendance.absent or self._cells.unsettled):
                term = self.slots.open()
                decision += self._inner.decide([Response("", Kind.SLOTS, root=term)]) if term else Decision()
        return decision

    def _close_slots(self) -> Decision:
        """Back to counting: what the slots hold counts as announced."""
        if self.slots is None or not self.slots.is_open():
            return Decision()
        complete, seen, left = self.slots.close()
        decision = self._inner.decide([Response("", Kind.SLOTS, rows=(complete, *seen))])
        self._terms.closed(decision.number, complete)
        for event, at in left:
            decision += self._take(event, at)
        return decision

    def _take(self, event: Event, now: float) -> Decision:
        match event:
            case Beat(rank, seen=seen):
                return self._inner.take(Announce(rank, (), seen), now)
            case Lost(rank, why):
                return self._lose(rank, f"Rank {rank} was lost: {why}", now)
            case Broke(rank, why):
                return self._lose(rank, why, now)
            case Done():
                return self._inner.take(event, now)
        self._attendance.take(event, now)
        if isinstance(event, Announce):
            self._newest = now
            decision = self._inner.take(event, now)
            return decision + self.expire(now) if self._attendance.final else decision
        decision = self._inner.settle(now)
        match event:
            case Raised(rank, final=True):
                decision += self._end_join(rank)
            case Raised(rank, traceback):
                self._cells.failed(event.failures)
                decision += self._abandon(rank, traceback) + self._clean_up()
            case Began(rank):
                self._cells.began(rank, event.failures)
                decision += self._end_join(rank)
            case Overdue(process_set=process_set, name=name):
                decision += self._overdue((process_set, name), event)
            case Ended(rank) | Left(rank):
                decision += self._end_join(rank) + self._clean_up()
        if isinstance(event, Left) and not event.clean:
            decision += self._without_engine(event.rank)
        decision += self.expire(now)
        if isinstance(event, Left) and not self.over:
            ended = self._inner.take(event, now)
            self.over = any(isinstance(item, Response) and item.kind is Kind.SHUTDOWN for item in ended.items)
            decision += ended
        return decision

    def validate(self) -> None:
        self._inner.validate()

    def story(self, name: str) -> str:
        """What is known of a name: who has announced what, and for whom it waits."""
        return self._inner.waiting.story(name)

    def decide(self, items: list[Response | int]) -> Decision:
        return self._inner.decide(items)

    def requests(self, event: Announce) -> list[Request]:
        """What a rank announces, in full; for observers."""
        return self._expand(event)

    def waiting(self) -> dict[str, list[int]]:
        """Incomplete names that are counted, and the ranks that each one misses."""
        return {key[1]: missing for key, missing in self._inner.waiting.all_missing().items()}

    def undecided(self, now: float) -> bool:
        """True while a name waits for a rank that may still come: :meth:`expire` has to be called again."""
        return self._inner.busy and self._attendance.undecided(self._newest, now)

    def expire(self, now: float) -> Decision:
        """Errors for names that never can be complete."""
        if not self._inner.busy or not self._attendance.absent:
            return Decision()
        decision = self._inner.settle(now)
        names = self._inner.waiting
        missing = names.all_missing()
        waiting = {
            key: Missed(one.since, tuple(one.requests), tuple(missing[key]), names.request(key).kind is Kind.SOURCE)
            for key, one in names.items()
        }
        return decision + self._inner.fail(self._attendance.unsatisfiable(waiting, now))

    def stalled(self, now: float) -> tuple[str, Decision]:
        """A warning about names that have waited for too long, if one is due, and errors for those beyond help."""
        decision = self._close_slots() if self.slots is not None and self.slots.stuck() else Decision()
        decision += self._inner.settle(now)
        waiting = self._inner.waiting
        missing = waiting.all_missing()
        # A rank that has less data than the others may wait for them, in join(), as long as they train.
        names = {key: Stalled(one.since, tuple(missing[key])) for key, one in waiting.items() if key != JOIN}
        report = self._stall.report({key[1]: stalled for key, stalled in names.items()}, now)
        expired = {key: stalled for key, stalled in names.items() if self._stall.expired(stalled, now)}
        return report, decision + self._inner.fail({key: self._too_long(key, expired[key], now) for key in expired})

    def _overdue(self, key: Key, event: Overdue) -> Decision:
        """A name that some ranks have not announced fails; one that all have is on its way."""
        waiting = self._inner.waiting
        if key not in waiting:
            return Decision()
        late = (
            f"{rank_list(waiting.all_missing()[key])}, longer than the timeout of {event.limit_s:g} s that "
            f"rank {event.rank} has set. Find out what keeps the missing ranks busy, or give it more time."
        )
        return self._inner.fail({key: self._waited(key, late)})

    def _too_long(self, key: Key, stalled: Stalled, now: float) -> Error:
        return self._waited(
            key,
            f"{rank_list(stalled.missing)} for {now - stalled.since:.0f} s, longer than the "
            f"{self._stall.shutdown_s:g} s allowed (WORKBENCH_STALL_SHUTDOWN_S). Make every rank submit it.",
        )

    def _waited(self, key: Key, late: str) -> Error:
        ranks = rank_list(self._inner.waiting[key].requests)
        return "DeadlineError", f"{key[1]!r}, submitted by {ranks}, has waited for {late}"

    def _end_join(self, rank: int) -> Decision:
        """A rank whose join() waits goes on without it."""
        return self._inner.fail({JOIN: join_ended(rank)}) if rank in self._inner.waiting.joined else Decision()

    def _clean_up(self) -> Decision:
        """Fail what ended cells have left in flight, where it could be matched with a later cell's tensor."""
        text = (
            "{!r} was submitted by {} in a cell that has ended, and not by all other ranks, so it was given up. Submit "
            "it on every rank in one cell; or give it a name: a named tensor may wait if no cell fails."
        )
        waiting = self._inner.waiting
        void = self._cells.void(waiting, self._attendance.idle)
        errors = {key: ("MissingRanksError", text.format(key[1], rank_list(waiting[key].requests))) for key in void}
        return self._inner.fail(errors)

    def _abandon(self, rank: int, traceback: str) -> Decision:
        """A cell that raised has lost its handles: fail what it submitted, or a later cell's tensors would match it.

        And unnamed tensors get new numbers, for on this rank they may have got other ones than on the rest.
        """
        text = "Rank {} raised an exception while {!r} was in flight, so it was given up. The traceback:\n{}"
        keys = announced_by(self._inner.waiting, rank)
        errors = {key: ("RankFailedError", text.format(rank, key[1], traceback.rstrip())) for key in keys}
        return self._inner.decide([Response("cell", Kind.RENUMBER, root=rank)]) + self._inner.fail(errors)

    def _without_engine(self, rank: int) -> Decision:
        """A rank's data plane has ended: what it has announced, and others have not, can never be done."""
        self._gone.add(rank)
        text = "Rank {} has left the job while {!r} was in flight, so it was given up. Wait for it before shutdown()."
        keys = announced_by(self._inner.waiting, rank)
        return self._inner.fail({key: ("ShutDownError", text.format(rank, key[1])) for key in keys})

    def _lose(self, rank: int, why: str, now: float) -> Decision:
        """A dead rank breaks the data plane: everything in flight ends, on every rank, until the next init().

        One that has said that it leaves still does its part for the others, until its engine ends.
        """
        if rank in self._gone or self.over:
            return Decision()
        self.over = True
        settled = self._inner.settle(now)  # what would be complete ends, too: the dead rank's part may be missing
        flying = {item.key for item in settled.items if isinstance(item, Response)} | self._inner.waiting.keys()
        names = ", ".join(sorted(name for _, name in flying)[:5])
        text = f"{why.rstrip('.')}." + (f" In flight: {names}." if names else "")
        text += f" {after_a_loss()}"
        return self._inner.decide([Response("", Kind.SHUTDOWN, error=("PeerLostError", text))])

    def broke(self, why: str) -> Decision:
        """An exception in the coordinator itself: nobody knows what has been counted, so the job ends on every rank."""
        if self.over:
            return Decision()
        self.over = True
        text = (
            f"Rank 0 cannot coordinate the ranks any more because of a defect of the workbench: {why} {after_a_loss()}"
        )
        return self._inner.decide([Response("", Kind.SHUTDOWN, error=("CollectiveError", text))])


class ValidatingCoordinator(SupervisingCoordinator):
    """Validates itself after each event: under ``--chaos``, and in tests."""

    def take(self, event: Event, now: float) -> Decision:
        decision = super().take(event, now)
        self.validate()
        return decision
