# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Parallel SGD, and why not a parameter server
#
# **Question:** n workers compute gradients on parts of a batch. When is the result the same as that of one worker with
# the whole batch, and where should the gradients be added up: on a server, or by the workers themselves?
#
# **Afterwards you can**
#
# - show that averaged gradients are the gradient of the whole batch, and say when they are not,
# - say how many bytes a parameter server's link carries, and compare that with a ring,
# - explain what makes a gradient stale, measure staleness, and say how it changes the training.
#
# **Needs:** a laptop, no GPU; four ranks share the cores that you have. **Alone:** 40 minutes to read, 15 to do.
# **Led:** 55 minutes. **Before:** lesson 03.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 03: An array of 12 MB is reduced by a ring of four ranks. How many bytes does each rank
# send?</summary>
#
# 2(n − 1)/n · 12 MB = 2 · 3/4 · 12 MB = 18 MB, in 6 messages of 3 MB.
#
# </details>
#
# <details>
# <summary>Lesson 01: Rank 0 submits a, then b; rank 1 submits b, then a; both wait afterwards. Is that an
# error?</summary>
#
# No. Tensors have names, and all are submitted before the first wait. It becomes a deadlock if each rank waits for its
# first before it submits the second.
#
# </details>

# %% tags=["both"]
import inspect

import numpy as np

from workbench import data
from workbench.course import drawing, figures
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.simulator import parameter_server, simulate
from workbench.course.simulator.parameter_server import Plan

# %% [markdown]
# ## A model that fits a cell
#
# Softmax regression on the digits: 64 pixels and a constant in, ten classes out, 650 weights. The loss is the mean over
# the samples, so its gradient is the mean of the samples' gradients. Everything is in float64, so that rounding errors
# are tiny.

# %%
digits = data.digits()
pixels = digits.train_x.reshape(-1, 64).astype(float)
X = np.hstack([pixels, np.ones((len(pixels), 1))])
Y = np.eye(10)[digits.train_y]


def chances(weights, x):
    scores = x @ weights.reshape(65, 10)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def loss(weights):
    return -np.log((chances(weights, X) * Y).sum(axis=1)).mean().item()


def gradient(weights, samples):
    x, y = X[samples], Y[samples]
    return (x.T @ (chances(weights, x) - y) / len(x)).ravel()


def listing(function):
    """Its source without the docstring."""
    head, _, body = inspect.getsource(function).split('"""', 2)
    print(head.rstrip() + body.rstrip() + "\n")


print(f"{len(X)} images; all weights 0: loss {loss(np.zeros(650)):.3f}, and ln 10 is {np.log(10):.3f}")

# %% [markdown]
# ## The mean of the parts is the whole
#
# Cut a batch of B samples into n *equal* parts of B/n samples. The gradient of the batch is the sum of all samples'
# gradients, divided by B. The gradient of a part is the sum over its samples, divided by B/n. Add up these n gradients
# and divide by n: the division is by n · B/n = B in all. So the average of the parts' gradients is the gradient of the
# batch, up to rounding, because the sums are computed in a different order.

# %%
weights = np.random.default_rng(0).normal(size=650)
batch = np.arange(288)
whole = gradient(weights, batch)
for n in (2, 3, 4, 8, 16):
    parts = [gradient(weights, part) for part in np.split(batch, n)]
    print(f"{n:2} parts: largest difference {np.abs(sum(parts) / n - whole).max():.0e}")

# %% [markdown]
# This needs a loss that is a mean over samples, where the loss of a sample does not depend on other samples. If that is
# not so, n ranks do *not* train like one process: BatchNorm takes mean and variance of this rank's part (lesson 06),
# and a contrastive loss compares the samples of a batch with each other. Dropout, too, draws different numbers on each
# rank.
#
# What happens if the parts are not equal?

# %%
from workbench.course.predictions import predict, reveal

predict(
    "04.uneven",
    "Four ranks have 200, 50, 30 and 8 samples. How far is the average of their four gradients from that of all 288, "
    "in percent of its largest entry?",
    choices=["less than 1e-12: rounding", "about 1 %", "more than 5 %"],
)

