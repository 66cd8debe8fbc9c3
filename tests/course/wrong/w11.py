"""Wrong repairs of the cards of lesson 11: the broken program itself, then those that cure the symptom only."""

from __future__ import annotations

import numpy as np
from wrong_answers import Answers

from workbench.course.judging.card import Card
from workbench.course.tasks import task
from workbench.errors import WorkbenchError

wrong = Answers()


def broken(name):
    card = task(name)
    assert isinstance(card, Card)
    return card.broken
# --- 11.epoch -------------------------------------------------------------------------------------------
@wrong(
    "11.epoch", "5, 4 and 4 batches: each rank returns its own number of batches, not that of the steps; rank 0, the "
)
def returns_its_own_number(hvd, w, batches, lr):
    steps = int(hvd.allreduce(np.array(len(batches)), name="steps", op=hvd.Min))
    for x, y in batches[:steps]:
        gradient = 2 * x.T @ (x @ w - y) / len(y)
        w = w - lr * hvd.allreduce(gradient, name="gradient")
    return w, len(batches)
@wrong(
    "11.epoch", "5, 4 and 4 batches: ranks with more batches go on: what is left over is kept for the next epoch; ran"
)
def joins_at_the_end(hvd, w, batches, lr):
    for x, y in batches:
        gradient = 2 * x.T @ (x @ w - y) / len(y)
        w = w - lr * hvd.allreduce(gradient, name="gradient")
    hvd.join()
    return w, len(batches)
@wrong("11.epoch", "Ranks 1, 2 are idle, so 'allreduce.gradient', submitted by rank 0, can never complete")
def takes_rank_0s_number(hvd, w, batches, lr):
    steps = int(hvd.broadcast(np.array(len(batches)), root_rank=0, name="steps"))
    for x, y in batches[:steps]:
        gradient = 2 * x.T @ (x @ w - y) / len(y)
        w = w - lr * hvd.allreduce(gradient, name="gradient")
    return w, min(steps, len(batches))
@wrong("11.epoch", "n = 3, 5, 1 and 3 batches: MissingRanksError: Rank 1 is idle")
def agrees_on_the_mean(hvd, w, batches, lr):
    steps = int(hvd.allreduce(np.array(float(len(batches))), name="steps"))
    for x, y in batches[:steps]:
        gradient = 2 * x.T @ (x @ w - y) / len(y)
        w = w - lr * hvd.allreduce(gradient, name="gradient")
    return w, steps
@wrong("11.epoch", "Ranks 1, 2 are idle")
def drops_the_last_everywhere(hvd, w, batches, lr):
    steps = len(batches) - 1
    for x, y in batches[:steps]:
        gradient = 2 * x.T @ (x @ w - y) / len(y)
        w = w - lr * hvd.allreduce(gradient, name="gradient")
    return w, steps
@wrong("11.epoch", "A collective failed on rank 0, and the function caught the error")
def catches_the_error(hvd, w, batches, lr):
    steps = 0
    for x, y in batches:
        gradient = 2 * x.T @ (x @ w - y) / len(y)
        try:
            w = w - lr * hvd.allreduce(gradient, name="gradient")
        except WorkbenchError:
            break
        steps += 1
    return w, steps
# --- 11.validate ----------------------------------------------------------------------------------------
@wrong("11.validate", "each rank returns the share of its own answers; rank 0, the accuracy")
def nobody_reduces(hvd, right, log):
    accuracy = np.mean(right)
    if hvd.rank() == 0: log.append(f"accuracy {accuracy:.2f}")
    return accuracy, log
@wrong("11.validate", "every rank writes into the log, and only rank 0 may; rank 1, the log")
def everybody_logs(hvd, right, log):
    accuracy = hvd.allreduce(np.mean(right), name="accuracy")
    log.append(f"accuracy {accuracy:.2f}")
    return accuracy, log
