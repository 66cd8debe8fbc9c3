"""Who is ready? Do the ranks agree? A pure state machine: events in, decisions out, no I/O, no clock.

Ranks submit tensors in any order. The coordinator, on rank 0, counts for each name who has announced it; when all ranks
of its process set have announced it, the coordinator decides what they do, and all ranks execute the decisions in the
same order. So no rank ever enters the data plane alone, and the cause of a name that stays incomplete is known: the
rank that has not announced it.

The states of a name. The names of a group change together; if one fails, all fail.

================== ===================================== ================================================
state              event                                 next state
================== ===================================== ================================================
unknown            ``Announce`` of one rank              *waiting*, with this rank
waiting            ``Announce`` of another               *waiting*, with that one too
waiting            … of the last, or the last joins      *agreed*; in a group: *held*, until all of it is
held               the rest of its group is held         *agreed*, all at once
held               the ``JOIN`` ends that excused a rank *waiting* for that rank again
agreed             (at once)                             unknown: a ``Response`` is in the ``Decision``
waiting, held      :meth:`CountingCoordinator.fail`      *failed*: a ``Response`` with an error
failed             all ranks have read that ``Decision`` unknown
failed             ``Announce`` from before it was read  failed: the entry ended there already
================== ===================================== ================================================

A request may name the ranks that announce it: sender and receiver of a message (``SEND``), the members of a process set
that they alone make. ``SOURCE`` asks which message to a rank waits first; its answer is the response.

``Left`` of all ranks ends the job. Every other event is for the wrappers: ``Raised``, ``Began``, ``Ended``, ``Lost``,
``Broke`` and ``Blocked`` say that a name cannot become complete (``supervision``), ``Done`` that the next one may begin
(``priority``). :meth:`CountingCoordinator.validate` says what holds between two events.

A job needs nothing else. Accelerations of steady steps wrap it (``runtime/steady/``), and so does the detection of
ranks that can never announce (``runtime/faults/supervision.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from workbench.core.agreement import respond, without
from workbench.core.messages import Announce, Decision, Event, Key, Kind, Left, Request, Response, Values

Error = tuple[str, str]
"""(class name, text), see :data:`workbench.errors.TRAVELLING`."""
Respond = Callable[[dict[int, Request]], Response]
Veto = Callable[[Key, Collection[int]], Error | None]
JOIN: Key = (0, "join.join")
"""The name under which ranks join, see :func:`workbench.job.api.join`: it waits like any other name."""


@dataclass(slots=True)
class Waiting:
    """A name that some ranks have announced and others have not: since when, and by which ranks."""

    since: float
    requests: dict[int, Request] = field(default_factory=dict)


class WaitingNames(dict[Key, Waiting]):
    """All names that wait.

    The joined ranks are those that wait in :data:`JOIN`; no other state holds them. So they are no longer joined when
    that wait ends, for any reason.

    Args:
        members: the ranks of each process set; kept up to date by its owner.

    Example:
        >>> from workbench.core.messages import Kind
        >>> names = WaitingNames({0: (0, 1, 2)})
        >>> names[0, "x"] = Waiting(since=0.0, requests={0: Request("x", Kind.BARRIER)})
        >>> names[JOIN] = Waiting(since=0.0, requests={2: Request("join.join", Kind.JOIN)})
        >>> names.missing((0, "x")), names.missing(JOIN), list(names.joined)
        ([1], [0, 1], [2])
    """

    def __init__(self, members: Mapping[int, tuple[int, ...]]) -> None:
        super().__init__()
        self._members = members

    @property
    def joined(self) -> Collection[int]:
        """Ranks without further data, in the order in which they joined."""
        join = self.get(JOIN)
        return join.requests if join else ()

    def missing(self, key: Key) -> list[int]:
        """The missing ranks: they have not announced a name, and others wait for them."""
        present, excused = self[key].requests, () if key == JOIN else self.joined
        if self.request(key).kind is Kind.SOURCE:  # one of them is enough
            return [rank for rank in self._members.get(key[0], ()) if rank not in present]
        return [rank for rank in self.announcers(key) if rank not in present and rank not in excused]

    def announcers(self, key: Key) -> Sequence[int]:
        """Who announces a name: the ranks of its process set, or those of them that the request names."""
        members = self._members.get(key[0], ())
        return self.request(key).ranks or members if members else ()

    def request(self, key: Key) -> Request:
        """What one of the ranks has announced."""
        return next(iter(self[key].requests.values()))

    def all_missing(self) -> dict[Key, list[int]]:
        """The ranks for which each name waits: one that all have announced waits for the rest of its group."""
        announced = Counter(
            (key[0], request.group, rank) for key, one in self.items() for rank, request in one.requests.items()
        )
        found = {}
        for key, one in self.items():
            request = next(iter(one.requests.values()))
            late = (
                rank for rank in sorted(one.requests) if announced[key[0], request.group, rank] < request.group_size
            )
            found[key] = self.missing(key) or list(late)
        return found

    def story(self, name: str) -> str:
        """What is known of a name that waits, in every process set that has it, a line each.

        Example:
            >>> from workbench.core.messages import Kind
            >>> names = WaitingNames({0: (0, 1)})
            >>> names[0, "x"] = Waiting(since=2.5, requests={1: Request("x", Kind.ALLREDUCE, "float32", (3,))})
            >>> print(names.story("x"))
            'x' has waited since 2.5 s for [0]: rank 1 allreduce float32 (3,)
        """
        late = self.all_missing()
        lines = []
        for key, one in self.items():
            if key[1] != name:
                continue
            where = f" in process set {key[0]}" if key[0] else ""
            who = [
                f"rank {rank} {request.kind.value} {request.dtype} {request.shape}"
                + (f" in group {request.group!r} of {request.group_size}" if request.group else "")
                for rank, request in sorted(one.requests.items())
            ]
            lines.append(f"{name!r}{where} has waited since {one.since:g} s for {late[key]}: {', '.join(who)}")
        return "\n".join(lines) or f"{name!r} does not wait: nobody has announced it, or it is decided."

    def related(self, key: Key) -> list[Key]:
        """A name, and all that some rank has submitted in one group with it, or with one of those."""
        found, groups = {key: None}, self._groups_of(key)
        while groups:
            more = [other for other in self if other not in found and not groups.isdisjoint(self._groups_of(other))]
            found |= dict.fromkeys(more)
            groups = {group for other in more for group in self._groups_of(other)}
        return list(found)

    def _groups_of(self, key: Key) -> set[tuple[int, str]]:
        return {(key[0], request.group) for request in self[key].requests.values() if request.group}


class CountingCoordinator:
    """Counts who has announced each name; a :class:`workbench.runtime.coordinators.Coordinator`.

    Args:
        size: number of ranks.
        respond: what the requests of all ranks come to.
        veto: why a name that these ranks have announced must not run; None if it may.

    Example:
        >>> coordinator = CountingCoordinator(size=2)
        >>> x = Request("x", Kind.BARRIER)
        >>> coordinator.take(Announce(0, (x,)), now=0.0).items
        []
        >>> [response.name for response in coordinator.take(Announce(1, (x,)), now=0.1).items]
        ['x']
    """

    def __init__(self, size: int, respond: Respond = respond, veto: Veto = lambda key, ranks: None) -> None:
        self.size, self._respond, self._veto = size, respond, veto
        self.members: dict[int, tuple[int, ...]] = {0: tuple(range(size))}
        self.waiting = WaitingNames(self.members)
        self._groups: dict[Key, dict[Key, None]] = {}  # names that all have announced, and that wait for the rest
        self._next_set = 1
        self._left: dict[int, bool] = {}  # by rank: did it wait for the others?
        self._number = 0  # of the last decision
        self._seen = [0] * size  # by rank, the last decision that it has read
        self._questions: dict[Key, None] = {}  # of receivers that take a message from whoever sends one
        self._promised: set[Key] = set()  # messages of which the receiver knows that they wait for it
        self._failed: dict[Key, int] = {}  # names that failed, and in which decision the ranks are told

    def take(self, event: Event, now: float) -> Decision:
        items: list[Response] = []
        match event:
            case Announce(rank, requests, seen):
                self._seen[rank] = max(self._seen[rank], seen)
                items += self._announce(rank, requests, seen, now)
            case Left(rank, clean):
                self._left[rank] = clean
                items += self._end()
        return self.decide(items) if items else Decision()

    def settle(self, now: float) -> Decision:
        """Nothing is held back here."""
        return Decision()

    def fail(self, errors: Mapping[Key, Error]) -> Decision:
        items = [item for key, error in errors.items() if key in self.waiting for item in self._fail(key, error)]
        return self.decide(items) if items else Decision()

    def decide(self, items: Sequence[Response | int], results: Values | None = None) -> Decision:
        self._number += 1
        return Decision(self._number, list(items), results or {})

    @property
    def busy(self) -> bool:
        return bool(self.waiting)

    def crosses_failure(self, seen: int) -> bool:
        """Has a name failed in a decision after ``seen``? A rank that has read no further does not know of it."""
        return any(seen < number for number in self._failed.values())

    def validate(self) -> None:
        """What holds between two events. Tests and ``--chaos`` ask it after each.

        Raises:
            AssertionError: something does not; the text has the name's story.
        """
        for key, one in self.waiting.items():
            name, requests = key[1], one.requests
            assert requests, f"{name!r} waits, and nobody has announced it."
            assert requests.keys() <= set(self.members.get(key[0], ())), (
                f"A rank outside of the set announced it. {self.waiting.story(name)}"
            )
            assert all(request.key == key for request in requests.values()), (
                f"A request has another name. {self.waiting.story(name)}"
            )
            group = next(iter(requests.values())).group
            held = group and key in self._groups.get((key[0], group), ())
            assert self.waiting.missing(key) or held, f"All have announced it, and it waits. {self.waiting.story(name)}"
        for (process_set, group), keys in self._groups.items():
            for key in keys:
                assert key in self.waiting, (
                    f"Group {group!r} of set {process_set} holds {key[1]!r}, which does not wait."
                )
        assert max(self._seen, default=0) <= self._number, "A rank has read a decision that was not made."
        assert max(self._failed.values(), default=0) <= self._number + 1, (
            "A name failed in a decision that is not the next one."
        )

    # --- a name becomes complete --------------------------------------------------------------------

    def _announce(self, rank: int, requests: Sequence[Request | int], seen: int, now: float) -> list[Response]:
        """All of a message counts before any of it is complete: a group that fails then fails as a whole."""
        items, keys = list[Response](), list[Key]()
        for request in requests:
            if not isinstance(request, Request):  # an id means something to the response cache alone
                continue
            key = request.key
            if seen < self._failed.get(key, 0):
                continue  # sent before the rank read that the name had failed; that ends the entry there
            joins = request.kind is Kind.JOIN
            if not joins and rank in self.waiting.joined:
                items += self._fail(JOIN, join_ended(rank, key[1]))
            self.waiting.setdefault(key, Waiting(now)).requests[rank] = request
            if request.kind is Kind.SOURCE:
                self._questions[key] = None
            if joins:  # what the rank has submitted before it needs those that have joined
                items += self._look_at(keys) + self._complete_joined()
                keys.clear()
            else:
                keys.append(key)
        items += self._look_at(keys)
        return items + self._find_sources() if self._questions else items

    def _look_at(self, keys: Sequence[Key]) -> list[Response]:
        """Is one of these complete by now? It may have failed, or begun with another one."""
        return [ready for key in keys if key in self.waiting for ready in self._look(key)]

    def _find_sources(self) -> list[Response]:
        """Answer those who take the next message to them from whoever sends it: it is the first that waits."""
        items = []
        for key in [key for key in self._questions if key in self.waiting]:
            message = next((other for other in self.waiting if self._answers(other, key)), None)
            if message is not None:
                if not self.waiting.request(key).absent:  # who only tells of it may be sent another one
                    self._promised.add(message)
                source = self.waiting.request(message).ranks[0]
                items.append(replace(self._respond(self.waiting.pop(key).requests), root=source))
        self._questions = {key: None for key in self._questions if key in self.waiting}
        self._promised &= self.waiting.keys()
        return items

    def _answers(self, message: Key, question: Key) -> bool:
        """Is it a message to who asks, sent, and not received or promised yet?"""
        sent, asked = self.waiting.request(message), self.waiting.request(question)
        fits = sent.kind is Kind.SEND and (sent.ranks[1:], sent.splits) == (asked.ranks, asked.splits)
        return (
            fits
            and message[0] == question[0]
            and [*self.waiting[message].requests] == [sent.ranks[0]]
            and (message not in self._promised)
        )

    def _look(self, key: Key) -> list[Response]:
        """Is a name complete by now?"""
        members = self.waiting.announcers(key)
        if not members:
            return self._fail(key, ("CollectiveError", f"{key[1]!r}: its process set was removed."))
        if len(self.waiting[key].requests) + len(self.waiting.joined) < len(members):
            return []  # at a glance; most announcements end here
        return [] if self.waiting.missing(key) else self._complete(key)

    def _complete(self, key: Key) -> list[Response]:
        requests = self.waiting[key].requests
        if error := self._veto(key, requests):
            return self._fail(key, error)
        request = next(iter(requests.values()))
        if any((other.group, other.group_size) != (request.group, request.group_size) for other in requests.values()):
            # What is in these groups can never be complete on all ranks.
            kind, text = self._respond(requests).error or ("MismatchError", f"Mismatched groups of {key[1]!r}.")
            return self._fail(key, (kind, text))
        if request.group:
            return self._complete_group((key[0], request.group), key, request.group_size)
        del self.waiting[key]
        response = self._agree(requests)
        removed = self._empty(response.root) if response.kind is Kind.REMOVE_SET and not response.error else []
        return [*removed, response]

    def _complete_group(self, name: Key, key: Key, size: int) -> list[Response]:
        """One more of a group is complete, with ``key``; with the last one, all start."""
        group = self._groups.setdefault(name, {})
        group[key] = None
        if len(group) < size:
            return []
        for late in [each for each in group if self.waiting.missing(each)]:  # the join has ended that excused a rank
            del group[late]
        if len(group) < size:
            return []
        del self._groups[name]
        return all_or_none([self._agree(self.waiting.pop(each).requests) for each in group])

    def _agree(self, requests: dict[int, Request]) -> Response:
        """The response to the ranks that have announced, and what follows from it for the process sets."""
        response = self._respond(requests)
        if response.error:
            return response
        among = next(iter(requests.values())).ranks or self.members.get(response.process_set, ())
        if joined := [rank for rank in self.waiting.joined if rank in among and rank not in requests]:
            return without(joined, response, requests)
        if response.kind is Kind.ADD_SET:
            response = replace(response, root=self._next_set)
            self.members[self._next_set], self._next_set = response.rows, self._next_set + 1
        elif response.kind is Kind.REMOVE_SET:
            self.members.pop(response.root, None)
        return response

    def _complete_joined(self) -> list[Response]:
        """A rank has no more data: names may now be complete without it; when all have joined, tell the last."""
        if JOIN not in self.waiting:
            return []  # it was in a group, and the group has failed
        if not self.waiting.missing(JOIN):
            last = list(self.waiting.pop(JOIN).requests)[-1]
            return [Response(JOIN[1], Kind.JOIN, root=last)]
        complete = [key for key in self.waiting if key != JOIN and not self.waiting.missing(key)]
        return [ready for key in complete if key in self.waiting for ready in self._complete(key)]

    def _end(self) -> list[Response]:
        """When all ranks have left, they are told so, and close the data plane together."""
        if len(self._left) < self.size:
            return []
        error = ("ShutDownError", "Some ranks were already gone when the job ended.")
        return [Response("", Kind.SHUTDOWN, error=() if all(self._left.values()) else error)]

    # --- a name never becomes complete --------------------------------------------------------------

    def _empty(self, process_set: int) -> list[Response]:
        """Errors for what still waits in a set that is about to be removed."""
        text = "The process set was removed while {!r} was in flight in it. First wait for all its tensors."
        keys = [key for key in self.waiting if key[0] == process_set]
        failed = ((key, ("CollectiveError", text.format(key[1]))) for key in keys)
        return [item for key, error in failed if key in self.waiting for item in self._fail(key, error)]

    def _fail(self, key: Key, error: Error) -> list[Response]:
        """The error for one name, and for all that is in a group with it: no group runs in part."""
        keys = self.waiting.related(key)
        failed = {each: next(iter(self.waiting.pop(each).requests.values())) for each in keys}
        for request in failed.values():
            self._groups.pop((key[0], request.group), None)
        everybody_knows = min(self._seen)
        self._failed = {other: number for other, number in self._failed.items() if number > everybody_knows}
        self._failed.update(dict.fromkeys(failed, self._number + 1))
        return [Response(one.name, one.kind, process_set=key[0], error=error) for one in failed.values()]


def join_ended(rank: int, name: str = "") -> Error:
    """A rank whose join() waits goes on without it: else the others' sums would miss what it submits now."""
    why = f"submitted {name!r}" if name else "ended its cell or its script"
    return (
        "CollectiveError",
        f"Rank {rank} called join() and {why} before all ranks had joined, so join() is over on all of them. "
        "Call join() last on every rank, and wait for it.",
    )


def all_or_none(members: list[Response]) -> list[Response]:
    """One member's error is the error of all: a group never runs in part."""
    error = next((response.error for response in members if response.error), ())
    if not error:
        return members
    return [Response(one.name, one.kind, process_set=one.process_set, error=error) for one in members]