# %%
uneven = np.split(batch, [200, 250, 280])  # 200, 50, 30 and 8 samples
parts = [gradient(weights, part) for part in uneven]
average_of_averages = sum(parts) / 4
sums = [len(part) * one for part, one in zip(uneven, parts, strict=True)]
by_samples = sum(sums) / len(batch)
off = np.abs(average_of_averages - whole).max() / np.abs(whole).max()
print(f"average of averages: wrong by {off:.0%} of the largest entry")
print(f"each by its samples: largest difference {np.abs(by_samples - whole).max():.0e}")

# %%
reveal(
    "04.uneven",
    "more than 5 %" if off > 0.05 else "about 1 %" if off > 1e-12 else "less than 1e-12: rounding",
    "In the average of averages each of the last 8 samples counts 200/8 = 25 times as much as one of the first 200. So "
    "each rank's gradient must be multiplied by its number of samples, and the sum divided by that of all.",
)

# %% [markdown] tags=["exercise"]
# ## Average gradients over uneven shards
#
# The last batch of an epoch is seldom divisible by n. First run the cell above; then write this one. `show` draws your
# function, `check` judges it, `hint` gives a hint, `solution` shows the solution.

# %% tags=["exercise"]
# exercise: 04.average_gradients

# %% tags=["exercise"]
check("04.average_gradients")

# %% [markdown]
# ## Data-parallel SGD
#
# So n ranks can make the same steps as one process: each rank has the weights and computes the gradient of its part of
# the batch, and one allreduce gives all ranks the mean. This is the workbench's function, with the ring of lesson 03 in
# it:

# %%
listing(parameter_server.ring)

# %%
BATCH, WORKERS, STEPS = 288, 4, 60


def gradient_of(workers):
    def of_worker(weights, worker, step):
        start = step * BATCH % len(X)
        parts = np.split(np.arange(start, start + BATCH), workers)
        return gradient(weights, parts[worker])

    return of_worker


def plan(workers=WORKERS, steps=STEPS, lr=0.3, seconds=()):
    first = np.zeros(650)
    return Plan(first, gradient_of(workers), steps, lr, momentum=0.9, seconds=seconds)


def apart(history, other):
    """The largest difference of a weight, after any of the steps."""
    return np.abs(np.array(history.weights) - np.array(other.weights)).max()


one = simulate(1, parameter_server.ring, plan(workers=1)).results
four = simulate(WORKERS, parameter_server.ring, plan()).results
others = sum((four[rank].weights[-1] != four[0].weights[-1]).sum() for rank in range(WORKERS))
print(f"after each of 60 steps, largest difference to the serial run: {apart(one[0], four[0]):.0e}")
print(f"in the end {others} of {WORKERS} x 650 weights have other bits than those of rank 0")
print(f"loss {loss(four[0].weights[-1]):.3f}")

# %%
series = {
    "one rank": [loss(w) for w in one[0].weights],
    "four ranks": [loss(w) for w in four[0].weights],
}
figures.curves(series, xlabel="step", ylabel="loss", title="One rank and four: the same training")

# %% [markdown]
# Two more things are needed besides the average. All ranks **start from the same weights** (here all are 0; else,
# broadcast rank 0's), and all **get the same bits** from the allreduce: then their weights stay equal. In the ring,
# each chunk is summed up on one rank and then copied.

# %% [markdown] tags=["exercise"]
# ## One step
#
# Write the whole step, from a rank's samples to the new weights. The model is linear this time, its loss the squared
# error.

# %% tags=["exercise"]
# exercise: 04.sgd_step

# %% tags=["exercise"]
check("04.sgd_step")

# %% [markdown]
# ## A server in the middle
#
# An older way is a *parameter server*: one process has the weights. In each step it sends them to every worker, and
# every worker sends its gradient back.

# %%
listing(parameter_server.synchronous)

# %%
server = simulate(1 + WORKERS, parameter_server.synchronous, plan()).results[0]
print(f"the same training again, largest difference: {apart(one[0], server):.0e}")

