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
# # Is it faster? One against N
#
# **Question:** the training runs on N ranks. How much faster is it, how do you know, and when is it slower?
#
# **Afterwards you can**
#
# - time a distributed training honestly, and name the mistake in a figure that is too good,
# - say what speed-up and efficiency are, for strong and for weak scaling,
# - predict both from two figures of the links, two of the model, and T(n) = G/n + C(n),
# - find how much a step must compute before N ranks are faster than one.
#
# **Needs:** two cores, no GPU. **Alone:** 30 minutes to read, 13 to do. **Led:** 50 minutes. **Before:** lessons 03 and
# 06.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 06: How much faster can overlap with the backward pass make a step, at best?</summary>
#
# Less than twice. The shorter one of backward and communication can at most vanish behind the longer one, so these two
# become at most twice as fast. The forward pass takes as long as before.
#
# </details>
#
# <details>
# <summary>Lesson 01: An error says: “rank 2 has not called allreduce ‘loss’; ranks 0, 1 and 3 wait in line 12”. Where
# do you look first?</summary>
#
# At what rank 2 does in place of line 12: a condition that depends on its own data or rank, a loop with fewer steps,
# an exception.
#
# </details>

# %% tags=["both"]
import inspect

import numpy as np

from workbench import cluster
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.simulator import simulate
from workbench.course.simulator.stopwatches import from_the_beginning, own_work, whole_steps
from workbench.course.training.scaling import Model, draw, line

# %% [markdown]
# ## Three stopwatches
#
# First use the simulator, where the right answer is known. On n ranks a training step computes for 40/n ms on each
# rank, then a ring adds up 4 MB of gradients (α = 20 µs, 1 GB/s). The first step takes 100 ms more, because of memory,
# caches and compilers. And the last of several ranks has a slower core: its part takes 1.5 times as long. Three
# functions time this training. Each returns seconds per step, and we read them on rank 0:

# %%
stopwatches = (from_the_beginning, own_work, whole_steps)
for stopwatch in stopwatches:
    print(inspect.getsource(stopwatch))

# %%
from workbench.course.predictions import predict, reveal

predict(
    "08.stopwatch",
    "Each function gives a speed-up of four ranks over one. Put them in order, the smallest speed-up first.",
    order=["from_the_beginning", "own_work", "whole_steps"],
)

# %%
speedups = {}
for stopwatch in stopwatches:
    one, four = (simulate(n, stopwatch).results[0] for n in (1, 4))
    speedups[stopwatch.__name__] = one / four
    print(
        f"{stopwatch.__name__:18}  1 rank {one * 1e3:4.1f} ms, 4 ranks {four * 1e3:4.1f} ms, speed-up {one / four:.2f}"
    )

# %%
from workbench.course.simulator.stopwatches import train_step


def ten_more(n):
    """Virtual seconds of ten steps after the first, until the last rank is through them: no stopwatch is needed."""

    def train(comm, steps):
        for number in range(steps):
            train_step(comm, number)

    return simulate(n, train, 11).time_s - simulate(n, train, 1).time_s


gained = ten_more(1) / ten_more(4)
said = {each.__name__: simulate(1, each).results[0] / simulate(4, each).results[0] for each in stopwatches}
reveal(
    "08.stopwatch",
    sorted(speedups, key=speedups.get),
    "whole_steps is right: on 4 ranks the slowest computes for 15 ms, and the ring takes 2·3·(20 µs + 1 ms) = 6.1 ms.",
)

# %% [markdown]
# - `from_the_beginning` counts the first step, which happens once in hours of training. The 100 ms are in both times,
#   so the speed-up is too small.
# - `own_work` stops before the gradients have been sent, and ignores the slower rank. The speed-up is ideal, and an
#   ideal speed-up is a warning. The same happens whenever work was only *started* when the clock stops: an asynchronous
#   allreduce, a kernel on a GPU (there, call `torch.cuda.synchronize()` before both readings).
# - `whole_steps` is right: **warm up, start together (barrier), time whole steps, take the slowest rank, and the median
#   of several rounds.**
#
# ## On real ranks
#
# Two ranks, two trainings of scans of digits: a convolutional network with a batch of 288, and a tiny one, a single
# linear layer with a batch of 32.

# %%
engines = cluster.up(n=2)

# %%
# %%px
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import workbench.torch as hvd
from workbench import data

hvd.init()
digits = data.digits()
images, labels = torch.from_numpy(digits.train_x), torch.from_numpy(digits.train_y)


