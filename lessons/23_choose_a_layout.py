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
# # Second capstone: choose a layout
#
# **Question:** a model does not fit on one GPU, and you have some hosts. How many ranks share the data, how many cut
# the layers, how many form a pipeline, and how do you defend your choice before the GPUs are paid for?
#
# **Afterwards you can**
#
# - compute what a GPU keeps and how long a step takes, for each layout,
# - choose the fastest layout that fits, and say which network would change your choice,
# - run a step on a grid of ranks, and prove that it is the step of one process.
#
# **Needs:** two cores, no GPU; four ranks share the cores that you have. **Alone:** 15 minutes to read, 60 to do.
# **Led:** 75 minutes. **Before:** lessons 12, 18 and 20.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 20: What is the bubble of a pipeline of p stages with m micro-batches, and what makes it
# smaller?</summary>
#
# (p − 1)/(m + p − 1) of the step is idle; compared with the computing alone it is (p − 1)/m. More micro-batches make it
# smaller.
#
# </details>
#
# <details>
# <summary>Lesson 16: A figure fits three measurements. Why is that no model of a cluster yet?</summary>
#
# Constants were fitted to these three. It becomes a model when it also says what was held out.
#
# </details>

# %% tags=["both"]
import numpy as np

from workbench import cluster
from workbench.course import drawing
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.judging.real_ranks import ClusterRanks
from workbench.course.predictions import predict, reveal
from workbench.course.simulator import simulate
from workbench.course.simulator.topology import Topology, ring_among
from workbench.course.tasks import t23_layout as t23
from workbench.course.training.layouts import NAMES, Cluster, Transformer, parts, seconds

# %% [markdown]
# ## Three cuts, one product
#
# | cut | divides | sends | costs besides |
# |---|---|---|---|
# | **data** (04, 18) | samples; with ZeRO 1 Adam's state | gradients, once a step | every rank keeps all weights |
# | **tensor** (20) | each layer, its activations | four sums per layer and micro-batch | needs a fast network |
# | **pipeline** (20) | the list of layers | x and its gradient, a micro-batch | the bubble: (p − 1)/m of computing |
#
# A *layout* is four numbers: data × tensor × pipeline = GPUs, and the micro-batches m. `parts(model, cluster, layout)`
# computes the seconds of a step: computing, bubble, sums in the tensor groups, messages from stage to stage, sums in
# the data groups. Nothing is hidden behind computing, so real steps are shorter. Tensor groups use *sequence
# parallelism*: between the cut products each rank has a part of the tokens, so it keeps that part of all activations,
# and sends that part of x to the next stage. Attention's scores are not kept: backward computes them again. The
# formulas, and what they leave out, stand in `workbench/course/training/layouts.py`.
#
# Here is a model as large as GPT-3 on 64 hosts with 8 GPUs each, 1,536 samples in a step:

# %%
large, hosts = Transformer(96, 12288, samples=1536), Cluster(64)
print(f"{large.parameters / 1e9:.0f} G parameters, {hosts.gpus} GPUs of {hosts.memory_bytes / 2**30:.0f} GiB")
for layout in ((512, 1, 1, 1), (64, 8, 1, 1), (4, 8, 16, 384), (4, 4, 32, 384)):
    fits = "fits" if t23.fitting(large, hosts)(*layout) else "does not fit"
    print(f"{layout!s:18} {seconds(large, hosts, layout):6.1f} s  {fits}")

# %%
predict(
    "23.parts",
    "The layout (4, 8, 16, 384) fits. Which part of its step is the largest, after computing?",
    choices=["the bubble", "the tensor groups' sums", "the pipelines' messages", "the data groups' sums"],
)

# %%
computing, *others = parts(large, hosts, (4, 8, 16, 384))
for name, took in zip(NAMES[1:], others, strict=True):
    print(f"{name}: {took:.2f} s, and {computing:.2f} s of computing")
reveal(
    "23.parts",
    NAMES[1 + int(np.argmax(others))],
    "Each layer has four sums for each micro-batch. Tensor groups of 4 instead of 8 send less, and then the pipeline "
    "has to be twice as long.",
)