# %% [markdown]
# The result is the same. The bytes on each link are different. To see it, take 100,000 weights (K = 800 kB), and a
# network of about 1 Gbit/s: a message takes α = 50 µs, and β = 8 ns for each byte. A worker needs 10 ms to compute a
# gradient. First one step with a server (rank 0) and four workers, then one step of a ring of four:

# %%
NETWORK = {"alpha_s": 50e-6, "beta_s": 8e-9}
LENGTH = 100_000


def large(workers):
    first, seconds = np.zeros(LENGTH), [0.01] * workers
    return Plan(first, lambda weights, worker, step: weights, steps=1, lr=0.1, seconds=seconds)


run = simulate(5, parameter_server.synchronous, large(4), **NETWORK)
drawing.space_time(run, "One step, server")

# %%
run = simulate(4, parameter_server.ring, large(4), **NETWORK)
drawing.space_time(run, "One step, ring")

# %% [markdown]
# Rank 0, the server, sends or receives all the time; each worker waits until it is its turn. With W workers, the server
# sends W·K bytes and receives W·K bytes in every step. How many are it in the ring?

# %%
predict(
    "04.ring",
    "With 16 workers the server's link carries 16 K each way in every step. How many K does each link of a ring of 16?",
    number="K",
    tolerance=0.05,
)

# %%
K = 8 * LENGTH
print("            out of the busiest link        one step")
print(" workers    server      ring         server       ring")
for workers in (2, 4, 8, 16):
    servers = simulate(1 + workers, parameter_server.synchronous, large(workers), **NETWORK)
    rings = simulate(workers, parameter_server.ring, large(workers), **NETWORK)
    by_server, by_ring = (max(n for _, n in run.sent()) / K for run in (servers, rings))
    print(
        f"      {workers:2}    {by_server:4.1f} K   {by_ring:.3f} K"
        f"       {servers.time_s * 1e3:5.1f} ms    {rings.time_s * 1e3:4.1f} ms"
    )
    assert by_server == workers
    assert by_ring < 2

# %%
reveal(
    "04.ring",
    by_ring,
    "2(W − 1)/W, for every link of the ring, and never more than 2. The server's load grows with every worker.",
)

# %%
load = {"the server's": by_server, "its worker's": 1, "the ring's": by_ring}
drawing.bars(load, "K", f"{workers} workers, one step, bytes out of a link")

# %% [markdown]
# With 2 workers the server's link carries twice as much as a link of the ring; with 16 workers it is 8.5 times as much.
#
# A step of the ring is 10 ms of computing and then its messages: 6.5 ms with 2 workers, 13.5 ms with 16. Their bytes
# (less than 2K) never take more than 12.8 ms. The server has 2W messages of 6.45 ms each. With 16 workers they take 206
# ms, and the workers' computing is hidden behind them.
#
# That is *one* server. Several servers, each with a part of the weights, share the load. Put one on every worker: then
# each server receives its part of all gradients, adds up, and sends its part of the weights to all. That is a
# reduce-scatter and an allgather, and the ring does just these two.
#
# ## Do not wait: the asynchronous server
#
# There is another argument for servers. In the ring, as with the server above, all workers wait for the slowest one. An
# *asynchronous* server does not wait. It applies each gradient as soon as it arrives, and sends the new weights to the
# worker that sent it; that worker goes on:

# %%
listing(parameter_server.work)
listing(parameter_server.serve)

# %% [markdown]
# Let one of four workers be four times as slow: 1, 1, 1 and 4 ms for a gradient.

# %%
SPEEDS = (0.001, 0.001, 0.001, 0.004)
run = simulate(1 + WORKERS, parameter_server.asynchronous, plan(steps=3, seconds=SPEEDS), **NETWORK)
drawing.space_time(run, "Asynchronous server, worker 3 (rank 4) is slow")

# %% [markdown]
# While a worker computes, others change the weights. Its gradient then belongs to weights that the server no longer
# has: it is **stale**. Its *staleness* is the number of changes since its worker got the weights.

# %%
predict(
    "04.staleness",
    "Four workers, one of them four times as slow. How stale is a gradient, on average over the gradients of all four?",
    number="changes",
)

