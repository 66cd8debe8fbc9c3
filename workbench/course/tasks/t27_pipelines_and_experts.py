"""Lesson 27, pipelines and experts: short stages in turn, tokens to experts and back, capacity, and balance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask, PlainTask, as_solution
from workbench.course.simulator import Run

_SIZES = (1, 2, 3, 4)


def places(layers: Any, ranks: Any, chunks: Any) -> Any:
    """Return, for each rank, the list of its layers, in an interleaved pipeline.

    The layers are cut into ranks * chunks stages of equal length. Stage s is on rank
    s % ranks: so each rank has `chunks` short stages, and a micro-batch passes each rank
    `chunks` times. ValueError if the stages cannot have equal lengths.
    """
    ### BEGIN SOLUTION
    if layers % (ranks * chunks):
        raise ValueError(f"{layers} layers cannot be cut into {ranks * chunks} equal stages")
    each = layers // (ranks * chunks)
    stages = [list(range(s * each, (s + 1) * each)) for s in range(ranks * chunks)]
    return [[layer for stage in stages[rank::ranks] for layer in stage] for rank in range(ranks)]
    ### END SOLUTION


_PLACES = [(4, 4, 1), (8, 2, 2), (8, 2, 4), (12, 3, 2), (16, 4, 2), (16, 2, 4), (24, 2, 3)]


def refused(function: Callable[..., Any]) -> str:
    """Layers that cannot be divided are refused."""
    for case in ((7, 2, 2), (8, 3, 1), (4, 4, 2)):
        try:
            found = function(*case)
        except ValueError:
            continue
        return f"{case[0]} layers in {case[1] * case[2]} stages: a ValueError is asked for, and there is {found!r}"
    return ""


def to_experts(comm: Any, x: Any, choice: Any, expert: Any) -> Any:
    """Return what the experts make of this rank's tokens, in their order: x[i] @ (expert number choice[i]).

    x: (tokens, size). choice: for each token a number from 0 to comm.size - 1. Rank r has
    expert r, a matrix. comm.alltoall(list) sends one array to each rank, and returns the list
    of those that came, by rank. Arrays may have different lengths; the matrices stay.
    """
    ### BEGIN SOLUTION
    mine = [np.flatnonzero(choice == rank) for rank in range(comm.size)]
    came = comm.alltoall([x[each] for each in mine])
    back = comm.alltoall([tokens @ expert for tokens in came])
    found = np.empty((len(x), expert.shape[1]))
    for each, tokens in zip(mine, back, strict=True):
        found[each] = tokens
    return found
    ### END SOLUTION


def _routed(n: int, tokens: int, to: int | None = None) -> Case:
    random = np.random.default_rng([n, tokens, to or 0])
    inputs = []
    for _ in range(n):
        choice = random.integers(0, n, tokens) if to is None else np.full(tokens, to % n)
        inputs.append((random.normal(size=(tokens, 3)), choice, random.normal(size=(3, 3))))
    return Case(n, f"{tokens} tokens{'' if to is None else ', all to one expert'}", inputs)


def _by_experts(case: Case) -> list[Any]:
    experts = [expert for _, _, expert in case.inputs]
    return [np.array([row @ experts[to] for row, to in zip(x, choice, strict=True)]) for x, choice, _ in case.inputs]


def _there_and_back(case: Case, run: Run) -> Sequence[Bound]:
    to = np.array([np.bincount(choice, minlength=case.n) for _, choice, _ in case.inputs])
    away = to - np.diag(np.diag(to))  # tokens that leave their rank: there, and from their expert back
    best = int(max(away.sum(1) + away.sum(0))) * case.inputs[0][0][0].nbytes
    return [
        Bound.busiest(run, best, 1.5 * best + 512 * case.n, "Each token travels to its expert and back, and no further")
    ]


def slots(choice: Any, experts: Any, capacity: Any) -> Any:
    """Return a list: for each token its place in its expert's buffer, or None if there is no room.

    choice: for each token, in their order, the number of its expert. Each of `experts`
    experts has `capacity` places, from 0 on, and takes the tokens that come first.
    """
    ### BEGIN SOLUTION
    taken, found = [0] * experts, []
    for expert in choice:
        found.append(taken[expert] if taken[expert] < capacity else None)
        taken[expert] += 1
    return found
    ### END SOLUTION


_CHOICES = [
    ([0, 1, 0, 1], 2, 2),
    ([0, 0, 0, 1], 2, 2),
    ([1, 1, 1, 1, 0], 3, 1),
    ([2, 0, 2, 2, 1, 2, 0], 3, 3),
    ([0, 1, 2], 3, 0),
]


def balance_loss(comm: Any, probabilities: Any) -> Any:
    """Return the balance loss over the tokens of all ranks: experts * sum over e of share[e] * mean[e].

    probabilities: (tokens, experts) of this rank's router; all ranks have as many tokens.
    share[e]: which part of all tokens has its largest probability at expert e. mean[e]: the
    mean over all tokens of the probability of e. The loss is 1 if all experts are alike.
    Send numbers for each expert, not for each token.
    """
    ### BEGIN SOLUTION
    tokens, experts = probabilities.shape
    counts = np.bincount(probabilities.argmax(axis=1), minlength=experts)
    counts, total = comm.allreduce(np.stack([counts, probabilities.sum(axis=0)]))
    everybody = tokens * comm.size
    return experts * float((counts / everybody) @ (total / everybody))
    ### END SOLUTION


def _router(n: int, tokens: int, experts: int) -> Case:
    random = np.random.default_rng([n, tokens, experts])
    inputs = []
    for rank in range(n):
        scores = np.exp(random.normal(size=(tokens, experts)) + (np.arange(experts) == rank % experts))
        inputs.append((scores / scores.sum(axis=1, keepdims=True),))
    return Case(n, f"{tokens} tokens, {experts} experts", inputs)


def _balances(case: Case) -> list[Any]:
    every = np.concatenate([probabilities for (probabilities,) in case.inputs])
    share = np.eye(every.shape[1])[every.argmax(axis=1)].mean(axis=0)
    return [float(every.shape[1] * (share * every.mean(axis=0)).sum())] * case.n


def _two_rows(case: Case, run: Run) -> Sequence[Bound]:
    best = 2 * (case.n - 1) / case.n * 2 * 8 * case.inputs[0][0].shape[1]
    return [Bound.busiest(run, best, 4 * best + 256 * case.n, "Two numbers for each expert are enough")]


TASKS = [
    PlainTask(
        "27.places",
        "layers of an interleaved pipeline",
        places,
        properties=[
            *as_solution(
                places,
                ("One stage on each rank: neighbouring layers.", [(4, 4, 1), (8, 2, 1), (6, 1, 1)]),
                ("Several short stages on each rank, in turn.", _PLACES),
            ),
            refused,
        ],
        probes=lambda: _PLACES,
    ),
    CommTask(
        "27.to_experts",
        "tokens to experts, and back",
        to_experts,
        cases=lambda: [_routed(n, tokens, to) for tokens, to in ((1, None), (7, None), (4, 1)) for n in _SIZES],
        expected=_by_experts,
        names=("what this rank's tokens get",),
        bounds=_there_and_back,
        scored=_routed(4, 512),
        shown=_routed(4, 512),
        points=2,
    ),
    PlainTask(
        "27.slots",
        "places of experts, and who is dropped",
        slots,
        properties=as_solution(
            slots,
            (
                "Enough room for all: places from 0 on, for each expert.",
                [([0, 1, 0, 1], 2, 2), ([1, 1, 0], 2, 3), ([], 2, 1)],
            ),
            ("Too little room: who comes late is dropped.", _CHOICES),
        ),
        probes=lambda: _CHOICES,
    ),
    CommTask(
        "27.balance_loss",
        "are all experts used alike, over all ranks?",
        balance_loss,
        cases=lambda: [_router(n, tokens, experts) for tokens, experts in ((2, 2), (9, 4)) for n in _SIZES],
        expected=_balances,
        names=("the balance loss",),
        bounds=_two_rows,
        scored=_router(4, 512, 8),
        shown=_router(4, 512, 8),
    ),
]
