"""What the accelerations of the coordinator have in common: each wraps another coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.core.coordinator import Coordinator, Error, WaitingNames
from workbench.core.messages import Announce, Decision, Event, Key, Response, Values


class Wrapper:
    """A :class:`workbench.core.coordinator.Coordinator` that asks another one.

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
        """See :class:`workbench.core.coordinator.Coordinator`, as for the rest."""
        return self._out(self._inner.take(self.before(event) if isinstance(event, Announce) else event, now))

    def settle(self, now: float) -> Decision:  # noqa: D102
        return self._out(self._inner.settle(now))

    def fail(self, errors: Mapping[Key, Error]) -> Decision:  # noqa: D102
        return self._out(self._inner.fail(errors))

    def decide(self, items: Sequence[Response | int], results: Values | None = None) -> Decision:  # noqa: D102
        return self._inner.decide(items, results)

    @property
    def waiting(self) -> WaitingNames:  # noqa: D102
        return self._inner.waiting

    @property
    def busy(self) -> bool:  # noqa: D102
        return self._inner.busy

    def _out(self, decision: Decision) -> Decision:
        return self.after(decision) if decision else decision
