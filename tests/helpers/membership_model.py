"""An elastic job as a model: the launcher's real membership, workers that come, train and die, and messages in between.

What may happen in a state, one at a time and in any order: the launcher starts a worker, hears the oldest message of
one, notices that one has died or ended, or wants one to leave; a worker asks for the next epoch, gives that up, reads
its oldest message, gets what was trained, finds out that its epoch is broken, trains to the end, or dies.

What must hold is checked on the way, see :class:`Violation` below. A final state is one in which each worker that was
started is done, was sent away, or is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from model_check import Automaton, Violation

from workbench.launch.elastic.membership import Membership

BOOTS, COMES, MEETS, SYNCS, TRAINS = "boots", "comes", "meets", "syncs", "trains"
DONE, AWAY, DEAD = "done", "away", "dead"
IN_EPOCH = (MEETS, SYNCS, TRAINS)
Said = tuple[str, tuple[tuple[str, Any], ...]]
"""A message's kind and fields."""


class Worker(NamedTuple):
    """One worker's state."""

    life: str = ""  # not started
    epoch: int = 0
    number: int = 0  # how often it has come
    trained: bool = False  # has it what was trained?
    told: str = ""  # why its epoch is to end: "lost" or "changed"
    inbox: tuple[Said, ...] = ()
    outbox: tuple[tuple[str, int], ...] = ()  # what it says, and of which epoch


class World(NamedTuple):
    """The whole state."""

    members: int
    workers: tuple[Worker, ...]
    starts: int
    deaths: int
    leaves: int
    withdrawals: int
    noticed: frozenset[int] = frozenset()  # whose end the launcher knows


