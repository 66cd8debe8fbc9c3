"""Wrong solutions of lesson 24, each with what the check must say."""

from __future__ import annotations

import numpy as np
from wrong_answers import Answers

wrong = Answers()


def softmax(scores): return np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
@wrong("24.attention", "a token sees what comes after it")
def sees_everything(query, key, value):
    return softmax(query @ key.T / np.sqrt(query.shape[1])) @ value
@wrong("24.attention", "large scores overflow in exp()")
def without_a_maximum(query, key, value):
    seen = np.where(np.tri(len(query)) > 0, query @ key.T / np.sqrt(query.shape[1]), -np.inf)
    return softmax(seen) @ value
@wrong("24.attention", "the scores above the diagonal are 0, and exp(0) is 1")
def zeros_are_scores(query, key, value):
    return softmax(np.tril(query @ key.T / query.shape[1] ** 0.5)) @ value
@wrong("24.attention", "those are the weights, (1, 1)")
def returns_the_weights(query, key, value):
    return softmax(query @ key.T / np.sqrt(query.shape[1]))
@wrong("24.train", "each step was rounded")
def rounds_each_step(weights, gradients, rate, bf16):
    for gradient in gradients:
        weights = bf16(weights - rate * gradient)
    return weights
@wrong("24.train", "the result was not rounded")
def stays_exact(weights, gradients, rate, bf16): return weights - rate * np.sum(gradients, axis=0)
@wrong("24.train", "the array that was given was changed")
def in_place(weights, gradients, rate, bf16):
    for gradient in gradients:
        weights -= rate * gradient
    return bf16(weights)
@wrong("24.loss_scale", "each rank looks at its own gradient")
def each_for_itself(comm, weights, gradient, scale, good):
    finite = np.isfinite(gradient).all()
    mean = comm.allreduce(gradient) / comm.size
    if not finite:
        return weights, scale / 2, 0
    good += 1
    return weights - 0.1 * mean / scale, scale * (1 + good // 3), good % 3
@wrong("24.loss_scale", "the gradients were not divided by the scale")
def scaled_steps(comm, weights, gradient, scale, good):
    mean = comm.allreduce(gradient) / comm.size
    if not np.isfinite(mean).all():
        return weights, scale / 2, 0
    return (weights - 0.1 * mean, *((scale * 2, 0) if good == 2 else (scale, good + 1)))
@wrong("24.loss_scale", "bytes from the busiest rank")
def gathers_everything(comm, weights, gradient, scale, good):
    all_gradients = comm.allgather(np.tile(gradient, 16))
    mean = np.mean([each[: len(gradient)] for each in all_gradients], axis=0)
    if not np.isfinite(mean).all():
        return weights, scale / 2, 0
    weights = weights - 0.1 * mean / scale
    return (weights, scale * 2, 0) if good == 2 else (weights, scale, good + 1)
@wrong("24.segments", "the last, shorter segment was not counted")
def rounds_down(layers, inside, between):
    peaks = {k: max(1, layers // k) * between + k * inside for k in range(1, layers + 1)}
    best = min(peaks, key=peaks.get)
    return best, peaks[best]
@wrong("24.segments", "the two results are the wrong way round")
def peak_first(layers, inside, between):
    return min((-(-layers // k) * between + k * inside, k) for k in range(1, layers + 1))
@wrong("24.segments", "two numbers are asked for, the length and the peak")
def only_the_peak(layers, inside, between):
    return min(-(-layers // k) * between + k * inside for k in range(1, layers + 1))
@wrong("24.accumulate", "the mean of the micro-batches' means was taken")
def mean_of_means(comm, gradients):
    total = comm.allreduce(np.append(sum(gradient for gradient, _ in gradients), len(gradients)))
    return total[:-1] / total[-1]
@wrong("24.accumulate", "each rank's mean was averaged over the ranks")
def mean_of_ranks(comm, gradients):
    total = sum(gradient * n for gradient, n in gradients) / sum(n for _, n in gradients)
    return comm.allreduce(total) / comm.size
@wrong("24.accumulate", "bytes from the busiest rank")
def sends_each(comm, gradients):
    pairs = [pair for rank in comm.allgather(gradients) for pair in rank]
    return sum(gradient * n for gradient, n in pairs) / sum(n for _, n in pairs)
@wrong("24.clip", "each rank clips by the norm of its own part")
def each_its_own(comm, gradients, most):
    norm = np.linalg.norm(np.concatenate(gradients))
    return [part * min(1.0, most / norm) for part in gradients]
@wrong("24.clip", "the norms of the ranks were added up")
def adds_norms(comm, gradients, most):
    norm = comm.allreduce(np.linalg.norm(np.concatenate(gradients)))
    return [part * min(1.0, most / norm) for part in gradients]
@wrong("24.clip", "short gradients were made longer")
def always(comm, gradients, most):
    norm = comm.allreduce(np.sum([np.sum(part**2) for part in gradients])) ** 0.5
    return [part * most / norm for part in gradients]
@wrong("24.clip", "bytes from the busiest rank")
def gathers(comm, gradients, most):
    whole = np.concatenate([part for rank in comm.allgather(gradients) for part in rank])
    return [part * min(1.0, most / np.linalg.norm(whole)) for part in gradients]
