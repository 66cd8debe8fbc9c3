"""What the accelerations of the coordinator have in common: each wraps another coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from workbench.core.coordinator import Error, WaitingNames
from workbench.core.messages import Announce, Decision, Event, Key, Response, Values
from workbench.core.verbs import VERBS


class Coordinator(Protocol):
    """What decides. Implemented by :class:`~workbench.core.coordinator.CountingCoordinator`, and by wrappers."""

    @property
    def waiting(self) -> WaitingNames:
        """Incomplete names; after :meth:`settle` all of them."""

    @property
    def busy(self) -> bool: ...

    def take(self, event: Event, now: float) -> Decision:
        """Account for one event; what all ranks do next."""

    def settle(self, now: float) -> Decision:
        """Count what has been held back from counting."""

    def fail(self, errors: Mapping[Key, Error]) -> Decision:
        """End names that still wait, each with an error, and their groups with them. After :meth:`settle`."""

    def decide(self, items: Sequence[Response | int], results: Values | None = None) -> Decision:
        """The next decision, with these items."""

    def validate(self) -> None:
        """Raise AssertionError if something does not hold that must hold between two events."""


class Wrapper:
    """A :class:`Coordinator` that asks another one.

    A subclass changes announcements on their way in, and decisions on their way out.
    """

    def __init__(self, inner: Coordinator) -> None:
        self._inner = inner

    def before(self, event: Announce) -> Announce:
        """An announcement, as the inner coordinator is to see it."""
        return event

    def after(self, decision: Decision) -> Decision:
        """A decision of the inner coordinator, as the ranks are to see it. Not called for empty ones."""
        return decision

    def take(self, event: Event, now: float) -> Decision:
        return self._out(self._inner.take(self.before(event) if isinstance(event, Announce) else event, now))

    def settle(self, now: float) -> Decision:
        return self._out(self._inner.settle(now))

    def fail(self, errors: Mapping[Key, Error]) -> Decision:
        return self._out(self._inner.fail(errors))

    def decide(self, items: Sequence[Response | int], results: Values | None = None) -> Decision:
        return self._inner.decide(items, results)

    @property
    def waiting(self) -> WaitingNames:
        return self._inner.waiting

    @property
    def busy(self) -> bool:
        return self._inner.busy

    def validate(self) -> None:
        self._inner.validate()

    def _out(self, decision: Decision) -> Decision:
        return self.after(decision) if decision else decision


class Agreement(Protocol):
    """Where the ranks decide by themselves in steady steps: :class:`workbench.runtime.control.slots.Slots`."""

    def open(self) -> int:
        """Let them do so from here on; 0 if they cannot."""

    def is_open(self) -> bool: ...

    def close(self) -> tuple[int, list[int], list[tuple[Announce, float]]]:
        """Let them do so no more.

        Returns:
            How many ids are complete, how many each rank has announced, and what is not complete, with when it came.
        """

    def stuck(self) -> bool:
        """Has some rank announced what is not complete, and nothing has changed since the last call?"""


_ENOUGH, _MOST_STEPS = 2, 64  # decisions about known names before a term


class Terms:
    """When is a term opened? After some decisions in a row about known names, when all are done with the last term.

    A term in which nothing was agreed on was opened too early: the next one takes twice as many.

    Example:
        >>> from workbench.core.messages import Kind
        >>> terms, known = Terms(size=1), Decision(1, [Response("x", Kind.BARRIER, cached=True)])
        >>> for number in (1, 2):
        ...     terms.heard(0, number, known)
        ...     print(terms.alike)
        False
        True
    """

    def __init__(self, size: int) -> None:
        self._seen = [0] * size
        self._closed = self._steps = 0
        self._enough = _ENOUGH

    def heard(self, rank: int, seen: int, decision: Decision) -> None:
        """A rank has read all up to ``seen``, and what it said led to a decision."""
        self._seen[rank] = max(self._seen[rank], seen)
        if decision:
            self._steps = self._steps + 1 if all(map(_is_steady, decision.items)) else 0

    def closed(self, number: int, complete: int) -> None:
        """The term was closed in this decision, after so many ids."""
        self._closed, self._steps = number, 0
        self._enough = _ENOUGH if complete else min(2 * self._enough, _MOST_STEPS)

    @property
    def alike(self) -> bool:
        return self._steps >= self._enough and min(self._seen) >= self._closed


def _is_steady(item: Response | int) -> bool:
    """Would a slot take it?"""
    if not isinstance(item, Response) or not (item.cached or ".noname." in item.name) or item.kind not in VERBS:
        return False
    return not (item.process_set or item.priority or item.error or item.joined)
