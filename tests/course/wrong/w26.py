"""Wrong solutions of lesson 26, each with what the check must say."""

from __future__ import annotations

import numpy as np
from wrong_answers import Answers

wrong = Answers()


@wrong("26.vocabulary_loss", "the sum is over this rank's part of the vocabulary")
def own_softmax(comm, scores, first, targets):
    most = comm.allreduce(scores.max(axis=1), op=np.maximum)
    total = np.exp(scores - most[:, None]).sum(axis=1)
    right = [s[t - first] if 0 <= t - first < len(s) else 0.0 for s, t in zip(scores, targets, strict=True)]
    return np.mean(np.log(total) + most - comm.allreduce(np.array(right)))
@wrong("26.vocabulary_loss", "each rank subtracted its own largest score")
def own_largest(comm, scores, first, targets):
    most = scores.max(axis=1)
    total = comm.allreduce(np.exp(scores - most[:, None]).sum(axis=1))
    right = [s[t - first] if 0 <= t - first < len(s) else 0.0 for s, t in zip(scores, targets, strict=True)]
    return np.mean(np.log(total) + most - comm.allreduce(np.array(right)))
@wrong("26.vocabulary_loss", "bytes from the busiest rank")
def gathers_the_scores(comm, scores, first, targets):
    whole = np.concatenate(comm.allgather(scores), axis=1)
    most = whole.max(axis=1)
    return np.mean(np.log(np.exp(whole - most[:, None]).sum(axis=1)) + most - whole[np.arange(len(targets)), targets])
@wrong("26.sequence_parallel", "a part of the sum was returned")
def own_part(comm, x, w1, w2):
    part = np.maximum(np.concatenate(comm.allgather(x)) @ w1, 0) @ w2
    return part[comm.rank * len(x) : (comm.rank + 1) * len(x)]
@wrong("26.sequence_parallel", "all tokens were returned")
def all_tokens(comm, x, w1, w2):
    return comm.allreduce(np.maximum(np.concatenate(comm.allgather(x)) @ w1, 0) @ w2)
@wrong("26.sequence_parallel", "bytes from the busiest rank")
def gathers_all_parts(comm, x, w1, w2):
    part = np.maximum(np.concatenate(comm.allgather(x)) @ w1, 0) @ w2
    return np.split(sum(comm.allgather(part)), comm.size)[comm.rank]
def _ring(comm, query, key, value, rescale=True, seen=lambda mine, theirs: theirs <= mine):
    n, t = comm.size, len(query)
    most, total, found = np.full((t, 1), -np.inf), 0.0, 0.0
    for step in range(n):
        whose = (comm.rank - step) % n
        allowed = seen((comm.rank * t + np.arange(t))[:, None], whose * t + np.arange(t))
        scores = np.where(allowed, query @ key.T / query.shape[1] ** 0.5, -np.inf)
        larger = np.maximum(most, scores.max(axis=1, keepdims=True))
        weights, shrunk = np.exp(scores - larger), np.exp(most - larger) if rescale else 1.0
        total = total * np.exp(most - larger) + weights.sum(axis=1, keepdims=True)
        found = found * shrunk + weights @ value
        most = larger
        if step < n - 1:
            key, value = comm.sendrecv((key, value), dest=(comm.rank + 1) % n, source=(comm.rank - 1) % n)
    return found / total
@wrong("26.ring_attention", "a token sees what comes after it")
def sees_all(comm, query, key, value):
    return _ring(comm, query, key, value, seen=lambda mine, theirs: theirs <= mine + 10**9)
@wrong("26.ring_attention", "what was found so far was not multiplied")
def forgets_to_rescale(comm, query, key, value): return _ring(comm, query, key, value, rescale=False)
@wrong("26.ring_attention", "messages of ready-made collectives")
def gathers_keys(comm, query, key, value):
    key, value = np.concatenate(comm.allgather(key)), np.concatenate(comm.allgather(value))
    at = comm.rank * len(query) + np.arange(len(query))
    scores = np.where(np.arange(len(key)) <= at[:, None], query @ key.T / query.shape[1] ** 0.5, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ value
@wrong("26.zigzag", "each rank has neighbouring pieces")
def in_order(tokens, n):
    piece = tokens // (2 * n)
    return [[(2 * r * piece, (2 * r + 1) * piece), ((2 * r + 1) * piece, (2 * r + 2) * piece)] for r in range(n)]
@wrong("26.zigzag", "each rank has the piece n further")
def round_robin(tokens, n):
    piece = tokens // (2 * n)
    return [[(k * piece, (k + 1) * piece) for k in (r, r + n)] for r in range(n)]
@wrong("26.zigzag", "a piece is begin and end, and not begin and length")
def lengths(tokens, n):
    piece = tokens // (2 * n)
    return [[(k * piece, piece) for k in (r, 2 * n - 1 - r)] for r in range(n)]
