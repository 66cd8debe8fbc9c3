"""Lesson 11, find the bug: cards 1 to 4. All hang, and the runtime reports which rank waits for which.

A card's name says what the program should do, and its title the symptom; neither gives the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from workbench import data
from workbench.course.judging.card import PlainCard
from workbench.course.judging.rank_threads import as_ranks_do
from workbench.course.judging.task import Case

# --- 1 ------------------------------------------------------------------------------------------------


def epoch(hvd: Any, w: Any, batches: Any, lr: Any) -> Any:
    """Train for one epoch; return the weights and the number of steps, the same on every rank.

    batches: this rank's own, a list of (x, y). Batches that are left over on some ranks are kept for the next epoch.
    """
    steps = int(hvd.allreduce(np.array(len(batches)), name="steps", op=hvd.Min))
    for x, y in batches[:steps]:
        gradient = 2 * x.T @ (x @ w - y) / len(y)
        w = w - lr * hvd.allreduce(gradient, name="gradient")
    return w, steps


@cache
def _digits() -> tuple[Any, Any]:
    digits = data.digits()
    return digits.train_x.reshape(len(digits.train_x), -1).astype(float), digits.train_y.astype(float)


def _uneven(samples: int, n: int, first: int, size: int = 12) -> Case:
    """Deal the digits out from rank ``first`` on."""
    return _batches([np.arange((rank - first) % n, samples, n) for rank in range(n)], size)


def _unlike(*counts: int, size: int = 12) -> Case:
    """Ranks whose numbers of batches are far apart: files of different lengths."""
    ends = np.cumsum(counts) * size
    return _batches([np.arange(end - count * size, end) for count, end in zip(counts, ends, strict=True)], size)


def _batches(shards: Sequence[Any], size: int) -> Case:
    images, labels = _digits()
    inputs = []
    for mine in shards:
        parts = [mine[i : i + size] for i in range(0, len(mine), size)]
        inputs.append((np.zeros(64), [(images[part], labels[part]) for part in parts], 0.01))
    counts = [len(batches) for _, batches, _ in inputs]
    return Case(len(shards), f"{', '.join(map(str, counts[:-1]))} and {counts[-1]} batches", inputs)


def _trained(case: Case) -> list[Any]:
    w, _, lr = case.inputs[0]
    steps = min(len(batches) for _, batches, _ in case.inputs)
    for k in range(steps):
        parts = [batches[k] for _, batches, _ in case.inputs]
        w = w - lr * sum(2 * x.T @ (x @ w - y) / len(y) for x, y in parts) / case.n
    return [(w, steps)] * case.n


def _other_epochs(case: Case) -> list[tuple[list[Any], str]]:
    """What else one may return."""
    right, own = _trained(case)[0], [len(batches) for _, batches, _ in case.inputs]
    w, _, lr = case.inputs[0]
    after = [w]
    for k in range(max(own)):
        parts = [batches[k] for _, batches, _ in case.inputs if k < len(batches)]
        w = w - lr * sum(2 * x.T @ (x @ w - y) / len(y) for x, y in parts) / case.n
        after.append(w)
    more = "ranks with more batches go on: what is left over is kept for the next epoch"
    return [
        ([(right[0], count) for count in own], "each rank returns its own number of batches, not that of the steps"),
        ([(w, right[1])] * case.n, more),
        ([(w, max(own))] * case.n, more),
        *(([(after[count], told) for count in own], more) for told in (right[1], max(own))),
        ([(after[count], count) for count in own], more),
    ]


EPOCH = PlainCard(
    "11.epoch",
    "the epoch never ends",
    epoch,
    properties=as_ranks_do(
        lambda: [_uneven(96, 2, 0), _uneven(145, 3, 0), _uneven(146, 3, 1), _unlike(5, 1, 3)],
        _trained,
        ("the weights", "the number of steps"),
        _other_epochs,
    ),
)

# --- 2 ------------------------------------------------------------------------------------------------


def validate(hvd: Any, right: Any, log: Any) -> Any:
    """Return the share of right answers over all ranks, on every rank, and the log; only rank 0 writes into it.

    right: one 0 or 1 for each sample of this rank, equally many on all ranks.
    """
    accuracy = hvd.allreduce(np.mean(right), name="accuracy")
    if hvd.rank() == 0:
        log.append(f"accuracy {accuracy:.2f}")
    return accuracy, log


def _answers(n: int) -> Case:
    return Case(n, "4 samples each", [([1] * (rank + 1) + [0] * (3 - rank), []) for rank in range(n)])


def _validated(case: Case) -> list[Any]:
    mean = float(np.mean([right for right, _ in case.inputs]))
    return [(mean, [f"accuracy {mean:.2f}"] if rank == 0 else []) for rank in range(case.n)]


def _own_shares(case: Case) -> list[Any]:
    """What else one may return."""
    own = [float(np.mean(right)) for right, _ in case.inputs]
    found = [(one, [f"accuracy {one:.2f}"] if rank == 0 else []) for rank, one in enumerate(own)]
    kept = [_validated(case)[0], *found[1:]]
    everybody = [(mean, [f"accuracy {mean:.2f}"]) for mean, _ in _validated(case)]
    return [
        (found, "each rank returns the share of its own answers"),
        (kept, "rank 0 has the share over all ranks, and the others their own"),
        (everybody, "every rank writes into the log, and only rank 0 may"),
    ]


VALIDATE = PlainCard(
    "11.validate",
    "training runs, validation hangs",
    validate,
    properties=as_ranks_do(lambda: [_answers(n) for n in (2, 3)], _validated, ("the accuracy", "the log"), _own_shares),
)

# --- 3 ------------------------------------------------------------------------------------------------


def gradients(hvd: Any, found: Any) -> Any:
    """Return the average of every gradient over the ranks, in the order of the names.

    found: this rank's gradients by name, in the order in which its backward pass has finished them.
    """
    averages = {}
    for name, gradient in sorted(found.items()):
        averages[name] = hvd.allreduce(gradient, name=name)
    return [averages[name] for name in sorted(averages)]


def _finished(orders: Sequence[str]) -> Case:
    """Letters are names. Gradients of one shape: without the names, different gradients are added to each other."""
    inputs = [({name: np.full(2, 10.0 * ord(name) + rank) for name in order},) for rank, order in enumerate(orders)]
    return Case(len(orders), f"finished as {' and '.join(orders)}", inputs)


def _averaged(case: Case) -> list[Any]:
    names = sorted(case.inputs[0][0])
    return [[np.mean([found[name] for (found,) in case.inputs], axis=0) for name in names]] * case.n


def _by_place(case: Case) -> list[tuple[list[Any], str]]:
    """What else one may return."""
    means = [np.mean(both, axis=0) for both in zip(*(found.values() for (found,) in case.inputs), strict=True)]
    mixed = [dict(zip(found, means, strict=True)) for (found,) in case.inputs]
    why = "different gradients were added to each other: without a name, the first one on each rank belongs together"
    return [([[one[name] for name in sorted(one)] for one in mixed], why)]


GRADIENTS = PlainCard(
    "11.gradients",
    "all ranks wait, and no rank is missing",
    gradients,
    properties=as_ranks_do(
        lambda: [_finished(orders) for orders in (("ab", "ab"), ("ab", "ba"), ("abc", "bca", "cab"))],
        _averaged,
        [f"the average of {name}" for name in "abc"],
        _by_place,
    ),
)

# --- 4 ------------------------------------------------------------------------------------------------


def two_heads(hvd: Any, weights: Any, found: Any, lr: Any) -> Any:
    """Make one step with the average gradients; return the weights in the order of their names.

    found: a gradient for each name, or None where this rank's batch has not used that weight: it counts as zero.
    """
    for name in sorted(weights):
        if found[name] is None:
            found[name] = np.zeros_like(weights[name])
        weights[name] = weights[name] - lr * hvd.allreduce(found[name], name=name)
    return [weights[name] for name in sorted(weights)]


def _heads(used: Sequence[str]) -> Case:
    """By rank, the letters of the heads that its batch uses; t, the trunk, is used by all."""
    weights = {"a": np.ones(2), "b": np.ones(3), "t": np.ones(4)}
    inputs = [
        (weights, {k: np.full(len(w), 1.0 + rank) if k in heads + "t" else None for k, w in weights.items()}, 0.5)
        for rank, heads in enumerate(used)
    ]
    return Case(len(used), f"heads {', '.join(heads or 'none' for heads in used)}", inputs)


def _stepped(case: Case) -> list[Any]:
    weights, _, lr = case.inputs[0]
    zeros = {name: np.zeros_like(w) for name, w in weights.items()}
    given = [{k: zeros[k] if g is None else g for k, g in found.items()} for _, found, _ in case.inputs]
    return [[weights[k] - lr * np.mean([one[k] for one in given], axis=0) for k in sorted(weights)]] * case.n


def _other_steps(case: Case) -> list[tuple[list[Any], str]]:
    """What else one may return."""
    weights, _, lr = case.inputs[0]
    given = [{k: weights[k] if g is None else g for k, g in found.items()} for _, found, _ in case.inputs]
    themselves = [weights[k] - lr * np.mean([one[k] for one in given], axis=0) for k in sorted(weights)]
    stepped = _stepped(case)[0]
    kept = [
        [weights[k] if found[k] is None else new for k, new in zip(sorted(weights), stepped, strict=True)]
        for _, found, _ in case.inputs
    ]
    return [
        ([themselves] * case.n, "the weights themselves were sent in place of None: a missing gradient counts as zero"),
        (kept, "a rank without a gradient of its own made no step: all ranks take the average"),
    ]


TWO_HEADS = PlainCard(
    "11.two_heads",
    "it hangs at some batches only",
    two_heads,
    properties=as_ranks_do(
        lambda: [_heads(used) for used in (("ab", "ab"), ("a", "ab"), ("a", "b", "ab"), ("b", "b"))],
        _stepped,
        [f"the weights of {name}" for name in "abt"],
        _other_steps,
    ),
)

TASKS = [EPOCH, VALIDATE, GRADIENTS, TWO_HEADS]
