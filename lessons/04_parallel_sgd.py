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
# **Question:** n workers compute gradients on parts of a batch. When is the result that of one worker with the whole
# batch, and who should add up the gradients: a server in the middle, or the workers themselves?
#
# **Afterwards you can**
#
# - show that averaged gradients are the gradient of the whole batch, and say when they are not,
# - say what a parameter server's link carries, and compare it with a ring's,
# - explain what makes a gradient stale, measure it, and say what it does to the training.
#
# **Needs:** a laptop, no GPU; four ranks share the cores that you have. **Takes** 15 minutes to read, 15 to do.
# **Before:** lesson 03.

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
# the samples, so its gradient is the mean of the samples' gradients. All in float64, so that rounding is tiny.

# %%
digits = data.digits()
X = np.hstack([digits.train_x.reshape(-1, 64).astype(float), np.ones((len(digits.train_x), 1))])
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


print(f"{len(X)} images; loss of the first weights, all 0: {loss(np.zeros(650)):.3f} = ln 10")

# %% [markdown]
# ## The mean of the parts is the whole
#
# Cut a batch of B samples into n *equal* parts. The gradient of the batch is a sum over B samples, divided by B; that
# is the sum of n sums, each divided by B/n, divided by n. So the average of the parts' gradients is the gradient of the
# batch. Up to rounding: the sums are made in another order.

# %%
weights = np.random.default_rng(0).normal(size=650)
batch = np.arange(288)
whole = gradient(weights, batch)
for n in (2, 3, 4, 8, 16):
    parts = [gradient(weights, part) for part in np.split(batch, n)]
    print(f"{n:2} parts: largest difference {np.abs(sum(parts) / n - whole).max():.0e}")

# %% [markdown]
# It is so because the loss is a mean over samples, and no sample's loss depends on another sample. Where that does not
# hold, n ranks do *not* train as one does: BatchNorm takes mean and variance of this rank's part (lesson 06), a
# contrastive loss compares the samples of a batch with each other, and dropout draws other numbers on each rank.
#
# And with parts that are not equal?

# %%
from workbench.course.predictions import predict, reveal

predict(
    "04.uneven",
    "Four ranks have 200, 50, 30 and 8 samples. How far is the average of their four gradients from that of all 288?",
    choices=["less than 1e-12: rounding", "about 1 %", "more than 5 %"],
)

# %%
uneven = np.split(batch, [200, 250, 280])  # 200, 50, 30 and 8 samples
parts = [gradient(weights, part) for part in uneven]
average_of_averages = sum(parts) / 4
by_samples = sum(len(part) * one for part, one in zip(uneven, parts, strict=True)) / len(batch)
off = np.abs(average_of_averages - whole).max() / np.abs(whole).max()
print(f"average of averages: wrong by {off:.0%} of the largest entry")
print(f"each by its samples: largest difference {np.abs(by_samples - whole).max():.0e}")

# %%
reveal(
    "04.uneven",
    "more than 5 %" if off > 0.05 else "about 1 %" if off > 1e-12 else "less than 1e-12: rounding",
    "In the average of averages each of the last 8 samples counts 25 times as much as one of the first 200. So each "
    "rank must count by its samples.",
)

# %% [markdown] tags=["exercise"]
# ## Average gradients over uneven shards
#
# The last batch of an epoch is seldom divisible by n. First run the cell above; then write this one. `show` draws your
# function, `check` judges it, `hint` helps, `solution` tells.

# %% tags=["exercise"]
# exercise: 04.average_gradients

# %% tags=["exercise"]
check("04.average_gradients")

# %% [markdown]
# ## Data-parallel SGD
#
# So n ranks can take the steps of one: each has the weights, computes the gradient of its part of the batch, and one
# allreduce gives all of them the mean. This is the workbench's function, with the ring of lesson 03 in it:

# %%
listing(parameter_server.ring)

# %%
BATCH, WORKERS, STEPS = 288, 4, 60


def gradient_of(workers):
    def of_worker(weights, worker, step):
        start = step * BATCH % len(X)
        return gradient(weights, np.split(np.arange(start, start + BATCH), workers)[worker])

    return of_worker


