"""An elastic job whose workers are simulated: what becomes of it while hosts come and go and workers die."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from signal import SIGKILL, SIGTERM
from types import TracebackType

import pytest

from workbench.common.messages import Message
from workbench.launch.elastic.discovery import Found
from workbench.launch.elastic.run import Limits, run
from workbench.launch.ranks.events import HostLost, LauncherEvent, RankEnded, WorkerMessage
from workbench.launch.ranks.output import Printer
from workbench.launch.start.run import Outcome
from workbench.launch.start.starters import Placement

Events = list[LauncherEvent | WorkerMessage]
BOOTS, COMES, MEETS, TRAINS, GONE = "boots", "comes", "meets", "trains", "gone"
NOWHERE = "nosuch"  # a host that cannot be used


@dataclass
class Worker:
    """A worker; ``steps`` is what it has trained, -1 if it has nothing."""

    host: str
    life: str = BOOTS
    steps: int = -1
    epoch: int = 0
    rank: int = 0
    told: str = ""


class Simulation:
    """The workers of a job and the hosts that are found; :meth:`wait` lets one thing happen.

    Args:
        hosts: at the start.

    Attributes:
        committed: the last step that all ranks of an epoch have trained together.
    """

    def __init__(self, hosts: Found) -> None:
        self.files: dict[str, bytes] = {}
        self.workers: dict[int, Worker] = {}
        self.committed = 0
        self.found: Found | None = hosts
        self.events: Events = []

    # --- hosts ----------------------------------------------------------------------------------------

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def news(self) -> tuple[Found | None, str]:
        found, self.found = self.found, None
        return found, ""

    # --- workers --------------------------------------------------------------------------------------

    def takes(self, host: str) -> bool:
        return True

    def start(self, worker: int, placement: Placement) -> None:
        self.workers[worker] = Worker(placement.host, GONE if placement.host == NOWHERE else BOOTS)
        if placement.host == NOWHERE:
            self.events.append(HostLost(NOWHERE, (worker,), "there is no host of this name"))

    def send(self, worker: int, message: Message) -> None:
        one, fields = self.workers[worker], message.fields
        if message.kind == "epoch":
            one.life, one.epoch, one.rank, one.told = MEETS, fields["epoch"], fields["rank"], ""
        elif message.kind == "dismissed":
            one.life = GONE
            self.events.append(RankEnded(worker, 0))
        elif message.kind in ("lost", "changed") and fields["epoch"] == one.epoch and one.life in (MEETS, TRAINS):
            one.told = "lost" if message.kind == "lost" else one.told or ("changed" if fields["timestamp"] else "")

    def silent_for(self, worker: int) -> float:
        return 0.0

    def signal(self, workers: Iterable[int], number: int) -> None:
        for worker in workers:
            self.end(worker, -number)

    def stop(self) -> Events:
        return []

    def wait(self, timeout_s: float) -> Iterator[LauncherEvent | WorkerMessage]:
        if not self.events:
            self.happen()
        events, self.events = self.events, []
        yield from events

    # --- what may happen ------------------------------------------------------------------------------

    def happen(self) -> None:
        """One thing that a test wants."""
        raise NotImplementedError

    def living(self, *lives: str) -> list[int]:
        return [number for number, one in self.workers.items() if one.life in (lives or (BOOTS, COMES, MEETS, TRAINS))]

    def end(self, worker: int, code: int) -> None:
        self.workers[worker].life = GONE
        self.events.append(RankEnded(worker, code))

    def come(self, worker: int) -> None:
        one = self.workers[worker]
        one.life, one.told = COMES, ""
        self.events.append(WorkerMessage(worker, Message("come", {"about": {}, "number": 1})))

    def go_on(self, chance: random.Random) -> bool:
        """A worker boots, hears that one was lost, or the epoch's ranks meet or train; is there nothing of these?"""
        epoch = max((one.epoch for one in self.workers.values()), default=0)
        members = [number for number, one in self.workers.items() if one.epoch == epoch > 0]
        lives = {self.workers[each].life for each in members}
        may: list[tuple[str, int]] = [
            ("come", each) for each in self.living(BOOTS) if self.workers[each].host != NOWHERE
        ]
        may += [("come", each) for each in self.living(MEETS, TRAINS) if self.workers[each].told == "lost"]
        may += [("meet", 0)] * (lives == {MEETS}) + [("train", 0)] * (lives == {TRAINS})
        if not may:
            return False
        what, worker = chance.choice(may)
        if what == "come":
            self.come(worker)
        elif what == "meet":
            self.meet(members)
        else:
            self.train(members)
        return True

    def meet(self, members: list[int]) -> None:
        """All get what rank 0 has."""
        first = next(self.workers[each] for each in members if self.workers[each].rank == 0)
        assert max(first.steps, 0) == self.committed, "what was trained is lost"
        for each in members:
            self.workers[each].life, self.workers[each].steps = TRAINS, self.committed
            self.events.append(WorkerMessage(each, Message("synced", {"epoch": first.epoch})))

    def train(self, members: list[int]) -> None:
        """A step, and a commit, at which all come if one has been told to."""
        self.committed += 1
        for each in members:
            self.workers[each].steps = self.committed
        if any(self.workers[each].told for each in members):
            for each in members:
                self.come(each)


