"""Right answers of lesson 26 that are unlike the official ones."""

from __future__ import annotations

import numpy as np
import torch


def loss_in_three_sums(comm, scores, first, targets):  # One message for each number.
    most = comm.allreduce(scores.max(axis=1), op=np.maximum)
    total = comm.allreduce(np.exp(scores - most[:, None]).sum(axis=1))
    right = [s[t - first] if 0 <= t - first < len(s) else 0.0 for s, t in zip(scores, targets, strict=True)]
    return np.mean(np.log(total) + most - comm.allreduce(np.array(right)))
def loss_by_logs(comm, scores, first, targets):  # Logarithms of sums are added as such: no largest score is needed.
    logs = comm.allreduce(np.logaddexp.reduce(scores, axis=1), op=np.logaddexp)
    place = targets - first
    right = np.array([scores[t, p] if 0 <= p < scores.shape[1] else 0.0 for t, p in enumerate(place)])
    return float(np.mean(logs - comm.allreduce(right)))
def loss_of_shifted(comm, scores, first, targets):  # The right score is shifted, too.
    shifted = scores - comm.allreduce(scores.max(axis=1), op=np.maximum)[:, None]
    onehot = targets[:, None] == first + np.arange(scores.shape[1])
    both = comm.allreduce(np.array([np.exp(shifted).sum(axis=1), np.where(onehot, shifted, 0.0).sum(axis=1)]))
    return (np.log(both[0]) - both[1]).mean()
def loss_by_gathered_sums(comm, scores, first, targets):  # Three numbers of each rank, for each token.
    most = scores.max(axis=1)
    onehot = targets[:, None] == first + np.arange(scores.shape[1])
    mine = np.stack([most, np.exp(scores - most[:, None]).sum(axis=1), (scores * onehot).sum(axis=1)])
    parts = np.array(comm.allgather(mine))
    top = parts[:, 0].max(axis=0)
    total = (parts[:, 1] * np.exp(parts[:, 0] - top)).sum(axis=0)
    return (np.log(total) + top - parts[:, 2].sum(axis=0)).mean()
def tokens_by_a_loop(comm, x, w1, w2):  # Each rank's tokens for themselves.
    parts = [np.maximum(theirs @ w1, 0) @ w2 for theirs in comm.allgather(x)]
    return np.sum(comm.alltoall(parts), axis=0)
def tokens_by_alltoall(comm, x, w1, w2):  # Gathered by the other verb: everybody gets the same.
    everything = np.vstack(comm.alltoall([x] * comm.size))
    parts = np.array_split(np.maximum(everything @ w1, 0) @ w2, comm.size)
    return sum(comm.alltoall(parts))
def tokens_by_torch(comm, x, w1, w2):  # The layers of torch.
    everything = torch.from_numpy(np.concatenate(comm.allgather(x)))
    part = torch.relu(everything @ torch.from_numpy(w1)) @ torch.from_numpy(w2)
    return np.add.reduce(comm.alltoall([one.numpy() for one in part.chunk(comm.size)]))
def tokens_in_turn(comm, x, w1, w2):  # A sum to each rank in turn.
    found = None
    for rank, theirs in enumerate(comm.allgather(x)):
        total = comm.reduce(np.maximum(theirs @ w1, 0) @ w2, root=rank)
        found = total if total is not None else found
    return found
def _passed_on(comm, key, value):
    """By whose keys and values come: (rank, key, value)."""
    n = comm.size
    for step in range(n):
        yield (comm.rank - step) % n, key, value
        if step < n - 1:
            both = comm.sendrecv(np.stack([key, value]), dest=(comm.rank + 1) % n, source=(comm.rank - 1) % n)
            key, value = both[0], both[1]
def _allowed(comm, rank, tokens):
    at = np.arange(tokens)
    return rank * tokens + at <= (comm.rank * tokens + at)[:, None]
