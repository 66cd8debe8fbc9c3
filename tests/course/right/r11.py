"""Right answers of lesson 11 that are unlike the official ones: other cures of the same bugs."""

from __future__ import annotations

import numpy as np


def steps_by_asking_all(hvd, w, batches, lr):  # Everybody's number is gathered.
    steps = int(hvd.allgather(np.array([len(batches)]), name="counts").min())
    for x, y in batches[:steps]: w = w - lr * hvd.allreduce(2 * x.T @ (x @ w - y) / len(y), name="gradient")
    return w, steps
def asks_before_each_step(hvd, w, batches, lr):  # Before each step: has everybody a batch left?
    steps = 0
    while hvd.allreduce(np.array(int(steps < len(batches))), name="left", op=hvd.Min):
        x, y = batches[steps]
        w = w - lr * hvd.allreduce(2 * x.T @ (x @ w - y) / len(y), name="gradient")
        steps += 1
    return w, steps
def sums_of_right_answers(hvd, right, log):  # Two sums instead of a mean.
    good, there = hvd.allreduce(np.array([sum(right), len(right)], dtype=float), name="counts", op=hvd.Sum)
    share = good / there
    if not hvd.rank(): log.append(f"accuracy {share:.2f}")
    return share, log
def all_answers_gathered(hvd, right, log):  # Everybody sees all answers.
    share = hvd.allgather(np.array(right, dtype=float), name="answers").mean()
    return share, [*log, f"accuracy {share:.2f}"] if hvd.rank() == 0 else log
def all_at_once(hvd, found):  # Submitted in the rank's own order, waited for afterwards.
    handles = {name: hvd.allreduce_async(gradient, name=name) for name, gradient in found.items()}
    return [hvd.synchronize(handles[name]) for name in sorted(handles)]
def in_one_array(hvd, found):  # One tensor of all, in the order of the names.
    together = hvd.allreduce(np.stack([found[name] for name in sorted(found)]), name="all")
    return list(together)
def zeros_first(hvd, weights, found, lr):  # What is missing is made before the first message.
    whole = {name: np.zeros(w.shape) if found[name] is None else found[name] for name, w in weights.items()}
    averages = {name: hvd.allreduce(whole[name], name=name) for name in sorted(whole)}
    return [weights[name] - lr * averages[name] for name in sorted(weights)]
def flat_gradient(hvd, weights, found, lr):  # One flat array of all weights' gradients.
    names = sorted(weights)
    flat = np.concatenate([(0.0 * weights[name] if found[name] is None else found[name]).ravel() for name in names])
    ends = np.cumsum([weights[name].size for name in names])[:-1]
    parts = np.split(hvd.allreduce(flat, name="flat"), ends)
    return [weights[name] - lr * part for name, part in zip(names, parts, strict=True)]
def cast_before_the_broadcast(hvd, weights, path):  # Read as Python's floats, cast on the way.
    if hvd.rank() == 0: weights = np.array([float(word) for word in path.read_text().split()])
    return hvd.broadcast(np.asarray(weights, np.float32), root_rank=0, name="weights")
def in_place_of_the_old_ones(hvd, weights, path):  # Written into an array that has the right dtype already.
    loaded = weights.copy()
    if not hvd.rank(): loaded[:] = [float(word) for word in path.read_text().split()]
    return hvd.broadcast(loaded, 0, name="loaded")
def start_by_allreduce(hvd, seed, batches):  # A sum to which only rank 0 contributes.
    random = np.random.default_rng(seed)
    w = random.normal(size=2)
    w = hvd.allreduce(w if hvd.rank() == 0 else np.zeros(2), name="start", op=hvd.Sum)
    for x, y in batches:
        noisy = x + 0.01 * random.normal(size=x.shape)
        w = w - 0.1 * hvd.allreduce(2 * noisy * (np.sum(noisy * w) - y), name="gradient")
    return w
def start_by_allgather(hvd, seed, batches):  # Everybody gets all weights, and takes the first.
    random = np.random.default_rng(seed)
    w = hvd.allgather(random.normal(size=(1, 2)), name="start")[0]
    for x, y in batches:
        x = x + 0.01 * random.normal(size=x.shape)
        w = w - 0.1 * hvd.allreduce(2 * x * (np.sum(x * w) - y), name="gradient", op=hvd.Average)
    return w
def clip_by_a_factor(comm, w, gradient, longest):  # The factor is 1 where nothing is to be clipped.
    mean = comm.allreduce(gradient / comm.size)
    return w - mean * min(1.0, longest / float(np.sqrt(mean @ mean)))