@wrong("11.validate", "✗ runs: n = 2, 4 samples each: MissingRanksError: The ranks wait for each")
def the_others_wait_in_a_barrier(hvd, right, log):
    accuracy = np.mean(right)
    if hvd.rank() == 0:
        accuracy = hvd.allreduce(accuracy, name="accuracy")
        log.append(f"accuracy {accuracy:.2f}")
    else: hvd.barrier()
    return accuracy, log
@wrong("11.validate", "rank 0 has the share over all ranks, and the others their own; rank 1")
def the_others_throw_it_away(hvd, right, log):
    accuracy = np.mean(right)
    if hvd.rank() == 0:
        accuracy = hvd.allreduce(accuracy, name="accuracy")
        log.append(f"accuracy {accuracy:.2f}")
    else: hvd.allreduce(accuracy, name="accuracy")
    return accuracy, log
# --- 11.gradients ---------------------------------------------------------------------------------------
@wrong(
    "11.gradients",
    "finished as ab and ba: different gradients were added to each other: without a name, the first one o",
)
def drops_the_names(hvd, found):
    averages = {}
    for name, gradient in found.items(): averages[name] = hvd.allreduce(gradient)
    return [averages[name] for name in sorted(averages)]
@wrong("11.gradients", "The ranks wait for each other")
def goes_backwards(hvd, found):
    averages = {}
    for name in reversed(list(found)): averages[name] = hvd.allreduce(found[name], name=name)
    return [averages[name] for name in sorted(averages)]
@wrong("11.gradients", "The ranks wait for each other")
def waits_at_once_for_what_it_submits(hvd, found):
    averages = {}
    for name, gradient in found.items(): averages[name] = hvd.allreduce_async(gradient, name=name).wait()
    return [averages[name] for name in sorted(averages)]
# --- 11.two_heads ---------------------------------------------------------------------------------------
@wrong("11.two_heads", "MissingRanksError")
def zeros_that_are_not_submitted(hvd, weights, found, lr):
    for name in sorted(weights):
        if found[name] is None:
            found[name] = np.zeros_like(weights[name])
            continue
        weights[name] = weights[name] - lr * hvd.allreduce(found[name], name=name)
    return [weights[name] for name in sorted(weights)]
@wrong("11.two_heads", "MismatchError: Mismatched allreduce tensor shapes")
def one_zero(hvd, weights, found, lr):
    for name in sorted(weights):
        gradient = np.zeros(1) if found[name] is None else found[name]
        weights[name] = weights[name] - lr * hvd.allreduce(gradient, name=name)
    return [weights[name] for name in sorted(weights)]
@wrong(
    "11.two_heads",
    "heads a, ab: the weights themselves were sent in place of None: a missing gradient counts as zero; r",
)
def the_weights_themselves(hvd, weights, found, lr):
    for name in sorted(weights):
        gradient = weights[name] if found[name] is None else found[name]
        weights[name] = weights[name] - lr * hvd.allreduce(gradient, name=name)
    return [weights[name] for name in sorted(weights)]
@wrong(
    "11.two_heads",
    "heads a, ab: a rank without a gradient of its own made no step: all ranks take the average; rank 0, ",
)
def no_step_without_a_gradient(hvd, weights, found, lr):
    for name in sorted(weights):
        unused = found[name] is None
        average = hvd.allreduce(np.zeros_like(weights[name]) if unused else found[name], name=name)
        if not unused: weights[name] = weights[name] - lr * average
    return [weights[name] for name in sorted(weights)]
# --- 11.restore -----------------------------------------------------------------------------------------
@wrong("11.restore", "✗ float32 on every rank: n = 2, 4 weights: rank 0 returns float64")
def float64_everywhere(hvd, weights, path):
    weights = weights.astype(float)
    if hvd.rank() == 0: weights = np.array(path.read_text().split(), dtype=float)
    return hvd.broadcast(weights, root_rank=0, name="weights")
@wrong("11.restore", "MismatchError: Mismatched data types")
def casts_too_late(hvd, weights, path):
    if hvd.rank() == 0: weights = np.array(path.read_text().split(), dtype=float)
    return hvd.broadcast(weights, root_rank=0, name="weights").astype(np.float32)
