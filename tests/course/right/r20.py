"""Right answers of lesson 20 that are unlike the official ones."""

from __future__ import annotations

import numpy as np
import torch


def rows_by_gathering(comm, x, w, b):  # All parts go everywhere, and are added up there.
    return sum(comm.allgather(x @ w)) + b
def rows_with_the_bias_on_rank_0(comm, x, w, b):  # One rank adds the bias before the sum.
    return comm.allreduce(x @ w + (b if comm.rank == 0 else 0))
def layers_by_reduce_and_bcast(comm, x, w1, w2, dy):  # dx first; backward does not need y.
    z = x @ w1
    dh = np.where(z > 0, dy @ w2.T, 0.0)
    dx = comm.bcast(comm.reduce(dh @ w1.T))
    h = z * (z > 0)
    return comm.bcast(comm.reduce(h @ w2)), dx, x.T @ dh, h.T @ dy
def layers_with_one_message(comm, x, w1, w2, dy):  # y and dx travel together, for dy is known already.
    h = np.maximum(x @ w1, 0)
    dh = (dy @ w2.T) * (h > 0)
    both = comm.allreduce(np.concatenate([h @ w2, dh @ w1.T], axis=1))
    return both[:, : dy.shape[1]], both[:, dy.shape[1] :], x.T @ dh, h.T @ dy
def turns_by_counting(stage, stages, microbatches):
    """A backward whenever as many are kept as there are stages from this one on."""
    ops: list[tuple[str, int]] = []
    forward = backward = 0
    while backward < microbatches:
        if forward < microbatches and forward - backward < stages - stage:
            ops.append(("F", forward))
            forward += 1
        else:
            ops.append(("B", backward))
            backward += 1
    return ops
def turns_as_lists(stage, stages, microbatches):  # By the place of each operation in time; lists in a tuple.
    places = [(2 * i + stage, "F", i) for i in range(microbatches)]
    places += [(2 * i + 2 * stages - 1 - stage, "B", i) for i in range(microbatches)]
    return tuple([what, i] for _, what, i in sorted(places))
def pipeline_one_by_one(comm, w, xs, ts):  # Each micro-batch goes there and back before the next one: slow, and right.
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    total = np.zeros_like(w)
    for i in range(comm.bcast(len(xs) if first else None)):
        x = xs[i] if first else comm.recv(source=comm.rank - 1)
        h = np.tanh(x @ w)
        if not last: comm.send(h, dest=comm.rank + 1)
        dz = (h - ts[i] if last else comm.recv(source=comm.rank + 1)) * (1 - h**2)
        total = total + x.T @ dz
        if not first: comm.send(dz @ w.T, dest=comm.rank - 1)
    return total
def pipeline_by_tags(comm, w, xs, ts):
    """Backwards from the last to the first; tags say which is which, and the end is told by None."""
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    kept, i = [], 0
    while True:
        mine = dict(enumerate(xs or []))
        x = mine.get(i) if first else comm.recv(source=comm.rank - 1, tag=i)
        if not last: comm.send(x if x is None else np.tanh(x @ w), dest=comm.rank + 1, tag=i)
        if x is None: break
        kept.append(x)
        i += 1
    total = np.zeros(w.shape)
    for i in reversed(range(len(kept))):
        h = np.tanh(kept[i] @ w)
        dz = (h - ts[i] if last else comm.recv(source=comm.rank + 1, tag=i)) * (1 - h**2)
        total += kept[i].T @ dz
        if not first: comm.send(dz @ w.T, dest=comm.rank - 1, tag=i)
    return total
def one_after_the_other(stage, stages, microbatches):  # A generator.
    forwards, backwards = 0, 0
    while backwards < microbatches:
        if forwards < microbatches and forwards - backwards < stages - stage:
            yield "F", forwards
            forwards += 1
        else:
            yield "B", backwards
            backwards += 1
def rows_with_a_share_of_the_bias(comm, x, w, b):  # Each rank adds its share of the bias.
    return comm.allreduce(x.dot(w) + b / comm.size)