def clip_on_rank_0(comm, w, gradient, longest):  # Rank 0 computes the step for all.
    total = comm.reduce(gradient)
    step = None
    if comm.rank == 0:
        step = total / comm.size
        step = step / max(1.0, np.linalg.norm(step) / longest)
    return w - comm.bcast(step)
def shards_in_blocks(n, epoch, rank, size):  # np.array_split cuts the common order.
    return np.array_split(np.random.default_rng(epoch).permutation(n), size)[rank]
def shards_of_a_list(n, epoch, rank, size):  # With the standard library's generator, seeded by the epoch.
    from random import Random
    order = list(range(n))
    Random(1000 + epoch).shuffle(order)
    return [one for place, one in enumerate(order) if place % size == rank]
def barrier_before_the_clock(comm, train):  # The last one to come through the barrier was the slowest.
    comm.barrier()
    begin = comm.now
    train(comm)
    comm.barrier()
    return comm.now - begin
def all_times_gathered(comm, train):  # Each rank sees all times.
    comm.barrier()
    begin = comm.now
    train(comm)
    return max(comm.allgather(comm.now - begin))
def accuracy_by_one_message(comm, right):  # Both sums in one array.
    good, there = comm.allreduce(np.array([np.count_nonzero(right), right.size]))
    return float(good / there)
def accuracy_by_weights(comm, right):  # Each rank's mean, weighed by its number of samples.
    mine = float(np.mean(right)) * len(right) if len(right) else 0.0
    return comm.allreduce(mine) / comm.allreduce(float(len(right)))
def all_rows_at_once(comm, rows):  # One array for all rows, each of which leaves when it is there.
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    twice, got, pending = np.empty_like(rows), np.empty_like(rows), []
    for i in range(len(rows)):
        twice[i] = 2 * rows[i]
        pending.append(comm.Isend(twice[i], dest=right))
    for i in range(len(rows)): comm.Recv(got[i], source=left)
    for request in pending: request.wait()
    return got
