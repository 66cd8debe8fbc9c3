"""Right answers of lesson 04 that are unlike the official ones."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch


def by_one_message(comm, total, count):  # Sum and count travel together.
    both = comm.allreduce(np.append(total, count))
    return both[:-1] / both[-1]
def shares_of_the_count(comm, total, count):  # Each rank weighs its own part before the sum.
    everybody = comm.allreduce(count)
    return comm.allreduce(total * (1.0 / everybody))
def step_on_rank_0(comm, w, x, y, lr):  # Rank 0 alone makes the step, and hands the weights on.
    total, count = comm.reduce(x.T @ (x @ w - y)), comm.reduce(len(y))
    return comm.bcast(w - lr * total / count if comm.rank == 0 else None)
def step_by_one_message(comm, w, x, y, lr):  # Gradient and count in one array; sample by sample.
    mine = np.zeros(len(w) + 1)
    for row, wanted in zip(x, y, strict=True): mine += np.append((row @ w - wanted) * row, 1.0)
    everybody = comm.allreduce(mine)
    return w - lr * everybody[:-1] / everybody[-1]
def stale_by_counting(order):  # For each gradient, the updates since the same worker's last one.
    found = []
    for i, worker in enumerate(order):
        others = 0
        while others < i and order[i - others - 1] != worker: others += 1
        found.append(others)
    return found
def stale_by_clock(order):  # A counter for each worker, which every update of another one raises.
    ages = dict.fromkeys(order, 0)
    found = []
    for worker in order:
        found.append(ages[worker])
        ages = {one: 0 if one == worker else age + 1 for one, age in ages.items()}
    return found
def mean_in_buffers(comm, total, count):  # Upper-case Allreduce into arrays of one's own; divided in place.
    mean, samples = np.empty_like(total), np.zeros(1)
    comm.Allreduce(total, mean)
    comm.Allreduce(np.array([float(count)]), samples)
    mean /= samples
    return mean
def mean_of_means(comm, total, count):  # Each rank's own mean, weighed by its samples; a rank without any has weight 0.
    mine = total / count if count > 0 else np.zeros(np.shape(total))
    samples = comm.bcast(comm.reduce(count, root=0), root=0)
    return comm.bcast(comm.reduce(mine * (count / samples)))
def step_by_autograd(comm, w, x, y, lr):  # torch finds the gradient of this rank's part of the mean loss.
    weights = torch.tensor(np.asarray(w, dtype=float), requires_grad=True)
    everybody = comm.allreduce(len(y))
    loss = ((torch.tensor(x) @ weights - torch.tensor(y)) ** 2).sum() / 2 / everybody
    loss.backward()
    return w - lr * comm.allreduce(weights.grad.numpy())
def step_on_all_samples(comm, w, x, y, lr):  # All samples go to all ranks, and each makes the step of one process.
    rows = np.concatenate(comm.allgather(x))
    wanted = np.concatenate(comm.allgather(y))
    return w - lr * np.einsum("s,sk->k", rows @ w - wanted, rows) / len(wanted)
class _Server:
    """Knows how often its weights have changed, and as of which change each worker has them."""
    def __init__(self):
        self.changes = 0
        self.given: defaultdict[int, int] = defaultdict(int)
    def receive(self, worker):
        behind = self.changes - self.given[worker]
        self.changes += 1
        self.given[worker] = self.changes
        return behind
def stale_by_a_server(order):  # A class that behaves like the server.
    server = _Server()
    return [server.receive(worker) for worker in order]
def stale_in_one_line(order):  # From the end of the past to the same worker; numpy's numbers.
    return list(np.array([([*order[:i][::-1], worker]).index(worker) for i, worker in enumerate(order)], dtype=int))
RIGHT = {
    "04.average_gradients": [by_one_message, shares_of_the_count, mean_in_buffers, mean_of_means],
    "04.sgd_step": [step_on_rank_0, step_by_one_message, step_by_autograd, step_on_all_samples],
    "04.stale": [stale_by_counting, stale_by_clock, stale_by_a_server, stale_in_one_line],
}
