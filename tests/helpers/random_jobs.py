"""Jobs drawn by a seed: the real coordinator, announcers and tables of entries, ranks that run a script, no threads.

A script has steps. In each a rank submits names, alone or in groups, in an order of its own, and then waits for them in
another one. *Right* scripts submit the same on every rank. A *mistake* changes the script of one rank: another group, a
name left out or too many, another object, a step that is broken off, a join, an early end, an exception.

A draw decides what happens next: a rank goes on, announces, says that it waits, reads a decision; rank 0 takes a
message; time passes, or does not. Where nothing else can happen, time passes, and rank 0 has all the time that it asks
for. A rank that waits even then waits for ever: :class:`Stands`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.config import Settings
from workbench.core.coordinator import JOIN
from workbench.core.handle import Handle
from workbench.core.messages import Decision, Done, Event, Key, Kind, Left, Raised, ReduceOp, Request
from workbench.core.pending import Entry, PendingTable
from workbench.core.protocols import AtOnce
from workbench.errors import CollectiveError, DuplicateNameError, ShutDownError
from workbench.runtime.control.codec import decode_decision, encode_decision
from workbench.runtime.events import Began, Blocked, Ended
from workbench.runtime.steady import stack

_LONG_S = 0.3
_PATIENCE_S = 30.0


class Stands(AssertionError):  # noqa: N818 - what is found is a state
    """Ranks wait for ever."""


@dataclass(frozen=True)
class Submit:
    """These requests, together."""

    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Wait:
    """For one of them."""

    key: Key


@dataclass(frozen=True)
class Raise:
    """An exception of the user's."""


@dataclass(frozen=True)
class Leave:
    """The script ends here."""


Op = Submit | Wait | Raise | Leave
Step = list[Op]


@dataclass
class Draw:
    """What is drawn for one job.

    Args:
        dice: of everything.
        size: number of ranks.
        sets: ids of process sets and their members; 0 is all.
    """

    dice: random.Random
    size: int
    sets: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def requests(self) -> list[tuple[Request, ...]]:
        """What one step submits: units that are submitted as they are."""
        dice, units, free = self.dice, [], deque("abcdefgh"[: self.dice.randint(2, 6)])
        while free:
            process_set = dice.choice([0, 0, *self.sets])
            count = min(len(free), dice.choice([1, 1, 2, 3]))
            names = [free.popleft() for _ in range(count)]
            units.append(grouped([request(name, process_set, dice.choice([0, 0, 0, -2])) for name in names]))
        return units

    def of_rank(self, units: Sequence[tuple[Request, ...]], rank: int) -> list[tuple[Request, ...]]:
        """What a rank may submit of them: those of its process sets, for others are refused where it calls."""
        return [unit for unit in units if rank in self.sets.get(unit[0].process_set, range(self.size))]

    def step(self, units: Sequence[tuple[Request, ...]], rank: int) -> Step:
        """One rank's way through a step: all is submitted, and some is waited for before the rest is."""
        mine = self.of_rank(units, rank)
        self.dice.shuffle(mine)
        ops: Step = [Submit(unit) for unit in mine]
        waits: Step = [Wait(each.key) for unit in mine for each in unit]
        self.dice.shuffle(waits)
        return ops + waits


def request(name: str, process_set: int = 0, priority: int = 0) -> Request:
    """An allreduce of one number."""
    where = {"process_set": process_set, "priority": priority}
    return Request(f"allreduce.{name}", Kind.ALLREDUCE, "float32", (1,), ReduceOp.SUM, **where)  # type: ignore[arg-type]


def grouped(members: Sequence[Request]) -> tuple[Request, ...]:
    """As one group, named by all its members."""
    if len(members) < 2:
        return tuple(replace(one, group="", group_size=0) for one in members)
    name = "+".join(one.name for one in members)
    return tuple(replace(one, group=name, group_size=len(members)) for one in members)


