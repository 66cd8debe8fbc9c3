"""Right answers of lesson 11 that are unlike the official ones: other cures of the same bugs."""

from __future__ import annotations

from typing import Any

import numpy as np


def steps_by_asking_all(hvd: Any, w: Any, batches: Any, lr: Any) -> Any:
    """Everybody's number is gathered."""
    steps = int(hvd.allgather(np.array([len(batches)]), name="counts").min())
    for x, y in batches[:steps]:
        w = w - lr * hvd.allreduce(2 * x.T @ (x @ w - y) / len(y), name="gradient")
    return w, steps


def asks_before_each_step(hvd: Any, w: Any, batches: Any, lr: Any) -> Any:
    """Before each step: has everybody a batch left?"""
    steps = 0
    while hvd.allreduce(np.array(int(steps < len(batches))), name="left", op=hvd.Min):
        x, y = batches[steps]
        w = w - lr * hvd.allreduce(2 * x.T @ (x @ w - y) / len(y), name="gradient")
        steps += 1
    return w, steps


def sums_of_right_answers(hvd: Any, right: Any, log: Any) -> Any:
    """Two sums instead of a mean."""
    good, there = hvd.allreduce(np.array([sum(right), len(right)], dtype=float), name="counts", op=hvd.Sum)
    share = good / there
    if not hvd.rank():
        log.append(f"accuracy {share:.2f}")
    return share, log


def all_answers_gathered(hvd: Any, right: Any, log: Any) -> Any:
    """Everybody sees all answers."""
    share = hvd.allgather(np.array(right, dtype=float), name="answers").mean()
    return share, [*log, f"accuracy {share:.2f}"] if hvd.rank() == 0 else log


def all_at_once(hvd: Any, found: Any) -> Any:
    """Submitted in the rank's own order, waited for afterwards."""
    handles = {name: hvd.allreduce_async(gradient, name=name) for name, gradient in found.items()}
    return [hvd.synchronize(handles[name]) for name in sorted(handles)]


def in_one_array(hvd: Any, found: Any) -> Any:
    """One tensor of all, in the order of the names."""
    together = hvd.allreduce(np.stack([found[name] for name in sorted(found)]), name="all")
    return list(together)


def zeros_first(hvd: Any, weights: Any, found: Any, lr: Any) -> Any:
    """What is missing is made before the first message."""
    whole = {name: np.zeros(w.shape) if found[name] is None else found[name] for name, w in weights.items()}
    averages = {name: hvd.allreduce(whole[name], name=name) for name in sorted(whole)}
    return [weights[name] - lr * averages[name] for name in sorted(weights)]


def flat_gradient(hvd: Any, weights: Any, found: Any, lr: Any) -> Any:
    """One flat array of all weights' gradients."""
    names = sorted(weights)
    flat = np.concatenate([(0.0 * weights[name] if found[name] is None else found[name]).ravel() for name in names])
    ends = np.cumsum([weights[name].size for name in names])[:-1]
    parts = np.split(hvd.allreduce(flat, name="flat"), ends)
    return [weights[name] - lr * part for name, part in zip(names, parts, strict=True)]


def cast_before_the_broadcast(hvd: Any, weights: Any, path: Any) -> Any:
    """Read as Python's floats, cast on the way."""
    if hvd.rank() == 0:
        weights = np.array([float(word) for word in path.read_text().split()])
    return hvd.broadcast(np.asarray(weights, np.float32), root_rank=0, name="weights")


def in_place_of_the_old_ones(hvd: Any, weights: Any, path: Any) -> Any:
    """Written into an array that has the right dtype already."""
    loaded = weights.copy()
    if not hvd.rank():
        loaded[:] = [float(word) for word in path.read_text().split()]
    return hvd.broadcast(loaded, 0, name="loaded")


def start_by_allreduce(hvd: Any, seed: Any, batches: Any) -> Any:
    """A sum to which only rank 0 contributes."""
    random = np.random.default_rng(seed)
    w = random.normal(size=2)
    w = hvd.allreduce(w if hvd.rank() == 0 else np.zeros(2), name="start", op=hvd.Sum)
    for x, y in batches:
        noisy = x + 0.01 * random.normal(size=x.shape)
        w = w - 0.1 * hvd.allreduce(2 * noisy * (np.sum(noisy * w) - y), name="gradient")
    return w


def start_by_allgather(hvd: Any, seed: Any, batches: Any) -> Any:
    """Everybody gets all weights, and takes the first."""
    random = np.random.default_rng(seed)
    w = hvd.allgather(random.normal(size=(1, 2)), name="start")[0]
    for x, y in batches:
        x = x + 0.01 * random.normal(size=x.shape)
        w = w - 0.1 * hvd.allreduce(2 * x * (np.sum(x * w) - y), name="gradient", op=hvd.Average)
    return w


