"""What the accelerations of the coordinator have in common: each wraps another coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from workbench.core.coordinator import Error, WaitingNames
from workbench.core.messages import Announce, Decision, Event, Key, Response, Values


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
