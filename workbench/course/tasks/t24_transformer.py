"""Lesson 24, a transformer: attention, master weights, loss scaling, checkpoints, accumulation, clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask, PlainTask, as_solution, stated
from workbench.course.simulator import Run

Array = np.ndarray[Any, Any]
_SIZES = (1, 2, 3, 4)


def bf16(x: Any) -> Array:
    """Rounded to the 8 digits in base 2 that bfloat16 has; still an array of float64, so that all can compute with it.

    Example:
        >>> bf16([1.0, 1.003, 1.005, 300.7]).tolist()
        [1.0, 1.0, 1.0078125, 300.0]
    """
    bits = np.asarray(x, dtype=np.float32).view(np.uint32)
    even = (bits >> 16) & 1  # half of a step goes to the even neighbour
    return ((bits + 0x7FFF + even) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def attention(query: Any, key: Any, value: Any) -> Any:
    """Return what one head's causal attention makes of a text: an array (tokens, size).

    query, key, value: arrays (tokens, size), one row for each token.
    Token t looks at tokens 0 … t. How much at token s: the softmax, over s, of
    query[t] · key[s] / √size. What it gets is the sum of the values, so weighted.
    """
    ### BEGIN SOLUTION
    scores = query @ key.T / np.sqrt(query.shape[1])
    scores[np.triu_indices(len(scores), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ value
    ### END SOLUTION


def _text(tokens: int, size: int, larger: float = 1.0) -> tuple[Array, ...]:
    random = np.random.default_rng([tokens, size])
    return tuple(larger * random.normal(size=(tokens, size)) for _ in range(3))


def _attends(function: Callable[..., Any], texts: Sequence[tuple[Array, ...]]) -> str:
    for query, key, value in texts:
        mine, wanted = function(query.copy(), key.copy(), value.copy()), attention(query, key, value)
        about = f"{query.shape[0]} tokens of size {query.shape[1]}"
        if np.shape(mine) == (len(query), len(query)) != wanted.shape:
            return f"{about}: those are the weights, {np.shape(mine)}: what a token gets is a sum of values"
        if np.shape(mine) != wanted.shape:
            return f"{about}: your result has the shape {np.shape(mine)}, expected {wanted.shape}"
        rows = [t for t, row in enumerate(np.asarray(mine)) if not np.allclose(row, wanted[t], rtol=1e-9, atol=1e-12)]
        if rows:
            got, due = np.asarray(mine)[rows[0]][0], wanted[rows[0]][0]
            return f"{about}: token {rows[0]} gets {got:.6g} …, expected {due:.6g} …"
    return ""


def overflows_nothing(function: Callable[..., Any]) -> str:
    """Scores of a thousand and more: exp() of such a number is infinite."""
    with np.errstate(all="ignore"):
        wrong = _attends(function, [_text(5, 4, 40.0), _text(9, 16, 60.0)])
    return f"large scores overflow in exp(): subtract the maximum of each row first; {wrong}" if wrong else ""


def train(weights: Any, gradients: Any, rate: Any, bf16: Any) -> Any:
    """Return the weights after all steps of SGD, in bf16.

    weights: numbers that bf16 can hold.
    gradients: one array for each step.
    bf16(x) rounds to what bfloat16 can hold. What a step changes may be less than
    the distance of two such numbers. No step may be lost for it.
    """
    ### BEGIN SOLUTION
    masters = weights.copy()
    for gradient in gradients:
        masters -= rate * gradient
    return bf16(masters)
    ### END SOLUTION


def _trained(function: Callable[..., Any], steps: int, rate: float) -> str:
    for length in (1, 3):
        random = np.random.default_rng([steps, length])
        weights = bf16(1 + random.random(length))
        gradients = [random.random(length) for _ in range(steps)]
        given = weights.copy()
        mine, wanted = (
            function(given, gradients, rate, bf16),
            train(weights, gradients, rate, bf16),
        )
        if not np.allclose(mine, wanted, rtol=0, atol=1e-6):
            told = f"your weights {np.asarray(mine).tolist()}, expected {wanted.tolist()}"
            still = ", as before the first step" if steps > 1 and np.array_equal(mine, weights) else ""
            return f"{steps} steps of rate {rate}: {told}{still}"
        if not np.array_equal(given, weights):
            return f"{steps} steps of rate {rate}: the array of weights that was given is another one afterwards"
    return ""


def loss_scale(comm: Any, weights: Any, gradient: Any, scale: Any, good: Any) -> Any:
    """Return (weights, scale, good) after a step with float16 gradients, equal on all ranks.

    gradient: this rank's, of scale times its loss: numbers of which some may be
    infinite or not a number, where float16 was not enough.
    If a gradient is so on any rank, the weights stay, the scale is halved, and good is 0.
    Else the weights change by -0.1 times the mean of the ranks' gradients, without the
    scale; good grows by 1, and when it is 3 the scale is doubled and good is 0.
    """
    ### BEGIN SOLUTION
    total = comm.allreduce(gradient)  # the sum of an infinite number and any others is no finite one
    if not np.isfinite(total).all():
        return weights, scale / 2, 0
    weights = weights - 0.1 * total / comm.size / scale
    return (weights, scale * 2, 0) if good == 2 else (weights, scale, good + 1)
    ### END SOLUTION


def _scaled(n: int, label: str, scale: float, good: int, broken: dict[int, float]) -> Case:
    random = np.random.default_rng([n, good])
    inputs = []
    for rank in range(n):
        gradient = scale * random.integers(-8, 9, 5).astype(float)
        gradient[rank % 5] = broken.get(rank, gradient[rank % 5])
        inputs.append((np.arange(5.0), gradient, scale, good))
    return Case(n, label, inputs)


def _after(case: Case) -> list[Any]:
    weights, _, scale, good = case.inputs[0]
    total = np.sum([gradient for _, gradient, _, _ in case.inputs], axis=0)
    if not np.isfinite(total).all():
        return [(weights, scale / 2, 0)] * case.n
    weights = weights - 0.1 * total / case.n / scale
    return [(weights, scale * 2, 0) if good == 2 else (weights, scale, good + 1)] * case.n


def _one_sum(case: Case, run: Run) -> Sequence[Bound]:
    nbytes = case.inputs[0][1].nbytes
    best = 2 * (case.n - 1) / case.n * nbytes
    return [Bound.busiest(run, best, 2 * best + 64 * case.n, "One sum of the gradients tells all ranks enough")]


def segments(layers: Any, inside: Any, between: Any) -> Any:
    """Return (length, peak): into segments of how many layers to cut, and the bytes that are kept then.

    A layer has `inside` bytes of activations, and hands `between` bytes on.
    With checkpoints only the input of each segment is kept in forward, and of one segment
    at a time all that is inside its layers, in backward. The last segment may be shorter.
    Take the length with the lowest peak; of equal ones the shortest.
    """

    ### BEGIN SOLUTION
    def peak(length: int) -> Any:
        return -(-layers // length) * between + length * inside

    best = min(range(1, layers + 1), key=peak)
    return best, peak(best)
    ### END SOLUTION


_LAYERS = [
    (layers, inside, between) for layers in (2, 9, 12, 16, 25, 96) for inside, between in ((1, 1), (17, 2), (34, 1))
]


def accumulate(comm: Any, gradients: Any) -> Any:
    """Return the mean gradient over all samples of all micro-batches of all ranks, on every rank.

    gradients: this rank's list of (gradient, samples), one for each micro-batch: the mean
    over its samples, and how many there are. They differ between micro-batches and ranks.
    However many micro-batches there are, send one sum: an allgather sends n times as much.
    """
    ### BEGIN SOLUTION
    total = sum(gradient * samples for gradient, samples in gradients)
    count = sum(samples for _, samples in gradients)
    together = comm.allreduce(np.append(total, count))
    return together[:-1] / together[-1]
    ### END SOLUTION


def _micro(n: int, length: int, uneven: bool) -> Case:
    random = np.random.default_rng([n, length, uneven])
    inputs = []
    for rank in range(n):
        sizes = random.integers(1, 9, 1 + rank % 3) if uneven else [4, 4]
        inputs.append(([(random.integers(-9, 10, length).astype(float), int(size)) for size in sizes],))
    return Case(n, f"{'uneven' if uneven else 'equal'} micro-batches", inputs)


def _mean(case: Case) -> list[Any]:
    pairs = [pair for (gradients,) in case.inputs for pair in gradients]
    return [sum(gradient * samples for gradient, samples in pairs) / sum(samples for _, samples in pairs)] * case.n


def _once(case: Case, run: Run) -> Sequence[Bound]:
    best = 2 * (case.n - 1) / case.n * (case.inputs[0][0][0][0].nbytes + 8)
    return [Bound.busiest(run, best, 2 * best + 64 * case.n, "Micro-batches are added up before anything is sent")]


def clip(comm: Any, gradients: Any, most: Any) -> Any:
    """Return the gradients, as a list, of which the norm over all ranks is at most `most`.

    gradients: a list of arrays: the part that this rank has of each tensor's gradient, as
    in a sharded model. The norm is the root of the sum of the squares of all numbers of
    all parts. If it is larger, all of them are multiplied by most / norm.
    """
    ### BEGIN SOLUTION
    norm = np.sqrt(comm.allreduce(sum(float((part**2).sum()) for part in gradients)))
    return [part * min(1.0, most / norm) for part in gradients]
    ### END SOLUTION


def _parts(n: int, most: float) -> Case:
    random = np.random.default_rng([n, int(most)])
    inputs = [([random.integers(1, 9, size).astype(float) for size in (4, 1, 7)], most) for _ in range(n)]
    return Case(n, f"at most {most:g}", inputs)


def _clipped(case: Case) -> list[Any]:
    norm = math.sqrt(sum(float((part**2).sum()) for parts, _ in case.inputs for part in parts))
    return [[part * min(1.0, most / norm) for part in parts] for parts, most in case.inputs]


def _one_number(case: Case, run: Run) -> Sequence[Bound]:
    best = 2 * (case.n - 1) / case.n * 8
    return [Bound.busiest(run, best, 128 * case.n, "One number tells a rank enough of the others' parts")]


TASKS = [
    PlainTask(
        "24.attention",
        "causal attention of one head",
        attention,
        properties=[
            *stated(
                (
                    "The first token sees itself alone: it gets its own value.",
                    lambda f: _attends(f, [_text(1, 4), _text(1, 2)]),
                ),
                (
                    "Each token sees itself and those before it, weighted by a softmax.",
                    lambda f: _attends(f, [_text(tokens, size) for tokens in (2, 5, 17) for size in (1, 4, 9)]),
                ),
            ),
            overflows_nothing,
        ],
        probes=lambda: [_text(3, 2), _text(5, 4)],
        points=2,
    ),
    PlainTask(
        "24.train",
        "steps smaller than bf16 can tell",
        train,
        properties=stated(
            ("One large step.", lambda f: _trained(f, 1, 0.5)),
            ("A thousand steps, each of them smaller than bf16 can tell.", lambda f: _trained(f, 1000, 0.001)),
        ),
        probes=lambda: [
            (bf16(1 + np.arange(3) / 4), [np.full(3, 0.7)] * steps, rate, bf16)
            for steps, rate in ((1, 0.5), (300, 0.001), (3, 0.3))
        ],
    ),
    CommTask(
        "24.loss_scale",
        "dynamic loss scaling that all ranks decide alike",
        loss_scale,
        cases=lambda: [
            _scaled(n, label, 1024.0, good, broken)
            for label, good, broken in (
                ("all finite", 0, {}),
                ("the third good step", 2, {}),
                ("infinite on rank 0", 2, {0: np.inf}),
                ("not a number on the last rank", 1, {3: np.nan, 2: np.nan, 1: np.nan}),
                ("two infinities that cancel", 1, {0: np.inf, 1: -np.inf}),
            )
            for n in _SIZES
        ],
        expected=_after,
        names=("the weights", "the scale", "good"),
        bounds=_one_sum,
        scored=_scaled(4, "all finite", 1024.0, 0, {}),
        points=2,
    ),
    PlainTask(
        "24.segments",
        "where to set checkpoints",
        segments,
        properties=as_solution(
            segments,
            ("One layer is one segment.", [(1, 10, 1), (1, 1, 10)]),
            (
                "Where inside and between weigh the same, the square root of the layers.",
                [(layers, 1, 1) for layers in (4, 9, 16, 100)],
            ),
            ("Any numbers.", _LAYERS),
        ),
        probes=lambda: _LAYERS,
    ),
    CommTask(
        "24.accumulate",
        "one mean of many micro-batches, sent once",
        accumulate,
        cases=lambda: [_micro(n, length, uneven) for uneven in (False, True) for length in (1, 5) for n in _SIZES],
        expected=_mean,
        names=("the mean gradient",),
        bounds=_once,
        scored=_micro(4, 1000, True),
        shown=_micro(4, 1000, True),
        points=2,
    ),
    CommTask(
        "24.clip",
        "the norm of a gradient that the ranks share",
        clip,
        cases=lambda: [_parts(n, most) for most in (1.0, 1000.0, 20.0) for n in _SIZES],
        expected=_clipped,
        bounds=_one_number,
        scored=_parts(4, 1.0),
        shown=_parts(4, 1.0),
    ),
]
