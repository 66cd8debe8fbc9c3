"""Lesson 06, DistributedOptimizer: messages hidden behind the backward pass, and the order of a training step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask, PlainTask
from workbench.course.simulator import ALPHA_S, BETA_S, Run

Layers = Sequence[tuple[float, Any]]
_SLACK_BYTES = 1000  # a message may carry its number, too


def in_turn(comm: Any, layers: Layers) -> list[Any]:
    """The whole backward pass first, then one message after the other, on two ranks; for comparison.

    Args:
        comm: one of two ranks'.
        layers: for each layer, the last one first: the seconds that its backward pass takes, and its gradient.
    """
    other = 1 - comm.rank
    for seconds, _ in layers:
        comm.compute(seconds)
    return [(mine + comm.sendrecv(mine, dest=other, source=other)) / 2 for _, mine in layers]


def overlap(comm: Any, layers: Any) -> Any:
    """Return the list of all gradients' averages over two ranks, in the order of layers.

    Send each gradient as soon as it is ready.

    layers: for each layer, the last one first: the seconds that its backward pass takes,
    and its gradient, which is ready after comm.compute(seconds), and not before.
    comm.isend(x, dest=...) and comm.irecv(source=...) return at once.
    .wait() of what they return waits, and returns what was received.
    """
    other = 1 - comm.rank
    ### BEGIN SOLUTION
    requests = []
    for seconds, mine in layers:
        comm.compute(seconds)
        requests.append((comm.isend(mine, dest=other), comm.irecv(source=other)))
    averages = []
    for (_, mine), (sent, received) in zip(layers, requests, strict=True):
        averages.append((mine + received.wait()) / 2)
        sent.wait()
    return averages
    ### END SOLUTION


def some_layers(seconds: Sequence[float], lengths: Sequence[int], rank: int = 0) -> Layers:
    """What a backward pass over layers of so many parameters takes, and its gradients on one of two ranks.

    Example:
        >>> [(took, gradient.shape) for took, gradient in some_layers([0.001, 0.002], [10, 20])]
        [(0.001, (10,)), (0.002, (20,))]
    """
    random = np.random.default_rng([rank, *lengths])
    return [(took, random.integers(-9, 9, length).astype(float)) for took, length in zip(seconds, lengths, strict=True)]


def _case(label: str, milliseconds: Sequence[float], lengths: Sequence[int]) -> Case:
    seconds = [one / 1000 for one in milliseconds]
    return Case(2, label, [(some_layers(seconds, lengths, rank),) for rank in range(2)])


def _averages(case: Case) -> list[Any]:
    (first,), (second,) = case.inputs
    means = [(mine + theirs) / 2 for (_, mine), (_, theirs) in zip(first, second, strict=True)]
    return [means, means]


def _hidden(case: Case, run: Run) -> Sequence[Bound]:
    layers: Layers = case.inputs[0][0]
    ready = np.cumsum([seconds for seconds, _ in layers])
    nbytes = np.array([gradient.nbytes for _, gradient in layers])
    left = np.cumsum(nbytes[::-1])[::-1] * BETA_S  # to be sent from this layer on
    best = max(ready + ALPHA_S + left)
    good = max(ready + ALPHA_S * np.arange(len(layers), 0, -1) + left)
    computed = [sum(one.end - one.begin for one in run.computed if one.rank == rank) for rank in range(2)]
    # The two reasons for being late: a rank that is in time may have a little of either.
    excused = 0 if run.time_s > good * 1.001 else math.inf
    return [
        Bound.none("ms of the backward pass left out", max(0.0, 1e3 * round(ready[-1] - min(computed), 9))),
        Bound.none("gradients sent before they were ready", _too_early(run, ready, nbytes)),
        Bound(
            "ms in which backward waits for a message",
            1e3 * _paused(run),
            0,
            excused,
            "The next layer's backward pass needs no message",
        ),
        Bound(
            "ms in which a gradient is ready and none is being sent",
            1e3 * _idle(run),
            0,
            excused,
            "A message is being sent when one rank has begun to send it and the other one to receive it",
        ),
        Bound(
            "ms until all averages are there",
            run.time_s * 1e3,
            best * 1e3,
            good * 1.001e3,
            "A gradient can be sent while the next one is computed",
        ),
    ]


def _paused(run: Run) -> float:
    """For how many seconds a rank computes nothing before its backward pass is over."""
    spans = [[one for one in run.computed if one.rank == rank] for rank in range(2)]
    ends = [max((one.end for one in mine), default=0.0) for mine in spans]
    return max(round(end - sum(one.end - one.begin for one in mine), 9) for end, mine in zip(ends, spans, strict=True))


def _idle(run: Run) -> float:
    """For how many seconds rank 0 sends nothing, though a gradient is ready; 0 if it is not one message each."""
    ends = sorted(one.end for one in run.computed if one.rank == 0)
    mine = sorted((one for one in run.messages if one.source == 0), key=lambda one: one.begin)
    if len(mine) != len(ends):
        return 0.0
    free = [0.0, *(one.end for one in mine)]
    gaps = (one.begin - max(until, end) for one, until, end in zip(mine, free[:-1], ends, strict=True))
    return round(sum(max(0.0, gap) for gap in gaps), 9)


def _too_early(run: Run, ready: Any, nbytes: Any) -> int:
    """How many messages held more than was ready when they were posted."""
    found = 0
    for rank in range(2):
        sent = 0
        mine = sorted((one for one in run.messages if one.source == rank), key=lambda one: one.posted)
        for count, one in enumerate(mine, 1):
            sent += one.nbytes
            found += sent > nbytes[ready <= one.posted + 1e-12].sum() + _SLACK_BYTES * count
    return found


def in_order() -> Any:
    """Return the six letters in the order of a correct training step on several ranks.

    As one text, such as "ABCDEF".

    A   clip_grad_norm_(model.parameters(), 0.1)
    B   loss.backward()
    C   with optimizer.skip_synchronize(): optimizer.step()
    D   optimizer.zero_grad()
    E   loss = F.cross_entropy(model(images), labels)
    F   optimizer.synchronize()
    """
    ### BEGIN SOLUTION
    return "DEBFAC"
    ### END SOLUTION


def _letters(function: Callable[..., Any]) -> str:
    answer = function()
    return "".join(map(str, answer)).upper() if isinstance(answer, (str, list, tuple)) else ""


def _each_once(function: Callable[..., Any]) -> str:
    """Each of the six lines stands there once."""
    letters = _letters(function)
    if not letters:
        answer = function()
        told = ". Is there a return?" if answer is None else '. Six letters are asked for, such as "ABCDEF"'
        return f"your result is {answer!r}{told}"
    wrong = [letter for letter in dict.fromkeys(letters) if letter not in "ABCDEF"]
    if wrong:
        return f"{wrong[0]!r} is none of the letters A to F; return them without anything between"
    missing = [letter for letter in "ABCDEF" if letter not in letters]
    twice = [letter for letter in "ABCDEF" if letters.count(letter) > 1]
    return f"{missing[0]} is missing" if missing else f"{twice[0]} stands there twice" if twice else ""


def _averaged(function: Callable[..., Any]) -> str:
    """Forward, backward, then the averages."""
    return _first_broken(
        _letters(function),
        ("EB", "backward() needs this step's loss, and the forward pass (E) comes after it"),
        (
            "BF",
            "synchronize() (F) comes before backward() (B): there is nothing to wait for yet, and the gradients that "
            "are sent afterwards are still being sent while the rest of the step uses them",
        ),
    )


def _clipped(function: Callable[..., Any]) -> str:
    """Clipping sees the averages, and step() sees what was clipped."""
    return _first_broken(
        _letters(function),
        (
            "FA",
            "clipping (A) comes before synchronize() (F): it changes this rank's own gradients, which are being sent; "
            "each rank would clip by a different norm, and the average would be clipped by none",
        ),
        (
            "AC",
            "step() (C) comes before clipping (A): the weights have been changed already, by gradients of any length",
        ),
        ("FC", "step() (C) comes before synchronize() (F): each rank would step with its own gradients"),
    )


def _zeroed(function: Callable[..., Any]) -> str:
    """zero_grad() throws nothing away that is still needed."""
    letters = _letters(function)
    if letters.index("B") < letters.index("D") < letters.index("F"):
        return (
            "zero_grad() (D) stands between backward() and synchronize(): the gradients are being sent, and the "
            "optimizer raises an AssertionError"
        )
    if letters.index("B") < letters.index("D") < letters.index("C"):
        return "zero_grad() (D) stands between backward() and step(): step() has no averages any more"
    return ""


def _first_broken(letters: str, *rules: tuple[str, str]) -> str:
    """Why the first rule is broken whose first letter does not come before its second."""
    return next((why for pair, why in rules if letters.index(pair[0]) > letters.index(pair[1])), "")


TASKS = [
    CommTask(
        "06.overlap",
        "send each gradient while the next one is computed",
        overlap,
        cases=lambda: [
            _case("one layer of length 3", [1.0], [3]),
            _case("no layers", [], []),
            _case("two layers of lengths 2, 5", [1.0, 0.5], [2, 5]),
            _case("two layers of length 4", [0.0, 0.0], [4, 4]),
            _case("a large layer, then a small one", [0.2, 3.0], [200_000, 10]),
            _case("six layers", [1.0, 0.8, 0.8, 0.6, 0.6, 0.4], [2_000, 100_000, 90_000, 60_000, 30_000, 300]),
        ],
        expected=_averages,
        bounds=_hidden,
        scored=_case("five layers", [1.0, 1.0, 1.0, 1.0, 1.0], [20_000, 100_000, 150_000, 100_000, 50_000]),
        shown=_case("five layers", [1.0, 1.0, 1.0, 1.0, 1.0], [20_000, 100_000, 150_000, 100_000, 50_000]),
        real=False,  # compute() is the simulator's
        points=2,
    ),
    PlainTask(
        "06.in_order",
        "six lines of a training step in their order",
        in_order,
        properties=[_each_once, _averaged, _clipped, _zeroed],
    ),
]