def clip_by_a_factor(comm: Any, w: Any, gradient: Any, longest: Any) -> Any:
    """The factor is 1 where nothing is to be clipped."""
    mean = comm.allreduce(gradient / comm.size)
    return w - mean * min(1.0, longest / float(np.sqrt(mean @ mean)))


def clip_on_rank_0(comm: Any, w: Any, gradient: Any, longest: Any) -> Any:
    """Rank 0 computes the step for all."""
    total = comm.reduce(gradient)
    step = None
    if comm.rank == 0:
        step = total / comm.size
        step = step / max(1.0, np.linalg.norm(step) / longest)
    return w - comm.bcast(step)


def shards_in_blocks(n: Any, epoch: Any, rank: Any, size: Any) -> Any:
    """np.array_split cuts the common order."""
    return np.array_split(np.random.default_rng(epoch).permutation(n), size)[rank]


def shards_of_a_list(n: Any, epoch: Any, rank: Any, size: Any) -> Any:
    """With the standard library's generator, seeded by the epoch."""
    from random import Random

    order = list(range(n))
    Random(1000 + epoch).shuffle(order)
    return [one for place, one in enumerate(order) if place % size == rank]


def barrier_before_the_clock(comm: Any, train: Any) -> Any:
    """The last one to come through the barrier was the slowest."""
    comm.barrier()
    begin = comm.now
    train(comm)
    comm.barrier()
    return comm.now - begin


def all_times_gathered(comm: Any, train: Any) -> Any:
    """Each rank sees all times."""
    comm.barrier()
    begin = comm.now
    train(comm)
    return max(comm.allgather(comm.now - begin))


def accuracy_by_one_message(comm: Any, right: Any) -> Any:
    """Both sums in one array."""
    good, there = comm.allreduce(np.array([np.count_nonzero(right), right.size]))
    return float(good / there)


def accuracy_by_weights(comm: Any, right: Any) -> Any:
    """Each rank's mean, weighed by its number of samples."""
    mine = float(np.mean(right)) * len(right) if len(right) else 0.0
    return comm.allreduce(mine) / comm.allreduce(float(len(right)))


def all_rows_at_once(comm: Any, rows: Any) -> Any:
    """One array for all rows, each of which leaves when it is there."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    twice, got, pending = np.empty_like(rows), np.empty_like(rows), []
    for i in range(len(rows)):
        twice[i] = 2 * rows[i]
        pending.append(comm.Isend(twice[i], dest=right))
    for i in range(len(rows)):
        comm.Recv(got[i], source=left)
    for request in pending:
        request.wait()
    return got


def waits_before_the_next_use(comm: Any, rows: Any) -> Any:
    """Receives are posted before; one array, which is free again when its message has left."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got, row = np.empty_like(rows), np.empty_like(rows[0])
    coming = [comm.Irecv(each, source=left) for each in got]
    for one in rows:
        row[:] = one + one
        comm.Isend(row, dest=right).wait()
    for request in coming:
        request.wait()
    return got


def ring_with_isend(comm: Any, x: Any) -> Any:
    """Begins to send, receives, and waits then."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total, passed = x.copy(), x
    for _ in range(1, comm.size):
        sent = comm.isend(passed, dest=right)
        passed = comm.recv(source=left)
        sent.wait()
        total += passed
    return total


def ring_in_buffers(comm: Any, x: Any) -> Any:
    """Upper-case verbs, and the ring to the left."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total, mine, theirs = x.copy(), x.copy(), np.empty_like(x)
    for _ in range(comm.size - 1):
        comm.Sendrecv(mine, dest=left, recvbuf=theirs, source=right)
        total += theirs
        mine, theirs = theirs, mine
    return total


RIGHT = {
    "11.epoch": [steps_by_asking_all, asks_before_each_step],
    "11.validate": [sums_of_right_answers, all_answers_gathered],
    "11.gradients": [all_at_once, in_one_array],
    "11.two_heads": [zeros_first, flat_gradient],
    "11.restore": [cast_before_the_broadcast, in_place_of_the_old_ones],
    "11.start": [start_by_allreduce, start_by_allgather],
    "11.clip": [clip_by_a_factor, clip_on_rank_0],
    "11.shards": [shards_in_blocks, shards_of_a_list],
    "11.seconds": [barrier_before_the_clock, all_times_gathered],
    "11.accuracy": [accuracy_by_one_message, accuracy_by_weights],
    "11.pipeline": [all_rows_at_once, waits_before_the_next_use],
    "11.ring": [ring_with_isend, ring_in_buffers],
}