class Sequence(Simulation):
    """So many lists, deaths and joins in a random order, then a list that stays; the job trains on and ends well."""

    LISTS = (
        {"a": 1},
        {"b": 1},
        {"c": 2},
        {NOWHERE: 1},
        {"a": 0},
        {"a": 1, NOWHERE: 1},
        {"b": 1, "c": 1},
        {"c": 1, "a": 2},
    )

    def __init__(self, seed: int, least: int) -> None:
        self._chance, self._least = random.Random(seed), least
        super().__init__([("a", 2)])
        self._left, self._false_starts = 80, 2  # three in a row and a host is given up

    def happen(self) -> None:
        self._left -= 1
        assert self._left > -2000, f"the job does not go on: {self.workers}"
        if self._left == 0:
            self.found = [("b", 2)]
        elif self._left > 0 and self._chance.random() < 0.2:
            self.found = list(self._chance.choice(self.LISTS).items())
        elif self._left > 0 and self._chance.random() < 0.2 and (victims := self._victims()):
            victim = self._chance.choice(victims)
            self._false_starts -= self.workers[victim].epoch == 0
            self.end(victim, -SIGKILL)
        elif not self.go_on(self._chance):
            return
        members = self.living(TRAINS)
        settled = {self.workers[each].host for each in members} == {"b"} and len(members) == 2
        if self._left < 0 and settled and not self.events:
            for each in self.living():
                self.end(each, 0)

    def _victims(self) -> list[int]:
        """Any but the last ones that have what was trained."""
        able = [each for each in self.living() if self.workers[each].steps == self.committed]
        spare = able if len(able) > 1 == self._least else []
        new = [each for each in self.living() if self.workers[each].epoch == 0]
        return spare + (new if self._false_starts and self.committed else [])


def outcome(simulation: Simulation, least: int = 1, most: int = 0) -> tuple[Outcome, list[str]]:
    """How a job ends with these workers, and what the launcher has said."""
    said: list[str] = []
    limits = Limits(least=least, most=most, rest_s=(0.0, 0.0))
    printer = Printer(io.StringIO(), io.StringIO(), 0)
    return run(limits, simulation, simulation, printer, said.append), said


@pytest.mark.parametrize("most", [0, 2], ids=["", "max-np"])
def test_nothing_trained_is_lost_while_one_lives_that_has_it(most: int) -> None:
    """Whatever hosts are listed, whoever dies or joins: the job ends well, on the hosts that were listed last."""
    for seed in range(80):
        least = 1 + seed % 2
        end, said = outcome(Sequence(seed, least), least, most)
        assert (end.code, end.text) == (0, ""), "\n".join([f"seed {seed}", end.text, *said])


class Moves(Simulation):
    """Lists of one slot, one a while after the other; workers that are started later come when all lists are known."""

    def __init__(self, first: str, lists: list[str]) -> None:
        super().__init__([(first, 1)])
        self._lists, self._looks, self._chance = lists[::-1], 0, random.Random(0)

    def happen(self) -> None:
        self._looks += self.committed > 0
        if self._lists and self._looks % 10 == 9:
            self.found = [(self._lists.pop(), 1)]
        elif self._looks > 100 and self.living(TRAINS) == self.living():
            for each in self.living():
                self.end(each, 0)
        else:
            self.go_on(self._chance)

    def come(self, worker: int) -> None:
        if worker == 0 or not self._lists:
            super().come(worker)


@pytest.mark.parametrize(
    ("lists", "host"),
    [(["b", "c"], "c"), (["b", "a"], "a"), (["b", NOWHERE], "a"), ([NOWHERE], "a"), (["b", "c", "a", "b"], "b")],
    ids="-".join,
)
@pytest.mark.parametrize("most", [0, 1], ids=["", "max-np 1"])
def test_a_list_that_changes_while_new_workers_start(lists: list[str], host: str, most: int) -> None:
    """The job goes on where it was until others are there, and from what it had trained."""
    simulation = Moves("a", lists)
    end, said = outcome(simulation, most=most)
    assert (end.code, end.text) == (0, ""), "\n".join([end.text, *said])
    last = max(simulation.workers.values(), key=lambda one: one.epoch)
    assert last.host == host, said


class Leaves(Simulation):
    """Two ranks; one dies, and another comes in its place; then both get SIGTERM."""

    def __init__(self) -> None:
        super().__init__([("a", 2)])
        self._died, self._chance = False, random.Random(0)

    def happen(self) -> None:
        both = self.living()
        if len(both) < 2 or self.living(TRAINS) != both:
            self.go_on(self._chance)
        elif not self._died:
            self._died = True
            self.end(1, -SIGKILL)
        else:
            self.events += [WorkerMessage(each, Message("leaving", {})) for each in both]
            self.train(both)
            for each in both:
                self.come(each)


def test_a_loss_that_was_survived_is_not_the_reason_of_the_end() -> None:
    """A rank was killed, and the job went on; when all have left, that is what is said."""
    end, said = outcome(Leaves())
    assert any("worker 1 (rank 1) was lost" in line for line in said)
    assert (end.code, end.culprit) == (128 + SIGTERM, None)
    assert end.text.startswith("All ranks have left the job after a commit"), end.text
