"""Right answers of lesson 23 that are unlike the official ones."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from workbench.course.simulator.topology import ring_among


def in_pieces(parameters, activations, data, tensor, pipeline, microbatches):
    """Weight, gradient, state and activations apart."""
    weights, gradients, state = 2 * parameters, 2 * parameters, 12 * parameters / data
    kept = activations * (microbatches if microbatches < pipeline else pipeline)
    return (weights + gradients + state + kept) / tensor / pipeline
def of_numpy(parameters, activations, data, tensor, pipeline, microbatches):  # As a number of numpy.
    bytes_each = np.array([2.0, 2.0, 12 / data])
    return bytes_each.sum() * parameters / (tensor * pipeline) + np.minimum(pipeline, microbatches) * activations / (
        tensor * pipeline
    )
def as_an_array(parameters, activations, data, tensor, pipeline, microbatches):  # As an array without dimensions.
    return np.array(in_pieces(parameters, activations, data, tensor, pipeline, microbatches))
def micro_batch_by_micro_batch(
    parameters: Any, activations: Any, data: Any, tensor: Any, pipeline: Any, microbatches: Any
) -> Any:
    """By a loop over what a stage keeps."""
    needed = parameters / (tensor * pipeline) * (16 - 12 * (data - 1) / data)
    for _ in range(min(microbatches, pipeline)): needed += activations / (tensor * pipeline)
    return needed
def _divisors(number): return [k for k in range(1, number + 1) if number % k == 0]
def _all(gpus, gpus_per_host, layers, samples):
    found = []
    for tensor, pipeline in product(_divisors(gpus_per_host), _divisors(layers)):
        if gpus % (tensor * pipeline) == 0 and samples % (data := gpus // tensor // pipeline) == 0:
            found += [(data, tensor, pipeline, m) for m in _divisors(samples // data)]
    return found
def by_min(gpus, gpus_per_host, layers, samples, fits, seconds):  # With min and a key.
    good = [one for one in _all(gpus, gpus_per_host, layers, samples) if fits(*one)]
    return min(good, key=lambda one: seconds(*one), default=None)
def sorted_by_time(gpus, gpus_per_host, layers, samples, fits, seconds):
    """The first that fits, of all by their time; as a list."""
    for _, one in sorted((seconds(*one), one) for one in _all(gpus, gpus_per_host, layers, samples)):
        if fits(*one): return list(one)
    return None
def as_numbers_of_numpy(gpus, gpus_per_host, layers, samples, fits, seconds):  # As an array.
    found = by_min(gpus, gpus_per_host, layers, samples, fits, seconds)
    return found if found is None else np.array(found)
def from_the_slowest(gpus, gpus_per_host, layers, samples, fits, seconds):
    """Backwards, with a time that becomes smaller."""
    found, least = None, float("inf")
    for one in reversed(_all(gpus, gpus_per_host, layers, samples)):
        if fits(*one) and seconds(*one) < least: found, least = one, seconds(*one)
    return found
def two_sums_apart(comm, x, y, w1, w2, lr, tensor):  # A sum for each gradient.
    group = range(comm.rank // tensor * tensor, (comm.rank // tensor + 1) * tensor)
    same = range(comm.rank % tensor, comm.size, tensor)
    h = np.maximum(x @ w1, 0)
    error = (ring_among(comm, list(group), (h @ w2).reshape(-1)).reshape(y.shape) - y) / x.shape[0]
    first = ring_among(comm, list(same), (x.T @ (error @ w2.T * (h > 0))).reshape(-1)).reshape(w1.shape)
    second = ring_among(comm, list(same), (h.T @ error).reshape(-1)).reshape(w2.shape)
    return [w1 - lr * first / len(same), w2 - lr * second / len(same)]
def divided_before(comm, x, y, w1, w2, lr, tensor):  # The error is divided by all samples, so a sum is enough.
    data = comm.size // tensor
    group = [r for r in range(comm.size) if r // tensor == comm.rank // tensor]
    same = [r for r in range(comm.size) if r % tensor == comm.rank % tensor]
    h = np.maximum(x @ w1, 0)
    error = (ring_among(comm, group, (h @ w2).flatten()).reshape(y.shape) - y) / (len(x) * data)
    both = [x.T @ np.where(h > 0, error @ w2.T, 0), h.T @ error]
    sums = [ring_among(comm, same, one.flatten()).reshape(one.shape) for one in both]
    return tuple(old - lr * one for old, one in zip((w1, w2), sums, strict=True))
def by_messages(comm, x, y, w1, w2, lr, tensor):
    """Every rank sends its part to the group's first one, which sends the sum back."""
    def total(members: list[int], value):
        if comm.rank != members[0]:
            comm.send(value, dest=members[0])
            return comm.recv(source=members[0])
        value = value + sum(comm.recv(source=other) for other in members[1:])
        for other in members[1:]: comm.send(value, dest=other)
        return value
    group = [r for r in range(comm.size) if r // tensor == comm.rank // tensor]
    same = [r for r in range(comm.size) if r % tensor == comm.rank % tensor]
    h = np.maximum(x @ w1, 0)
    error = (total(group, h @ w2) - y) / len(x)
    d1, d2 = x.T @ (error @ w2.T * (h > 0)), h.T @ error
    return w1 - lr * total(same, d1) / len(same), w2 - lr * total(same, d2) / len(same)
def in_place_of_copies(comm, x, y, w1, w2, lr, tensor):  # On copies of the weights, with einsum.
    w1, w2 = w1.copy(), w2.copy()
    row, column = comm.rank // tensor, comm.rank % tensor
    z = np.einsum("si,ih->sh", x, w1)
    h = z.clip(min=0)
    output = ring_among(comm, [row * tensor + k for k in range(tensor)], np.einsum("sh,ho->so", h, w2).ravel())
    error = (output.reshape(y.shape) - y) / len(y)
    same = list(range(column, comm.size, tensor))
    d2 = ring_among(comm, same, (h.T @ error).ravel()).reshape(w2.shape) / len(same)
    d1 = ring_among(comm, same, (x.T @ ((z > 0) * (error @ w2.T))).ravel()).reshape(w1.shape) / len(same)
    w1 -= lr * d1
    w2 -= lr * d2
    return w1, w2
RIGHT = {
    "23.bytes_per_gpu": [in_pieces, of_numpy, as_an_array, micro_batch_by_micro_batch],
    "23.choose": [by_min, sorted_by_time, as_numbers_of_numpy, from_the_slowest],
    "23.grid_step": [two_sums_apart, divided_before, by_messages, in_place_of_copies],
}