class SimulatedRank:
    """One rank: its script, its table, its announcer; the data plane takes no time.

    Args:
        rank: its number.
        steps: its script.
        after_error: what it does when a wait raises: "raises", "catches" (the next step), "goes on" (the next line),
            "drops" (waits for all that is in flight, then the next step).
        cells: are the steps cells of a notebook?
    """

    def __init__(self, rank: int, steps: Sequence[Step], settings: Settings, after_error: str, cells: bool) -> None:
        self.rank, self.steps, self.after_error, self.cells = rank, [list(step) for step in steps], after_error, cells
        self.table, self.batching = PendingTable(), AtOnce()
        self.announcer = stack.announcer(rank, settings)
        self.handles: dict[Key, Handle] = {}
        self.at, self.line, self.seen = 0, 0, 0
        self.up: deque[Event] = deque()
        self.down: deque[Decision] = deque()
        self.said_blocked = self.left = self.over = self.begun = False
        self.errors: list[BaseException] = []
        self.told: list[str] = []

    # --- the script ---------------------------------------------------------------------------------

    @property
    def waits_for(self) -> Handle | None:
        """What its script waits for."""
        op = self._op()
        handle = self.handles.get(op.key) if isinstance(op, Wait) else None
        return None if handle is None or handle.poll() else handle

    def _op(self) -> Op | None:
        if self.left or self.at >= len(self.steps):
            return None
        step = self.steps[self.at]
        return step[self.line] if self.line < len(step) else None

    def may_go_on(self) -> bool:
        """Can its script do something?"""
        return not self.left and self.waits_for is None

    def go_on(self) -> None:
        """Its next line."""
        if self.said_blocked:
            self.said_blocked = False
            self.table.report(Blocked(self.rank, ()))
        if self.cells and not self.begun and self.at < len(self.steps):
            self.begun = True
            self.table.report(Began(self.rank))
            return
        op = self._op()
        try:
            match op:
                case None:
                    self._next_step()
                case Leave():
                    self._leave()
                case Raise():
                    raise ValueError("the user's")
                case Submit(requests):
                    entries = [_entry(each, self.rank) for each in requests]
                    self.table.add(entries)
                    self.handles.update((one.request.key, one.handle) for one in entries)
                    self.line += 1
                case Wait(key):
                    self.line += 1
                    if key in self.handles:
                        self.handles[key].wait()
        except (CollectiveError, DuplicateNameError, ValueError, RuntimeError) as error:
            self.errors.append(error)
            self._handle(error)

    def _handle(self, error: BaseException) -> None:
        if self.after_error == "raises" or isinstance(error, ShutDownError):
            self.table.report(Raised(self.rank, f"Error: {error}", final=not self.cells))
            if not self.cells:
                return self._leave()
            return self._next_step()
        if self.after_error == "goes on" and isinstance(error, CollectiveError):
            return None
        if self.after_error == "drops":
            rest: Step = [Wait(key) for key, handle in self.handles.items() if not handle.poll()]
            self.steps[self.at][self.line :] = rest
            if rest:
                return None
        return self._next_step()

    def _next_step(self) -> None:
        if self.at >= len(self.steps):
            return self._leave()
        if self.cells and self.begun:
            self.begun = False
            self.table.report(Ended(self.rank))
        self.at, self.line = self.at + 1, 0
        return None

    def _leave(self) -> None:
        self.left = True
        self.table.report(Left(self.rank))

    def may_report(self) -> bool:
        """Has it something to say about its wait?"""
        return self.waits_for is not None and not self.said_blocked

    def report_blocked(self) -> None:
        """It has waited for a while."""
        handle = self.waits_for
        assert handle is not None
        self.said_blocked = True
        self.table.report(Blocked(self.rank, ((handle.request.process_set, handle.name, f"of {self.rank}"),)))

    # --- the engine ---------------------------------------------------------------------------------

    def may_announce(self) -> bool:
        """Is there something new?"""
        return bool(self.table.new) and not self.over

    def announce(self) -> None:
        """See Engine._announce."""
        self.batching.add(self.table.drain(), 0.0)
        for item in self.batching.take():
            self.up.append(self.announcer.announce(item, self.seen) if isinstance(item, list) else item)

    def read(self) -> None:
        """See Engine._obey."""
        decision = self.down.popleft()
        self.seen = decision.number
        for response in self.announcer.read(decision):
            if response.kind is Kind.SHUTDOWN:
                self.end(response.exception() or ShutDownError("The job has ended."))
                return
            if response.kind is Kind.RENUMBER:
                continue
            (entry,) = self.table.parts(self.rank, [response])
            if response.priority and self.rank == 0:
                self.up.append(Done(0))
            if entry is not None:
                self.table.remove([entry])
                entry.deliver(None, response.exception())

    def end(self, error: CollectiveError) -> None:
        """The job has ended."""
        for entry in self.table.close(error):
            entry.handle.finish(error=error)
        self.over = True


