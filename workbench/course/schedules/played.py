"""What a training step takes with a schedule of one's own, by the rules of :mod:`workbench.simulate.steps`.

Ranks compute without a pause, but that a layer's forward waits for its own gradients of the step before. The network
carries one message at a time. Whenever it is free, the first message of the list whose gradients are all there goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise

from workbench.course.schedules.messages import BYTES, Messages, mistake, nbytes
from workbench.simulate.steps import Span, TimedEvent, train

STEPS = 8
_NOTHING_S = 1e-9


@dataclass(frozen=True)
class PlayedSteps:
    """Some steps of training.

    Args:
        step_s: how long a step takes, the first one apart.
        order: the messages' numbers, as they went in the last step.
        events: of the last step.
    """

    step_s: float
    order: tuple[int, ...]
    events: tuple[TimedEvent, ...]


def play(
    layers: Sequence[Span], messages: Messages, reduce_s: Callable[[float], float], steps: int = STEPS
) -> PlayedSteps:
    """Train for some steps.

    Args:
        layers: in forward order.
        messages: the schedule, see :mod:`workbench.course.schedules.messages`.
        reduce_s: how long a reduction of so many bytes takes.
        steps: at least two.

    Raises:
        ValueError: a gradient travels never or twice, or there are fewer than two steps.

    Example:
        >>> two = [Span("front", 1.0, 2.0, values=25), Span("back", 1.0, 2.0, values=100)]
        >>> play(two, [[(1, 0, 100)], [(0, 0, 25)]], lambda nbytes: nbytes / 100).step_s
        9.0
        >>> play(two, [[(0, 0, 25)], [(1, 0, 50)], [(1, 50, 100)]], lambda nbytes: nbytes / 100).step_s
        8.0
    """
    if wrong := mistake(layers, messages):
        raise ValueError(f"This is no schedule: {wrong}.")
    if steps < 2:
        raise ValueError(f"{steps} steps: at least two are needed, because the first one is not counted.")
    carried = [tuple(sorted({layer for layer, _, _ in message})) for message in messages]
    values = [nbytes(message) // BYTES for message in messages]
    costs = [reduce_s(float(nbytes(message))) for message in messages]
    order = list[int]()

    def network(ready: Sequence[float], free: float) -> Iterator[tuple[tuple[int, ...], float, float, int]]:
        order.clear()
        for number, begin, end in _send([max(ready[layer] for layer in each) for each in carried], costs, free):
            order.append(number)
            yield carried[number], begin, end, values[number]

    found = train(layers, network, steps=steps)
    return PlayedSteps(found.step_s, tuple(order), tuple(found.events))


def waits(events: Sequence[TimedEvent], step_s: float) -> list[TimedEvent]:
    """Where the ranks compute nothing, each with the layer that they wait for.

    Args:
        events: of one step.
        step_s: how long a step takes: what is left behind backward is a wait for the next step's first layer.

    Example:
        >>> one = play([Span("fc", 1.0, 2.0, values=25)], [[(0, 0, 25)]], lambda nbytes: nbytes / 100)
        >>> waits(one.events, one.step_s)
        [TimedEvent(what='wait', names=('fc',), begin_s=31.0, end_s=32.0, values=0)]
    """
    computed = [event for event in events if event.what != "reduce"]
    until = computed[0].begin_s + step_s
    ends = [*computed, TimedEvent("forward", computed[0].names, until, until)]
    return [
        TimedEvent("wait", after.names, before.end_s, after.begin_s)
        for before, after in pairwise(ends)
        if after.begin_s > before.end_s + _NOTHING_S
    ]


def on_the_network(events: Sequence[TimedEvent], step_s: float) -> list[TimedEvent]:
    """What the network carries from the beginning of a step to that of the next one, also of the step before.

    Args:
        events: of one step.
        step_s: how long a step takes.
    """
    begin = min(event.begin_s for event in events if event.what != "reduce")
    reduced = [event for event in events if event.what == "reduce"]
    earlier = [replace(event, begin_s=event.begin_s - step_s, end_s=event.end_s - step_s) for event in reduced]
    cut = [
        replace(event, begin_s=max(event.begin_s, begin), end_s=min(event.end_s, begin + step_s))
        for event in (*earlier, *reduced)
    ]
    return [event for event in cut if event.end_s > event.begin_s + _NOTHING_S]


def _send(known: Sequence[float], costs: Sequence[float], free: float) -> list[tuple[int, float, float]]:
    """(message, begin, end), as they go: of those that are ready when the network is free, the first of the list.

    Args:
        known: when each message's gradients are all there.
        costs: how long each is on the network.
        free: when the network is.
    """
    coming = sorted(range(len(known)), key=known.__getitem__, reverse=True)
    ready, sent = list[int](), list[tuple[int, float, float]]()
    while coming or ready:
        if not ready:
            free = max(free, known[coming[-1]])
        while coming and known[coming[-1]] <= free:
            heappush(ready, coming.pop())
        number = heappop(ready)
        begin, free = free, free + costs[number]
        sent.append((number, begin, free))
    return sent