class ElasticJob:
    """All that can happen in an elastic job.

    Args:
        first: so many workers are started at once.
        later: … and so many some time later.
        deaths: so many may die.
        leaves: so many of the first ones the launcher wants to leave, at any time.
        withdrawals: so often a worker gives up, and comes again later.
        least, most: of an epoch.
        make: a new membership.
    """

    def __init__(
        self,
        first: int,
        later: int = 0,
        deaths: int = 0,
        leaves: int = 0,
        withdrawals: int = 0,
        least: int = 1,
        most: int = 0,
        make: Callable[..., Membership] = Membership,
    ) -> None:
        self._least, self._most = least, most
        self._counts = withdrawals > 0  # how often a worker has come; else it matters to nobody
        self._membership = Automaton(lambda: make(least, most, key=lambda: "key"), _tell, lambda one: one.epoch)
        self.start = World(0, (Worker(),) * (first + later), first + later, deaths, leaves, withdrawals)
        for worker in range(first):
            self.start = self._start(self.start, worker)

    def is_final(self, world: World) -> bool:
        """Has every worker ended that was started?"""
        return all(one.life in ("", DONE, AWAY, DEAD) for one in world.workers)

    def actions(self, world: World) -> Iterator[tuple[str, World]]:
        """Each thing that may happen next, and the state after it."""
        for i, one in enumerate(world.workers):
            if one.life == "":
                yield f"{i} is started", self._start(world, i)
                continue
            if one.outbox:
                kind, epoch = one.outbox[0]
                heard = self._with(world, i, outbox=one.outbox[1:])
                yield f"the launcher hears {kind} of {i}", self._launcher(heard, kind, i, epoch)
            if one.life in (DONE, AWAY, DEAD):
                if i not in world.noticed:
                    kind = "gone" if one.life == DEAD else "ended"
                    known = world._replace(noticed=world.noticed | {i})
                    yield f"the launcher notices that {i} is {one.life}", self._launcher(known, kind, i)
                continue
            if world.deaths:
                dead = self._with(world, i, life=DEAD, told="", inbox=())
                yield f"{i} dies", dead._replace(deaths=world.deaths - 1)
            if world.leaves and i < world.leaves:
                fewer = world._replace(leaves=world.leaves - 1)
                yield f"the launcher wants {i} to leave", self._launcher(fewer, "leave", i)
            yield from self._worker(world, i, one)

    def _worker(self, world: World, i: int, one: Worker) -> Iterator[tuple[str, World]]:
        if one.life == BOOTS:
            yield f"{i} comes", self._comes(world, i)
        if one.inbox:
            yield f"{i} reads {one.inbox[0][0]}", self._read(world, i)
        if world.withdrawals and one.life in (COMES, MEETS):
            out = self._with(world, i, life=BOOTS, told="", outbox=(*one.outbox, ("withdrew", 0)))
            yield f"{i} gives up", out._replace(withdrawals=world.withdrawals - 1)
        lives = {other.life for other in world.workers if other.epoch == one.epoch}
        if one.life in (SYNCS, TRAINS) and not lives <= {*IN_EPOCH, DONE}:
            yield f"{i} finds its epoch broken, and comes again", self._comes(world, i)
        if one.life == SYNCS and lives <= {SYNCS, TRAINS, DONE}:
            synced = (*one.outbox, ("synced", one.epoch))
            yield f"{i} has what was trained", self._with(world, i, life=TRAINS, trained=True, outbox=synced)
        if one.life == TRAINS:
            if one.told == "lost" or (one.told and not lives & {MEETS, SYNCS}):  # a commit is all ranks'
                yield f"{i} comes again", self._comes(world, i)
            if lives <= {TRAINS, DONE}:
                yield f"{i} is done", self._with(world, i, life=DONE, inbox=())

    # --- how --------------------------------------------------------------------------------------------

    def _with(self, world: World, i: int, **changes: Any) -> World:
        workers = (*world.workers[:i], world.workers[i]._replace(**changes), *world.workers[i + 1 :])
        return world._replace(workers=workers)

    def _start(self, world: World, i: int) -> World:
        return self._launcher(self._with(world, i, life=BOOTS)._replace(starts=world.starts - 1), "started", i)

    def _comes(self, world: World, i: int) -> World:
        one = world.workers[i]
        number = one.number + self._counts
        outbox = (*one.outbox, ("came", number))
        return self._with(world, i, life=COMES, number=number, told="", outbox=outbox)

    def _read(self, world: World, i: int) -> World:
        one = world.workers[i]
        (kind, said), rest = one.inbox[0], one.inbox[1:]
        fields, world = dict(said), self._with(world, i, inbox=rest)
        mine = fields.get("epoch") == one.epoch and one.life in IN_EPOCH
        if kind == "epoch" and fields["come"] != one.number:
            return world  # it has given that up
        if kind == "epoch" and one.life == BOOTS:
            return world
        if kind == "epoch":
            if one.life != COMES:
                raise Violation(f"Worker {i}, which {one.life}, is told of epoch {fields['epoch']}.")
            value = (*one.outbox, ("value", fields["epoch"]))
            return self._with(world, i, life=MEETS, epoch=fields["epoch"], outbox=value)
        if kind == "dismissed":
            return self._with(world, i, life=AWAY, inbox=())
        if kind == "refused":
            raise Violation(f"Worker {i} is refused: {fields}")
        if kind == "values" and mine:
            return self._with(world, i, life=SYNCS)
        if kind == "lost" and mine and one.life in (MEETS, SYNCS):
            return self._comes(world, i)
        return self._with(world, i, told=one.told or kind) if kind in ("lost", "changed") and mine else world

    def _launcher(self, world: World, kind: str, i: int, epoch: int = 0) -> World:
        """The membership is told something, and tells the workers."""
        before = self._membership.look(world.members)
        members, out = self._membership.step(world.members, (kind, i, epoch))
        if self._membership.look(members) > before:
            told = [(worker, dict(fields)) for worker, (kind, fields) in out if kind == "epoch"]
            self._check(world, told)
            if not any(world.workers[worker].trained for worker, _ in told):
                for worker, _ in told:
                    world = self._with(world, worker, trained=True)
        world = world._replace(members=members)
        for worker, said in out:
            if world.workers[worker].life not in (DONE, AWAY, DEAD):
                world = self._with(world, worker, inbox=(*world.workers[worker].inbox, said))
        return world

    def _check(self, world: World, told: list[tuple[int, dict[str, Any]]]) -> None:
        """An epoch begins."""
        inside = [i for i, one in enumerate(world.workers) if one.life in IN_EPOCH]
        if inside:
            raise Violation(f"An epoch begins while the workers {inside} are in an older one.")
        sizes, ranks = {fields["size"] for _, fields in told}, [fields["rank"] for _, fields in told]
        if sizes != {len(told)} or sorted(ranks) != list(range(len(told))):
            raise Violation(f"The ranks of an epoch do not fit: {told}")
        if len(told) < self._least or len(told) > (self._most or len(told)):
            raise Violation(f"An epoch has {len(told)} ranks: {told}")
        sent_away = [i for i, one in enumerate(world.workers) if ("dismissed" in [kind for kind, _ in one.inbox])]
        here = [i for i, one in enumerate(world.workers) if one.life == COMES and not one.outbox and i not in sent_away]
        trained = [i for i in here if world.workers[i].trained]
        first = next(worker for worker, fields in told if fields["rank"] == 0)
        if trained and not world.workers[first].trained:
            raise Violation(f"Worker {first} is rank 0, though {trained} have what was trained.")


def _tell(membership: Membership, told: tuple[str, int, int]) -> tuple[tuple[int, Said], ...]:
    kind, worker, epoch = told
    out = {
        "started": lambda: membership.started(worker, "here"),
        "came": lambda: membership.came(worker, {}, epoch),
        "withdrew": lambda: membership.withdrew(worker),
        "synced": lambda: membership.synced(worker, epoch) or [],
        "value": lambda: membership.value(worker, epoch, 1, b""),
        "gone": lambda: membership.gone(worker, "killed"),
        "ended": lambda: membership.ended(worker),
        "leave": lambda: membership.leave([worker]),
    }[kind]()
    return tuple((to, (said.kind, tuple((k, v) for k, v in said.fields.items() if k != "lengths"))) for to, said in out)