def rows_with_a_column_of_ones(comm, x, w, b):  # The bias as one more row of rank 0's weight; the sum by rank 0.
    if comm.rank == 0:
        x = np.hstack([x, np.ones((len(x), 1))])
        w = np.vstack([w, b])
    return comm.bcast(comm.reduce(np.einsum("ij,jk->ik", x, w)))
def layers_by_autograd(comm, x, w1, w2, dy):  # torch goes backward through this rank's part.
    tx, t1, t2 = (torch.tensor(array, requires_grad=True) for array in (x, w1, w2))
    y = torch.relu(tx @ t1) @ t2
    y.backward(torch.tensor(dy))
    whole, dx = comm.allreduce(y.detach().numpy()), comm.allreduce(tx.grad.numpy())
    return whole, dx, t1.grad.numpy(), t2.grad.numpy()
def layers_by_gathering(comm, x, w1, w2, dy):  # Sums of what was gathered; the mask in place.
    hidden = x @ w1
    active = hidden > 0
    hidden[~active] = 0
    back = dy @ w2.T
    back *= active
    y = np.sum(comm.allgather(hidden @ w2), axis=0)
    dx = np.sum(comm.allgather(back @ w1.T), axis=0)
    return [y, dx, (back.T @ x).T, (dy.T @ hidden).T]
def turns_by_pairs(stage, stages, microbatches):  # Three slices: forwards, pairs, backwards.
    warm_up = min(stages - stage - 1, microbatches)
    forwards = [("F", i) for i in range(microbatches)]
    backwards = [("B", i) for i in range(microbatches)]
    pairs = [op for pair in zip(forwards[warm_up:], backwards, strict=False) for op in pair]
    return forwards[:warm_up] + pairs + backwards[microbatches - warm_up :]
def pipeline_by_autograd(comm, w, xs, ts):  # torch's graph is kept for each micro-batch; all forwards first.
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    many = comm.bcast(len(xs) if first else None, root=0)
    weight = torch.tensor(w, requires_grad=True)
    kept = []
    for i in range(many):
        x = torch.tensor(xs[i] if first else comm.recv(source=comm.rank - 1), requires_grad=not first)
        h = torch.tanh(x @ weight)
        if not last: comm.send(h.detach().numpy(), dest=comm.rank + 1)
        kept.append((x, h))
    for i, (x, h) in enumerate(kept):
        h.backward(h.detach() - torch.tensor(ts[i]) if last else torch.tensor(comm.recv(source=comm.rank + 1)))
        if not first: comm.send(x.grad.numpy(), dest=comm.rank - 1)
    return weight.grad.numpy()
def pipeline_as_one_f_one_b(comm, w, xs, ts):  # 1F1B, with sends that do not wait.
    stage, stages = comm.rank, comm.size
    known = len(xs) if stage == 0 else len(ts) if stage == stages - 1 else None
    many = max(one for one in comm.allgather(known) if one is not None)
    sent, kept, total = [], {}, 0 * w
    done = 0
    for i in range(many + stages - stage - 1):
        if i < many:
            x = comm.recv(source=stage - 1, tag=1) if stage else xs[i]
            kept[i] = x, np.tanh(x @ w)
            if stage < stages - 1: sent.append(comm.isend(kept[i][1], dest=stage + 1, tag=1))
        if i >= stages - stage - 1:
            x, h = kept.pop(done)
            dh = h - ts[done] if stage == stages - 1 else comm.recv(source=stage + 1, tag=2)
            dz = dh * (1 - h * h)
            total += np.dot(x.T, dz)
            if stage: sent.append(comm.isend(dz @ w.T, dest=stage - 1, tag=2))
            done += 1
    for request in sent: request.wait()
    return total
RIGHT = {
    "20.row_split": [
        rows_by_gathering,
        rows_with_the_bias_on_rank_0,
        rows_with_a_share_of_the_bias,
        rows_with_a_column_of_ones,
    ],
    "20.two_layers": [layers_by_reduce_and_bcast, layers_with_one_message, layers_by_autograd, layers_by_gathering],
    "20.one_f_one_b": [turns_by_counting, turns_as_lists, one_after_the_other, turns_by_pairs],
    "20.pipeline": [pipeline_one_by_one, pipeline_by_tags, pipeline_by_autograd, pipeline_as_one_f_one_b],
}
