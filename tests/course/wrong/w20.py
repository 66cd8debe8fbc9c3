"""Wrong solutions of lesson 20, each with what the check must say."""

from __future__ import annotations

import numpy as np
from wrong_answers import Answers

wrong = Answers()


@wrong("20.row_split", "each rank has its own part of the sum only")
def keeps_its_own_part(comm, x, w, b): return x @ w + b
@wrong("20.row_split", "the bias was added on each rank, and summed")
def adds_the_bias_on_every_rank(comm, x, w, b): return comm.allreduce(x @ w + b)
@wrong("20.row_split", "✗ score: 114,688 bytes from the busiest rank; the limit is 768")
def gathers_the_layer(comm, x, w, b):
    return np.concatenate(comm.allgather(x), axis=1) @ np.concatenate(comm.allgather(w)) + b
@wrong("20.two_layers", "y is each rank's own part of the sum only")
def y_is_a_part(comm, x, w1, w2, dy):
    h = np.maximum(x @ w1, 0)
    dh = (dy @ w2.T) * (h > 0)
    return h @ w2, comm.allreduce(dh @ w1.T), x.T @ dh, h.T @ dy
@wrong("20.two_layers", "dx is each rank's own part only")
def dx_is_a_part(comm, x, w1, w2, dy):
    h = np.maximum(x @ w1, 0)
    dh = (dy @ w2.T) * (h > 0)
    return comm.allreduce(h @ w2), dh @ w1.T, x.T @ dh, h.T @ dy
@wrong("20.two_layers", "✗ score: 1,050,880 bytes from the busiest rank; the limit is 9,216")
def gathers_the_hidden_units(comm, x, w1, w2, dy):
    parts = comm.allgather(np.maximum(x @ w1, 0))
    begin = sum(part.shape[1] for part in parts[: comm.rank])
    h = np.concatenate(parts, axis=1)[:, begin : begin + w2.shape[0]]
    dh = (dy @ w2.T) * (h > 0)
    return comm.allreduce(h @ w2), comm.allreduce(dh @ w1.T), x.T @ dh, h.T @ dy
@wrong("20.two_layers", "Look at what makes dw2; y and dx and dw1 are right")
def by_y_and_not_dy(comm, x, w1, w2, dy):
    h = np.maximum(x @ w1, 0)
    y = comm.allreduce(h @ w2)
    dh = (dy @ w2.T) * (h > 0)
    return y, comm.allreduce(dh @ w1.T), x.T @ dh, h.T @ y
Ops = list[tuple[str, int]]
@wrong("20.one_f_one_b", "stage 0 keeps the activations of 3 micro-batches at one time: all of them, as in GPipe")
def all_forwards_first(stage, stages, microbatches):
    return [("F", i) for i in range(microbatches)] + [("B", i) for i in range(microbatches)]
@wrong("20.one_f_one_b", "the stages are idle for 50.0 % of it; the best schedule takes 12 and is idle for 25.0 %")
def one_after_the_other(stage, stages, microbatches):
    return [op for i in range(microbatches) for op in (("F", i), ("B", i))]
@wrong("20.one_f_one_b", "stage 0 keeps the activations of 3 micro-batches at one time; min(2 - 0, 3) = 2 are enough")
def one_ahead_too_many(stage, stages, microbatches):
    ahead = min(stages - stage, microbatches)
    ops = [("F", i) for i in range(ahead)]
    for i in range(microbatches - ahead): ops += [("F", ahead + i), ("B", i)]
    return ops + [("B", i) for i in range(microbatches - ahead, microbatches)]
@wrong("20.one_f_one_b", "deadlock. Stage 0 waits in its 2nd operation, B 0, for B 0 of stage 1")
def as_many_ahead_as_stages_before(stage, stages, microbatches):
    ahead = min(stage, microbatches)
    ops = [("F", i) for i in range(ahead)]
    for i in range(microbatches - ahead): ops += [("F", ahead + i), ("B", i)]
    return ops + [("B", i) for i in range(microbatches - ahead, microbatches)]
@wrong("20.one_f_one_b", "stage 0: there is no micro-batch 1")
def always_as_many_micro_batches_as_stages(stage, stages, microbatches):
    ahead = stages - stage - 1
    ops = [("F", i) for i in range(ahead)]
    for i in range(microbatches - ahead): ops += [("F", ahead + i), ("B", i)]
    return ops + [("B", i) for i in range(max(0, microbatches - ahead), microbatches)]
