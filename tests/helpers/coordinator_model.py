"""A job as a model: the real coordinator and announcers, ranks that follow a script, and channels between them.

What may happen in a state, one at a time and in any order:

- a rank does the next step of its script: it submits names, waits until they are done, joins, or leaves;
- rank 0 takes the oldest message of some rank, which may be late against any other rank's;
- a rank reads the next decision; begins what is decided; ends a collective that all ranks have begun;
- a rank dies; rank 0 notices it, sooner or later than what the rank has sent; or all notice that rank 0 died.

What must hold is checked on the way, see :class:`Violation` below; and a final state is one in which each living rank
has left the job with all its handles done. Time does not pass: no deadline ends anything here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from model_check import Automaton, Violation

from workbench.config import Settings
from workbench.core.coordinator import JOIN
from workbench.core.handle import Handle
from workbench.core.messages import Decision, Done, Event, Kind, Left, Raised, ReduceOp, Request, Response
from workbench.core.pending import Entry
from workbench.core.verbs import verb
from workbench.runtime.control.codec import decode_decision, decode_event, encode_decision, encode_event
from workbench.runtime.events import Lost
from workbench.runtime.faults.supervision import SupervisingCoordinator
from workbench.runtime.steady import stack

WAIT, CATCH, JOINS, RAISE = "wait", "catch", "join", "raise"
Script = Sequence[str]
"""``"x y"`` submits both names in one message; ``x3`` has priority -3; ``wait`` goes on when all is done, and so does
``catch``, after errors, too; ``join`` submits a join()."""

ON, OFF = Settings(), Settings(cache_capacity=0, steady_state=0, eager_bytes=0, piece_bytes=0)
"""With all accelerations, and without them."""


class Rank(NamedTuple):
    """One rank's state."""

    step: int = 0  # of its script
    life: str = "runs"  # leaves (it waits for the others), gone, dead
    announcer: int = 0
    read: int = 0  # so many of the log's decisions
    seen: int = 0  # the number of the last one
    flying: tuple[str, ...] = ()  # names that are not done
    fresh: tuple[str, ...] = ()  # those of them that are not announced, for the engine is busy
    failed: bool = False  # a handle has an error that the script has not seen yet
    todo: tuple[Response, ...] = ()  # of the last decision
    begun: int = 0  # collectives in the data plane
    inside: bool = False  # the last of them has not ended


class World(NamedTuple):
    """The whole state."""

    coordinator: int
    up: tuple[tuple[bytes, ...], ...]  # by rank: events on their way to rank 0
    log: tuple[int, ...]  # decisions that not all ranks have read
    ranks: tuple[Rank, ...]
    deaths: int = 0  # that may still come
    lost: frozenset[int] = frozenset()  # whose death rank 0 knows


