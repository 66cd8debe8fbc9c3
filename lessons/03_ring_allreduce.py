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
# # Ring allreduce
#
# **Question:** every rank has an array, and every rank needs the sum of all of them. What is the least number of bytes
# that must be sent, and how?
#
# **Afterwards you can**
#
# - explain the two halves of the ring, reduce-scatter and allgather,
# - derive how many bytes each rank sends, and how that grows with the number of ranks,
# - write it yourself, and run the same function in a simulator and on real MPI ranks.
#
# **Needs:** a laptop, no GPU. **Alone:** 15 minutes to read, 20 to do. **Led:** 45 minutes. **Before:** lesson 02.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 02: A reduction to one rank: how many messages does it need with n ranks, and in how many rounds, as
# a star and as a tree?</summary>
#
# n − 1 messages with both. A star needs n − 1 rounds at its centre, a tree ⌈log₂ n⌉.
#
# </details>
#
# <details>
# <summary>Lesson 00: Which of the six steps does every rank do with <em>other</em> data, and which with the
# <em>same</em>?</summary>
#
# Shards are different on each rank. Weights, averaged gradients, and therefore the weights after the step are the same
# on all.
#
# </details>

# %% tags=["both"]
import inspect

import numpy as np

from workbench.collectives.ring import naive_allreduce, ring_allreduce
from workbench.course import drawing
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.simulator import simulate
from workbench.observe.player import play

# %% [markdown]
# ## The obvious algorithm, and what it costs
#
# All ranks send their arrays to rank 0, which adds them up and sends the sum back. The workbench has this function for
# comparison. It is written for a `link`, which has one verb: `link.sendrecv(send, dest, receive, source)` sends the
# first array and fills the second one; if one of them is None, it only does the other half. Your functions use `comm`,
# as in lesson 02.

# %%
print(inspect.getsource(naive_allreduce).split('"""')[2])

# %% [markdown]
# The *simulator* runs a function on n ranks that are threads of this process, one at a time, on a virtual clock: a
# message of m bytes takes α + β·m seconds, and does not share its link with other messages; adding up takes no time. So
# a run is the same every time, and its messages can be counted and drawn.


# %%
def naive(comm, length=100_000):
    array = np.full(length, float(comm.rank))
    naive_allreduce(comm, array)
    return array[0].item()


run = simulate(4, naive)
print("sums:", run.results)
drawing.space_time(run, "The naive way")

# %% [markdown]
# Rank 0 is busy all the time; the other ranks wait. With n ranks it receives and sends 2(n − 1) arrays.
#
# ## The ring
#
# Cut the array into n chunks. In each of n − 1 steps, every rank sends one chunk to its right neighbour and adds the
# chunk that it receives from the left. Then each rank has *one* complete chunk of the sum. That is the
# **reduce-scatter**. In n − 1 more steps the complete chunks go once around the ring: the **allgather**. The number in
# a field is the number of ranks whose values are in that chunk.

# %%
drawing.ring_chunks(4)

# %%
from workbench.course.predictions import predict, reveal

predict(
    "03.bytes",
    "Four ranks, an array of 800 kB on each. How many bytes does each rank send, in both halves together?",
    choices=["200 kB", "800 kB", "1,200 kB", "2,400 kB"],
)

# %% [markdown]
# Here is the same picture, step by step. A chunk with a frame has just arrived. Before each *Step*, say which chunks
# will be sent, and to which rank.

# %% tags=["nbval-ignore-output"]
play(drawing.ring_chunks(4))


# %%
def ring(comm, length=100_000):
    array = np.full(length, float(comm.rank))
    ring_allreduce(comm, array)
    return array[0].item()


run = simulate(4, ring)
print("sums:", run.results)
drawing.space_time(run, "The ring")

# %%
sent = {f"{nbytes / 1000:,.0f} kB" for _, nbytes in run.sent()}
reveal(
    "03.bytes",
    *sent,
    "2(n − 1) = 6 messages of a quarter of the array: 6 · 200 kB. Every rank sends the same number of bytes.",
)