def plan(workers=WORKERS, steps=STEPS, lr=0.3, seconds=()):
    return Plan(np.zeros(650), gradient_of(workers), steps, lr, momentum=0.9, seconds=seconds)


one = simulate(1, parameter_server.ring, plan(workers=1)).results
four = simulate(WORKERS, parameter_server.ring, plan()).results
difference = max(np.abs(a - b).max() for a, b in zip(one[0].weights, four[0].weights, strict=True))
same = all((history.weights[-1] == four[0].weights[-1]).all() for history in four)
print(f"after each of 60 steps, largest difference to the serial run: {difference:.0e}")
print("all four ranks end with the same bits:", same)
print(f"loss {loss(four[0].weights[-1]):.3f}")

# %%
series = {"one rank": [loss(w) for w in one[0].weights], "four ranks": [loss(w) for w in four[0].weights]}
figures.curves(series, xlabel="step", ylabel="loss", title="One rank and four: the same training")

# %% [markdown]
# Two things are needed besides the average. All ranks **start from the same weights** (here all are 0; else, broadcast
# rank 0's), and all **get the same bits** from the allreduce, so that they stay the same for ever. In the ring, each
# chunk is summed up in one place and then copied.

# %% [markdown] tags=["exercise"]
# ## One step
#
# Least squares this time, and the whole step is yours.

# %% tags=["exercise"]
# exercise: 04.sgd_step

# %% tags=["exercise"]
check("04.sgd_step")

# %% [markdown]
# ## A server in the middle
#
# The older way, and the one that first comes to mind: a *parameter server* has the weights. In each step it sends them
# to every worker, and every worker sends its gradient back.

# %%
listing(parameter_server.synchronous)

# %%
server = simulate(1 + WORKERS, parameter_server.synchronous, plan()).results[0]
difference = max(np.abs(a - b).max() for a, b in zip(one[0].weights, server.weights, strict=True))
print(f"the same training again, largest difference: {difference:.0e}")

# %% [markdown]
# It computes the same. The difference is who carries what. To see it, take 100,000 weights (K = 800 kB), and a network
# of about 1 Gbit/s: α = 50 µs, β = 8 ns. A gradient takes 10 ms. First one step with a server and four workers, then
# one step of a ring of four:

# %%
NETWORK = {"alpha_s": 50e-6, "beta_s": 8e-9}
LENGTH = 100_000


def large(workers, steps=1, seconds=None):
    start = np.zeros(LENGTH)
    return Plan(start, lambda weights, worker, step: weights, steps, lr=0.1, seconds=seconds or [0.01] * workers)


drawing.space_time(simulate(5, parameter_server.synchronous, large(4), **NETWORK), "One step, server")

# %%
drawing.space_time(simulate(4, parameter_server.ring, large(4), **NETWORK), "One step, ring")

# %% [markdown]
# Rank 0, the server, is at work all the time; each worker waits for its turn. With W workers, W·K go out of the server
# and W·K come in, in every step. And in the ring?

# %%
predict(
    "04.ring",
    "With 16 workers the server's link carries 16 K each way in every step. How many K does each link of a ring of 16?",
    number="K",
    tolerance=0.05,
)

# %%
K = 8 * LENGTH
for workers in (2, 4, 8, 16):
    servers = simulate(1 + workers, parameter_server.synchronous, large(workers), **NETWORK)
    rings = simulate(workers, parameter_server.ring, large(workers), **NETWORK)
    link = {name: max(n for _, n in run.sent()) / K for name, run in (("server", servers), ("ring", rings))}
    print(
        f"{workers:2} workers: the server's link carries {link['server']:4.1f} K each way, a ring's "
        f"{link['ring']:.3f} K;  step: server {servers.time_s * 1e3:5.1f} ms, ring {rings.time_s * 1e3:4.1f} ms"
    )
    assert link["server"] == workers
    assert link["ring"] < 2

# %%
reveal(
    "04.ring",
    link["ring"],
    "2(W − 1)/W, for every link of the ring, and never more than 2. The server's load grows with every worker.",
)