class Job:
    """All that can happen in a job.

    Args:
        scripts: one per rank.
        settings: which accelerations there are.
        deaths: so many ranks may die, at any moment.
        mortal: these may; by default all.
        warm: all ranks first do this step together, so that its names are known.
    """

    def __init__(
        self,
        scripts: Sequence[Script],
        settings: Settings = ON,
        deaths: int = 0,
        mortal: Sequence[int] | None = None,
        warm: str = "",
    ) -> None:
        self.scripts, self.size, self._settings = scripts, len(scripts), settings
        self._mortal = range(self.size) if mortal is None else mortal
        self._coordinator = Automaton(self._make, self._tell, lambda one: one.over)
        self._announcers = [Automaton(self._announcer(rank), self._ask(rank)) for rank in range(self.size)]
        self._decisions: list[tuple[Decision, bytes]] = []
        self._numbers: dict[tuple[bytes, tuple[str, ...]], int] = {}
        self._same: dict[Rank, Rank] = {}
        ranks = tuple(Rank() for _ in scripts)
        self.start = World(0, ((),) * self.size, (), ranks)
        if warm:
            self.start = self._warmed(warm)
        self.start = self.start._replace(deaths=deaths)

    # --- the real objects ---------------------------------------------------------------------------

    def _make(self) -> SupervisingCoordinator:
        return stack.coordinator(self.size, self._settings)

    def _tell(self, coordinator: SupervisingCoordinator, told: bytes | int) -> int | None:
        """An event, or the number of a lost rank; the number of the decision that follows, None if there is none."""
        event: Event = Lost(told, "killed") if isinstance(told, int) else Done(0) if not told else decode_event(told)
        decision = coordinator.take(event, 0.0)
        try:
            coordinator.validate()
        except AssertionError as broken:
            raise Violation(str(broken)) from None
        if not decision:
            return None
        meant = replace(decision, items=[replace(item, requests={}, cached=False) for item in decision.items])
        data = encode_decision(decision)
        key = data, tuple(map(repr, meant.items))
        number = self._numbers.setdefault(key, len(self._decisions))
        if number == len(self._decisions):
            self._decisions.append((meant, data))
        return number

    def _announcer(self, rank: int) -> Callable[[], Any]:
        return lambda: stack.announcer(rank, self._settings)

    def _ask(self, rank: int) -> Callable[[Any, Any], Any]:
        def ask(announcer: Any, told: tuple[str, ...] | int) -> Any:
            if isinstance(told, int):
                return tuple(announcer.read(decode_decision(self._decisions[told][1])))
            *names, seen = told
            return encode_event(announcer.announce([_entry(name, rank) for name in names], int(seen)))

        return ask

    # --- what may happen ----------------------------------------------------------------------------

    def is_final(self, world: World) -> bool:
        """Has each living rank left, with all handles done?"""
        return all(rank.life == "dead" or (rank.life == "gone" and not rank.flying) for rank in world.ranks)

    def actions(self, world: World) -> Iterator[tuple[str, World]]:
        """Each thing that may happen next, and the state after it."""
        for i, rank in enumerate(world.ranks):
            if rank.life == "dead":
                yield from self._of_the_dead(world, i)
                continue
            if world.deaths and i in self._mortal and rank.life != "gone":
                yield f"{i} dies", self._end(world._replace(deaths=world.deaths - 1), i, "dead")
            if rank.life == "gone":
                continue
            yield from self._script(world, i, self.scripts[i])
            yield from self._engine(world, i)
        if world.ranks[0].life != "dead":
            for i in range(self.size):
                # The server ends with the job; what rank 0 itself still says, it may hear.
                if world.up[i] and (i == 0 or not self._coordinator.look(world.coordinator)):
                    yield f"rank 0 hears {i}", self._hear(world, i)

    def _of_the_dead(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        if i == 0:
            for other, rank in enumerate(world.ranks):
                if rank.life in ("runs", "leaves"):
                    yield f"{other} notices", self._end(world, other)
        elif world.ranks[0].life != "dead" and i not in world.lost and not self._coordinator.look(world.coordinator):
            yield f"rank 0 notices {i}", self._hear(world._replace(lost=world.lost | {i}), i, lost=True)

    def _script(self, world: World, i: int, script: Script) -> Iterator[tuple[str, World]]:
        rank = world.ranks[i]
        if rank.life != "runs" or rank.fresh:  # rank 0 hears in order of what a rank does
            return
        what = script[rank.step] if rank.step < len(script) else ""
        if what == CATCH or (what == WAIT and not rank.failed):
            if not rank.flying:
                yield f"{i} has waited", self._with(world, i, step=rank.step + 1, failed=False)
        elif what in (WAIT, RAISE):
            raised = self._send(world, i, Raised(i, "Error: raised"))
            yield f"{i} raises", self._with(self._send(raised, i, Left(i)), i, life="leaves")
        elif not what:
            yield f"{i} leaves", self._with(self._send(world, i, Left(i)), i, life="leaves")
        elif not set(what.split()) & set(rank.flying):
            yield f"{i} submits {what}", self._submit(self._with(world, i, step=rank.step + 1), i, what.split())

    def _engine(self, world: World, i: int) -> Iterator[tuple[str, World]]:
        rank = world.ranks[i]
        if rank.inside:
            if all(other.begun >= rank.begun for other in world.ranks):
                yield f"{i} ends a collective", self._finish(self._with(world, i, inside=False), i)
            elif any(self._ends_job(number) for number in world.log[rank.read :]):
                yield f"{i} breaks off", self._end(world, i)
        elif rank.todo:
            yield f"{i} begins {rank.todo[0].name}", self._begin(world, i)
        else:
            if rank.fresh:
                yield f"{i} announces", self._announce(world, i)
            if rank.read < len(world.log):
                yield f"{i} reads", self._read(world, i)

    # --- how ----------------------------------------------------------------------------------------

    def _with(self, world: World, i: int, **changes: Any) -> World:
        return self._put(world, i, world.ranks[i]._replace(**changes))

    def _put(self, world: World, i: int, rank: Rank) -> World:
        rank = self._same.setdefault(rank, rank)  # states share what is equal: there are many of them
        return world._replace(ranks=(*world.ranks[:i], rank, *world.ranks[i + 1 :]))

    def _send(self, world: World, i: int, event: Event | bytes) -> World:
        data = event if isinstance(event, bytes) else encode_event(event)
        return world._replace(up=(*world.up[:i], (*world.up[i], data), *world.up[i + 1 :]))

    def _submit(self, world: World, i: int, names: list[str]) -> World:
        rank = world.ranks[i]
        flying = tuple(sorted({*rank.flying, *names}))
        world = self._with(world, i, flying=flying, fresh=tuple(names))
        return world if rank.todo else self._announce(world, i)

    def _announce(self, world: World, i: int) -> World:
        """Tell rank 0 of what is new, and has not failed meanwhile."""
        rank = world.ranks[i]
        names = [name for name in rank.fresh if name in rank.flying]
        world = self._with(world, i, fresh=())
        if not names:
            return world
        announcer, data = self._announcers[i].step(rank.announcer, (*names, str(rank.seen)))
        return self._send(self._with(world, i, announcer=announcer), i, data)

    def _hear(self, world: World, i: int, lost: bool = False) -> World:
        """Rank 0 takes an event of rank ``i``, or that it is lost."""
        told: bytes | int = i if lost else world.up[i][0]
        if not lost:
            world = world._replace(up=(*world.up[:i], world.up[i][1:], *world.up[i + 1 :]))
        return self._decide(world, told)

    def _decide(self, world: World, told: bytes | int) -> World:
        """What rank 0 decides: on an event, the number of a lost rank, or b"": it is done with what has a priority."""
        before = self._coordinator.look(world.coordinator)
        coordinator, number = self._coordinator.step(world.coordinator, told)
        world = world._replace(coordinator=coordinator)
        if number is None:
            return world
        if isinstance(told, int) and any(not item.error for item in self._decisions[number][0].items):
            raise Violation(f"Rank {told} is dead, and a collective is begun: {self._decisions[number][0]}")
        return world if before else world._replace(log=(*world.log, number))  # nobody reads beyond the end

    def _read(self, world: World, i: int) -> World:
        rank = world.ranks[i]
        number = world.log[rank.read]
        announcer, responses = self._announcers[i].step(rank.announcer, number)
        meant, _ = self._decisions[number]
        results = [meant.results.get(k, b"") for k in range(len(meant.items))]
        plain = tuple(replace(one, result=b"", cache_id=None, cached=False) for one in responses)
        if plain != tuple(meant.items) or [one.result for one in responses] != results:
            raise Violation(f"Rank {i} reads {responses}, and rank 0 has decided {meant}.")
        return self._forget(
            self._with(world, i, announcer=announcer, read=rank.read + 1, seen=meant.number, todo=responses)
        )

    def _forget(self, world: World) -> World:
        """Without the decisions that all have read: they make no difference any more."""
        here = [i for i, rank in enumerate(world.ranks) if rank.life in ("runs", "leaves")]
        cut = min((world.ranks[i].read for i in here), default=len(world.log))
        if cut:
            world = world._replace(log=world.log[cut:])
            for i in here:
                world = self._with(world, i, read=world.ranks[i].read - cut)
        return world

    def _begin(self, world: World, i: int) -> World:
        """What a rank does about a response that it has read."""
        rank = world.ranks[i]
        response = rank.todo[0]
        if response.kind is Kind.SHUTDOWN:
            return self._end(world, i)
        name = _short(response)
        if response.error:
            return self._finish(self._with(world, i, failed=rank.failed or name in rank.flying), i)
        if i in response.joined and JOINS not in rank.flying:
            raise Violation(f"Rank {i} has not joined, and {name} is reduced without it.")
        if i not in response.joined and name not in rank.flying:
            raise Violation(f"Rank {i} is told to do {name}, which it has not submitted, or is done with.")
        if response.result:
            took = [r for r in range(self.size) if r not in response.joined]
            if not np.array_equal(np.frombuffer(response.result, np.float32), sum(_value(name, r) for r in took)):
                raise Violation(f"{name} is not the sum of the ranks {took}: {response}")
        if response.result or not verb(response.kind).moves:
            return self._finish(world, i)
        return self._with(world, i, begun=rank.begun + 1, inside=True)

    def _finish(self, world: World, i: int) -> World:
        """The first response is done, and so is the handle, if there is one."""
        rank = world.ranks[i]
        name = _short(rank.todo[0])
        if i == 0 and rank.todo[0].priority:
            world = self._decide(world, b"")
        flying = rank.flying if i in rank.todo[0].joined else tuple(each for each in rank.flying if each != name)
        return self._with(world, i, todo=rank.todo[1:], flying=flying)

    def _end(self, world: World, i: int, life: str = "gone") -> World:
        """Every handle gets an error, and the rank has left the job; or it is dead."""
        return self._forget(self._put(world, i, Rank(life=life, begun=world.ranks[i].begun)))

    def _ends_job(self, number: int) -> bool:
        return any(item.kind is Kind.SHUTDOWN for item in self._decisions[number][0].items)

    def _warmed(self, step: str) -> World:
        """The world after all ranks have submitted these names, one after the other, and got the results."""
        world = self.start
        for i in range(self.size):
            world = self._submit(world, i, step.split())
        while True:
            ways = [after for i in range(self.size) for _, after in self._engine(world, i)]
            ways += [self._hear(world, i) for i in range(self.size) if world.up[i]]
            if not ways:
                return world
            world = ways[0]


def _request(name: str) -> Request:
    if name == JOINS:
        return Request(JOIN[1], Kind.JOIN)
    return Request(f"allreduce.{name}", Kind.ALLREDUCE, "float32", (1,), ReduceOp.SUM, priority=-int(name[1:] or 0))


def _short(response: Response) -> str:
    return JOINS if response.kind is Kind.JOIN else response.name.partition(".")[2]


def _value(name: str, rank: int) -> Any:
    """What a rank contributes: a sum of these tells who took part."""
    return np.full(1, 8.0**rank + 512 * (ord(name[0]) - ord("a")), np.float32)


def _entry(name: str, rank: int) -> Entry:
    request = _request(name)
    return Entry(request, None if name == JOINS else _value(name, rank), None, Handle(request.name))