# %%
predict(
    "03.growth",
    "And on 16 ranks, with the same 800 kB on each: how many times as many bytes does each rank send as on 4?",
    number="times",
    tolerance=0.05,
)

# %% [markdown]
# Here each message appears when it is sent. Point at a bar to see how long it took.

# %% tags=["nbval-ignore-output"]
play(drawing.space_time(run, "The ring"))

# %% [markdown]
# Every rank sends and receives all the time. Each rank sends 2(n − 1) messages of one n-th of the array, so 2(n − 1)/n
# · K bytes. With messages between ranks, no algorithm has a *busiest* rank that sends less (Patarasuk and Yuan, 2009):
# for each element, n − 1 ranks must send their contribution, and n − 1 ranks must receive the sum. That is 2(n − 1)·K
# on all ranks together, and the busiest of n ranks sends at least an n-th of it. A single rank may send less. All ranks
# may send less if the switches of the network do the addition.
#
# Sources: [Patarasuk and Yuan 2009](https://doi.org/10.1016/j.jpdc.2008.09.002) for the bound; [Gibiansky, Baidu
# 2017](https://andrew.gibiansky.com/blog/machine-learning/baidu-allreduce/) for the ring in deep learning; [Sergeev and
# Del Balso 2018](https://arxiv.org/abs/1802.05799) for Horovod, which made a library of it.

# %%
size = 100_000 * 8
for n in (2, 4, 8, 16):
    runs = {"naive": simulate(n, naive), "ring": simulate(n, ring)}
    most = {name: max(sent for _, sent in one.sent()) / size for name, one in runs.items()}
    times = {name: one.time_s * 1e3 for name, one in runs.items()}
    bound = 2 * (n - 1) / n
    print(
        f"n = {n:2}: naive {most['naive']:5.2f} K from the busiest rank, {times['naive']:6.2f} ms;  "
        f"ring {most['ring']:.2f} K (2(n - 1)/n = {bound:.2f}), {times['ring']:.2f} ms"
    )

# %%
four, sixteen = (max(sent for _, sent in simulate(n, ring).sent()) for n in (4, 16))
reveal(
    "03.growth",
    sixteen / four,
    "2(n − 1)/n is 1.5 for 4 ranks, 1.875 for 16, and never 2: more ranks send smaller chunks. On rank 0 of the naive "
    "algorithm it is five times as much.",
)

# %%
n = 16
sent = {name: max(sent for _, sent in simulate(n, one).sent()) for name, one in (("naive", naive), ("ring", ring))}
drawing.bars(sent, "bytes", f"Bytes sent by the busiest of {n} ranks", best=2 * (n - 1) / n * size)

# %% [markdown]
# ## When the ring is not the best
#
# The dashed line is the bound 2(n − 1)/n · K. But the ring needs 2(n − 1) messages one after the other, each with its
# latency α. A tree, up and down again, has 2⌈log₂ n⌉ rounds. For a small array only the latency counts:


# %%
predict(
    "03.small",
    "Eight bytes on 16 ranks: how many times as long as the tree does the ring take?",
    choices=["half as long", "as long", "almost 4 times as long", "almost 16 times as long"],
)


# %%
def tree(comm, length):
    return comm.allreduce(np.ones(length))[0]


for length in (1, 1_000, 100_000):
    faster = {name: simulate(16, one, length).time_s for name, one in (("tree", tree), ("ring", ring))}
    print(f"{8 * length:7,} bytes on 16 ranks: the {min(faster, key=faster.get)} is faster")

# %%
longer = simulate(16, ring, 1).time_s / simulate(16, tree, 1).time_s
choices = {0.5: "half as long", 1: "as long", 4: "almost 4 times as long", 16: "almost 16 times as long"}
reveal(
    "03.small",
    choices[min(choices, key=lambda times: abs(times - longer))],
    f"{longer:.2f} times: the ring has 30 messages one after the other, the tree 8. With eight bytes each message "
    "costs only its latency.",
)