# %%
run = simulate(1 + WORKERS, parameter_server.asynchronous, plan(seconds=SPEEDS), **NETWORK)
slow = run.results[0]
staleness, workers = np.array(slow.staleness), np.array(slow.workers)
for worker in range(WORKERS):
    mine = staleness[workers == worker]
    print(f"worker {worker}: {len(mine)} of {len(staleness)} gradients, staleness {mine.mean():4.1f} on average")
print(f"all:      {len(staleness)} gradients, staleness {staleness.mean():5.2f} on average")
assert staleness.mean() <= WORKERS - 1

# %%
reveal(
    "04.staleness",
    staleness.mean(),
    "Nearly W − 1 = 3, for any speeds. The slow worker's few gradients are very stale; the many others are a little "
    "less than 3.",
)

# %%
counts = {f"{stale} changes late:": (staleness == stale).sum() for stale in np.unique(staleness)}
drawing.bars(counts, "", "How many of 240 gradients, one of four workers slow")

# %% [markdown]
# Why W − 1? Each gradient changes the weights once. That change makes the next gradient of each of the other W − 1
# workers staler by one, and no other gradient. So N gradients cause a total staleness of N·(W − 1), minus the part of
# the gradients that have not arrived when the run ends. The speeds do not matter.
#
# But they matter for the data: the slow worker sends fewer gradients. If it has its own shard, the model sees that
# shard less often than the others.

# %% [markdown] tags=["exercise"]
# ## How stale?
#
# You know in which order the workers' gradients reached the server. That is enough.

# %% tags=["exercise"]
# exercise: 04.stale

# %% tags=["exercise"]
check("04.stale")

# %% [markdown]
# ## How staleness changes the training
#
# Three runs with the same optimizer (learning rate 0.3, momentum 0.9) and the same number of gradients. The ring makes
# 60 steps with four gradients each. An asynchronous server with four equally fast workers makes 240 changes, one by
# one; each gradient is three changes late. And one worker alone does the work of all four, part by part: also 240
# changes, but none of its gradients is stale.

# %%
EQUAL = (0.001,) * WORKERS


