"""Autotune: settings are changed while the job runs, and the fastest stay.

Rank 0 measures and chooses. The choice travels in a decision, as a response of kind ``TUNE``, so all ranks use it from
the same decision on, and plan alike. ``autotune`` 0, the default, turns it off.

1. *Fusion threshold* and *batching window* are used from that decision on.
2. *Eager limit*: so, too. A tensor that some ranks have announced before, and others after, is moved by the data plane.
3. *Hierarchical allreduce*: both ways are connected in ``init()``, and each collective takes the one that is chosen.
4. *Bucket size*: the gradients are laid out anew at the end of a step, see
   :class:`workbench.training.memory.BucketLimit`.

The response cache is not tuned: ids may be on their way when it is turned off. Threshold, eager limit and hierarchy
change the order of a sum, so its last bits; all ranks have the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import astuple
from statistics import median

from workbench.core.fusion import nbytes
from workbench.core.messages import Announce, Decision, Event, Key, Kind, Response
from workbench.core.pending import Entry
from workbench.core.protocols import Announcer
from workbench.runtime.coordinators import Coordinator, Wrapper
from workbench.runtime.steady.eager import MOST_BYTES, EagerAnnouncer
from workbench.runtime.steady.tuner import Choice, Tuner


class StepMeter:
    """Bytes reduced per second, the median of some steps. A step ends when a name comes for the second time.

    So a pause between two steps, an evaluation for example, costs one step and not the sample. The step in which a
    sample begins is left out: a part of it ran with other values. Unnamed tensors have no second time.

    Args:
        steps: of a sample.

    Attributes:
        least_bytes: of a tensor, in the last step.

    Example:
        >>> meter, x = StepMeter(steps=2), Response("x", Kind.ALLREDUCE, "float32", (25,))
        >>> [meter.add([x], now) for now in (0.0, 1.0, 2.0, 2.5)]
        [None, None, None, 150.0]
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._names: set[Key] = set()
        self._bytes, self._began, self._rates = 0, 0.0, list[float]()
        self._skip = True
        self.least_bytes = self._least = math.inf

    def add(self, items: Iterable[Response | int], now: float) -> float | None:
        """Account for a decision's items; the score, when a sample is complete."""
        score = None
        for item in items:
            if not isinstance(item, Response) or item.kind is not Kind.ALLREDUCE or item.error or item.all_absent:
                continue
            if item.key in self._names:
                score = self._step(now) or score
            if ".noname." not in item.name:
                self._names.add(item.key)
            self._bytes += nbytes(item)
            self._least = min(self._least, nbytes(item))
        return score

    def _step(self, now: float) -> float | None:
        if not self._skip and now > self._began:
            self._rates.append(self._bytes / (now - self._began))
        self._names, self._bytes, self._began, self._skip = set(), 0, now, False
        self.least_bytes, self._least = self._least, math.inf
        if len(self._rates) < self._steps:
            return None
        score, self._rates, self._skip = median(self._rates), [], True
        return score


class TuningCoordinator(Wrapper):
    """Rank 0's side: measures what is decided, and adds a new choice to a decision.

    Args:
        inner: decides.
        tuner: chooses.
        steps: of a sample.
    """

    def __init__(self, inner: Coordinator, tuner: Tuner, steps: int) -> None:
        super().__init__(inner)
        self._tuner, self._meter = tuner, StepMeter(steps)

    def take(self, event: Event, now: float) -> Decision:
        return self._tuned(self._inner.take(event, now), now)

    def settle(self, now: float) -> Decision:
        return self._tuned(self._inner.settle(now), now)

    def _tuned(self, decision: Decision, now: float) -> Decision:
        if not decision or self._tuner.settled:
            return decision
        score = self._meter.add(decision.items, now)
        if score is None:
            return decision
        if self._meter.least_bytes <= MOST_BYTES:
            self._tuner.mark_relevant("eager_bytes")
        before = self._tuner.choice
        if (choice := self._tuner.tell(score)) == before:
            return decision
        return decision + self._inner.decide([order(choice)])


class TuningAnnouncer:
    """Every rank's side: takes a new choice out of a decision. See :class:`workbench.core.protocols.Announcer`.

    Args:
        inner: announces and reads.
        eager: is a part of it, if small tensors travel with their announcement.

    Attributes:
        use: is called with each choice, before what the same decision orders is planned.
    """

    def __init__(self, inner: Announcer, eager: EagerAnnouncer | None = None) -> None:
        self._inner, self._eager = inner, eager
        self.use: Callable[[Choice], None] = lambda choice: None

    def announce(self, entries: list[Entry], seen: int) -> Announce:
        return self._inner.announce(entries, seen)

    def read(self, decision: Decision) -> list[Response]:
        found = self._inner.read(decision)
        orders = [response for response in found if response.kind is Kind.TUNE]
        if not orders:
            return found
        self.apply(ordered(orders[-1]))
        return [response for response in found if response.kind is not Kind.TUNE]

    def apply(self, choice: Choice) -> None:
        """From now on this rank does as chosen; the others have to do so at the same point."""
        if self._eager:
            self._eager.limit_bytes = choice.eager_bytes
        self.use(choice)


def order(choice: Choice) -> Response:
    """A choice as rank 0 sends it: whole numbers, the window in microseconds.

    Example:
        >>> ordered(order(Choice(1 << 20, 0.0025))) == Choice(1 << 20, 0.0025)
        True
    """
    threshold_bytes, window_s, *rest = astuple(choice)
    return Response("autotune", Kind.TUNE, shape=(threshold_bytes, round(window_s * 1e6), *rest))


def ordered(response: Response) -> Choice:
    """Undo :func:`order`."""
    threshold_bytes, window_us, *rest = response.shape
    return Choice(threshold_bytes, window_us / 1e6, *rest)