@wrong("20.one_f_one_b", "B 0 is missing")
def leaves_the_last_backwards_out(stage, stages, microbatches):
    ahead = min(stages - stage - 1, microbatches)
    ops = [("F", i) for i in range(ahead)]
    for i in range(microbatches - ahead): ops += [("F", ahead + i), ("B", i)]
    return ops
@wrong("20.one_f_one_b", "the step takes 17, and the stages are idle for 47.1 %")
def backward_of_what_was_just_done(stage, stages, microbatches):
    ahead = min(stages - stage - 1, microbatches)
    ops = [("F", i) for i in range(ahead)]
    for i in range(microbatches - ahead): ops += [("F", ahead + i), ("B", ahead + i)]
    return ops + [("B", i) for i in range(ahead)]
@wrong("20.one_f_one_b", "Is there a return?")
def forgets_to_return(stage, stages, microbatches): all_forwards_first(stage, stages, microbatches)
def _pipeline(comm, w, xs, ts, *, backwards = iter, mask = True):
    """The right one, with what may be wrong as an argument."""
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    count = comm.bcast(len(xs) if first else None)
    kept = []
    for i in range(count):
        x = xs[i] if first else comm.recv(source=comm.rank - 1)
        kept.append((x, np.tanh(x @ w)))
        if not last: comm.send(kept[i][1], dest=comm.rank + 1)
    total = np.zeros_like(w)
    for i in backwards(range(count)) if last else range(count):
        x, h = kept[i]
        dh = h - ts[i] if last else comm.recv(source=comm.rank + 1)
        dz = dh * (1 - h**2) if mask else dh
        total = total + x.T @ dz
        if not first: comm.send(dz @ w.T, dest=comm.rank - 1)
    return total
@wrong(
    "20.pipeline", "✗ right: the last stage goes through the micro-batches in another order than the stages before it"
)
def answers_in_another_order(comm, w, xs, ts): return _pipeline(comm, w, xs, ts, backwards=reversed)
@wrong("20.pipeline", "backward has to go through tanh")
def forgets_tanh_in_backward(comm, w, xs, ts): return _pipeline(comm, w, xs, ts, mask=False)
@wrong("20.pipeline", "✗ no deadlock: n = 2, 1 micro-batch: rank 0 waits in recv(source=1), and rank 1 has returned")
def sends_no_gradient(comm, w, xs, ts):
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    total = np.zeros_like(w)
    for i in range(comm.bcast(len(xs) if first else None)):
        x = xs[i] if first else comm.recv(source=comm.rank - 1)
        h = np.tanh(x @ w)
        if not last: comm.send(h, dest=comm.rank + 1)
        dh = h - ts[i] if last else comm.recv(source=comm.rank + 1)
        total = total + x.T @ (dh * (1 - h**2))
    return total
@wrong("20.pipeline", "TypeError: 'NoneType' object is not subscriptable")
def every_stage_looks_for_targets(comm, w, xs, ts):
    x = xs[0] if comm.rank == 0 else comm.recv(source=comm.rank - 1)
    h = np.tanh(x @ w)
    if comm.rank < comm.size - 1: comm.send(h, dest=comm.rank + 1)
    dh = h - ts[0]
    return x.T @ (dh * (1 - h**2))
@wrong("20.pipeline", "✗ score: 360,448 bytes from the busiest rank")
def sends_the_whole_batch_to_everybody(comm, w, xs, ts):
    weights = comm.allgather(w)
    x, t = np.concatenate(comm.bcast(xs)), np.concatenate(comm.bcast(ts, root=comm.size - 1))
    hs = [x]
    for one in weights: hs.append(np.tanh(hs[-1] @ one))
    dh = hs[-1] - t
    for stage in range(comm.size - 1, comm.rank, -1): dh = (dh * (1 - hs[stage + 1] ** 2)) @ weights[stage].T
    return hs[comm.rank].T @ (dh * (1 - hs[comm.rank + 1] ** 2))
def takes_the_means(comm, x, w1, w2, dy):
    h = np.maximum(x @ w1, 0)
    dh = (dy @ w2.T) * (h > 0)
    return comm.allreduce(h @ w2) / comm.size, comm.allreduce(dh @ w1.T) / comm.size, x.T @ dh, h.T @ dy