# %%
load = {"the server's": workers * K, "its worker's": K, "the ring's": max(n for _, n in rings.sent())}
load = {name: nbytes / 1000 for name, nbytes in load.items()}
drawing.bars(load, "kB", f"{workers} workers, one step, bytes out of a link")

# %% [markdown]
# With 2 workers the server carries twice as much as a ring's link; with 16 it is 8.5 times as much. Without the 10 ms
# of computing, a step of the ring takes 6.5 ms with 2 workers and 13.5 ms with 16; its bytes never take more than 12.8
# ms, for 2K. The server's takes 19 and 196 ms. That is *one* server. Several servers, each with a part of the weights,
# share the load. Put one on every worker, and each server receives its part of all gradients, adds up, and sends its
# part of the weights to all: that is a reduce-scatter and an allgather. The ring is where that road ends.
#
# ## Do not wait: the asynchronous server
#
# One more thing is said for servers. In the ring, as with the server above, everybody waits for the slowest. An
# *asynchronous* server waits for nobody. Whoever brings a gradient changes the weights at once, gets the new ones and
# goes on:

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
# While a worker computes, others change the weights. Its gradient is then that of weights which are no more: it is
# **stale**. Its *staleness* is the number of changes since it got its weights.

# %%
predict(
    "04.staleness",
    "Four workers, one of them four times as slow. How stale is a gradient, on average over all gradients of all?",
    number="changes",
)

# %%
slow = simulate(1 + WORKERS, parameter_server.asynchronous, plan(seconds=SPEEDS), **NETWORK).results[0]
mean_of = {}
for worker in range(WORKERS):
    of_it = [stale for stale, who in zip(slow.staleness, slow.workers, strict=True) if who == worker]
    mean_of[worker] = sum(of_it) / len(of_it)
    print(
        f"worker {worker}: {len(of_it):2} of {len(slow.workers)} gradients, staleness {mean_of[worker]:.1f} on average"
    )
mean = sum(slow.staleness) / len(slow.staleness)
print(f"the slow worker's are {mean_of[3] / mean_of[0]:.1f} times as stale as worker 0's")
assert mean <= WORKERS - 1

# %%
reveal(
    "04.staleness",
    mean,
    "Nearly W − 1 = 3, whatever the speeds: the slow worker's few gradients are very stale, the many others a little "
    "less than 3.",
)

# %%
counts = {f"staleness {stale}": slow.staleness.count(stale) for stale in sorted(set(slow.staleness))}
drawing.bars(counts, "gradients", "Staleness of 240 gradients, one of four workers slow")

# %% [markdown]
# Two facts to take home. On average a gradient is almost **W − 1** changes late, whatever the speeds: between two
# gradients of one worker, each gradient of another counts once. And the slow worker's samples count less often than
# the others', for it brings fewer gradients: with shards of its own, that is a bias towards the fast workers' data.

# %% [markdown] tags=["exercise"]
# ## How stale?
#
# You know whose gradients reached the server in which order. That is enough.

# %% tags=["exercise"]
# exercise: 04.stale

# %% tags=["exercise"]
check("04.stale")

# %% [markdown]
# ## What staleness does to the training
#
# The same optimizer everywhere, learning rate 0.3 and momentum 0.9, and as many gradients: 60 steps of four, or 240 one
# by one. Four equal workers now, so that each gradient is three changes late. For comparison, one worker that does the
# work of all four, part by part: 240 single changes as well, but none of its gradients is stale.

# %%
EQUAL = (0.001,) * WORKERS