def ring_by_logs(comm, query, key, value):  # Keeps the logarithm of the sum, and the mean so far.
    logs, found = np.full(len(query), -np.inf), np.zeros_like(value)
    for rank, k, v in _passed_on(comm, key, value):
        scores = np.where(_allowed(comm, rank, len(query)), query @ k.T / np.sqrt(query.shape[1]), -np.inf)
        new = np.logaddexp(logs, np.logaddexp.reduce(scores, axis=1))
        found = found * np.exp(logs - new)[:, None] + np.exp(scores - new[:, None]) @ v
        logs = new
    return found
def ring_that_keeps(comm, query, key, value):  # Keeps all scores and values, and takes the softmax at the end.
    scores, values = [], []
    for rank, k, v in _passed_on(comm, key, value):
        scores.append(np.where(_allowed(comm, rank, len(query)), query @ k.T / query.shape[1] ** 0.5, -np.inf))
        values.append(v)
    scores, values = np.concatenate(scores, axis=1), np.concatenate(values)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (weights / weights.sum(axis=1, keepdims=True)) @ values
def ring_in_order(comm, query, key, value):  # Puts what came back into the text's order, and asks torch.
    parts = {rank: (k, v) for rank, k, v in _passed_on(comm, key, value)}
    keys, values = (np.concatenate([parts[rank][i] for rank in sorted(parts)]) for i in (0, 1))
    first = comm.rank * len(query)
    mask = torch.ones(len(query), len(keys), dtype=torch.bool).tril(first)
    found = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(each)[None] for each in (query, keys, values)), attn_mask=mask
    )
    return found[0].numpy()
def ring_that_skips(comm, query, key, value):  # What comes after this rank's tokens is passed on, and not computed.
    most, total, found = np.full((len(query), 1), -np.inf), np.zeros((len(query), 1)), np.zeros_like(value)
    for rank, k, v in _passed_on(comm, key, value):
        if rank > comm.rank:
            continue
        scores = query @ k.T / np.sqrt(query.shape[1])
        if rank == comm.rank:
            scores[np.triu_indices(len(scores), 1)] = -np.inf
        larger = np.maximum(most, scores.max(axis=1, keepdims=True))
        weights = np.exp(scores - larger)
        total = total * np.exp(most - larger) + weights.sum(axis=1, keepdims=True)
        found = found * np.exp(most - larger) + weights @ v
        most = larger
    return found / total
def zigzag_by_folding(tokens, n):  # The list of pieces, folded in its middle.
    ends = list(range(0, tokens + 1, tokens // (2 * n)))
    pieces = [(ends[i], ends[i + 1]) for i in range(2 * n)]
    return [[front, back] for front, back in zip(pieces[:n], pieces[: n - 1 : -1], strict=True)]
def zigzag_from_behind(tokens, n):  # From both ends of the text.
    piece = tokens // n // 2
    return [
        [(r * piece, r * piece + piece), (tokens - (r + 1) * piece, tokens - r * piece)] for r in range(n)
    ]
def zigzag_by_numpy(tokens, n):  # Pieces as rows of an array.
    pieces = np.arange(tokens).reshape(2 * n, -1)
    return [[(int(pieces[i, 0]), int(pieces[i, -1]) + 1) for i in (r, -1 - r)] for r in range(n)]
def zigzag_by_dealing(tokens, n):  # Dealt out, there and back.
    hands = [[] for _ in range(n)]
    piece = tokens // (2 * n)
    for i, rank in enumerate([*range(n), *reversed(range(n))]):
        hands[rank].append((i * piece, (i + 1) * piece))
    return hands


RIGHT = {
    "26.vocabulary_loss": [loss_in_three_sums, loss_by_logs, loss_of_shifted, loss_by_gathered_sums],
    "26.sequence_parallel": [tokens_by_a_loop, tokens_by_alltoall, tokens_by_torch, tokens_in_turn],
    "26.ring_attention": [ring_by_logs, ring_that_keeps, ring_in_order, ring_that_skips],
    "26.zigzag": [zigzag_by_folding, zigzag_from_behind, zigzag_by_numpy, zigzag_by_dealing],
}