# %% [markdown] tags=["exercise"]
# First run the cell above. `show` draws your function, `check` judges it, `hint` gives a hint, `solution` shows the
# solution; all of them work without engines. With `cluster.up(n=4)`, `check` also runs it on real MPI ranks.
#
# ## The first half
#
# `chunks` is this rank's list of n arrays. Return chunk number `(rank + 1) % n` of the sum over all ranks.

# %% tags=["exercise"]
# exercise: 03.reduce_scatter

# %% tags=["exercise"]
check("03.reduce_scatter")

# %% [markdown] tags=["exercise"]
# Step through your own run. The digits in a field are the ranks whose values are in that sum. A digit that appears
# twice was added twice, and a small digit is the chunk that it really belongs to. The first wrong step is red, with the
# line of your function that caused it. `show("03.reduce_scatter", times=True)` draws messages over time.

# %% tags=["exercise"]
show("03.reduce_scatter")

# %% [markdown] tags=["exercise"]
# ## The whole ring
#
# Now compute the sum on every rank. `np.array_split` cuts an array into n chunks whose lengths differ by at most one,
# so the length of `x` need not be divisible by n; it may even be 0.

# %% tags=["exercise"]
# exercise: 03.ring_allreduce

# %% tags=["exercise"]
check("03.ring_allreduce")

# %% tags=["exercise"]
show("03.ring_allreduce")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 45 minutes, 20 of them for the exercises. Let them draw the four ranks' chunks on paper for
# two steps before they write a line. Common wrong answers: the second half sends chunk `rank - step` again (right would
# be `rank + 1 - step`); adding instead of replacing in the second half; `x` itself is changed. Those who are done
# early: how many bytes does `comm.allreduce` send, and why does its score not pass?

# %% [markdown] tags=["exercise"]
# ## On real ranks
#
# The same function, unchanged, on four MPI processes:

# %% tags=["exercise"]
from workbench import cluster

engines = cluster.up(n=4)
check("03.ring_allreduce")

# %% tags=["exercise"]
engines.down()

# %% [markdown]
# ## Keypoints
#
# - Ring allreduce is reduce-scatter, then allgather: 2(n − 1) messages and 2(n − 1)/n · K bytes per rank.
# - The bytes that each rank sends hardly grow with n; the latency does. So the ring is for large arrays.
# - Ring and tree are not the whole choice. Halving and doubling (Rabenseifner's algorithm) sends as few bytes as the
#   ring, in 2 log₂ n steps, where n is a power of two; other n need a step more before and after, with more bytes. A
#   double binary tree has both trees carry half of the array.
# - A function that uses `comm` runs in the simulator and on MPI without a change.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **NCCL** chooses between ring, double binary tree, and adding in the switches, for each call, by its own estimate
#   of the time. `NCCL_ALGO` limits the choice, for experiments
#   ([source](https://developer.nvidia.com/blog/understanding-nccl-tuning-to-accelerate-gpu-to-gpu-communication/)).
# - **NVLS** (NCCL 2.17): inside an NVLink domain the NVLink switches do the addition. NVIDIA calls this NVLink SHARP
#   ([source](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo)).
# - **SHARP** is the same in InfiniBand switches. NCCL uses it through a plug-in called CollNet, which is off unless
#   `NCCL_COLLNET_ENABLE=1`
#   ([source](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-collnet-enable)).
# - **GPUDirect RDMA:** the network card reads and writes the GPU's memory itself. NCCL uses it where card and GPU are
#   close enough to each other ([source](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html)).
# - **Gloo**, PyTorch's backend for CPUs, takes the ring for an allreduce, unless its caller names another algorithm
#   ([source](https://github.com/pytorch/gloo/blob/main/gloo/allreduce.cc)).