# %% [markdown]
# ## The network decides
#
# Now a smaller model, 13 G parameters on 8 hosts. With a fast network between the hosts (25 GB/s) and with a slow one
# (1.25 GB/s, 10 Gbit Ethernet), which layout is the fastest that fits?

# %%
predict(
    "23.slow",
    "On the fast network the best layout has 4 data ranks. And on the slow one?",
    choices=["more than 4", "4, too", "2", "1: gradients are not sent at all"],
)

# %%
best = {}
for number in (1, 2):
    name, model, place = t23.jobs()[number]
    best[number] = t23.best(number)
    took = parts(model, place, best[number])
    print(f"{name}: {best[number]}, {sum(took):.2f} s")
    print("  " + ", ".join(f"{part} {took:.2f} s" for part, took in zip(NAMES, took, strict=True)))
data = best[2][0]
reveal(
    "23.slow",
    {1: "1: gradients are not sent at all", 2: "2", 4: "4, too"}.get(data, "more than 4"),
    "Gradients of a data group go over the slow network, and so do the messages between stages on different hosts: x "
    "forward and its gradient back, of every token. With fewer data ranks there is less of the one and more of the "
    "other. A single pipeline sends no gradients, and takes longer: all tokens pass every host.",
)

# %%
layouts = [(64, 1, 1, 4), (8, 8, 1, 16), (4, 2, 8, 128), (2, 4, 8, 256), (1, 8, 8, 64)]
_, model, slow = t23.jobs()[2]
drawing.bars(
    {str(layout): seconds(model, slow, layout) for layout in layouts},
    "s",
    "A step of 13 G parameters, slow network",
    best=seconds(model, slow, t23.best(2)),
)

# %% [markdown]
# ## Defend it in the simulator
#
# The formulas say that tensor groups belong inside a host. The simulator can contradict them: it sends messages, and
# knows no formula. `grid_step` is the last exercise: a step of two layers on data × tensor ranks. Here it runs on two
# simulated hosts with two ranks each, first with each tensor group on one host, then with each group on both.

# %%
step = t23.grid_step  # the solution; yours does the same
inputs = [(*one[:4], 1e-4, 2) for one in t23.grid(2, 2, hidden=1024, samples=64).inputs]


def on_the_grid(comm):
    return step(comm, *inputs[comm.rank])


inside = simulate(4, on_the_grid, link=Topology(["a", "a", "b", "b"]))
across = simulate(4, on_the_grid, link=Topology(["a", "b", "a", "b"]))
print(f"tensor groups inside a host: {inside.time_s * 1e6:.0f} µs of messages")
print(f"tensor groups on two hosts:  {across.time_s * 1e6:.0f} µs of messages")

# %% [markdown]
# In this small step gradients are larger than outputs: 64 samples with 3 outputs each are 1.5 kB, a rank's two
# gradients 33 kB. So the tensor group may as well be on two hosts; what counts is where the data groups are. In a
# transformer it is the other way round: 2 h s bytes of activations per sample and sum, hundreds of times in a step. The
# rule is: *the group that sends most gets the fastest links*. Count before you follow a habit.
#
# ## Run it
#
# The same function on four real ranks, ten steps; and one process with all samples and the whole matrices.

# %%
engines = cluster.up(n=4)
ranks = ClusterRanks(engines)


# %%
def train(comm, x, y, w1, w2, lr, tensor):
    for _ in range(10):
        w1, w2 = step(comm, x, y, w1, w2, lr, tensor)
    return w1, w2


