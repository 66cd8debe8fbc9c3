"""What a training step takes with a schedule of one's own, by the rules of :mod:`workbench.simulate.steps`.

Ranks compute without a pause, but that a layer's forward waits for its own gradients of the step before. The network
carries one message at a time. Whenever it is free, the first message of the list whose gradients are all there goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from workbench.course.schedules.messages import BYTES, Messages, Piece, mistake, nbytes
from workbench.simulate.steps import Event, Span

STEPS = 8
_NOTHING_S = 1e-9


@dataclass(frozen=True)
class Played:
    """Some steps of training.

    Args:
        step_s: how long a step takes, the first one apart.
        order: the messages' numbers, as they went in the last step.
        events: of the last step.
    """

    step_s: float
    order: tuple[int, ...]
    events: tuple[Event, ...]


def play(layers: Sequence[Span], messages: Messages, reduce_s: Callable[[float], float], steps: int = STEPS) -> Played:
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
        raise ValueError(f"{steps} steps: at least two are needed, for the first one is not counted.")
    updated, free, ends = [0.0] * len(layers), 0.0, [0.0]
    costs = [reduce_s(float(nbytes(message))) for message in messages]
    for _ in range(steps):
        computed, ready = _compute(layers, ends[-1], updated)
        sent = _send(messages, costs, ready, free)
        ends.append(max(ends[-1], computed[-1].end_s))
        updated, free = list(ready), sent[-1][2] if sent else free
        for number, _, end in sent:
            for layer, _, _ in messages[number]:
                updated[layer] = max(updated[layer], end)
    reduced = [
        Event("reduce", _names(layers, messages[number]), begin, end, nbytes(messages[number]) // BYTES)
        for number, begin, end in sent
    ]
    order = tuple(number for number, _, _ in sent)
    return Played((ends[-1] - ends[1]) / (steps - 1), order, (*computed, *reduced))


def waits(events: Sequence[Event], step_s: float) -> list[Event]:
    """Where the ranks compute nothing, each with the layer that they wait for.

    Args:
        events: of one step.
        step_s: how long a step takes: what is left behind backward is a wait for the next step's first layer.

    Example:
        >>> one = play([Span("fc", 1.0, 2.0, values=25)], [[(0, 0, 25)]], lambda nbytes: nbytes / 100)
        >>> waits(one.events, one.step_s)
        [Event(what='wait', names=('fc',), begin_s=31.0, end_s=32.0, values=0)]
    """
    computed = [event for event in events if event.what != "reduce"]
    until = computed[0].begin_s + step_s
    ends = [*computed, Event("forward", computed[0].names, until, until)]
    return [
        Event("wait", after.names, before.end_s, after.begin_s)
        for before, after in pairwise(ends)
        if after.begin_s > before.end_s + _NOTHING_S
    ]


def on_the_network(events: Sequence[Event], step_s: float) -> list[Event]:
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


def _names(layers: Sequence[Span], message: Sequence[Piece]) -> tuple[str, ...]:
    return tuple(layers[i].name for i in sorted({layer for layer, _, _ in message}))


def _compute(layers: Sequence[Span], now: float, updated: Sequence[float]) -> tuple[list[Event], list[float]]:
    """Forward and backward; when each layer's gradients are ready."""
    events, ready = list[Event](), [0.0] * len(layers)
    for i, layer in enumerate(layers):
        begin, now = max(now, updated[i]), max(now, updated[i]) + layer.forward_s
        events.append(Event("forward", (layer.name,), begin, now))
    for i, layer in reversed(list(enumerate(layers))):
        begin, now = now, now + layer.backward_s
        ready[i] = now
        events.append(Event("backward", (layer.name,), begin, now))
    return events, ready


def _send(
    messages: Messages, costs: Sequence[float], ready: Sequence[float], free: float
) -> list[tuple[int, float, float]]:
    """(message, begin, end), as they go."""
    known = [max(ready[layer] for layer, _, _ in message) for message in messages]
    waiting, sent = list(range(len(messages))), list[tuple[int, float, float]]()
    while waiting:
        place = next((place for place, number in enumerate(waiting) if known[number] <= free), -1)
        if place < 0:  # nothing is ready: the first that will be
            place = min(range(len(waiting)), key=lambda each: known[waiting[each]])
            free = known[waiting[place]]
        number = waiting.pop(place)
        begin, free = free, free + costs[number]
        sent.append((number, begin, free))
    return sent


__all__ = ["STEPS", "Played", "on_the_network", "play", "waits"]
