"""The coordinator in every order in which messages, deaths and decisions can come, not only in those that happen here.

The real coordinator and announcers, as a job has them, take part in a model of the ranks and the channels between
them, ``tests/helpers/coordinator_model.py``; ``tests/helpers/model_check.py`` goes through all of its states. In each:

- there is a way out: to a state in which every living rank has left the job with all its handles done;
- no rank is told to begin a collective alone, or one that it has not submitted, or one that it has done already;
- every rank reads from a decision what rank 0 meant by it, so all read the same in the same order;
- a result that rank 0 computed is the sum of exactly the ranks that take part;
- no collective is begun because a rank was lost, and what needs a dead rank's part never ends with a result.

Scripts here wait for what they submit before they leave, but where a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from coordinator_model import CATCH, JOINS, OFF, ON, RAISE, WAIT, Job, Script
from model_check import Violation, explore
from thorough import once_more

from workbench.config import Settings
from workbench.core.coordinator import JOIN, CountingCoordinator, Error
from workbench.core.messages import Announce, Decision, Done, Event, Key, Response
from workbench.core.protocols import PlainAnnouncer
from workbench.runtime.faults.supervision import SupervisingCoordinator
from workbench.runtime.steady import stack
from workbench.runtime.steady.priority import PriorityCoordinator

pytestmark = pytest.mark.long

TWO_NAMES: list[Script] = [("x", "y", WAIT, JOINS, WAIT), ("y", "x", WAIT, JOINS, WAIT), ("x", JOINS, WAIT)]
"""Three ranks submit two names in two orders; one of them has no second tensor, and joins."""
SMALL: list[Script] = [("x", "y", WAIT, JOINS, WAIT), ("x", JOINS, WAIT)]

JOIN_FAILS: list[Script] = [(JOINS, CATCH, "x", WAIT), (JOINS, "x", CATCH)]
"""A rank goes on after its join(), which ends the others' with an error."""


PRIORITIES = Settings(cache_capacity=0, steady_state=0, eager_bytes=0, piece_bytes=1)


def look(job: Job, at_least: int = 0) -> None:
    """Go through all states of a job; there must be so many, for a model in which nothing happens shows nothing."""
    found = explore(job.start, job.actions, job.is_final)
    assert found.states >= at_least
    assert found.finals


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "warm", "deaths", "at_least"),
    [(OFF, "", 1, 25_000), (ON, "x y", 0, 1_000), once_more(ON, "x y", 1, 40_000)],
    ids=["plain", "steady", "steady-death"],
)
def test_a_rank_joins_and_a_rank_dies(settings: Settings, warm: str, deaths: int, at_least: int) -> None:
    """Three ranks, two names, a join and the death of any one rank; names are new, or known by their ids."""
    look(Job(TWO_NAMES, settings, deaths=deaths, warm=warm), at_least)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_rank_dies_amid_the_first_step() -> None:
    """As above, with all accelerations, while the names get their ids."""
    look(Job(TWO_NAMES, ON, deaths=1), 100_000)


@pytest.mark.parametrize("settings", [OFF, ON], ids=["plain", "steady"])
@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_as_many_ranks_die_as_there_are(settings: Settings, deaths: int) -> None:
    """Two ranks: nobody is left who waits; names are new, or known by their ids."""
    look(Job(SMALL, settings, deaths=deaths), 100)
    if settings is ON:
        look(Job(SMALL, settings, deaths=deaths, warm="x y"), 50)


@pytest.mark.parametrize("settings", [OFF, ON], ids=["plain", "steady"])
def test_all_join_and_begin_again(settings: Settings) -> None:
    """Whoever has joined is in the sums again after all have joined; the ids that it missed do no harm."""
    again: list[Script] = [(*script, "x", WAIT) for script in (TWO_NAMES if settings is OFF else SMALL)]
    look(Job(again, settings), 3_000 if settings is OFF else 100)