def _entry(one: Request, rank: int) -> Entry:
    source = None if one.kind is not Kind.ALLREDUCE or one.absent else np.full(1, rank, np.float32)
    entry = Entry(one, source, None, Handle(one.name))
    entry.handle.request = one
    return entry


class SimulatedJob:
    """Ranks and rank 0's coordinator.

    Args:
        dice: decides what happens next.
        ranks: of the job.
        settings: of the coordinator.
        patient: time passes only when nothing else can happen.
    """

    def __init__(self, dice: random.Random, ranks: Sequence[SimulatedRank], settings: Settings) -> None:
        self.dice, self.ranks, self.now = dice, ranks, 0.0
        self.coordinator = stack.coordinator(len(ranks), settings)
        self.history: list[str] = []

    def run(self) -> None:
        """Until all have left.

        Raises:
            Stands: ranks wait for ever.
        """
        while not all(rank.over for rank in self.ranks):
            actions = list(self._actions())
            if actions:
                name, action = self.dice.choice(actions)
                self.history.append(name)
                action()
                if self.dice.random() < 0.1:
                    self.now += self.dice.choice([0.01, _LONG_S, 5.0])
                    self._expire()
            elif not self._time_helps():
                where = {rank.rank: getattr(rank.waits_for, "name", "all have left") for rank in self.ranks}
                raise Stands(f"The ranks wait for ever: {where}. After: {', '.join(self.history)}")

    def _actions(self) -> Any:
        for rank in self.ranks:
            if rank.over:
                continue
            i = rank.rank
            if rank.may_go_on() and not (rank.cells and self._ahead(rank)):
                yield f"{i} goes on", rank.go_on
            if rank.may_report():
                yield f"{i} is blocked", rank.report_blocked
            if rank.may_announce():
                yield f"{i} announces", rank.announce
            if rank.down:
                yield f"{i} reads", rank.read
            if rank.up:
                yield f"0 hears {i}", lambda rank=rank: self._hear(rank)

    def _ahead(self, rank: SimulatedRank) -> bool:
        """A notebook sends the next cell when the last one has ended everywhere."""
        return not rank.begun and any(other.at < rank.at and not other.left for other in self.ranks)

    def _hear(self, rank: SimulatedRank) -> None:
        decision = self.coordinator.take(rank.up.popleft(), self.now)
        self.coordinator.validate()
        self._send(decision)

    def _send(self, decision: Decision) -> None:
        if decision:
            data = encode_decision(decision)
            for rank in self.ranks:
                rank.down.append(decision if rank.rank == 0 else decode_decision(data))

    def _expire(self) -> bool:
        decision = self.coordinator.expire(self.now)
        self._send(decision)
        return bool(decision)

    def _time_helps(self) -> bool:
        until = self.now + _PATIENCE_S
        while self.now < until:
            self.now += 1.0
            if self._expire():
                return True
        return False


# --- what is drawn -----------------------------------------------------------------------------------------

SETTINGS = (
    Settings(),
    Settings(eager_bytes=0),
    Settings(eager_bytes=0, piece_bytes=1),
    Settings(cache_capacity=0, steady_state=0, eager_bytes=0, piece_bytes=0),
)
"""With all accelerations, and without some of them."""


def _other_group(draw: Draw, step: Step, units: Sequence[tuple[Request, ...]]) -> Step:
    """Other groups of the same names."""
    flat = [each for op in step if isinstance(op, Submit) for each in op.requests if each.process_set == 0]
    rest = [op for op in step if not (isinstance(op, Submit) and op.requests[0].process_set == 0)]
    draw.dice.shuffle(flat)
    made: Step = []
    while flat:
        count = min(len(flat), draw.dice.randint(1, 3))
        made.append(Submit(grouped(flat[:count])))
        del flat[:count]
    return made + rest


def _left_out(draw: Draw, step: Step, units: Sequence[tuple[Request, ...]]) -> Step:
    """A name is frozen on this rank: its group is smaller."""
    at = draw.dice.choice([i for i, op in enumerate(step) if isinstance(op, Submit)])
    op = step[at]
    assert isinstance(op, Submit)
    gone = draw.dice.choice(op.requests)
    rest = [one for one in op.requests if one is not gone]
    step[at : at + 1] = [Submit(grouped(rest))] if rest else []
    return [op for op in step if not (isinstance(op, Wait) and op.key == gone.key)]