def part_by_part(weights, worker, update):
    return gradient_of(WORKERS)(weights, update % WORKERS, update // WORKERS)


# The server divides a gradient by the number of workers, so one alone gets 1/4 of the rate.
alone = Plan(np.zeros(650), part_by_part, STEPS * WORKERS, lr=0.3 / WORKERS, momentum=0.9)
fresh = simulate(2, parameter_server.asynchronous, alone).results[0]
run = simulate(1 + WORKERS, parameter_server.asynchronous, plan(seconds=EQUAL), **NETWORK)
stale = run.results[0]
steps = {
    "ring": [loss(w) for w in four[0].weights],
    "one by one, fresh": [loss(w) for w in fresh.weights[WORKERS - 1 :: WORKERS]],
    "one by one, stale": [loss(w) for w in stale.weights[WORKERS - 1 :: WORKERS]],
}
print("staleness of one by one, fresh:", set(fresh.staleness))
print("staleness of one by one, stale:", set(stale.staleness[WORKERS:]), "after the first four")
for name, losses in steps.items():
    print(f"{name:18} loss after 20 steps {losses[19]:.2f}, in the end {losses[-1]:.3f}")
figures.curves(steps, xlabel="step (4 gradients)", ylabel="loss", title="Learning rate 0.3")

# %% [markdown]
# To apply gradients one by one does little harm. Staleness makes the beginning worse: a gradient corrects an error that
# other gradients have already corrected, and momentum repeats all of these corrections. In the end the gradients are
# small, and the two runs one by one have nearly the same loss. With a smaller learning rate the beginning is smooth,
# and training takes longer:

# %%
run = simulate(1 + WORKERS, parameter_server.asynchronous, plan(lr=0.1, seconds=EQUAL), **NETWORK)
low = [loss(w) for w in run.results[0].weights[WORKERS - 1 :: WORKERS]]
print(f"stale, learning rate 0.1: loss after 20 steps {low[19]:.2f}, in the end {low[-1]:.3f}")
print(f"the ring, learning rate 0.3, in the end {steps['ring'][-1]:.3f}")

# %% [markdown]
# ## And in seconds?
#
# That was the loss over steps. Now look at the loss over *time*, where one of four workers is slow, as before. The ring
# waits for it in every step, and the asynchronous server does not. But a ring need not wait either. Give the slow
# worker a *smaller share* of every batch, 22 samples instead of 72. Then it computes about as long as the others with
# 89, and gradients are weighted by samples.

# %%
predict(
    "04.race",
    "Which of them has the lowest loss after 100 ms of the virtual clock, with one slow worker of four?",
    choices=["ring, equal shares", "ring, shares by speed", "asynchronous, lr 0.3", "asynchronous, lr 0.1"],
)

# %%
SHARES = (89, 89, 88, 22)  # of 288 samples; 72 take a fast worker 1 ms, the slow one 4 ms
BY_SHARE = tuple(seconds * share / 72 for seconds, share in zip(SPEEDS, SHARES, strict=True))


def by_share(weights, worker, step):
    start = step * BATCH % len(X) + sum(SHARES[:worker])
    mean = gradient(weights, np.arange(start, start + SHARES[worker]))
    # The ring divides by the number of ranks, not by that of the samples.
    return mean * SHARES[worker] / (BATCH / WORKERS)


def timed(algorithm, its_plan):
    ranks = WORKERS if algorithm is parameter_server.ring else 1 + WORKERS
    return simulate(ranks, algorithm, its_plan, **NETWORK)


shared = Plan(np.zeros(650), by_share, STEPS, 0.3, momentum=0.9, seconds=BY_SHARE)
slow_plan, careful = plan(seconds=SPEEDS), plan(lr=0.1, seconds=SPEEDS)
runs = {
    "ring, equal shares": timed(parameter_server.ring, slow_plan),
    "synchronous server": timed(parameter_server.synchronous, slow_plan),
    "asynchronous, lr 0.3": timed(parameter_server.asynchronous, slow_plan),
    "asynchronous, lr 0.1": timed(parameter_server.asynchronous, careful),
    "ring, shares by speed": timed(parameter_server.ring, shared),
}
for name, run in runs.items():
    last = loss(run.results[0].weights[-1])
    print(f"{name:21} {run.time_s * 1e3:5.1f} ms for {STEPS * BATCH:,} samples, loss {last:.3f}")
rings = [runs[name].results[0] for name in ("ring, equal shares", "ring, shares by speed")]
print(f"both rings, largest difference of a weight: {apart(*rings):.0e}")


# %%
def every_ms(history, until=100):
    """The loss at every millisecond of the virtual clock."""
    updates = np.searchsorted(history.times, np.arange(until) * 1e-3, side="right")
    return [loss(history.weights[i - 1] if i else np.zeros(650)) for i in updates]


chosen = [name for name in reversed(runs) if name != "synchronous server"]
over_time = {name: every_ms(runs[name].results[0]) for name in chosen}
at_the_end = {name: losses[-1] for name, losses in over_time.items()}
figures.curves(over_time, xlabel="virtual time in ms", ylabel="loss", title="One slow worker of four")

# %%
reveal(
    "04.race",
    min(at_the_end, key=at_the_end.get),
    "; ".join(f"{name}: {last:.2f}" for name, last in at_the_end.items())
    + ". With shares by speed no rank waits, and no gradient is stale.",
)

# %% [markdown]
# The ring with shares by speed needs 9 % more time than the asynchronous server, and it makes the same steps as the
# serial run. So this workbench, like Horovod, has no server, for three reasons. The link of one server carries more
# with every worker. Many servers do what a ring's reduce-scatter and allgather do. And a server that does not wait
# changes the training.
#
# There are methods between the two: with *backup workers* the server waits for the first W of W + b gradients and drops
# the rest (Chen et al. 2016, arXiv:1604.00981). And a server that does not wait is still useful where workers come and
# go, or where their speeds are not known in advance.
#
# ## On real ranks
#
# Now run the same functions, unchanged, on four MPI processes. The clock is a real one now. First the ring:

# %%
from workbench import cluster
from workbench.course.judging.real_ranks import ClusterRanks

engines = cluster.up(n=4)
ranks = ClusterRanks(engines)


# %%
def train_in_a_ring(comm):
    return parameter_server.ring(comm, plan())


real = ranks.run(train_in_a_ring, [()] * engines.n)
print(f"on MPI, after each of 60 steps, largest difference to the serial run: {apart(one[0], real[0]):.0e}")

# %% [markdown]
# Then the asynchronous server, with three workers, twice. The order in which the gradients arrive now depends on the
# machine, and so does every weight. In every run all gradients arrive, and on average they are at most W − 1 = 2
# changes late.


# %%
def train_with_a_server(comm):
    return parameter_server.asynchronous(comm, plan(workers=3, steps=40, lr=0.1))


twice = [ranks.run(train_with_a_server, [()] * engines.n)[0] for _ in range(2)]
for history in twice:
    late = np.mean(history.staleness)
    assert late <= engines.n - 2
    assert (late > 0) == (engines.n > 2)
    print(f"{len(history.workers)} gradients, of workers {sorted(set(history.workers))}")

# %% tags=["nbval-ignore-output"]
for history in twice:
    print("order", *history.workers[:24], f"…  staleness {np.mean(history.staleness):.2f} on average")
differ = np.abs(twice[0].weights[-1] - twice[1].weights[-1]).max()
print(f"largest difference of a weight between the two runs: {differ:.0e}")

# %%
engines.down()

# %% [markdown] tags=["exercise"]
# ## On real ranks
#
# With engines, `check` also runs your functions on four MPI processes:

# %% tags=["exercise"]
from workbench import cluster

engines = cluster.up(n=4)
check("04.average_gradients")

# %% tags=["exercise"]
check("04.sgd_step")

# %% tags=["exercise"]
engines.down()

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 55 minutes, 20 of them for the exercises. Ask before the first exercise: three ranks have 5,
# 5 and 2 samples; is the average of the three averages the average of the twelve? Common wrong answers: dividing by
# `comm.size`; dividing by the rank's own count; `if count == 0: return` in front of the allreduce, so that the others
# wait for ever; in `sgd_step`, adding the rank's own gradient first and then the others' in the order in which they
# arrive, which gives different bits on every rank (the check says how many). In `stale`: own changes counted, or only
# *different* workers counted.
#
# To say: a server is not wrong, it computes the same as the ring as long as it waits. Ask how a fast worker changes the
# data that the model sees when the server does not wait, and why two runs of the same cell differ on real ranks. If
# time is short, leave out *And in seconds?*.

# %% [markdown]
# ## Keypoints
#
# - Averaged over equal shards, gradients are those of the whole batch. Over uneven ones, count samples, not ranks.
# - The link of one server carries W·K each way, a ring's less than 2K.
# - Without waiting, gradients are almost W − 1 changes late on average; with the same learning rate the training begins
#   worse.
# - Give a slow worker fewer samples: then no rank waits, and no gradient is stale.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **PyTorch DDP** averages over ranks, not over samples. If the loss is a sum, M ranks get a gradient M times smaller
#   than one process with the whole batch
#   ([source](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)).
# - **TensorFlow** still has parameter servers: with `ParameterServerStrategy` workers read and change the variables
#   without waiting for each other
#   ([source](https://www.tensorflow.org/api_docs/python/tf/distribute/ParameterServerStrategy)).
# - **MXNet**, whose `KVStore` was a parameter server for several machines, was retired by Apache in September 2023
#   ([source](https://attic.apache.org/projects/mxnet.html)).
# - **TorchRec** trains recommendation models without a server: it cuts their large embedding tables over the GPUs
#   themselves ([source](https://docs.pytorch.org/torchrec/)).
# - **AReaL** (2025) accepts staleness again, in reinforcement learning: it generates answers while it trains, and
#   limits how old the weights behind an answer may be ([source](https://arxiv.org/abs/2505.24298)).