@pytest.mark.parametrize("settings", [OFF, ON], ids=["plain", "steady"])
def test_a_join_fails(settings: Settings) -> None:
    """A join() that was on its way when the others' failed does not leave its rank out of the next sum."""
    look(Job(JOIN_FAILS, settings), 50)
    if settings is OFF:
        look(Job([JOIN_FAILS[0], *JOIN_FAILS], settings), 1_000)


@pytest.mark.parametrize("settings", [OFF, ON], ids=["plain", "steady"])
def test_a_rank_leaves_while_others_wait(settings: Settings) -> None:
    """Nobody waits for ever for a name that a rank never submits."""
    third: list[Script] = [("y", "x", WAIT)] if settings is OFF else []
    look(Job([("x", "y", WAIT), *third, ("x", WAIT)], settings), 2_000 if third else 200)


@pytest.mark.parametrize("settings", [OFF, ON], ids=["plain", "steady"])
@pytest.mark.timeout(120)
def test_a_rank_leaves_and_dies_with_tensors_in_flight(settings: Settings) -> None:
    """A rank that does not wait for its tensors does its part while it leaves; if it dies then, the others hear it."""
    look(Job([("x", "y", WAIT), ("x", "y")], settings, deaths=1), 1_000)


@pytest.mark.parametrize("settings", [OFF, ON], ids=["plain", "steady"])
@pytest.mark.parametrize("many", [1, once_more(2)])
@pytest.mark.timeout(300)
def test_a_rank_raises_while_others_wait(settings: Settings, many: int) -> None:
    """Nobody waits for ever for a rank that has raised, or is told to go on with what only it had submitted."""
    others: list[Script] = [("x", "y", WAIT), ("y", "x", WAIT)]
    look(Job([*others[:many], ("x", RAISE)], settings), {1: 100, 2: 100_000}[many])


@pytest.mark.parametrize("steady", [0, 1], ids=["cache", "steady"])
@pytest.mark.parametrize("deaths", [0, once_more(1)])
def test_priorities_keep_nobody_waiting(steady: int, deaths: int) -> None:
    """What is held back on rank 0 is always let go: while ranks join, leave without waiting, or die."""
    settings = Settings(eager_bytes=0, steady_state=steady, piece_bytes=1)
    warm = "x3 y2 z1" if steady else ""
    waits = [("x3", "y2", WAIT, JOINS, WAIT), ("y2", "x3", WAIT, JOINS, WAIT)]
    look(Job(waits, settings, deaths=deaths, warm=warm), 100)
    if not steady or deaths:
        look(Job([("x3 y2", "z1"), ("z1", "x3 y2")], settings, deaths=deaths, warm=warm), 100)
    look(Job([("x3 y2", "a", WAIT), ("a y2", JOINS, CATCH)], settings, deaths=deaths, warm=warm), 100)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "job",
    [
        pytest.param(lambda: Job(TWO_NAMES, OFF, deaths=2), id="two-deaths-plain"),
        pytest.param(lambda: Job(TWO_NAMES, ON, deaths=2, warm="x y"), id="two-deaths-steady"),
        pytest.param(lambda: Job(with_a_third(TWO_NAMES), OFF, deaths=2), id="three-names-plain"),
        pytest.param(lambda: Job(with_a_third(TWO_NAMES), ON, deaths=1, warm="x y z"), id="three-names-steady"),
        pytest.param(lambda: Job([*TWO_NAMES, (JOINS, WAIT)], OFF, deaths=1, mortal=[3]), id="four-ranks"),
    ],
)
def test_larger_jobs(job: Callable[[], Job]) -> None:
    """Two deaths, three names, four ranks."""
    look(job(), 40_000)


def with_a_third(scripts: list[Script]) -> list[Script]:
    """The scripts with one name more, after the second."""
    return [tuple(each for step in script for each in ((step, "z") if step == "y" else (step,))) for script in scripts]


# --- would it be found? ----------------------------------------------------------------------------------


