"""Who belongs to an elastic job? A pure state machine, held by the launcher: events in, messages to workers out.

A *worker* is a process that the launcher has started; it keeps its number for life, and no other worker ever gets it.
An *epoch* is one membership of the job: some workers, each with a rank.

::

    started ──► came ──► member of epoch e ──► came again ──► member of epoch e + 1 ──► … finished, or gone
       ▲         │          (it has left e's data plane)
       │         └── waits: for the other members of e, or until they come to their next commit
       └── withdrew: its init() has failed or was interrupted

1. The next epoch begins when every living member of the last one has *come*, and not before. A worker comes only after
   its engine has ended, so nothing of an older epoch is under way when the next one begins.
2. Each epoch has a key of its own, drawn here. What is sealed with an older one is not believed.
3. Survivors keep the order of their ranks, and newcomers follow; who has not *synced* since it joined counts as a
   newcomer still. So rank 0 has what was trained, if anybody has. Ranks of one host follow each other.
4. An epoch after the first has a rank of the last one, or nobody would have what was trained. Where all *leave*,
   because of SIGTERM, the lowest stays until others have come (so there may be two ranks where one is the most); if no
   others will, all leave. Then, and when all were lost at once, the job is *left*, and no epoch begins any more. Who is
   *unlisted*, because the hosts have fewer slots, trains until enough others have come, and stays if they do not.
5. Who comes when a member has ended well, and no other is left, is sent away.
6. Nobody waits for a worker that was started but has not come: it may need a minute to import its libraries. Members
   are told at once that some were started, and called when those have come: together, for each epoch is a reset.

Until the first epoch begins, all that were started are waited for. Engines of a notebook outlive their job: when no
member is left, those that live begin another one in the same way (``anew``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.common.messages import Message
from workbench.common.text import count

REMOVED, ADDED = 1, 2
"""What happened to the workers of a job; Horovod's numbers."""

Out = list[tuple[int, Message]]
"""Messages, each with the worker that is to get it."""


@dataclass
class Worker:
    """One worker.

    Args:
        host: where it runs.
        about: what it said when it came; None as long as it has not.
        number: how often it has come.
        member: does it belong to the epoch?
        leaving: it has got SIGTERM, and the next epoch is to begin without it.
        unlisted: its slot is gone. It leaves when others have come, and stays if the slot comes back.
        told: do members know that one of them goes?
        trained: has it what was trained? Who joins later gets it in its first sync.
        batch: those that were started at once have the same number; -1: nobody else was.
        announced: have members been called to meet it?
    """

    host: str
    about: Mapping[str, Any] | None = None
    number: int = 0
    member: bool = False
    leaving: bool = False
    unlisted: bool = False
    told: bool = False
    trained: bool = False
    batch: int = -1
    announced: bool = False

    @property
    def goes(self) -> bool:
        """Is it to leave, as soon as it can?"""
        return self.leaving or self.unlisted