def part_by_part(weights, worker, update):
    return gradient_of(WORKERS)(weights, update % WORKERS, update // WORKERS)


alone = Plan(np.zeros(650), part_by_part, STEPS * WORKERS, lr=0.3 / WORKERS, momentum=0.9)
fresh = simulate(2, parameter_server.asynchronous, alone).results[0]
stale = simulate(1 + WORKERS, parameter_server.asynchronous, plan(seconds=EQUAL), **NETWORK).results[0]
steps = {
    "ring": [loss(w) for w in four[0].weights],
    "one by one, fresh": [loss(w) for w in fresh.weights[WORKERS - 1 :: WORKERS]],
    "one by one, stale": [loss(w) for w in stale.weights[WORKERS - 1 :: WORKERS]],
}
print("staleness:", {max(fresh.staleness), *stale.staleness[WORKERS:]})
for name, losses in steps.items():
    print(f"{name:18} loss after 20 steps {losses[19]:.2f}, in the end {losses[-1]:.3f}")
figures.curves(steps, xlabel="step (4 gradients)", ylabel="loss", title="Learning rate 0.3")

# %% [markdown]
# One by one does little harm. Staleness harms the beginning: the optimizer corrects an error, does not see yet that it
# has, corrects it again, and momentum remembers both. In the end, where the steps are small, it has caught up. With a
# smaller learning rate the beginning is smooth, and training takes longer:

# %%
careful = simulate(1 + WORKERS, parameter_server.asynchronous, plan(lr=0.1, seconds=EQUAL), **NETWORK).results[0]
low = [loss(w) for w in careful.weights[WORKERS - 1 :: WORKERS]]
print(f"stale, learning rate 0.1: loss after 20 steps {low[19]:.2f}, in the end {low[-1]:.3f}")
print(f"the ring, learning rate 0.3, in the end {steps['ring'][-1]:.3f}")

# %% [markdown]
# ## And in seconds?
#
# That was the loss over steps. Over *time*, with the slow worker of before, the asynchronous server has its good side:
# it takes its 240 gradients in a third of the ring's time. But a slow worker need not make a ring wait. Give it
# a *smaller share* of every batch, one that takes as long as the others' shares, and count by samples:

# %%
SHARES = (89, 89, 88, 22)  # of 288 samples; 72 take a fast worker 1 ms, the slow one 4 ms
BY_SHARE = tuple(seconds * share / 72 for seconds, share in zip(SPEEDS, SHARES, strict=True))


def by_share(weights, worker, step):
    start = step * BATCH % len(X) + sum(SHARES[:worker])
    mean = gradient(weights, np.arange(start, start + SHARES[worker]))
    return mean * SHARES[worker] / (BATCH / WORKERS)  # the ring divides by 4, not by the samples


shared = Plan(np.zeros(650), by_share, STEPS, 0.3, momentum=0.9, seconds=BY_SHARE)
runs = {
    "ring, equal shares": simulate(WORKERS, parameter_server.ring, plan(seconds=SPEEDS), **NETWORK),
    "synchronous server": simulate(1 + WORKERS, parameter_server.synchronous, plan(seconds=SPEEDS), **NETWORK),
    "asynchronous, lr 0.3": simulate(1 + WORKERS, parameter_server.asynchronous, plan(seconds=SPEEDS), **NETWORK),
    "asynchronous, lr 0.1": simulate(
        1 + WORKERS, parameter_server.asynchronous, plan(lr=0.1, seconds=SPEEDS), **NETWORK
    ),
    "ring, shares by speed": simulate(WORKERS, parameter_server.ring, shared, **NETWORK),
}
ended = {name: (run.time_s * 1e3, loss(run.results[0].weights[-1])) for name, run in runs.items()}
for name, (ms, last) in ended.items():
    print(f"{name:21} {ms:5.1f} ms for {STEPS * BATCH:,} samples, loss {last:.3f}")
weights = [runs[name].results[0].weights[-1] for name in ("ring, equal shares", "ring, shares by speed")]
print(f"both rings, largest difference of a weight: {np.abs(weights[0] - weights[1]).max():.0e}")

waiting, hurrying, sharing = (
    ended[name] for name in ("ring, equal shares", "asynchronous, lr 0.3", "ring, shares by speed")
)
print(f"the server that does not wait is {waiting[0] / hurrying[0]:.2f} times as fast as the ring")
print(f"with shares by speed the ring takes {sharing[0] / hurrying[0]:.2f} times as long as it")


# %%
predict(
    "04.race",
    "Who has the lowest loss after 100 ms of the virtual clock, with one slow worker of four?",
    choices=["ring, equal shares", "ring, shares by speed", "asynchronous, lr 0.3", "asynchronous, lr 0.1"],
)


# %%
def every_ms(history, until=100):
    """The loss at every millisecond of the virtual clock."""
    updates = np.searchsorted(history.times, np.arange(until) * 1e-3, side="right")
    return [loss(history.weights[i - 1] if i else np.zeros(650)) for i in updates]


chosen = ("ring, shares by speed", "ring, equal shares", "asynchronous, lr 0.3", "asynchronous, lr 0.1")
over_time = {name: every_ms(runs[name].results[0]) for name in chosen}
at_the_end = {name: losses[-1] for name, losses in over_time.items()}
figures.curves(over_time, xlabel="virtual time in ms", ylabel="loss", title="One slow worker of four")

# %%
reveal(
    "04.race",
    min(at_the_end, key=at_the_end.get),
    "; ".join(f"{name}: {last:.2f}" for name, last in at_the_end.items()) + ". Nobody waits, and no gradient is stale.",
)

# %% [markdown]
# The ring with shares by speed is about as fast as the server that waits for nobody, and it takes the very steps of the
# serial run. So this workbench, as Horovod, has no server: a single one's link carries more with every worker, many are
# a ring's reduce-scatter and allgather, and not to wait changes the training. (Between the two: *backup workers*. The
# server waits for the first W of W + b gradients and drops the rest; Chen et al. 2016, arXiv:1604.00981.) A server that
# does not wait still has its place where workers come and go, or where their speeds cannot be foreseen.
#
# ## On real ranks
#
# The same functions, unchanged, on four MPI processes. Time is real now, and the gradients take as long as they take.
# First the ring:

# %%
from workbench import cluster
from workbench.course.judging.real_ranks import Engines

engines = cluster.up(n=4)
ranks = Engines(engines)


# %%
def train_in_a_ring(comm):
    return parameter_server.ring(comm, plan())


real = ranks.run(train_in_a_ring, [()] * engines.n)
difference = max(np.abs(a - b).max() for a, b in zip(one[0].weights, real[0].weights, strict=True))
print(f"on MPI, after each of 60 steps, largest difference to the serial run: {difference:.0e}")

# %% [markdown]
# Then the asynchronous server, with three workers, twice. Who comes first is now up to the machine, and with it every
# weight. What holds in every run is checked:


# %%
def train_with_a_server(comm):
    return parameter_server.asynchronous(comm, plan(workers=3, steps=40, lr=0.1))


twice = [ranks.run(train_with_a_server, [()] * engines.n)[0] for _ in range(2)]
for history in twice:
    print(
        f"{len(history.workers)} gradients of workers {sorted(set(history.workers))};",
        "stale on average, but not more than W - 1 = 2:",
        0 < sum(history.staleness) / len(history.staleness) <= 2,
    )

# %% tags=["nbval-ignore-output"]
for history in twice:
    print(
        "order", *history.workers[:24], "…  staleness", {s: history.staleness.count(s) for s in set(history.staleness)}
    )
print("the same weights in both runs:", np.array_equal(twice[0].weights[-1], twice[1].weights[-1]))

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
# **Instructor.** 30 minutes. Ask before the first exercise: three ranks have 5, 5 and 2 samples; is the average of the
# three averages the average of the twelve? Common wrong answers: dividing by `comm.size`; dividing by one's own count;
# `if count == 0: return` in front of the allreduce, so that the others wait for ever; in `sgd_step`, adding one's own
# gradient first and then the others' in the order in which they come, which gives other bits on every rank (the check
# says how many). In `stale`: own changes counted, or only *different* workers counted.
#
# To say: a server is not wrong, it computes the same as the ring as long as it waits. Ask what a fast worker does to
# the data that the model sees when nobody waits, and why two runs of the same cell differ on real ranks. If time is
# short, leave out *And in seconds?*.

# %% [markdown]
# ## Keypoints
#
# - Averaged over equal shards, gradients are those of the whole batch. Over uneven ones, count samples, not ranks.
# - The link of one server carries W·K each way, a ring's less than 2K.
# - Without waiting, gradients are W − 1 changes late on average; with the same learning rate the training begins worse.
# - Give a slow worker less to do, rather than let the others go ahead.
