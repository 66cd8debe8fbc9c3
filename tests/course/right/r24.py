"""Right answers of lesson 24 that are unlike the official ones."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F


def attention_by_torch(query, key, value):  # The function that everybody calls.
    query, key, value = (torch.from_numpy(each)[None] for each in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)[0]
def attention_by_rows(query, key, value):  # A token after the other.
    rows = []
    for t in range(len(query)):
        scores = key[: t + 1] @ query[t] / math.sqrt(len(query[t]))
        weights = np.exp(scores - scores.max())
        rows.append(weights / weights.sum() @ value[: t + 1])
    return np.array(rows)
def train_in_float64(weights, gradients, rate, bf16):  # Masters may have more digits still.
    return bf16(weights.astype(np.float64) - float(rate) * np.sum(np.array(gradients, dtype=np.float64), axis=0))
def train_with_a_rest(weights, gradients, rate, bf16):  # The rounding error is kept, and comes into the next step.
    rest = np.zeros_like(weights)
    for gradient in gradients:
        wanted = weights + rest - rate * gradient
        weights = bf16(wanted)
        rest = wanted - weights
    return weights
def scale_by_numbers(comm, weights, gradient, scale, good):  # The answer is a number, not a branch.
    mean = comm.allreduce(gradient) / comm.size
    finite = bool(np.isfinite(mean).all())
    good = (good + 1) * finite
    weights = weights - 0.1 * mean / scale if finite else weights
    return weights, scale * {0: 0.5, 3: 2.0}.get(good, 1.0), good % 3
def scale_by_unscaled(comm, weights, gradient, scale, good):  # Each rank takes the scale off before the sum.
    total = comm.allreduce(gradient / scale)
    if np.isnan(total).any() or np.isinf(total).any():
        return weights, scale * 0.5, 0
    done = good + 1
    return weights - 0.1 * (total / comm.size), scale * (2 if done == 3 else 1), done if done < 3 else 0
def segments_in_a_loop(layers, inside, between):  # Strictly lower alone replaces what was found.
    best, least = 1, layers * between + inside
    for length in range(2, layers + 1):
        peak = -(-layers // length) * between + length * inside
        if peak < least:
            best, least = length, peak
    return best, least
def segments_in_numpy(layers, inside, between):  # All lengths at once.
    lengths = np.arange(1, layers + 1)
    peaks = np.ceil(layers / lengths) * between + lengths * inside
    at = int(np.argmin(peaks))
    return int(lengths[at]), int(peaks[at])
def accumulate_by_weights(comm, gradients):  # The count first, then the weighted sum.
    samples = comm.allreduce(float(sum(n for _, n in gradients)))
    return comm.allreduce(sum(gradient * (n / samples) for gradient, n in gradients))
def accumulate_by_reduce(comm, gradients):  # One rank divides.
    both = comm.reduce(np.append(sum(g * n for g, n in gradients), sum(n for _, n in gradients)))
    return comm.bcast(both[:-1] / both[-1] if comm.rank == 0 else None)
def clip_by_a_vector(comm, gradients, most):  # All parts as one array.
    flat = np.concatenate(gradients)
    norm = math.sqrt(comm.allreduce(float(flat @ flat)))
    flat = flat * (most / norm if norm > most else 1)
    return np.split(flat, np.cumsum([len(part) for part in gradients])[:-1])
def clip_by_gathered_norms(comm, gradients, most):  # The norms of all ranks, as one vector.
    norms = comm.allgather(float(np.linalg.norm(np.concatenate(gradients))))
    return [part * min(1.0, most / np.linalg.norm(norms)) for part in gradients]


RIGHT = {
    "24.attention": [attention_by_torch, attention_by_rows],
    "24.train": [train_in_float64, train_with_a_rest],
    "24.loss_scale": [scale_by_numbers, scale_by_unscaled],
    "24.segments": [segments_in_a_loop, segments_in_numpy],
    "24.accumulate": [accumulate_by_weights, accumulate_by_reduce],
    "24.clip": [clip_by_a_vector, clip_by_gathered_norms],
}