def _too_many(draw: Draw, step: Step, units: Sequence[tuple[Request, ...]]) -> Step:
    """A name that no other rank submits."""
    extra = request("z")
    step.insert(draw.dice.randint(0, len(step)), Submit((extra,)))
    return [*step, Wait(extra.key)]


def _other_object(draw: Draw, step: Step, units: Sequence[tuple[Request, ...]]) -> Step:
    """The same names, of another training."""
    return [
        Submit(tuple(replace(one, user=(2, 2)) for one in op.requests)) if isinstance(op, Submit) else op for op in step
    ]


def _two_trainings(draw: Draw, step: Step, units: Sequence[tuple[Request, ...]]) -> Step:
    """One step after the other, the second of another object."""
    return [*step, *_other_object(draw, draw.step(units, draw.dice.randrange(draw.size)), units)]


def _broken_off(draw: Draw, step: Step, units: Sequence[tuple[Request, ...]]) -> Step:
    """The rest of the step is left out, without a word."""
    return step[: draw.dice.randint(0, len(step))]


def _waits_between(draw: Draw, step: Step, units: Sequence[tuple[Request, ...]]) -> Step:
    """It waits for each unit before the next."""
    draw.dice.shuffle(step)
    submits = [op for op in step if isinstance(op, Submit)]
    return [each for op in submits for each in (op, *(Wait(one.key) for one in op.requests))]


def _interrupted(draw: Draw, step: Step, units: Sequence[tuple[Request, ...]]) -> Step:
    """An exception somewhere."""
    step.insert(draw.dice.randint(0, len(step)), Raise())
    return step


def _joins(draw: Draw, step: Step, units: Sequence[tuple[Request, ...]]) -> Step:
    """No more data, or so it says."""
    join = [Submit((Request(JOIN[1], Kind.JOIN),)), Wait(JOIN)]
    at = draw.dice.randint(0, len(step))
    return [*step[:at], *join, *step[at:]]


def _leaves(draw: Draw, step: Step, units: Sequence[tuple[Request, ...]]) -> Step:
    """The script ends amid a step."""
    return [*step[: draw.dice.randint(0, len(step))], Leave()]


MISTAKES: tuple[Callable[[Draw, Step, Sequence[tuple[Request, ...]]], Step], ...] = (
    *(_other_group, _left_out, _too_many, _other_object, _two_trainings, _broken_off, _waits_between),
    *(_interrupted, _joins, _leaves),
)


def draw_job(seed: int, right: bool) -> SimulatedJob:
    """A job of 2 to 4 ranks and 1 to 4 steps, right or with one to three mistakes."""
    dice = random.Random(seed)
    draw = Draw(dice, dice.choice([2, 2, 3, 4]))
    everybody = range(draw.size)
    scripts: list[list[Step]] = [[] for _ in everybody]
    if draw.size > 2 and dice.random() < 0.5:
        draw.sets[1] = tuple(sorted(dice.sample(everybody, 2)))
        add = Request("add_process_set.s", Kind.ADD_SET, splits=draw.sets[1])
        for script in scripts:
            script.append([Submit((add,)), Wait(add.key)])
    first, units = len(scripts[0]), draw.requests()
    plan = [units if dice.random() < 0.7 else draw.requests() for _ in range(dice.randint(1, 4))]
    for units in plan:
        for rank in everybody:
            scripts[rank].append(draw.step(units, rank))
    if right and dice.random() < 0.5:
        for rank in everybody:
            scripts[rank].append(_joins(draw, [], ()))
    for _ in range(0 if right else dice.randint(1, 3)):
        rank, number = dice.randrange(draw.size), dice.randrange(len(plan))
        step = scripts[rank][first + number]
        if any(isinstance(op, Submit) for op in step):
            scripts[rank][first + number] = dice.choice(MISTAKES)(draw, step, draw.of_rank(plan[number], rank))
    settings, cells = dice.choice(SETTINGS), not right and dice.random() < 0.4
    react = ["raises", "catches", "goes on", "drops"]
    ranks = [SimulatedRank(i, scripts[i], settings, dice.choice(react), cells) for i in everybody]
    return SimulatedJob(dice, ranks, settings)