class Membership:
    """All workers of a job.

    Args:
        least: no epoch begins with fewer.
        most: nor with more; 0: any number.
        key: draws an epoch's key.
        anew: when no member is left, the others begin another job.
        more: will others be started?

    Attributes:
        epoch: number of the running epoch; 0 before the first.
        ranks: its workers, by rank. Who has ended since is still in it.
        finished: members that have ended well.
        left: all members have left, and nobody has what was trained.
        lost_all_state: the epoch has begun, and is not the first, but nobody in it had what was trained.

    Example:
        >>> job = Membership(least=1)
        >>> job.started(0, "a"), job.started(1, "a"), job.came(0, {})
        ([], [], [])
        >>> [(worker, message.fields["rank"]) for worker, message in job.came(1, {})]
        [(0, 0), (1, 1)]
        >>> [(worker, message.kind) for worker, message in job.gone(0, "killed")]
        [(1, 'lost')]
        >>> [(worker, message.fields["rank"], message.fields["size"]) for worker, message in job.came(1, {})]
        [(1, 0, 1)]
    """

    def __init__(
        self,
        least: int = 1,
        most: int = 0,
        key: Callable[[], str] = lambda: secrets.token_hex(32),
        anew: bool = False,
        more: Callable[[], bool] = lambda: False,
    ) -> None:
        self.least, self.most, self._key, self._anew, self._more = least, most, key, anew, more
        self.epoch, self.ranks, self.finished = 0, list[int](), set[int]()
        self.left = self.lost_all_state = False
        self._workers: dict[int, Worker] = {}
        self._exchanges: dict[int, dict[int, bytes]] = {}  # by number, the values by worker
        self._like: Mapping[str, Any] | None = None  # what all workers must have in common
        self._changes = 0

    # --- events ---------------------------------------------------------------------------------------

    def started(self, worker: int, host: str, batch: int = -1) -> Out:
        self._workers[worker] = Worker(host, batch=batch)
        return []

    def announce_started(self) -> Out:
        """Tell the members that workers were started; they train on until these have come."""
        fields = {"epoch": self.epoch, "timestamp": 0, "what": ADDED}  # so early a time is known already: no reset
        return [(each, Message("changed", fields)) for each in self._members() if self._workers[each].about is None]

    def receive(self, worker: int, message: Message) -> Out:
        """What a worker has said.

        Raises:
            KeyError, TypeError: it makes no sense.
        """
        fields = message.fields
        match message.kind:
            case "come":
                return self.came(worker, fields["about"], fields["number"])
            case "withdrawn":
                return self.withdrew(worker)
            case "value":
                return self.value(worker, fields["epoch"], fields["number"], message.data)
            case "synced":
                self.synced(worker, fields["epoch"])
            case "out" if self._anew:
                return self.out(worker)
            case "leaving":
                return self.leave([worker])
        return []

    def came(self, worker: int, about: Mapping[str, Any], number: int = 1) -> Out:
        """A worker wants to belong to the next epoch, and has nothing to do with the last one any more."""
        one = self._workers.get(worker)
        if one is None:  # it counts as gone, or was never started
            return [(worker, Message("dismissed", {"why": "it counts as lost"}))]
        if why := self._unlike(about.get("like", {})):
            del self._workers[worker]
            return [(worker, Message("refused", {"why": why})), *self._go_on()]
        one.about, one.number, one.announced = about, number, False
        return ([] if one.member else self.announce()) + self._go_on()

    def withdrew(self, worker: int) -> Out:
        """A worker is in no epoch, and waits for none: its ``init()`` has failed. It may come again."""
        one = self._workers.get(worker)
        if one is None:
            return []
        one.about = None
        out = self._lose(worker, "its init() has failed or was interrupted") if one.member else self.announce()
        one.member = False
        return out + self._go_on()

    def synced(self, worker: int, epoch: int) -> None:
        """A member has what was trained."""
        if epoch == self.epoch and worker in self._workers:
            self._workers[worker].trained = True

    def out(self, worker: int) -> Out:
        """A worker has called ``shutdown()``, and lives on."""
        if worker not in self._workers:
            return []
        self._workers[worker].member = False
        return self._go_on()

    def value(self, worker: int, epoch: int, number: int, data: bytes) -> Out:
        """A member has come to an exchange; when all have, each gets all values."""
        if epoch != self.epoch or worker not in self.ranks:
            return []
        values = self._exchanges.setdefault(number, {})
        values[worker] = data
        if len(values) < len(self.ranks):
            return []
        del self._exchanges[number]
        fields = {"epoch": epoch, "number": number, "lengths": [len(values[each]) for each in self.ranks]}
        message = Message("values", fields, b"".join(values[each] for each in self.ranks))
        return [(each, message) for each in self.ranks]

    def gone(self, worker: int, why: str) -> Out:
        """A worker was lost: killed, crashed, cut off, or silent for too long."""
        one = self._workers.pop(worker, None)
        if one is None:
            return []
        return (self._lose(worker, why) if one.member else self.announce()) + self._go_on()

    def ended(self, worker: int) -> Out:
        """A worker has ended well. If it belonged to the epoch, the job is finished, and nobody comes in its place."""
        one = self._workers.pop(worker, None)
        if one is None:
            return []
        if one.member:
            self.finished.add(worker)
        return self._go_on()  # members that train still find it missing, and come without it

    def announce(self, late: bool = False) -> Out:
        """Call the members to meet newcomers, if there is room for them.

        Args:
            late: those that were started with them have been waited for long enough.
        """
        new = [one for one in self._newcomers() if not one.announced and (late or not self._has_followers(one))]
        staying = [each for each in self._members() if not self._workers[each].goes]
        if not new or (self.most and len(staying) >= self.most):
            return []
        for one in new:
            one.announced = True
        return self._notify_members(ADDED)

    def leave(self, workers: Iterable[int]) -> Out:
        """The next epoch is to begin without these; its members are told to come at their next commit."""
        for worker in self._workers.keys() & set(workers):
            self._workers[worker].leaving = True
        return self._ask_to_leave() + self._go_on()

    def unlist(self, workers: Iterable[int]) -> Out:
        """These, and no others, have no slot any more: each leaves when enough others have come."""
        gone = set(workers)
        for worker, one in self._workers.items():
            one.unlisted = worker in gone
        return self._ask_to_leave() + self._go_on()

    # --- questions ------------------------------------------------------------------------------------

    def alive(self) -> list[int]:
        """Workers that neither are lost nor have ended."""
        return list(self._workers)

    def rank_of(self, worker: int) -> int:
        """Its rank in the running epoch; -1 if it has none."""
        return self.ranks.index(worker) if worker in self._workers and self._workers[worker].member else -1

    def awaited(self) -> list[int]:
        """The members for which the others, who have come, wait; empty if nobody has."""
        members = self._members()
        waits = [each for each in members if self._workers[each].about is None]
        return waits if len(waits) < len(members) or (not members and self._came()) else []

    def awaits_followers(self) -> bool:
        """Are newcomers here, of whom nobody was told because others were started with them?"""
        return any(not one.announced and self._has_followers(one) for one in self._newcomers())

    def is_blocked(self) -> bool:
        """Does nobody train, though some want to?"""
        came = self._came()
        return bool(came) and (not self._members() or any(each in came for each in self._members()))

    def due(self) -> bool:
        """Have members to come because one of them is lost or leaves, or because a newcomer waits?"""
        members = self._members()
        leaves = any(self._workers[each].told for each in members)
        return bool(members) and (leaves or len(members) < len(self.ranks) or bool(set(self._came()) - set(members)))

    def why_waiting(self) -> str:
        """Why the next epoch has not begun, though workers wait for it; "" if none does."""
        came = self._came()
        if not came:
            return ""
        if all(self._workers[each].leaving for each in came):
            return "leaving ranks wait for ranks that are being started"
        if waits := self.awaited():
            named = ", ".join(f"worker {each} (rank {self.ranks.index(each)})" for each in waits)
            return f"{named} has not left epoch {self.epoch} yet"
        if not self.ranks and (late := [f"{n} on {one.host}" for n, one in self._workers.items() if one.about is None]):
            return f"worker {', '.join(late)} did not call init() yet"
        if len(came) < self.least:
            return f"{count(len(came), 'worker')} of at least {self.least} (min-np)"
        return "" if not self._members() else "the others train, and new ranks join at their next commit"

    # --- what follows ---------------------------------------------------------------------------------

    def _members(self) -> list[int]:
        """The living members of the running epoch, by rank."""
        return [worker for worker in self.ranks if worker in self._workers and self._workers[worker].member]

    def _came(self) -> list[int]:
        return [worker for worker, one in self._workers.items() if one.about is not None]

    def _heirs_first(self, workers: Iterable[int]) -> list[int]:
        """First those that have what was trained; else the order stays."""
        return sorted(workers, key=lambda each: not self._workers[each].trained)

    def _lose(self, worker: int, why: str) -> Out:
        """Tell the others of an epoch that it has lost a member."""
        fields = {"epoch": self.epoch, "rank": self.ranks.index(worker), "why": why}
        return [(each, Message("lost", fields)) for each in self._members() if each != worker]

    def _notify_members(self, what: int) -> Out:
        """News for members that train still; who has come already finds out by itself."""
        self._changes += 1
        message = Message("changed", {"epoch": self.epoch, "timestamp": self._changes, "what": what})
        return [(each, message) for each in self._members() if self._workers[each].about is None]

    def _ask_to_leave(self) -> Out:
        """Tell the members that one of them goes; of one that is unlisted not before enough others are here."""
        there = [one for one in self._workers.values() if one.member or one.about is not None]
        enough = sum(not one.goes for one in there) >= max(1, self.least)
        going = [one for one in there if one.member and (one.leaving or (one.unlisted and enough))]
        new = any(not one.told for one in going)
        for one in there:
            one.told = one in going
        return self._notify_members(REMOVED) if new else []

    def _newcomers(self) -> list[Worker]:
        return [one for one in self._workers.values() if one.about is not None and not (one.member or one.goes)]

    def _has_followers(self, one: Worker) -> bool:
        """Were others started with it that have not come yet?"""
        others = self._workers.values() if one.batch >= 0 else ()
        return any(each.batch == one.batch and each.about is None and not each.member for each in others)

    def _unlike(self, like: Mapping[str, Any]) -> str:
        """What keeps a newcomer from taking part with those that are here; "" if nothing does."""
        if self._like is None:
            self._like = like
        different = [name for name in self._like if like.get(name) != self._like[name]]
        return "; ".join(f"its {name} is {like.get(name)}, and the others' {self._like[name]}" for name in different)

    def _go_on(self) -> Out:
        """Begin the next epoch if it can."""
        members, came = self._members(), self._came()
        if self.ranks and not members:
            if not self._anew:
                self.left = not self.finished
                return self._dismiss(came)
            self.ranks = []
        others = {each: self._workers[each] for each in came if not self._workers[each].member}
        out = self._dismiss(each for each, one in others.items() if one.leaving or (one.unlisted and self.ranks))
        came = self._came()
        if not self.is_blocked() or self.awaited():
            return out
        if not self.ranks and len(came) < len(self._workers):
            return out
        leaving = self._heirs_first(each for each in came if self._workers[each].goes)
        new = sorted(set(came) - {*members, *leaving})
        stay = self._heirs_first([*(each for each in members if each not in leaving), *new])
        unlisted = [each for each in leaving if not self._workers[each].leaving]
        needed = unlisted[: max(0, max(1, self.least) - len(stay))]
        stay, leaving = self._heirs_first([*stay, *needed]), [each for each in leaving if each not in needed]
        if leaving and (not stay or self._workers[leaving[0]].trained > self._workers[stay[0]].trained):
            return out + self._hand_over(leaving, stay)
        chosen = stay[: self.most or None]
        if len(chosen) < self.least:
            return out + self._dismiss(leaving)
        return out + self._dismiss(leaving) + self._begin(self._by_host(chosen))

    def _hand_over(self, leaving: list[int], stay: list[int]) -> Out:
        """All that have what was trained are to leave: one of them stays for an epoch, so that the others get it."""
        if stay:
            stay = stay[: max(1, self.most - 1) if self.most else None]
            heirs = leaving[: max(1, self.least - len(stay))]
            if len(heirs) + len(stay) < self.least:
                return []
            return self._dismiss(each for each in leaving if each not in heirs) + self._begin([*heirs, *stay])
        if self._more() or any(not one.goes for one in self._workers.values()):
            return []  # they are on their way
        self.left = True
        return self._dismiss(leaving)

    def _by_host(self, workers: list[int]) -> list[int]:
        """Ranks of one host follow each other; else the order stays."""
        hosts = list(dict.fromkeys(self._workers[each].host for each in workers))
        return sorted(workers, key=lambda each: hosts.index(self._workers[each].host))

    def _dismiss(self, workers: Iterable[int]) -> Out:
        out: Out = []
        for worker in workers:
            del self._workers[worker]
            out.append((worker, Message("dismissed", {"why": "the job continues without it"})))
        return out

    def _begin(self, workers: list[int]) -> Out:
        trained = any(self._workers[each].trained for each in workers)
        self.lost_all_state = self.epoch > 0 and not trained
        for one in self._workers.values():
            one.member = False
        self.epoch, self.ranks, self._exchanges = self.epoch + 1, workers, {}
        out: Out = []
        common = {"epoch": self.epoch, "size": len(workers), "key": self._key()}
        for rank, worker in enumerate(workers):
            one = self._workers[worker]
            one.member, one.about, one.told = True, None, False
            one.trained |= not trained  # they begin with what rank 0 has
            out.append((worker, Message("epoch", {**common, "rank": rank, "come": one.number})))
        return out + self._ask_to_leave()
