"""Lesson 16, second half: what no schedule can beat, and a schedule of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from workbench.common.text import size
from workbench.course.judging.rank_threads import on_ranks
from workbench.course.judging.task import PlainTask
from workbench.course.schedules.bound import least_step
from workbench.course.schedules.messages import BYTES, Messages, in_turn, mistake
from workbench.course.schedules.on_ranks import Sender
from workbench.course.schedules.played import PlayedSteps, on_the_network, play, waits
from workbench.course.tasks.t16a_step_time import Network, line, models, number, shown
from workbench.simulate.models import inception_v3, resnet101, vgg16
from workbench.simulate.published import MODELS, pascal, reduction
from workbench.simulate.steps import Span, spans

_CLOSE = 1e-6
_TRIED = 24  # models that a schedule is made for; its author may try many messages for each


def lower_bound(layers: Any, reduce_s: Any) -> Any:
    """Return the seconds that a step takes at least: the largest of the lesson's bounds.

    layers: in forward order; each has forward_s, backward_s, and values, the number of its
    gradients (4 bytes each).
    reduce_s(nbytes): how long an allreduce of so many bytes takes.
    For every layer i: all gradients of layers 0 to i in one message, and forward and
    backward of the layers from i on.
    """
    ### BEGIN SOLUTION
    bounds = []
    for i in range(len(layers)):
        values = sum(each.values for each in layers[: i + 1])
        computing_s = sum(each.forward_s + each.backward_s for each in layers[i:])
        bounds.append(computing_s + (reduce_s(4 * values) if values else 0.0))
    return max(bounds)
    ### END SOLUTION


def _rivals(layers: Sequence[Span]) -> Iterator[Messages]:
    """Schedules, to be beaten or not."""
    whole = in_turn(layers)
    yield whole
    yield whole[::-1]
    yield [[piece for message in whole for piece in message]]
    for parts in (2, 5, 20):
        pieces = [
            (i, one.values * part // parts, one.values * (part + 1) // parts)
            for i, one in enumerate(layers)
            for part in range(parts)
        ]
        yield [[piece] for piece in pieces if piece[1] < piece[2]]


def _no_rival_is_faster(function: Callable[..., Any]) -> str:
    """No schedule is faster, in 100 models."""
    for words, layers, reduce_s in models():
        yours = number(function, layers, reduce_s)
        for messages in _rivals(layers):
            if (step_s := play(layers, messages, reduce_s).step_s) < yours - _CLOSE:
                return (
                    f"{words}, {shown(layers, reduce_s)}: your result, no step below {yours:.4g}, rules out the "
                    f"messages {_short(messages)}, with which it takes {step_s:.4g}"
                )
    return ""


def _short(messages: Messages) -> str:
    return str(messages) if len(messages) <= 6 else f"{messages[:6]} …".replace("] …", ", …]")


def _no_bound_is_larger(function: Callable[..., Any]) -> str:
    """It is the largest of the bounds that the lesson proves."""
    for words, layers, reduce_s in models():
        yours, wanted = number(function, layers, reduce_s), least_step(layers, reduce_s)
        if not np.isclose(yours, wanted, rtol=_CLOSE):
            return f"{words}, {shown(layers, reduce_s)}: your result is {yours:.4g}, the proved bound is {wanted:.4g}"
    return ""


def schedule(layers: Any, reduce_s: Any) -> Any:
    """Return the messages of a step, the most urgent first.

    Each message is a list of pieces (layer, begin, end): gradient[begin:end] of that
    layer. Each gradient is in one piece of one message.
    layers: in forward order; each has forward_s, backward_s, and values, the number of its
    gradients (4 bytes each).
    reduce_s(nbytes): how long an allreduce of so many bytes takes. The first bytes are
    expensive, because each message pays the latencies.
    The network carries one message at a time: whenever it is free, the first one of your
    list whose gradients are all ready. The forward of a layer waits for its own gradients
    only. play(layers, messages, reduce_s).step_s says how long a step takes.
    """
    ### BEGIN SOLUTION
    total, tried = sum(layer.values for layer in layers), []

    def cut(largest: int, together: int) -> list[list[tuple[int, int, int]]]:
        """The front layers first; larger ones in pieces, small neighbours in one message."""
        messages: list[list[tuple[int, int, int]]] = []
        for i, layer in enumerate(layers):
            parts = -(-layer.values // largest)
            for part in range(parts):
                begin, end = layer.values * part // parts, layer.values * (part + 1) // parts
                carried = sum(piece[2] - piece[1] for piece in messages[-1]) if messages else together
                if carried + end - begin <= together:
                    messages[-1].append((i, begin, end))
                else:
                    messages.append([(i, begin, end)])
        return messages

    for parts in (1, 4, 8, 16, 64):  # no formula: what suits depends on the network
        for small in (8, 32, 128, 512, total + 1):
            tried.append(cut(-(-total // parts), total // small))
    return min(tried, key=lambda messages: play(layers, messages, reduce_s).step_s)
    ### END SOLUTION


def _tried(function: Callable[..., Any], layers: Sequence[Span], reduce_s: Network) -> Any:
    """The learner's schedule, from layers of its own.

    Raises:
        ValueError: it changes the list of layers.
    """
    mine = list(layers)
    found = function(mine, reduce_s)
    if mine != list(layers):
        raise ValueError("schedule(…) changes the list of layers, which belongs to the caller")
    return found


def _each_once(function: Callable[..., Any]) -> str:
    """Each gradient is sent once."""
    for words, layers, reduce_s in list(models())[:_TRIED]:
        if wrong := mistake(layers, _tried(function, layers, reduce_s)):
            return f"{words}, {shown(layers, reduce_s)}: {wrong}"
    return ""


def _same_on_all_ranks(function: Callable[..., Any]) -> str:
    """A second call gives the same result: each rank calls the function for itself."""
    for words, layers, reduce_s in list(models())[:_TRIED:4]:
        first, again = (_tried(function, layers, reduce_s) for _ in range(2))
        if first != again:
            return (
                f"{words}: the first call gives {_short(first)}, the second one {_short(again)}. Ranks that do not "
                "agree wait for different messages, and never end"
            )
    return ""


@cache
def _contest() -> tuple[tuple[str, tuple[Span, ...], Network, float], ...]:
    """(words, layers, network, how many times the bound is allowed)."""
    vgg = tuple(spans(vgg16(), MODELS["VGG-16"].step_s))
    resnet = tuple(spans(resnet101(), MODELS["ResNet-101"].step_s))
    inception = tuple(spans(inception_v3(), MODELS["Inception V3"].step_s))
    return (
        ("ResNet-101, latencies of 5 ms", resnet, line(5e-3, 0.75e-9), 1.04),
        ("Inception V3, latencies of 5 ms", inception, line(5e-3, 0.75e-9), 1.04),
        ("VGG-16 on the paper's 512 GPUs", vgg, reduction(pascal()), 1.06),
        ("VGG-16, latencies of 0.1 ms", vgg, line(1e-4, 0.75e-9), 1.06),
        ("VGG-16, latencies of 5 ms, half of the bandwidth", vgg, line(5e-3, 1.5e-9), 1.06),
    )


def _near_the_bound(function: Callable[..., Any]) -> str:
    """In five contests a step takes at most 4 to 6 % more than the lower bound."""
    for words, layers, reduce_s, limit in _contest():
        messages = _tried(function, layers, reduce_s)
        if wrong := mistake(layers, messages):
            return f"{words}: {wrong}"
        played, least = play(layers, messages, reduce_s), least_step(layers, reduce_s)
        if played.step_s > limit * least:
            return (
                f"{words}: a step takes {played.step_s * 1e3:.0f} ms, the bound is {least * 1e3:.0f} ms, the limit "
                f"{limit:g} times that. {_why_slow(layers, messages, reduce_s, played)}"
            )
    return ""


def _why_slow(layers: Sequence[Span], messages: Messages, reduce_s: Network, played: PlayedSteps) -> str:
    """What costs most."""
    latency_s = len(messages) * reduce_s(0.0)
    if latency_s > played.step_s / 3:
        return f"{len(messages)} messages pay {latency_s * 1e3:.0f} ms of latencies: send small neighbours together"
    waited = waits(played.events, played.step_s)
    longest = max(waited, key=lambda wait: wait.end_s - wait.begin_s)
    text = f"The ranks wait {(longest.end_s - longest.begin_s) * 1e3:.0f} ms for the gradients of {longest.names[0]}"
    carried = on_the_network(played.events, played.step_s)
    event = max(carried, key=lambda event: min(event.end_s, longest.end_s) - max(event.begin_s, longest.begin_s))
    what = f"{size(BYTES * event.values)} of {_of(event.names)} in one message"
    if longest.names[0] in event.names:
        return f"{text}, which are sent late, with {what}. What does the next forward need first?"
    return f"{text}, while the network carries {what}. Urgent gradients can be sent only between two messages"


def _of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _send(hvd: Any, function: Callable[..., Any], layers: Sequence[Span], reduce_s: Network) -> Any:
    """One step's gradients on a rank, by the learner's schedule."""
    messages = function(list(layers), reduce_s)
    gradients = [np.arange(one.values, dtype=np.float32) + i + hvd.rank() for i, one in enumerate(layers)]
    sender = Sender(hvd, gradients, messages, play(layers, messages, reduce_s).order)
    for i in reversed(range(len(layers))):
        sender.ready(i)
    sender.wait()
    return np.concatenate(gradients)


def _on_real_ranks(function: Callable[..., Any]) -> str:
    """Three ranks that run send by it, and each has the sums."""
    n, layers = 3, [Span("a", 1e-3, 2e-3, 50), Span("b", 1e-3, 2e-3, 0), Span("c", 1e-3, 2e-3, 700)]
    found = on_ranks(lambda hvd: _send(hvd, function, layers, line(1e-4, 1e-6)), [()] * n)
    ranks = sum(range(n))
    wanted = np.concatenate([n * (np.arange(one.values) + i) + ranks for i, one in enumerate(layers)])
    for rank, yours in enumerate(found):
        if not np.array_equal(yours, wanted):
            at = int(np.flatnonzero(yours != wanted)[0])
            return f"rank {rank}, gradient {at}: the sum is {yours[at]:g}, expected {wanted[at]:g}"
    return ""


TASKS = [
    PlainTask(
        "16.lower_bound",
        "what no schedule can beat",
        lower_bound,
        probes=lambda: [(layers, reduce_s) for _, layers, reduce_s in [*list(models())[:5], *list(models())[6::20]]],
        properties=[_no_rival_is_faster, _no_bound_is_larger],
        points=2,
    ),
    PlainTask(
        "16.schedule",
        "order and pieces of the gradients: beat 68 %",
        schedule,
        properties=[_each_once, _same_on_all_ranks, _near_the_bound, _on_real_ranks],
        points=4,
    ),
]