@wrong("11.restore", "FileNotFoundError: weights.txt is on rank 0 only")
def everybody_reads(hvd, weights, path):
    weights = np.array(path.read_text().split(), dtype=float)
    return hvd.broadcast(weights, root_rank=0, name="weights")
@wrong("11.restore", "Rank 1 is idle, so 'broadcast.weights'")
def only_rank_0_broadcasts(hvd, weights, path):
    if hvd.rank() == 0:
        weights = np.array(path.read_text().split(), dtype=np.float32)
        weights = hvd.broadcast(weights, root_rank=0, name="weights")
    return weights
# --- 11.start -------------------------------------------------------------------------------------------
@wrong("11.start", "all ranks had one seed, so their noise was the same")
def one_seed_for_all(hvd, seed, batches): return broken("11.start")(hvd, 0, batches)
@wrong("11.start", "all ranks have rank 0's weights, but only since the end of the training")
def broadcasts_at_the_end(hvd, seed, batches):
    return hvd.broadcast(broken("11.start")(hvd, seed, batches), root_rank=0, name="w")
@wrong("11.start", "✗ one model on all ranks: n = 2, 0 steps")
def broadcasts_and_forgets(hvd, seed, batches):
    random = np.random.default_rng(seed)
    w = random.normal(size=2)
    hvd.broadcast(w, root_rank=0, name="w")
    for x, y in batches:
        x = x + 0.01 * random.normal(size=x.shape)
        gradient = 2 * x * (np.sum(x * w) - y)
        w = w - 0.1 * hvd.allreduce(gradient, name="gradient")
    return w
@wrong("11.start", "training began at the ranks' average")
def starts_from_the_average(hvd, seed, batches):
    random = np.random.default_rng(seed)
    w = hvd.allreduce(random.normal(size=2), name="w")
    for x, y in batches:
        x = x + 0.01 * random.normal(size=x.shape)
        gradient = 2 * x * (np.sum(x * w) - y)
        w = w - 0.1 * hvd.allreduce(gradient, name="gradient")
    return w
# --- 11.clip --------------------------------------------------------------------------------------------
@wrong("11.clip", "the program as it came gives this, too: its mistake is still there. Which of the four causes fits?")
def clips_twice(comm, w, gradient, longest):
    length = np.linalg.norm(gradient)
    if length > longest: gradient = gradient * longest / length
    gradient = comm.allreduce(gradient) / comm.size
    length = np.linalg.norm(gradient)
    return w - gradient * min(1.0, longest / length)
@wrong("11.clip", "the limit was held against the average of the ranks' lengths")
def by_the_average_length(comm, w, gradient, longest):
    length = comm.allreduce(np.linalg.norm(gradient)) / comm.size
    gradient = comm.allreduce(gradient) / comm.size
    return w - gradient * min(1.0, longest / length)
@wrong("11.clip", "✗ right")
def clips_the_sum(comm, w, gradient, longest):
    gradient = comm.allreduce(gradient)
    length = np.linalg.norm(gradient)
    if length > longest: gradient = gradient * longest / length
    return w - gradient / comm.size
