"""Right answers of lesson 19 that are unlike the official ones."""

from __future__ import annotations

import numpy as np
import torch


def local_sgd_in_rounds(comm, w, batches, lr, every):
    """A loop over rounds, and in it one over steps; the average by way of rank 0."""
    for first in range(0, len(batches), every):
        for x, y in batches[first : first + every]: w = w + lr / len(y) * (y - x @ w) @ x
        total = comm.reduce(w)
        w = comm.bcast(total / comm.size if comm.rank == 0 else None)
    return w
def local_sgd_by_changes(comm, w, batches, lr, every):
    """What travels is how far a rank has come since the last average."""
    change, left = np.zeros_like(w), len(batches)
    for x, y in batches:
        at = w + change
        change, left = change - lr * x.T @ (x @ at - y) / len(y), left - 1
        if left == 0 or (len(batches) - left) % every == 0:
            w, change = w + comm.allreduce(change) / comm.size, np.zeros_like(w)
    return w
def outer_step_by_the_average(comm, start, w, velocity, lr, momentum):
    """The weights are averaged, and Nesterov's step is written out: two momenta."""
    outer = start - comm.allreduce(w) / comm.size
    new = outer + momentum * velocity
    return [start - lr * (1 + momentum) * outer - lr * momentum**2 * velocity, new]
def outer_step_on_rank_0(comm, start, w, velocity, lr, momentum):  # Rank 0 gathers, steps, and tells the others.
    found = comm.gather(w)
    if comm.rank == 0:
        velocity = momentum * velocity + np.mean([start - one for one in found], axis=0)
        outer = np.mean([start - one for one in found], axis=0) + momentum * velocity
        found = (start - lr * outer, velocity)
    return comm.bcast(found)
def powersgd_by_gram_schmidt(comm, gradient, error, q):
    """The sum has the same columns as the average; one column after the other is made orthonormal."""
    p = comm.allreduce((error + gradient) @ q)
    for column in range(p.shape[1]):
        for before in range(column): p[:, column] -= (p[:, before] @ p[:, column]) * p[:, before]
        p[:, column] /= np.linalg.norm(p[:, column])
    shares = comm.allreduce(p.T @ (error + gradient)) / comm.size
    return p @ shares, (np.eye(len(p)) - p @ p.T) @ (error + gradient)
def powersgd_by_svd(comm, gradient, error, q):  # Another orthonormal basis of the same columns.
    sent = gradient + error
    p = np.linalg.svd(comm.allreduce(sent @ q), full_matrices=False)[0]
    mine = p.T @ sent
    return p @ comm.allreduce(mine / comm.size), sent - p @ mine
def local_sgd_with_a_flag(comm, w, batches, lr, every):
    """Counts the steps since the last average; changes a copy in place."""
    w, since = w.copy(), 0
    for x, y in batches:
        w -= lr / len(y) * x.T.dot(x.dot(w) - y)
        since += 1
        if since == every: w, since = comm.allreduce(w) / comm.size, 0
    if since: w = np.mean(comm.allgather(w), axis=0)
    return w
def local_sgd_by_autograd(comm, w, batches, lr, every):  # torch finds the gradients; half the mean square is the loss.
    weights = torch.tensor(w, requires_grad=True)
    for step, (x, y) in enumerate(batches, start=1):
        loss = ((torch.as_tensor(x) @ weights - torch.as_tensor(y)) ** 2).mean() / 2
        (gradient,) = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            weights -= lr * gradient
            if step % every == 0 or step == len(batches):
                weights.copy_(torch.as_tensor(comm.allreduce(weights.numpy().copy()) / comm.size))
    return weights.detach().numpy()
def outer_step_by_a_gradient(comm, start, w, velocity, lr, momentum):  # As the text says, with copies changed in place.
    average = comm.allreduce((start - w) / comm.size)
    velocity = velocity.copy()
    velocity *= momentum
    velocity += average
    start = start.copy()
    start -= lr * average
    start -= lr * momentum * velocity
    return start, velocity
def outer_step_by_torch(comm, start, w, velocity, lr, momentum):  # As tensors, with torch's verbs of two operations.
    outer = torch.from_numpy(comm.allreduce(start - w)).div(comm.size)
    speed = outer.add(torch.from_numpy(velocity), alpha=momentum)
    step = outer.add(speed, alpha=momentum)
    return torch.from_numpy(start).sub(step, alpha=lr).numpy(), speed.numpy()
def powersgd_by_helpers(comm, gradient, error, q):
    """A function for the average; as the text says, with another order of products."""
    def average(array): return comm.allreduce(array) / comm.size
    sent = np.add(gradient, error)
    basis, _ = np.linalg.qr(average(sent @ q))
    q = average(sent.T @ basis)
    residual = np.array(sent)
    residual -= basis @ (basis.T @ sent)
    return np.einsum("mr,nr->mn", basis, q), residual
def powersgd_by_torch(comm, gradient, error, q):  # torch's qr, sums by reduce and bcast.
    sent = torch.tensor(gradient + error)
    p = comm.bcast(comm.reduce((sent @ torch.tensor(q)).numpy()))
    p = torch.linalg.qr(torch.tensor(p) / comm.size).Q
    new_q = torch.tensor(comm.bcast(comm.reduce((sent.T @ p).numpy()))) / comm.size
    return (p @ new_q.T).numpy(), (sent - p @ (p.T @ sent)).numpy()
RIGHT = {
    "19.local_sgd": [local_sgd_in_rounds, local_sgd_by_changes, local_sgd_with_a_flag, local_sgd_by_autograd],
    "19.outer_step": [outer_step_by_the_average, outer_step_on_rank_0, outer_step_by_a_gradient, outer_step_by_torch],
    "19.powersgd": [powersgd_by_gram_schmidt, powersgd_by_svd, powersgd_by_helpers, powersgd_by_torch],
}