def convolutional():
    layers = [nn.Conv2d(1, 48, 3, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(192, 10))


def tiny():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def seconds(make, ranks, global_batch, steps):
    """Seconds per step on the first ``ranks`` ranks, as a list of all these ranks."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if ranks > 1:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    mine = slice(hvd.rank(), global_batch, ranks)
    x, y = images[mine], labels[mine]
    for step in range(-2, steps):
        if step == 0:  # two steps of warm-up
            hvd.barrier()
            start = time.perf_counter()
        if hvd.rank() < ranks:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    took = (time.perf_counter() - start) / steps
    return hvd.allgather(torch.tensor([took], dtype=torch.float64))[:ranks].tolist()


# %% [markdown]
# While rank 0 trains alone, the other one waits, which costs no CPU time. One and two ranks are timed alternately,
# round by round: then other programs that run on the machine mostly disturb both.


# %%
# %%px
def in_turns(make, batch, steps, together=1):
    """Rounds of one rank with ``batch``, and of two with ``together`` times as much."""
    pairs = [(seconds(make, 1, batch, steps), seconds(make, 2, together * batch, steps)) for _ in range(6)]
    return [list(each) for each in zip(*pairs[1:], strict=True)]  # the first round is warm-up, too


rounds = {"convolutional": in_turns(convolutional, 288, 4), "tiny": in_turns(tiny, 32, 60)}
weak = in_turns(convolutional, 288, 3, together=2)

# %% [markdown]
# `rounds` has, for each network, the seconds of every rank in every round, alone and together. They become one figure
# in three steps: the slowest rank of each round, the ratio within each round, the median over the rounds. The function
# is your exercise; here its solution is used.

# %%
predict(
    "08.tiny",
    "The tiny network, 650 parameters, batch 32: how fast is it on two ranks?",
    choices=["nearly twice as fast as on one", "about as fast as on one", "slower than on one"],
)

# %%
from statistics import median

from workbench.course.tasks import task

speedup = task("08.speedup").reference
rounds, weak = engines.client[0].pull(["rounds", "weak"], block=True)
measured = {name: speedup(alone, together) for name, (alone, together) in rounds.items()}
assert measured["convolutional"][0] > measured["tiny"][0]

# %%
times = measured["tiny"][0]
reveal(
    "08.tiny",
    "slower than on one"
    if times < 0.9
    else "about as fast as on one"
    if times < 1.3
    else "nearly twice as fast as on one",
    "One step computes for less than a millisecond, and the second rank saves at most half of that. To announce the "
    "gradients, to agree on them and to send them takes longer.",
)

# %% tags=["nbval-ignore-output"]
for name, (times, efficiency) in measured.items():
    alone = median(max(seconds) for seconds in rounds[name][0]) * 1e3
    print(f"{name:13}  alone {alone:6.2f} ms per step,  2 ranks: speed-up {times:.2f}, efficiency {efficiency:.0%}")

# %% [markdown]
# The convolutional network is clearly faster on two ranks, if each rank has a core for itself. Where other programs use
# the cores, two ranks may be no faster than one, a speed-up of 1.0: that says nothing about the ranks. Look with `top`
# before you believe a figure, and measure again when the machine is quiet. The predictions below suffer as well.
#
# Compared with what? "Alone" is one rank with its share of the cores. One process without ranks uses all cores. The
# process of this notebook does that here:

# %%
import time

import torch
from torch import nn

from workbench import data

digits = data.digits()
x, y = torch.from_numpy(digits.train_x[:288]), torch.from_numpy(digits.train_y[:288])
layers = [nn.Conv2d(1, 48, 3, padding=1), nn.ReLU()]
layers += [nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4)]
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(192, 10))
optimizer, took = torch.optim.SGD(model.parameters(), lr=0.01), []
for _ in range(12):
    start = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    took.append(time.perf_counter() - start)

# %% tags=["nbval-ignore-output"]
both = median(max(seconds) for seconds in rounds["convolutional"][1])
print("convolutional, ms per step")
print(f"  one process with {torch.get_num_threads()} threads: {median(took[2:]) * 1e3:.2f}")
print(f"  2 ranks with their share: {both * 1e3:.2f}")

# %% [markdown]
# If the ranks are processes on the cores of one machine, they must be faster than *that*. With one GPU for each rank
# this question does not arise.
#
# **Speed-up:** how many times as fast as one rank. **Efficiency:** the speed-up divided by the number of ranks. Here
# both ranks together had the batch of one rank. That is **strong scaling**. If each rank keeps the whole batch, it is
# **weak scaling**: two ranks do twice the work, ideally in the same time. The efficiency is then the time of one rank
# divided by that of n ranks.

# %% tags=["nbval-ignore-output"]
print(f"weak scaling, convolutional, 288 images for each of 2 ranks: efficiency {speedup(*weak)[0]:.0%}")

# %% [markdown]
# ## The model T(n) = G/n + C(n)
#
# At an equal global batch, n ranks divide the computation G among them, and communication C is added. With a ring and K
# bytes of gradients
#
# > T(n) = G/n + C(n), where C(n) = 2(n − 1) · (α + β · K/n).
#
# All of it is known before the first run on N ranks. G is a step's time on one rank, K is 4 bytes times the number of
# parameters, α and β come from two allreduces, of 16 kB and 16 MB. (An array of up to 4 kB would be sent inside the
# announcement, without its own message: that time is not α.)


# %%
# %%px
def allreduce_seconds(nbytes, rounds=15):
    array, took = np.ones(nbytes // 4, np.float32), []
    for _ in range(rounds):
        hvd.barrier()
        start = time.perf_counter()
        hvd.allreduce(torch.from_numpy(array), name="ping")
        seconds = torch.tensor(time.perf_counter() - start)
        took.append(hvd.allreduce(seconds, op=hvd.Max).item())  # of the slowest rank
    return sorted(took)[rounds // 2]


links = [(nbytes, allreduce_seconds(nbytes)) for nbytes in (16_000, 16_000_000)]
parameters = {}
for make in (convolutional, tiny):
    parameters[make.__name__] = sum(p.numel() for p in make().parameters())

# %%
links, parameters = engines.client[0].pull(["links", "parameters"], block=True)
alpha_s, beta_s = line(*links, n=2)
models = {
    name: Model(median(max(seconds) for seconds in alone), 4 * parameters[name], alpha_s, beta_s)
    for name, (alone, _) in rounds.items()
}
print("K:", {name: f"{model.nbytes:,} bytes" for name, model in models.items()})
assert models["convolutional"].speedup(2) > models["tiny"].speedup(2)

# %% tags=["nbval-ignore-output"]
for nbytes, seconds in links:
    print(f"allreduce of {nbytes:10,} bytes: {seconds * 1e3:6.2f} ms")
print(f"α = {alpha_s * 1e6:.0f} µs, 1/β = {1e-9 / max(beta_s, 1e-12):.1f} GB/s")
for name, model in models.items():
    print(f"{name:13}  2 ranks: predicted {model.speedup(2):.2f}, measured {measured[name][0]:.2f}")

# %% tags=["nbval-ignore-output"]
draw(
    models,
    [1, 2],
    {1: 1.0, 2: measured["convolutional"][0]},
    "Lines: predicted; point: convolutional, measured",
)

# %% [markdown]
# Where prediction and measurement differ, look for what the model leaves out:
#
# - work that does not become less with a smaller batch: each rank runs its own optimizer step, and makes as many calls
#   as one rank alone;
# - cores that share one memory;
# - communication hidden behind computation (lesson 06). This makes the measured figure better.
#
# ## More ranks than you have
#
# A model can predict more ranks. Take 25.6 million parameters (ResNet-50 has as many), 200 ms per step on one rank,
# links with α = 20 µs and 10 GB/s. These are assumptions, not a measurement.

# %%
large = Model(compute_s=0.200, nbytes=4 * 25.6e6, alpha_s=20e-6, beta_s=1e-10)
print("   n   step    speed-up  efficiency  |  weak: efficiency")
for n in (1, 2, 4, 8, 16, 32, 64, 512, 4096):
    print(
        f"{n:4}  {large.step_s(n) * 1e3:6.1f} ms  {large.speedup(n):5.2f}   {large.efficiency(n):7.0%}      |  "
        f"{large.weak_efficiency(n):7.0%}"
    )

# %%
predict(
    "08.best",
    "The same model on links with 1.25 GB/s and 50 µs, and a fixed global batch: with how many ranks is a step "
    "shortest?",
    number="ranks",
    tolerance=0.3,
)

# %%
slower = Model(compute_s=0.200, nbytes=4 * 25.6e6, alpha_s=50e-6, beta_s=8e-10)
best = max(range(1, 513), key=slower.speedup)
print(f"1.25 GB/s: best with n = {best}, speed-up {slower.speedup(best):.2f}; with 512 ranks {slower.speedup(512):.2f}")
print(f"weak scaling, 512 ranks: {large.weak_efficiency(512):.0%} at 10 GB/s, {slower.weak_efficiency(512):.0%} here")
draw({"10 GB/s": large, "1.25 GB/s": slower}, [1, 2, 4, 8, 16, 32], title="Equal global batch, in the model")

# %%
reveal(
    "08.best",
    best,
    f"Even then it is only {slower.speedup(best):.2f} times as fast as one rank. T(n) = (G − 2βK)/n + 2αn + constant "
    "is least at n = √((G − 2βK) / 2α).",
)

# %% [markdown]
# - **Strong scaling:** the global batch stays, each rank has less to do. G/n shrinks; the bytes in C(n) cost
#   2βK · (n − 1)/n, which tends to 2βK, and the latency grows as 2αn. So the speed-up has a limit at one best n.
# - **Weak scaling:** the *local* batch stays, so the global batch grows with n. A step takes G + C(n) and does n times
#   the work. The efficiency is G/(G + C(n)). The bytes in C(n) hardly grow with n, but its latency, 2αn, does. So the
#   efficiency falls slowly, and with thousands of ranks a ring has a limit here, too: see the last rows of the table.
#   Large machines add up along trees, or in two levels. What a large batch does to the training is lesson 09.
#
# ## Break-even
#
# n ranks are faster than one if G > G/n + C(n), that is if
#
# > G > n/(n − 1) · C(n) = 2(nα + βK).
#
# The tiny network is far below that: one rank has finished the step before two ranks have exchanged anything. A larger
# batch per step, more computation per byte of gradients, or fewer messages (lesson 07) help; more ranks do not.

# %%
print("650 parameters, α = 200 µs, 1 GB/s")
for n in (2, 8, 64):
    border = task("08.break_even").reference(n, 4 * 650, 200e-6, 1e-9)
    twice = Model(2 * border, 4 * 650, 200e-6, 1e-9)
    print(
        f"{n:2} ranks are faster than one if G > {border * 1e3:5.2f} ms; "
        f"if G is twice that, {twice.speedup(n):.2f} times as fast"
    )

# %%
engines.down()

# %% [markdown] tags=["exercise"]
# ## A ring's time
#
# First run the cell above. `check` judges your function, `hint` gives a hint, `solution` shows the solution.
#
# Compute C(n) of the lesson: the time of a ring allreduce.

# %% tags=["exercise"]
# exercise: 08.ring_time

# %% tags=["exercise"]
check("08.ring_time")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 50 minutes, 13 of them for the exercises. Before the stopwatches are run, let them vote which
# one is right. Before two ranks are timed, let all learners write down an efficiency; the one who is closest to the
# measured value explains why. Common wrong answers: the whole array in each step of the ring; rank 0's seconds only;
# the quotient of two medians or of the best rounds, where the busy moment of one side is compared with a quiet one of
# the other; C(n) alone as the border, which forgets that n ranks still have G/n to compute.

# %% [markdown] tags=["exercise"]
# ## An honest speed-up
#
# Compute two numbers from the seconds of all ranks in all rounds, as the lesson does with `rounds`.

# %% tags=["exercise"]
# exercise: 08.speedup

# %% tags=["exercise"]
check("08.speedup")

# %% [markdown] tags=["exercise"]
# ## Break-even
#
# How long must a step compute, so that n ranks take as long as one?

# %% tags=["exercise"]
# exercise: 08.break_even

# %% tags=["exercise"]
check("08.break_even")

# %% [markdown]
# ## Keypoints
#
# - Warm up, start with a barrier, time whole steps, take the slowest rank and the median over rounds in turns.
# - T(n) = G/n + C(n): computation is divided, communication is added.
# - Strong scaling has a limit early; weak scaling has it late, where a ring's latency 2αn counts, and it changes the
#   batch.
# - A small model is slower on many ranks. Calculate the break-even before you pay for them.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **nccl-tests** print the *bus bandwidth*: for an allreduce, 2(n − 1)/n · K divided by the time. It can be compared
#   with the hardware's figure for any n
#   ([source](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)).
# - **PyTorch's `torch.utils.benchmark.Timer`** warms up, and synchronises the GPU before it reads the clock
#   ([source](https://docs.pytorch.org/docs/stable/benchmark_utils.html)).
# - **JAX** returns before the device has finished: call `block_until_ready()` before you read the clock. The first
#   call also compiles ([source](https://docs.jax.dev/en/latest/benchmarking.html)).
# - **PyTorch's profiler** records collectives next to the GPU's other work. Holistic Trace Analysis computes from its
#   files how much communication was hidden ([source](https://hta.readthedocs.io/)).
# - **MFU** is the usual figure for language models: the model's own arithmetic per second, divided by the hardware's
#   peak (PaLM, 2022). torchtitan logs it ([source](https://arxiv.org/abs/2204.02311)).
