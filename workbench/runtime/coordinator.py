"""Who is ready? Do the ranks agree? A pure state machine: events in, responses out, no I/O, no clock.

Ranks submit tensors in any order. The coordinator, on rank 0, counts for each name who has announced it; when all
ranks of its process set have, it emits one response, and all ranks execute responses in the order of
emission. So no rank ever enters the data plane alone, and a name that stays incomplete has a culprit:
the rank that has not come. When that rank never can come (see ``absence.py``), the ranks that wait get an error
that says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.runtime.absence import Attendance, Error, Key, Missed
from workbench.runtime.agreement import rank_list, respond
from workbench.runtime.cache import CoordinatorCache
from workbench.runtime.lockstep import Lockstep
from workbench.runtime.messages import (
    Announce,
    Beat,
    Broke,
    Event,
    Kind,
    Lost,
    Outgoing,
    Raised,
    ReduceOp,
    Request,
    Response,
    Values,
)
from workbench.runtime.recorder import label, label_of
from workbench.runtime.riding import result_of
from workbench.runtime.stall import Stalled, StallInspector


@dataclass(slots=True)
class Waiting:
    """A name that some ranks have announced and others have not."""

    since: float
    requests: dict[int, Request] = field(default_factory=dict)
    cache_ids: set[int] = field(default_factory=set)  # -1 for a rank that announced in full
    values: dict[int, bytes] = field(default_factory=dict)  # by rank, where they came with it


@dataclass(slots=True)
class Group:
    """Tensors that start together: those that are ready and wait for the rest."""

    ready: list[tuple[Waiting, Response]] = field(default_factory=list)


class Coordinator:
    """The state of all negotiations.

    Args:
        size: number of ranks.
        cache_capacity: see :class:`workbench.runtime.cache.CoordinatorCache`.
        grace_s: how long a name waits for a rank that is idle, or whose last cell raised.
        stall: what to do about names that wait for a rank that is busy elsewhere.

    Example:
        >>> coordinator = Coordinator(size=2)
        >>> x = Request("x", Kind.BARRIER)
        >>> coordinator.take(Announce(0, (x,)), now=0.0)
        []
        >>> [response.name for response, _ in coordinator.take(Announce(1, (x,)), now=0.1)]
        ['x']
    """

    def __init__(
        self, size: int, cache_capacity: int = 1024, grace_s: float = 0.5, stall: StallInspector | None = None
    ) -> None:
        self.size = size
        self._stall = stall or StallInspector(0, 0)
        self.cache = CoordinatorCache(cache_capacity, size)
        self.members: dict[int, tuple[int, ...]] = {0: tuple(range(size))}
        self._waiting: dict[Key, Waiting] = {}
        self._groups: dict[Key, Group] = {}
        self._lockstep = Lockstep(size)
        self._attendance = Attendance(grace_s)
        self._newest = self._step_began = float("-inf")  # when the last name was announced, and the first of a step
        self._joined: list[int] = []  # ranks without further data, in the order of their coming
        self._next_set = 1
        self.number = 0  # of the message in which the next responses travel; its sender keeps it up to date
        self._results: dict[Key, bytes] = {}  # of names that are complete, and have taken the short way
        self._failed: dict[Key, int] = {}  # names that failed, and in which message the ranks are told
        self._ended = False

    def take(self, event: Event, now: float) -> list[Outgoing]:
        """Account for one event and return what all ranks do next, in order."""
        match event:
            case Beat(rank, seen=seen):
                self.cache.seen(rank, seen)
                return []
            case Lost(rank, why) | Broke(rank, why):
                return self._lose(rank, why)
        self._attendance.take(event, now)
        out: list[Outgoing] = []
        match event:
            case Announce(rank, items, seen, values):
                self.cache.seen(rank, seen)
                if self._keeps_step(items, seen):
                    out = self._step(rank, items, now, values)
                else:
                    self._break_step(now)
                    found = ((item, values.get(i, b"")) for i, item in enumerate(items))
                    out = [ready for item, value in found for ready in self._announce(rank, item, seen, now, value)]
                return out + self.expire(now) if self._attendance.final else out
            case Raised(rank, traceback, final=False):
                self._break_step(now)
                out = self._abandon(rank, traceback)
        return out + self.expire(now) + self._end()

    @property
    def over(self) -> bool:
        """Has the job ended?"""
        return self._ended

    def waiting(self) -> dict[str, list[int]]:
        """Incomplete names and the ranks that each one misses."""
        self._break_step(self._newest)
        return {name: self._missing((pset, name)) for pset, name in self._waiting}

    def stalled(self, now: float) -> tuple[str, list[Outgoing]]:
        """A warning about names that have waited for too long, if one is due, and errors for those beyond help."""
        self._break_step(now)
        names = {key: Stalled(one.since, tuple(self._missing(key))) for key, one in self._waiting.items()}
        report = self._stall.report({key[1]: stalled for key, stalled in names.items()}, now)
        out: list[Outgoing] = []
        for key, stalled in names.items():
            if key in self._waiting and self._stall.expired(stalled, now):
                text = (
                    f"{key[1]!r}, submitted by {rank_list(self._waiting[key].requests)}, has waited for "
                    f"{rank_list(stalled.missing)} for {now - stalled.since:.0f} s, longer than the "
                    f"{self._stall.shutdown_s:g} s allowed (WORKBENCH_STALL_SHUTDOWN_S). Make every rank submit it."
                )
                out += self._fail(key, ("DeadlineError", text))
        return report, out

    def named(self, event: Announce) -> list[tuple[str, str]]:
        """(verb, name) of everything that a rank announces; for observers."""
        requests = (self.cache.request(i, event.rank) if isinstance(i, int) else i for i in event.items)
        return [(one.kind.value, label(one.process_set, one.name)) for one in requests if one is not None]

    def name_of(self, item: Outgoing) -> str:
        """The name behind what is told to the ranks; for observers."""
        return label_of(self.responses([item])[0])

    def responses(self, items: list[Outgoing]) -> list[Response]:
        """What is told to the ranks, in full; for observers."""
        return [self.cache.response(item) if isinstance(item, int) else item[0] for item in items]

    def take_results(self, items: list[Outgoing]) -> Values:
        """The results of what has taken the short way, by their index in ``items``."""
        if not self._results:
            return {}
        results, self._results = self._results, {}
        keys = [(response.process_set, response.name) for response in self.responses(items)]
        return {i: results[key] for i, key in enumerate(keys) if key in results}

    def undecided(self, now: float) -> bool:
        """True while a name waits for a rank that may still come: :meth:`expire` has to be called again."""
        return bool(self._waiting or self._lockstep) and self._attendance.undecided(self._newest, now)

    def expire(self, now: float) -> list[Outgoing]:
        """Errors for names that never can be complete."""
        if not (self._waiting or self._lockstep) or not self._attendance.absent:
            return []
        self._break_step(now)
        waiting = {
            key: Missed(one.since, tuple(one.requests), tuple(self._missing(key))) for key, one in self._waiting.items()
        }
        hopeless = self._attendance.hopeless(waiting, now)
        return [out for key, error in hopeless.items() if key in self._waiting for out in self._fail(key, error)]

    # --- many names become complete at once ---------------------------------------------------------

    def _keeps_step(self, items: tuple[Request | int, ...], seen: int) -> bool:
        """May these go the quick way? Only known names of all ranks, and nothing else is going on."""
        if self._waiting or self._joined or not self.cache.steady.issuperset(items):
            return False
        return not self._failed or seen >= max(self._failed.values())

    def _step(self, rank: int, ids: Any, now: float, values: Values) -> list[Outgoing]:
        self._newest = now
        fresh = not self._lockstep
        complete = self._lockstep.add(rank, ids, values)
        if fresh or complete:  # what is left may be a little older; too young an age does no harm
            self._step_began = now
        if complete is None:
            return self._break_step(now)
        self.cache.touch_all(complete)
        if self._lockstep.values:
            for cache_id in complete:
                known, took = self.cache.known(cache_id), self._lockstep.values
                riders = {one: took.pop((one, cache_id)) for one in range(self.size) if (one, cache_id) in took}
                if result := riders and result_of(known.response, known.requests, riders, self.size):
                    self._results[known.response.process_set, known.response.name] = result
        return list[Outgoing](complete)

    def _break_step(self, now: float) -> list[Outgoing]:
        """Back to counting; return what is complete by that."""
        if not self._lockstep:
            return []
        values, self._lockstep.values = self._lockstep.values, {}
        return [
            ready
            for rank, ids in self._lockstep.take().items()
            for cache_id in ids
            for ready in self._announce(
                rank, cache_id, self.number, self._step_began, values.get((rank, cache_id), b"")
            )
        ]

    # --- a name becomes complete --------------------------------------------------------------------

    def _announce(self, rank: int, item: Request | int, seen: int, now: float, value: bytes) -> list[Outgoing]:
        request = self.cache.request(item, rank) if isinstance(item, int) else item
        if request is None:
            return []  # nonsense, from a rank that has lost its mind; what else it says may still be true
        if request.kind is Kind.JOIN:
            return self._join(rank, request)
        key = (request.process_set, request.name)
        if seen < self._failed.get(key, 0):
            return []  # it crossed the name's failure, which will end it on that rank: it stands for nothing more
        waiting = self._waiting.setdefault(key, Waiting(now))
        self._newest = now
        waiting.requests[rank] = request
        waiting.cache_ids.add(item if isinstance(item, int) else -1)
        if value:
            waiting.values[rank] = value
        members = self.members.get(key[0], ())
        if len(waiting.requests) + len(self._joined) < len(members):
            return []  # at a glance; most announcements end here
        return [] if self._missing(key) else self._complete(key)

    def _complete(self, key: Key) -> list[Outgoing]:
        waiting = self._waiting.pop(key)
        request = next(iter(waiting.requests.values()))
        if self._joined_in(key[0]):
            # A rank that has joined may never have seen this name, so it gets the whole response, not an id.
            waiting.cache_ids = {-1}
        cache_id = next(iter(waiting.cache_ids)) if len(waiting.cache_ids) == 1 else -1
        response = self.cache.touch(cache_id) if cache_id != -1 else self._decide(waiting.requests)
        if request.kind is Kind.REMOVE_SET and not response.error:
            return [*self._empty(request.root), (response, -1)]
        groups = {(other.group, other.group_size) for other in waiting.requests.values()}
        if not request.group or len(groups) > 1:
            return [self._outgoing(waiting, response)]
        group_key = (request.process_set, request.group)
        group = self._groups.setdefault(group_key, Group())
        group.ready.append((waiting, response))
        if len(group.ready) < request.group_size:
            return []
        del self._groups[group_key]
        return [self._outgoing(*member) for member in _all_or_none(group.ready)]

    def _outgoing(self, waiting: Waiting, response: Response) -> Outgoing:
        if waiting.values:
            size = len(self.members.get(response.process_set, ()))
            result = result_of(response, waiting.requests, waiting.values, size)
            if result:
                self._results[response.process_set, response.name] = result
        cache_id = next(iter(waiting.cache_ids)) if len(waiting.cache_ids) == 1 else -1
        if cache_id != -1 and not response.error and self.cache.current(cache_id):
            return cache_id
        cacheable = not self._joined_in(response.process_set) and response.kind not in (Kind.ADD_SET, Kind.REMOVE_SET)
        return response, self.cache.put(waiting.requests, response) if cacheable else -1

    def _joined_in(self, process_set: int) -> list[int]:
        return [rank for rank in self._joined if rank in self.members.get(process_set, ())] if self._joined else []

    def _missing(self, key: Key) -> list[int]:
        present = self._waiting[key].requests
        return [rank for rank in self.members.get(key[0], ()) if rank not in present and rank not in self._joined]

    def _decide(self, requests: dict[int, Request]) -> Response:
        """The response of the ranks that have announced, and what follows from it for the process sets."""
        response = respond(requests)
        if response.error:
            return response
        joined = self._joined_in(response.process_set)
        if joined and not _goes_without(response):
            what = response.kind.value + (f" with op={response.op.value}" if response.kind is Kind.ALLREDUCE else "")
            text = (
                f"{what.capitalize()} is not supported with Join at this time: {response.name!r}, submitted by "
                f"{rank_list(requests)}, but {rank_list(joined)} called join(). Use allreduce with Average or "
                "Sum, or call join() later."
            )
            return Response(
                response.name, response.kind, process_set=response.process_set, error=("MismatchError", text)
            )
        if joined:
            return replace(response, places=())  # not everybody has an array
        if response.kind is Kind.ADD_SET:
            response = replace(response, root=self._next_set)
            self.members[self._next_set], self._next_set = response.rows, self._next_set + 1
        elif response.kind is Kind.REMOVE_SET:
            self.members.pop(response.root, None)
        return response

    def _empty(self, process_set: int) -> list[Outgoing]:
        """Errors for what still waits in a set that is about to be removed."""
        text = "The process set was removed while {!r} waited in it. Remove a set when nothing is in flight any more."
        waiting = [key for key in self._waiting if key[0] == process_set]
        return [out for key in waiting for out in self._fail(key, ("CollectiveError", text.format(key[1])))]

    def _join(self, rank: int, request: Request) -> list[Outgoing]:
        """``rank`` has no more data: names may now be complete without it; when all have joined, tell the last."""
        self._joined.append(rank)
        if len(self._joined) == self.size:
            last, self._joined = self._joined[-1], []
            return [(Response(request.name, Kind.JOIN, root=last), -1)]
        complete = [key for key in self._waiting if not self._missing(key)]
        return [ready for key in complete for ready in self._complete(key)]

    # --- a name never becomes complete --------------------------------------------------------------

    def _abandon(self, rank: int, traceback: str) -> list[Outgoing]:
        """A cell that raised has lost its handles: what it had submitted ends, or a later cell would meet it."""
        names = [key for key, waiting in self._waiting.items() if rank in waiting.requests]
        text = "Rank {} raised an exception while {!r} was in flight, so it was given up. The traceback:\n{}"
        return [
            out
            for key in names
            if key in self._waiting
            for out in self._fail(key, ("RankFailedError", text.format(rank, key[1], traceback.rstrip())))
        ]

    def _fail(self, key: Key, error: Error) -> list[Outgoing]:
        """The error for one name, and for the members of its group that were ready."""
        request = next(iter(self._waiting.pop(key).requests.values()))
        names = [request.name]
        group = self._groups.pop((key[0], request.group), None) if request.group else None
        names += [response.name for _, response in group.ready] if group else []
        everybody_knows = self.cache.seen_by_all()
        self._failed = {other: number for other, number in self._failed.items() if number > everybody_knows}
        self._failed.update(((key[0], name), self.number) for name in names)
        return [(Response(name, request.kind, process_set=key[0], error=error), -1) for name in names]

    def _lose(self, rank: int, why: str) -> list[Outgoing]:
        """A dead rank breaks the data plane: everything in flight ends, on every rank, until the next init()."""
        if rank in self._attendance.left or self._ended:
            return []
        self._ended = True
        self._break_step(self._newest)
        names = ", ".join(sorted(name for _, name in self._waiting)[:5])
        text = f"Rank {rank} was lost: {why}." + (f" In flight: {names}." if names else "")
        text += " Start the job again, or call shutdown() and init() on the ranks that are left."
        return [(Response("", Kind.SHUTDOWN, error=("PeerLostError", text)), -1)]

    def _end(self) -> list[Outgoing]:
        """When all ranks have left, they are told so, and close the data plane together."""
        if self._ended or len(self._attendance.left) < self.size:
            return []
        self._ended = True
        text = "Not all ranks were there any more to end the job together."
        error = () if self._attendance.clean else ("ShutDownError", text)
        return [(Response("", Kind.SHUTDOWN, error=error), -1)]


def _goes_without(response: Response) -> bool:
    """Can ranks that have joined be left out? Where zeros are neutral, or nothing moves."""
    if response.kind is Kind.ALLREDUCE:
        return response.op in (ReduceOp.AVERAGE, ReduceOp.SUM)
    return response.kind is Kind.BARRIER


def _all_or_none(members: Iterable[tuple[Waiting, Response]]) -> list[tuple[Waiting, Response]]:
    """One member's error is the error of all: a group never runs in part."""
    members = list(members)
    error = next((response.error for _, response in members if response.error), ())
    if not error:
        return members
    return [
        (waiting, Response(response.name, response.kind, process_set=response.process_set, error=error))
        for waiting, response in members
    ]