class KeepsJoin(CountingCoordinator):
    """A bug: who has joined counts as joined for ever."""

    def _fail(self, key: Key, error: Error) -> list[Response]:
        return [] if key == JOIN else super()._fail(key, error)

    def _complete_joined(self) -> list[Response]:
        join = self.waiting[JOIN]
        found = super()._complete_joined()
        self.waiting[JOIN] = join
        return found


class CannotWait(CountingCoordinator):
    """A bug: a name is complete when all ranks but one have announced it."""

    def _look(self, key: Key) -> list[Response]:
        found = super()._look(key)
        one = self.waiting.get(key)
        return found or (self._complete(key) if one and len(one.requests) == self.size - 1 else [])


class TellsTwice(CountingCoordinator):
    """A bug: what is complete is decided once more with the next thing."""

    before: tuple[Response, ...] = ()

    def decide(self, items: Any, results: Any = None) -> Decision:
        found = super().decide([*self.before, *items], results)
        self.before = tuple(items)
        return found


class ForgetsWhoFailed(CountingCoordinator):
    """A bug: what was announced before a rank knew of a failure counts for the next collective of that name."""

    def take(self, event: Event, now: float) -> Decision:
        self._failed.clear()
        return super().take(event, now)


class OverlooksDeath(SupervisingCoordinator):
    """A bug: that a rank was lost ends nothing."""

    def _lose(self, rank: int, why: str, now: float) -> Decision:
        return Decision()


class GoesOnWithoutTheDead(SupervisingCoordinator):
    """A bug: what waits for a lost rank is begun by the others."""

    def _lose(self, rank: int, why: str, now: float) -> Decision:
        counting: Any = self._inner
        return self.decide([ready for key in list(counting.waiting) for ready in counting._complete(key)])


class NeverDone(PriorityCoordinator):
    """A bug: what is done is not accounted for."""

    def take(self, event: Event, now: float) -> Decision:
        return Decision() if isinstance(event, Done) else super().take(event, now)


class ReadsBackwards(PlainAnnouncer):
    """A bug: a rank does things in its own order."""

    def read(self, decision: Decision) -> list[Response]:
        return super().read(decision)[:: -1 if self._rank else 1]


class SendsOneAtATime(PlainAnnouncer):
    """A bug: of several names only the first is announced."""

    def announce(self, entries: Any, seen: int) -> Announce:
        return super().announce(entries[:1], seen)


@pytest.mark.parametrize(
    ("part", "bug", "scripts", "deaths", "words"),
    [
        ("CountingCoordinator", KeepsJoin, [(*script, "x", WAIT) for script in SMALL], 0, "All have announced it"),
        ("CountingCoordinator", CannotWait, TWO_NAMES, 0, "has not submitted"),
        ("CountingCoordinator", TellsTwice, SMALL, 0, "done with"),
        ("CountingCoordinator", ForgetsWhoFailed, JOIN_FAILS, 0, "has not joined"),
        ("SupervisingCoordinator", OverlooksDeath, SMALL, 1, "no way out"),
        ("SupervisingCoordinator", GoesOnWithoutTheDead, SMALL, 1, "a collective is begun"),
        ("PlainAnnouncer", ReadsBackwards, [("x", "y", WAIT, JOINS, WAIT), (JOINS, WAIT)], 0, "has decided"),
        ("PriorityCoordinator", NeverDone, [("x3 y2 z1", WAIT), ("x3 y2 z1", WAIT)], 0, "no way out"),
        ("PlainAnnouncer", SendsOneAtATime, [("x y", WAIT), ("x", WAIT, "y", WAIT)], 0, "no way out"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_bug_is_found(
    part: str, bug: type, scripts: list[Script], deaths: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model shows each of these bugs, with the actions that lead to it; so it would show others."""
    monkeypatch.setattr(stack, part, bug)
    with pytest.raises(Violation) as found:
        look(Job(scripts, OFF if part != "PriorityCoordinator" else PRIORITIES, deaths=deaths))
    assert words in str(found.value)
    assert "submits" in str(found.value).lower(), "the way to it is told"