def waits_before_the_next_use(comm, rows):
    """Receives are posted before; one array, which is free again when its message has left."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got, row = np.empty_like(rows), np.empty_like(rows[0])
    coming = [comm.Irecv(each, source=left) for each in got]
    for one in rows:
        row[:] = one + one
        comm.Isend(row, dest=right).wait()
    for request in coming: request.wait()
    return got
def ring_with_isend(comm, x):  # Begins to send, receives, and waits then.
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total, passed = x.copy(), x
    for _ in range(1, comm.size):
        sent = comm.isend(passed, dest=right)
        passed = comm.recv(source=left)
        sent.wait()
        total += passed
    return total
def ring_in_buffers(comm, x):  # Upper-case verbs, and the ring to the left.
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total, mine, theirs = x.copy(), x.copy(), np.empty_like(x)
    for _ in range(comm.size - 1):
        comm.Sendrecv(mine, dest=left, recvbuf=theirs, source=right)
        total += theirs
        mine, theirs = theirs, mine
    return total
def steps_by_a_minimum(hvd, w, batches, lr):  # The least of all numbers, then a loop with zip; w is changed in a copy.
    least = int(hvd.allreduce(np.array(len(batches)), name="steps", op=hvd.Min))
    w = np.array(w, dtype=float)
    for _, (x, y) in zip(range(least), batches, strict=False):
        gradient = np.mean(2 * (x @ w - y)[:, None] * x, axis=0)
        w -= lr * hvd.allreduce(gradient, name="gradient")
    return w, least
def steps_told_by_rank_0(hvd, w, batches, lr):
    """Rank 0 finds the least number and broadcasts it; gradients with numbered names."""
    counts = hvd.allgather(np.array([len(batches)]), name="all counts")
    steps = int(hvd.broadcast(np.array([min(counts)]), root_rank=0, name="least")[0])
    step = 0
    while step < steps:
        x, y = batches[step]
        w = w - lr * hvd.allreduce(2 / len(y) * (x.T @ (x @ w) - x.T @ y), name=f"gradient {step}")
        step += 1
    return w, np.int64(steps)
def everybody_first(hvd, right, log):  # The average stands before the question who writes.
    share = float(hvd.allreduce(np.array(np.mean(right)), name="share"))
    return (share, log) if hvd.rank() != 0 else (share, [*log, f"accuracy {share:.2f}"])
def by_a_handle(hvd, right, log):  # An allreduce that is begun, and waited for.
    handle = hvd.allreduce_async(np.array([sum(right) / len(right)]), name="mean of right")
    mean = hvd.synchronize(handle)[0]
    if hvd.rank() == 0: log.append(f"accuracy {mean:.2f}")
    return mean, log
def sorted_first(hvd, found):  # The dict is sorted before anything is sent.
    return [hvd.allreduce(gradient, name=name) for name, gradient in sorted(found.items(), key=lambda pair: pair[0])]
def without_names_in_a_group(hvd, found):
    """Every gradient with its shape, in one flat array; sums divided by the number of ranks."""
    names = sorted(found)
    flat = np.concatenate([np.ravel(found[name]) for name in names])
    flat = hvd.allreduce(flat, name="flat", op=hvd.Sum) / hvd.size()
    averages, begin = [], 0
    for name in names:
        end = begin + np.size(found[name])
        averages.append(flat[begin:end].reshape(np.shape(found[name])))
        begin = end
    return averages
def zeros_in_a_loop(hvd, weights, found, lr):  # In the loop a zero gradient in place of none.
    new = []
    for name in sorted(weights):
        gradient = found[name]
        if gradient is None: gradient = np.zeros_like(weights[name])
        new += [weights[name] - lr * hvd.allreduce(gradient, name=name)]
    return new
def all_begun_first(hvd, weights, found, lr):
    """All are begun, in the order of found; sums, and the division afterwards."""
    handles = {}
    for name, gradient in found.items():
        mine = gradient if gradient is not None else weights[name] * 0
        handles[name] = hvd.allreduce_async(mine, name=name, op=hvd.Sum)
    step = {name: lr / hvd.size() * hvd.synchronize(handle) for name, handle in handles.items()}
    return [weights[name] - step[name] for name in sorted(step)]
def read_by_numpy(hvd, weights, path):  # np.loadtxt reads float32.
    if hvd.rank() == 0: weights = np.loadtxt(path, dtype=np.float32).reshape(weights.shape)
    return hvd.broadcast(weights, root_rank=0, name="weights")
def read_line_by_line(hvd, weights, path):  # open(path), where there is a file.
    if path.exists():
        with open(path) as file: weights = np.float32([word for line in file for word in line.split()])
    return hvd.broadcast(weights, root_rank=0, name="weights")
def sum_of_one(hvd, weights, path):  # Only rank 0 adds anything to a sum of float32.
    mine = np.zeros_like(weights)
    if hvd.rank() == 0: mine += np.array(path.read_text().split(), dtype="float32")
    return hvd.allreduce(mine, op=hvd.Sum, name="restored")
def start_by_a_broadcast(hvd, seed, batches):
    """Two generators: weights from a common seed's would not be rank 0's, so they are broadcast."""
    noise = np.random.default_rng(seed)
    w = hvd.broadcast(noise.normal(size=2), root_rank=0, name="start")
    for i, (x, y) in enumerate(batches):
        noisy = x + 0.01 * noise.normal(size=x.shape)
        error = noisy @ w - y
        w = w - 0.1 * hvd.allreduce(2 * error * noisy, name=f"gradient {i}", op=hvd.Sum) / hvd.size()
    return w
def start_in_place(hvd, seed, batches):  # The weights of rank 0 are copied into the array.
    random = np.random.default_rng(seed)
    w = np.empty(2)
    w[:] = random.normal(size=2)
    w[:] = hvd.broadcast(w, 0, name="weights of rank 0")
    for x, y in batches:
        x = x + random.normal(size=x.shape) * 0.01
        gradient = (np.dot(x, w) - y) * x * 2
        w -= 0.1 * hvd.allreduce(gradient, name="gradient")
    return w
def clip_by_maximum(comm, w, gradient, longest):  # The average first; a function for the length; in place in a copy.
    def length(vector): return sum(value**2 for value in vector) ** 0.5
    average = comm.allreduce(gradient) / comm.size
    if length(average) > longest: average *= longest / length(average)
    return w - average
def clip_the_sum(comm, w, gradient, longest):  # The sum, clipped at n times the length.
    total = np.sum(comm.allgather(gradient), axis=0)
    norm = np.sqrt(np.sum(np.square(total)))
    return w - (total if norm <= comm.size * longest else total / norm * longest * comm.size) / comm.size
def shards_by_a_mask(n, epoch, rank, size):  # Each sample draws a number; the order of the numbers says whose it is.
    places = np.argsort(np.argsort(np.random.default_rng([epoch, 7]).random(n)))
    return np.flatnonzero(places % size == rank)
def shards_by_torch(n, epoch, rank, size):  # torch's permutation, a tensor as the result.
    import torch
    return torch.randperm(n, generator=torch.Generator().manual_seed(epoch))[rank::size]
def largest_of_all(comm, train):  # A reduction with the maximum.
    comm.barrier()
    begin = comm.now
    train(comm)
    return comm.allreduce(comm.now - begin, op=max)
def rank_0_waits_for_all(comm, train):  # Rank 0 gathers when each rank has ended.
    comm.barrier()
    begin = comm.now
    train(comm)
    ends = comm.gather(comm.now)
    latest = comm.bcast(max(ends) if comm.rank == 0 else None)
    return latest - begin
def accuracy_by_pairs(comm, right):  # Pairs of every rank.
    pairs = comm.allgather((sum(bool(one) for one in right), len(right)))
    return sum(good for good, _ in pairs) / sum(there for _, there in pairs)
def accuracy_on_rank_0(comm, right):  # Two sums to rank 0, the share back.
    good, there = comm.reduce(int(np.sum(right))), comm.reduce(np.size(right))
    return comm.bcast(good / there if comm.rank == 0 else None, root=0)
def two_rows_in_turns(comm, rows):  # Two arrays, used in turns; before one is used again, its message must have left.
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got, buffers, requests = np.empty_like(rows), np.empty((2, *rows[0].shape), rows.dtype), [None, None]
    coming = [comm.Irecv(got[i], source=left) for i in range(len(rows))]
    for i in range(len(rows)):
        if requests[i % 2] is not None: requests[i % 2].wait()
        np.multiply(rows[i], 2, out=buffers[i % 2])
        requests[i % 2] = comm.Isend(buffers[i % 2], dest=right)
    for request in [*requests, *coming]:
        if request is not None: request.wait()
    return got
def new_rows(comm, rows):  # A new array for each row, kept until its message has left.
    n = comm.size
    kept = []
    for row in rows:
        twice = row * 2
        kept.append((twice, comm.Isend(twice, dest=(comm.rank + 1) % n)))
    got = np.zeros_like(rows)
    for place in got: comm.Recv(place, source=(comm.rank - 1) % n)
    for _, request in kept: request.wait()
    return got
def ring_by_sendrecv(comm, x):  # Both at once; everything seen is kept, and added up at the end.
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    seen = [x]
    while len(seen) < comm.size: seen.append(comm.sendrecv(seen[-1], dest=right, source=left))
    return np.sum(seen, axis=0)
def ring_in_two_halves(comm, x):  # Even ranks send first, odd ones receive first; a lone rank sends nothing.
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total, travels = x, x
    for _ in range(comm.size - 1):
        if comm.rank % 2 == 0:
            comm.send(travels, dest=right)
            travels = comm.recv(source=left)
        else:
            came = comm.recv(source=left)
            comm.send(travels, dest=right)
            travels = came
        total = total + travels
    return total
RIGHT = {
    "11.epoch": [steps_by_asking_all, asks_before_each_step, steps_by_a_minimum, steps_told_by_rank_0],
    "11.validate": [sums_of_right_answers, all_answers_gathered, everybody_first, by_a_handle],
    "11.gradients": [all_at_once, in_one_array, sorted_first, without_names_in_a_group],
    "11.two_heads": [zeros_first, flat_gradient, zeros_in_a_loop, all_begun_first],
    "11.restore": [cast_before_the_broadcast, in_place_of_the_old_ones, read_by_numpy, read_line_by_line, sum_of_one],
    "11.start": [start_by_allreduce, start_by_allgather, start_by_a_broadcast, start_in_place],
    "11.clip": [clip_by_a_factor, clip_on_rank_0, clip_by_maximum, clip_the_sum],
    "11.shards": [shards_in_blocks, shards_of_a_list, shards_by_a_mask, shards_by_torch],
    "11.seconds": [barrier_before_the_clock, all_times_gathered, largest_of_all, rank_0_waits_for_all],
    "11.accuracy": [accuracy_by_one_message, accuracy_by_weights, accuracy_by_pairs, accuracy_on_rank_0],
    "11.pipeline": [all_rows_at_once, waits_before_the_next_use, two_rows_in_turns, new_rows],
    "11.ring": [ring_with_isend, ring_in_buffers, ring_by_sendrecv, ring_in_two_halves],
}
