"""How many steps an optimizer has made on this rank: after a cell that failed, the ranks compare it.

Ctrl-C, or an exception between ``backward()`` and ``step()``, comes to each rank at another place. One rank may have
made the step that another has not, or a part of it. Their weights differ then, and each gradient later would be an
average of gradients of different models.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from workbench.errors import MismatchError
from workbench.job.context import HOLDER, Context
from workbench.job.report import StepTimes
from workbench.job.requests import OrderOfUse


@dataclass
class Broadcasts:
    """How often parameters were broadcast in this job; they are equal on all ranks after it."""

    number: int = 0


def note_broadcast() -> None:
    """Parameters have been broadcast, so that those who compare steps begin anew."""
    context = HOLDER.get()
    context.part(Broadcasts).number += 1
    context.names.rounds.clear()  # of steps before it


def note_step() -> None:
    """A step has ended, for the job's report."""
    context = HOLDER.find()
    if context is not None and context.settings.report:
        context.part(StepTimes).ended()


class StepCount:
    """Of an optimizer, in one job.

    Example:
        >>> from workbench.job.context import HOLDER
        >>> from workbench.job.joining import run_threads
        >>> def interrupted():
        ...     steps, context = StepCount(), HOLDER.get()
        ...     begin = steps.compared(context)
        ...     with steps.step():
        ...         pass
        ...     try:
        ...         with steps.step():
        ...             raise KeyboardInterrupt
        ...     except KeyboardInterrupt:
        ...         return begin, steps.compared(context)
        >>> run_threads(1, interrupted)
        [((), (1, 0, 1))]
    """

    def __init__(self) -> None:
        self._job: object = None
        self._broadcasts, self._failures = 0, 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """The ranks' weights are equal, or the user knows that they are not."""
        self._made, self._failed, self._torn = 0, 0, False

    @contextmanager
    def step(self, order: OrderOfUse | None = None) -> Iterator[None]:
        """Within the block the weights change.

        Args:
            order: its next gradients say now and then how many steps there were.
        """
        context = HOLDER.find()
        self._look(context)
        if context and order:
            order.note_step()
        try:
            yield  # a closure sends gradients meanwhile, and says how earlier steps have ended
            self._made, self._torn = self._made + 1, False
        except Exception:
            self._failed, self._torn = self._failed + 1, False  # most likely on every rank
            raise
        except BaseException:
            self._torn = True
            raise
        note_step()

    def announce(self, order: OrderOfUse) -> None:
        """After a cell that failed, the next gradients of this order of use carry the steps."""
        context = HOLDER.find()
        failures = context.failures if context else 0
        if context and failures != self._failures:
            order.steps = self.compared(context)
        self._failures = failures

    @contextmanager
    def comparing(self, order: OrderOfUse) -> Iterator[None]:
        """Within the block gradients are sent, or waited for; after it the ranks know whether their steps are equal."""
        self.announce(order)
        try:
            yield
        except MismatchError:
            if order.steps:
                self.begin_anew()  # it is said once
            order.steps = ()
            order.begin_anew()  # likewise
            raise
        order.steps = ()
        order.note_round()

    def compared(self, context: Context) -> tuple[int, ...]:
        """What must be equal on all ranks: steps, failed steps, and this rank's number if one was broken off halfway.

        Nothing before the first step in this job, which some of its ranks may have joined later.
        """
        self._look(context)
        values = self._made, self._failed, (context.rank + 1) * self._torn
        return values if any(values) else ()

    def _look(self, context: Context | None) -> None:
        """Has another job begun, or were parameters broadcast?"""
        job, broadcasts = (context.world, context.part(Broadcasts).number) if context else (None, 0)
        if job is not self._job or broadcasts != self._broadcasts:
            self.begin_anew()
            self._job, self._broadcasts = job, broadcasts