inputs = [(*one[:4], 1e-4, 2) for one in t23.grid(engines.n // 2, 2, hidden=1024, samples=64).inputs]
real, pairs = ranks.run(train, inputs), range(0, engines.n, 2)
x, y = (np.concatenate([inputs[k][i] for k in pairs]) for i in (0, 1))
w1, w2 = np.hstack([inputs[0][2], inputs[1][2]]), np.vstack([inputs[0][3], inputs[1][3]])
one1, one2 = simulate(1, lambda comm: train(comm, x, y, w1, w2, 1e-4, 1)).results[0]
off1 = max(abs(np.hstack([real[k][0], real[k + 1][0]]) - one1).max() for k in pairs)
off2 = max(abs(np.vstack([real[k][1], real[k + 1][1]]) - one2).max() for k in pairs)
print("after ten steps the grid's weights differ from one process's by rounding only:", bool(max(off1, off2) < 1e-12))
same = all((real[k + j][i] == real[j][i]).all() for k in pairs for j in (0, 1) for i in (0, 1))
print("the two data ranks have the same bits:", same)

# %%
engines.down()

# %% [markdown] tags=["exercise"]
# First run the cell with the imports. Everything except the last section works without engines.
#
# ## What a GPU keeps

# %% tags=["exercise"]
# exercise: 23.bytes_per_gpu

# %% tags=["exercise"]
check("23.bytes_per_gpu")

# %% [markdown] tags=["exercise"]
# ## The fastest that fits
#
# A few hundred layouts at most: a program tries them all. (For thousands of GPUs and more cuts, search is an art of its
# own.)

# %% tags=["exercise"]
# exercise: 23.choose

# %% tags=["exercise"]
check("23.choose")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 75 minutes, 60 of them for the exercises. In pairs. Let each pair defend its layout for one
# job before they run `check`: which part of the step would grow with half of the hosts, and which with a slower
# network? Common wrong answers: fits() is not asked; tensor is always a whole host; one sample per micro-batch. In
# `23.grid_step` let them write the four ranks in a square first: rows share samples, columns share weights.

# %% [markdown] tags=["exercise"]
# ## A step on a grid of ranks
#
# Both sums of lesson 20, and the mean of lesson 04, each in its group.

# %% tags=["exercise"]
# exercise: 23.grid_step

# %% tags=["exercise"]
check("23.grid_step")

# %% [markdown] tags=["exercise"]
# ## Your report
#
# Choose a job, and defend the layout that you would run. `parts` says where its time goes; the two others say what
# changes your mind.

# %% tags=["exercise"]
name, model, place = t23.jobs()[4]
mine = choose(*t23.asked(model, place))
slow = Cluster(place.hosts, between_s=10 * place.between_s)
print(f"{name}: {mine}, {seconds(model, place, mine):.1f} s a step")
for part, took in zip(NAMES, parts(model, place, mine), strict=True):
    print(f"  {part}: {took:.2f} s")
print("with a network ten times as slow:", choose(*t23.asked(model, slow)))
print("with half of the hosts:", choose(*t23.asked(model, Cluster(place.hosts // 2))))

# %% [markdown] tags=["exercise"]
# ## On real ranks
#
# With engines, `check` also runs your step on four MPI processes:

# %% tags=["exercise"]
engines = cluster.up(n=4)
check("23.grid_step")

# %% tags=["exercise"]
engines.down()

# %% [markdown]
# ## Keypoints
#
# - A layout is data × tensor × pipeline = GPUs, and the number of micro-batches. Memory says what is possible, time
#   what is best.
# - Tensor groups send most, so they get the fastest links. Between hosts, data ranks send gradients and pipelines send
#   activations: count both for your model and your tokens.
# - More micro-batches make the bubble smaller; each pays the latencies of its messages.
# - A term that a model leaves out is a claim that it is 0. Ask which terms are missing before you trust a choice.
# - A formula is a claim: let a simulator and four real ranks contradict it.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **PyTorch's `DeviceMesh`** names the axes of such a grid: `init_device_mesh("cuda", (8, 8))` makes the process
#   groups of its rows and columns
#   ([source](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.device_mesh.init_device_mesh)).
# - **PyTorch's `parallelize_module`** cuts layers over one axis of the mesh, by `ColwiseParallel` and
#   `RowwiseParallel`; `fully_shard` takes the other axis
#   ([source](https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html)).
# - **torchtitan** combines FSDP2, tensor, pipeline and context parallelism, by numbers in a configuration file
#   ([source](https://arxiv.org/abs/2410.06511)).
# - **Megatron-LM** describes how to choose: tensor parallelism up to a host, pipelines across hosts, data parallelism
#   for the rest ([source](https://arxiv.org/abs/2104.04473)).
# - **JAX** has one mesh for all cuts: `jax.sharding.Mesh` with named axes, and the compiler puts in the collectives
#   ([source](https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html)).