@wrong("11.clip", "the average is longer than the limit, and was not clipped")
def does_not_clip(comm, w, gradient, longest): return w - comm.allreduce(gradient) / comm.size
# --- 11.shards ------------------------------------------------------------------------------------------
@wrong("11.shards", "✗ another order in every epoch")
def one_seed_for_ever(n, epoch, rank, size): return np.random.default_rng(0).permutation(n)[rank::size]
@wrong("11.shards", "10 samples, 3 ranks, epoch 0: no rank has 1 sample (")
def whole_pieces_only(n, epoch, rank, size):
    order = np.random.default_rng(epoch).permutation(n)
    return order[rank * (n // size) : (rank + 1) * (n // size)]
@wrong("11.shards", "epoch 0: more than one rank has 4 samples (0, 1, 2, 3)")
def every_rank_has_all(n, epoch, rank, size): return np.random.default_rng(epoch).permutation(n)
@wrong("11.shards", "✗ another order in every epoch")
def shuffles_its_own_shard(n, epoch, rank, size):
    return np.random.default_rng([epoch, rank]).permutation(np.arange(rank, n, size))
@wrong("11.shards", "✗ all samples, each once")
def no_seed_at_all(n, epoch, rank, size): return np.random.default_rng().permutation(n)[rank::size]
# --- 11.seconds -----------------------------------------------------------------------------------------
@wrong("11.seconds", "train for 10 and 30 and 20 ms: rank 0 says 20.1 ms, expected 30.0 ms")
def the_mean(comm, train):
    comm.barrier()
    begin = comm.now
    train(comm)
    return comm.allreduce(comm.now - begin) / comm.size
@wrong("11.seconds", "✗ not the time before, in which ranks come late")
def no_barrier(comm, train):
    begin = comm.now
    train(comm)
    return comm.allreduce(comm.now - begin, max)
@wrong("11.seconds", "✗ not the time before, in which ranks come late")
def begins_before_the_barrier(comm, train):
    begin = comm.now
    comm.barrier()
    train(comm)
    return comm.allreduce(comm.now - begin, max)
@wrong("11.seconds", "rank 1 says None")
def only_rank_0_knows(comm, train):
    comm.barrier()
    begin = comm.now
    train(comm)
    return comm.reduce(comm.now - begin, max)
# --- 11.accuracy ----------------------------------------------------------------------------------------
@wrong(
    "11.accuracy",
    "✗ right: that is a mean of means, without the ranks that have no samples: count samples",
)
def skips_empty_ranks(comm, right):
    share = np.mean(right) if len(right) else 0.0
    return comm.allreduce(share) / comm.allreduce(int(len(right) > 0))
@wrong("11.accuracy", "rank 0's number of samples was taken for that of every rank")
def rank_0s_number_for_all(comm, right): return comm.allreduce(np.sum(right)) / (comm.bcast(len(right)) * comm.size)
# --- 11.pipeline ----------------------------------------------------------------------------------------
@wrong("11.pipeline", "n = 3, 3 rows of 20,000: ranks 0, 1 and 2 wait for each other")
def waits_for_each(comm, rows):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got, row = np.empty_like(rows), np.empty_like(rows[0])
    for i in range(len(rows)):
        row[:] = 2 * rows[i]
        comm.Isend(row, dest=right).wait()
    for i in range(len(rows)): comm.Recv(got[i], source=left)
    return got
@wrong("11.pipeline", "messages were never waited for")
def never_waits(comm, rows):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got, row = np.empty_like(rows), np.empty_like(rows[0])
    for i in range(len(rows)):
        row[:] = 2 * rows[i]
        comm.Isend(row, dest=right)
    for i in range(len(rows)): comm.Recv(got[i], source=left)
    return got
@wrong("11.pipeline", "messages were never waited for")
def waits_for_the_last(comm, rows):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got, row, pending = np.empty_like(rows), np.empty_like(rows[0]), []
    for i in range(len(rows)):
        row[:] = 2 * rows[i]
        pending.append(comm.Isend(row, dest=right))
    for i in range(len(rows)): comm.Recv(got[i], source=left)
    pending[-1].wait()
    return got
@wrong("11.pipeline", "the array given to Isend(dest=1) was changed before wait()")
def doubles_in_the_callers_array(comm, rows):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    pending = []
    for i in range(len(rows)):
        pending.append(comm.Isend(rows[i], dest=right))
        rows[i] *= 2
    got = np.empty_like(rows)
    for i in range(len(rows)): comm.Recv(got[i], source=left)
    for request in pending: request.wait()
    return got
# --- 11.ring --------------------------------------------------------------------------------------------
@wrong("11.ring", "✗ no deadlock: n = 2, length 10")
def everybody_receives_first(comm, x):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total = x
    for _ in range(comm.size - 1):
        got = comm.recv(source=left)
        comm.send(x, dest=right)
        x, total = got, total + got
    return total
@wrong("11.ring", "✗ no deadlock: n = 4, length 100,000, where no message leaves before its receiver is")
def sends_small_pieces(comm, x):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total = x
    for _ in range(comm.size - 1):
        pieces = np.array_split(x, len(x) // 1000 + 1)
        for piece in pieces: comm.send(piece, dest=right)
        x = np.concatenate([comm.recv(source=left) for _ in pieces])
        total = total + x
    return total
@wrong(
    "11.ring", "✗ right: the sum so far is passed on, so some x are counted several times: pass on the x that came"
)
def passes_the_total_on(comm, x):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total = x
    for _ in range(comm.size - 1): total = total + comm.sendrecv(total, dest=right, source=left)
    return total
@wrong("11.accuracy", "that is the share of the wrong answers")
def share_of_the_wrong_ones(comm, right): return comm.allreduce(np.sum(~right)) / comm.allreduce(len(right))
SAID = {
    "11.epoch": (
        "n = 3, 5, 4 and 4 batches: MissingRanksError: Ranks 1, 2 are idle, so 'allreduce.gradient'",
        'rank 0: waiting in the cell, line 10: w = w - lr * hvd.allreduce(gradient, name="gradient")',
    ),
    "11.validate": (
        "MissingRanksError: Rank 1 is idle, so 'allreduce.accuracy', submitted by rank 0, can never complete.",
        'rank 0: waiting in the cell, line 9: accuracy = hvd.allreduce(accuracy, name="accuracy")',
    ),
    "11.gradients": (
        "The ranks wait for each other, so 'allreduce.a', submitted by rank 0, can never complete.",
        "rank 1: waiting for 'allreduce.b' in the cell, line 9",
    ),
    "11.two_heads": (
        "n = 2, heads a, ab: MissingRanksError: The ranks wait for each other, so 'allreduce.t', submitted by rank 0",
        "rank 1: waiting for 'allreduce.b' in the cell, line 10",
    ),
    "11.restore": ("MismatchError: Mismatched data types", "rank 0: float64", "rank 1: float32"),
    "11.start": (
        "one model on all ranks: n = 2, 0 steps: the fingerprints differ.",
        "rank  weights   largest difference",
        "weights: 'w' is the first that differs, on rank 1 from rank 0",
    ),
    "11.clip": ("at most 1: rank 0, the weights, index 0: your result is -0.51", "expected -0.99"),
    "11.shards": ("4 samples, 2 ranks, epoch 0: no rank has 1 sample (3); more than one rank has 1 sample (",),
    "11.seconds": ("train for 10 and 30 and 20 ms: rank 0 says 10.1 ms, expected 30.0 ms",),
    "11.accuracy": (
        "n = 2, 0 of 1 and 3 of 3 right: rank 0, the share of right answers: your result is 0.5, expected 0.75",
    ),
    "11.pipeline": ("the array given to Isend(dest=1) was changed before wait()", "in line 15: request.wait()"),
    "11.ring": (
        "n = 2, length 100,000: ranks 0 and 1 wait for each other",
        "rank 0 waits in send(dest=1) (in the cell, line 7: comm.send(x, dest=right))",
        "They wait in a circle: 0 → 1 → 0",
    ),
}
"""What check() must say of each broken program as it comes."""
for name, told in SAID.items(): wrong(name, told[0])(broken(name))
PICTURES = {
    "11.clip": "6 messages between 4 ranks",
    "11.shards": "24 samples on 4 ranks: epoch 0: 17 of 24 samples seen, 6 more than once",
    "11.seconds": "10 messages between 3 ranks, 30.1 ms",
    "11.accuracy": "4 messages between 3 ranks",
    "11.ring": "Deadlock: 4 of 4 ranks wait, in a circle: 0 → 1 → 2 → 3 → 0",
}
"""What show() says of each, where there is something to be seen."""
