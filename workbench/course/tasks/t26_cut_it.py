"""Lesson 26, cuts of a transformer: its vocabulary, its sequence, attention round a ring, and who gets which tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask, PlainTask, stated
from workbench.course.simulator import Run

Array = np.ndarray[Any, Any]
_SIZES = (1, 2, 3, 4)


def vocabulary_loss(comm: Any, scores: Any, first: Any, targets: Any) -> Any:
    """Return the mean of -log softmax(scores)[target] over all tokens, on every rank.

    scores: (tokens, part): this rank's part of the vocabulary, from word `first` on. Each
    rank has another part, of all tokens. targets: the right word of each token, a number in
    the whole vocabulary. Never send scores: a few numbers for each token are enough.
    comm.allreduce(x, op=np.maximum) gives the largest. exp() of large scores overflows.
    """
    ### BEGIN SOLUTION
    largest = comm.allreduce(scores.max(axis=1), op=np.maximum)
    total = np.exp(scores - largest[:, None]).sum(axis=1)
    here = (targets >= first) & (targets < first + scores.shape[1])
    mine = np.where(here, scores[np.arange(len(targets)), np.where(here, targets - first, 0)], 0.0)
    total, right = comm.allreduce(np.stack([total, mine]))
    return (np.log(total) + largest - right).mean()
    ### END SOLUTION


def _words(n: int, tokens: int, words: int, size: float = 1.0) -> Case:
    random = np.random.default_rng([n, tokens, words])
    scores, targets = size * random.normal(size=(tokens, n * words)), random.integers(0, n * words, tokens)
    parts = np.split(scores, n, axis=1)
    inputs = [(part.copy(), rank * words, targets.copy()) for rank, part in enumerate(parts)]
    return Case(n, f"{tokens} tokens, scores up to {np.abs(scores).max():.0f}", inputs)


def _losses(case: Case) -> list[Any]:
    scores = np.concatenate([part for part, _, _ in case.inputs], axis=1)
    targets = case.inputs[0][2]
    shifted = scores - scores.max(axis=1, keepdims=True)
    right = shifted[np.arange(len(targets)), targets]
    return [(np.log(np.exp(shifted).sum(axis=1)) - right).mean()] * case.n


def _three_numbers(case: Case, run: Run) -> Sequence[Bound]:
    best = 3 * 2 * (case.n - 1) / case.n * 8 * len(case.inputs[0][2])
    return [Bound.busiest(run, best, 6 * best + 256 * case.n, "The largest score, a sum, and one score for each token")]


def sequence_parallel(comm: Any, x: Any, w1: Any, w2: Any) -> Any:
    """Return this rank's tokens of y = max(x @ w1, 0) @ w2.

    x: this rank's tokens; all ranks have as many. w1, w2: this rank's columns and rows.
    Outside of the two layers each rank has its own tokens only. comm.allgather(array) gives
    a list of all ranks' arrays; comm.alltoall(list) those that the ranks have for this one.
    """
    ### BEGIN SOLUTION
    everything = np.concatenate(comm.allgather(x))
    part = np.maximum(everything @ w1, 0) @ w2
    return sum(comm.alltoall(np.split(part, comm.size)))
    ### END SOLUTION


def _tokens(n: int, tokens: int, hidden: int) -> Case:
    random = np.random.default_rng([n, tokens, hidden])
    w1, w2 = random.normal(size=(3, n * hidden)), random.normal(size=(n * hidden, 3))
    inputs = [
        (random.normal(size=(tokens, 3)), np.ascontiguousarray(a), b.copy())
        for a, b in zip(np.split(w1, n, axis=1), np.split(w2, n), strict=True)
    ]
    return Case(n, f"{n * tokens} tokens", inputs)


def _outputs(case: Case) -> list[Any]:
    w1, w2 = np.concatenate([a for _, a, _ in case.inputs], axis=1), np.concatenate([b for _, _, b in case.inputs])
    return [np.maximum(x @ w1, 0) @ w2 for x, _, _ in case.inputs]


def _there_and_back(case: Case, run: Run) -> Sequence[Bound]:
    x, n = case.inputs[0][0].nbytes, case.n
    most = (math.ceil(math.log2(n)) * n + n) * x  # the simulator's allgather sends the whole down a tree
    return [
        Bound.busiest(
            run, 2 * (n - 1) * x, 1.1 * most + 64 * n, "Tokens are gathered once, and parts of sums sent once"
        )
    ]


def ring_attention(comm: Any, query: Any, key: Any, value: Any) -> Any:
    """Return what causal attention gives this rank's tokens, (tokens, size).

    Rank 0 has the first tokens of the text, rank 1 the next, and so on; all have as many.
    Hold the keys and values of one rank at a time: send those that you hold to the next rank,
    and receive others from the one before, comm.size - 1 times.
    The sums of the softmax can be kept up to date: with a larger maximum m, what was summed
    so far is multiplied by exp(old m - new m).
    """
    ### BEGIN SOLUTION
    n, tokens = comm.size, len(query)
    most, total, found = np.full((tokens, 1), -np.inf), np.zeros((tokens, 1)), np.zeros_like(value)
    at = np.arange(tokens)
    for step in range(n):
        source = (comm.rank - step) % n
        scores = query @ key.T / np.sqrt(query.shape[1])
        scores = np.where(source * tokens + at <= (comm.rank * tokens + at)[:, None], scores, -np.inf)
        larger = np.maximum(most, scores.max(axis=1, keepdims=True))
        weights, shrunk = np.exp(scores - larger), np.exp(most - larger)
        most, total, found = (
            larger,
            total * shrunk + weights.sum(axis=1, keepdims=True),
            found * shrunk + weights @ value,
        )
        if step < n - 1:
            key, value = comm.sendrecv((key, value), dest=(comm.rank + 1) % n, source=(comm.rank - 1) % n)
    return found / total
    ### END SOLUTION


def _texts(n: int, tokens: int, size: float = 1.0) -> Case:
    random = np.random.default_rng([n, tokens])
    inputs = [tuple(size * random.normal(size=(tokens, 3)) for _ in range(3)) for _ in range(n)]
    return Case(n, f"{n * tokens} tokens", inputs)


def _attended(case: Case) -> list[Any]:
    query, key, value = (np.concatenate([one[i] for one in case.inputs]) for i in range(3))
    scores = query @ key.T / np.sqrt(query.shape[1])
    scores[np.triu_indices(len(scores), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.split(weights / weights.sum(axis=1, keepdims=True) @ value, case.n)


def _a_ring(case: Case, run: Run) -> Sequence[Bound]:
    best = (case.n - 1) * 2 * case.inputs[0][1].nbytes
    return [
        Bound.by_hand(run, "Send keys and values to the next rank: send and recv, or sendrecv"),
        Bound.busiest(run, best, 1.5 * best + 512 * case.n, "Each rank's keys and values pass once"),
    ]


def zigzag(tokens: Any, n: Any) -> Any:
    """Return, for each of n ranks, its tokens as a list of two pieces (begin, end).

    In causal attention a token looks at all before it, so the last ones cost most. Cut the
    text into 2n equal pieces, and give each rank two, so that all ranks have as much to do.
    tokens can be divided by 2n. Rank r has the r-th piece from the front, and another one.
    """
    ### BEGIN SOLUTION
    piece = tokens // (2 * n)
    pairs = [(rank, 2 * n - 1 - rank) for rank in range(n)]
    return [[(each * piece, (each + 1) * piece) for each in pair] for pair in pairs]
    ### END SOLUTION


def _dealt(function: Callable[..., Any], cases: Sequence[tuple[int, int]]) -> str:
    for tokens, n in cases:
        mine, about = function(tokens, n), f"{tokens} tokens, {n} ranks"
        wanted = zigzag(tokens, n)
        if not isinstance(mine, (list, tuple)) or len(mine) != n:
            return f"{about}: a list for each rank is asked for, not {mine!r}"
        for rank, (found, want) in enumerate(zip(mine, wanted, strict=True)):
            if sorted(tuple(each) for each in found) != want:
                cost = [sum((e * (e + 1) - b * (b + 1)) // 2 for b, e in pieces) for pieces in mine]
                return f"{about}: rank {rank} has {list(found)!r}, expected {want}. By rank, scores to compute: {cost}"
    return ""


TASKS = [
    CommTask(
        "26.vocabulary_loss",
        "a loss whose scores nobody has whole",
        vocabulary_loss,
        cases=lambda: [
            _words(n, tokens, words, size)
            for tokens, words, size in ((1, 2, 1.0), (5, 3, 1.0), (4, 3, 900.0))
            for n in _SIZES
        ],
        expected=_losses,
        names=("the loss",),
        bounds=_three_numbers,
        scored=_words(4, 64, 256),
        shown=_words(4, 64, 256),
        points=2,
    ),
    CommTask(
        "26.sequence_parallel",
        "tokens outside, columns and rows inside",
        sequence_parallel,
        cases=lambda: [_tokens(n, tokens, hidden) for tokens, hidden in ((1, 2), (3, 4)) for n in _SIZES],
        expected=_outputs,
        names=("this rank's tokens",),
        bounds=_there_and_back,
        scored=_tokens(4, 256, 2),
        shown=_tokens(4, 256, 2),
    ),
    CommTask(
        "26.ring_attention",
        "attention round a ring",
        ring_attention,
        cases=lambda: [_texts(n, tokens, size) for tokens, size in ((1, 1.0), (4, 1.0), (3, 40.0)) for n in _SIZES],
        expected=_attended,
        names=("what this rank's tokens get",),
        bounds=_a_ring,
        scored=_texts(4, 128),
        shown=_texts(4, 128),
        points=2,
    ),
    PlainTask(
        "26.zigzag",
        "tokens so that all have as much to do",
        zigzag,
        properties=stated(
            ("One rank has both pieces.", lambda f: _dealt(f, [(2, 1), (8, 1)])),
            ("All ranks have as much to do.", lambda f: _dealt(f, [(8, 2), (16, 4), (24, 3), (64, 8)])),
        ),
        probes=lambda: [(8, 2), (16, 4), (24, 3)],
    ),
]
