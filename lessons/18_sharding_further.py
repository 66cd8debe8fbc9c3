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
# # Sharding further: ZeRO 1, 2 and 3
#
# **Question:** in data parallelism every rank holds the same parameters, the same averaged gradients and the same
# optimizer state. Why should n ranks hold n copies? What need a rank not store, and what must then be sent?
#
# **Afterwards you can**
#
# - say how many bytes a rank holds and sends with each of ZeRO's three stages, and derive it from two collectives,
# - find out which rank owns which elements of which parameter,
# - write a step that updates only the part that a rank owns, and a forward pass that gathers one layer at a time,
# - train with `sharded="gradients"` and `sharded="parameters"`, and measure what they save.
#
# **Needs:** two cores, no GPU. **Alone:** 30 minutes to read, 25 to do. **Led:** 55 minutes. **Before:** lessons 03 and
# 06.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 11: What is the first thing to read in an error of a distributed program, and why not the last line
# of one rank?</summary>
#
# Which rank is missing, and where the others wait. The others' tracebacks only show that they were waiting.
#
# </details>
#
# <details>
# <summary>Lesson 03: Which two halves does a ring allreduce have, and what does each rank have between them?</summary>
#
# Reduce-scatter, then allgather. Between them each rank has the complete sum of one of n parts.
#
# </details>

# %% tags=["both"]
import inspect

import numpy as np

from workbench import cluster
from workbench.collectives.ring import chunk_lengths, part, ring_allgather, ring_allreduce, ring_reduce_scatter
from workbench.course import drawing
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.predictions import predict, reveal
from workbench.course.simulator import simulate
from workbench.course.tasks import t18_sharding_further as t18

# %% [markdown]
# ## What a rank holds
#
# A model of 1000 million parameters, all numbers in float32, trained with Adam. How many bytes does a rank hold between
# the backward pass and the step, without activations?

# %%
predict(
    "18.holds",
    "1000 million parameters in float32, trained with Adam: how much memory on each rank?",
    choices=["4 GB", "8 GB", "12 GB", "16 GB"],
)

# %%
parameters = 1_000_000_000
held = {"parameters": 4 * parameters, "gradients": 4 * parameters, "Adam's two moments": 8 * parameters}
for what, nbytes in held.items():
    print(f"{what:20} {nbytes / 1e9:4.0f} GB")

# %%
reveal(
    "18.holds",
    f"{sum(held.values()) / 1e9:.0f} GB",
    "Adam keeps two numbers for each parameter, the means of the gradient and of its square. So the state is half of "
    "all bytes, and ZeRO divides it first.",
)

# %% [markdown]
# ZeRO (Rajbhandari et al., 2020) divides these three, one after the other. With P bytes of parameters, and an optimizer
# whose state takes k·P bytes (k = 1 for SGD with momentum, 2 for Adam):


# %%
def bytes_held(stage, n, k):
    """Between backward and step, in units of P."""
    return {0: 2 + k, 1: 2 + k / n, 2: 1 + (1 + k) / n, 3: (2 + k) / n}[stage]


print("Adam        n =     1      2      4      8     64")
for stage in range(4):
    print(f"stage {stage}: P times", *(f"{bytes_held(stage, n, 2):6.2f}" for n in (1, 2, 4, 8, 64)))

# %%
drawing.bars({f"stage {stage}": bytes_held(stage, 8, 2) for stage in range(4)}, "P", "What one of 8 ranks holds, Adam")

# %% [markdown]
# Stage 0 does not become smaller with more ranks. Stage 1 comes close to 2 P, stage 2 to P, and stage 3 to zero. Here
# are sliders for the model, the ranks, the optimizer and the precision (without a kernel you see only these pictures):

# %%
from workbench.course.calculators import explore

explore.memory()

# %% [markdown]
# ## What must be sent for it
#
# A rank that owns an n-th of the optimizer's state can update an n-th of the parameters. For that it needs an n-th of
# the averaged gradient, and afterwards the other ranks need the updated parameters. Guess first:

# %%
predict(
    "18.bytes",
    "Each rank updates one n-th, and all ranks get all updated parameters. Compared with plain averaging by a ring, "
    "it sends…",
    choices=["half as much", "as much", "one and a half times as much", "twice as much"],
)

# %% [markdown]
# The plain step is an allreduce, then an update of all parameters. The sharded step consists of the two halves of the
# ring allreduce, with the update between them:


# %%
def plain_step(comm, gradients, weights, lr=0.1):
    total = gradients[comm.rank].copy()
    ring_allreduce(comm, total)
    return weights - lr * total / comm.size


def sharded_step(comm, gradients, weights, lr=0.1):
    total, weights = gradients[comm.rank].copy(), weights.copy()
    lengths = chunk_lengths(len(total), comm.size)
    ring_reduce_scatter(comm, total, lengths)  # now part number rank of it is the sum
    mine = part(weights, lengths, comm.rank)
    mine -= lr * part(total, lengths, comm.rank) / comm.size  # 1/n of the work, and of the state
    ring_allgather(comm, weights, lengths)  # everybody gets the others' parts
    return weights


random = np.random.default_rng(0)
K = 100_000
weights = random.normal(size=K)
for n in (2, 4, 8):
    gradients = [random.normal(size=K) for _ in range(n)]
    plain, sharded = simulate(n, plain_step, gradients, weights), simulate(n, sharded_step, gradients, weights)
    far = max(abs(one - other).max() for one, other in zip(plain.results, sharded.results, strict=True))
    sent = [max(nbytes for _, nbytes in run.sent()) / weights.nbytes for run in (plain, sharded)]
    print(f"n = {n}: plain sends {sent[0]:.3f} P, sharded {sent[1]:.3f} P; weights differ by {far:.1e} at most")

# %%
names = {0.5: "half as much", 1.0: "as much", 1.5: "one and a half times as much", 2.0: "twice as much"}
reveal(
    "18.bytes",
    names[min(names, key=lambda times: abs(times - sent[1] / sent[0]))],
    "An allreduce is a reduce-scatter and an allgather. The update goes between the two, on an n-th of the elements, "
    "and the second half sends parameters instead of gradients: 2(n - 1)/n · P, as before.",
)

# %% [markdown]
# So stages 1 and 2 send no more bytes, if a step follows every pass. With gradient accumulation, plain data parallelism
# and stage 1 reduce once for several passes. Stage 2 must reduce in every pass, because a rank does not keep the whole
# gradient: with k passes for a step it makes k reduce-scatters.
#
# They differ in the gradients: stage 1 keeps the whole array in which they are
# reduced. Stage 2 reduces each bucket as soon as it is full, keeps its own part, and frees the rest while backward goes
# on.
#
# ## Parameters, too
#
# In stage 3 a rank keeps only its part of the parameters. But a layer needs all of its parameters: they are gathered
# before the layer's forward pass, freed after it, gathered once more before its backward pass, and freed again.

# %%
predict(
    "18.stage3",
    "Stage 3: parameters are gathered for forward and for backward, gradients are reduce-scattered. How many bytes "
    "are sent, compared with plain averaging?",
    number="times as many",
)


# %%
def stage_3(comm, shards, seconds=0.5e-3):
    """Forward and backward over some layers: messages and time only."""
    n = comm.size

    def gather(mine):
        whole = np.zeros(n * len(mine))
        part(whole, [len(mine)] * n, comm.rank)[:] = mine
        ring_allgather(comm, whole, [len(mine)] * n)
        return whole

    for mine in shards:
        gather(mine)
        comm.compute(seconds, "forward")
    gradients = []
    for mine in reversed(shards):
        whole = gather(mine)
        comm.compute(2 * seconds, "backward")
        ring_reduce_scatter(comm, whole, [len(mine)] * n)  # its gradient, of the same size
        gradients.append(part(whole, [len(mine)] * n, comm.rank).copy())
    return gradients  # in the place of the shards' owners: the step needs no message


run = simulate(4, stage_3, [np.ones(10_000) for _ in range(3)])
whole = 4 * 3 * 10_000 * 8
times = max(nbytes for _, nbytes in run.sent()) / (2 * 3 / 4 * whole)
print(f"each of 4 ranks sends {times * 1.5:.2f} P, {times:.2f} times the 1.50 P of plain averaging")
drawing.space_time(run, "Stage 3: three layers, forward and backward")

# %%
reveal(
    "18.stage3",
    times,
    "Three times (n - 1)/n · P: two allgathers and a reduce-scatter. After the step nothing is sent, because the next "
    "forward pass gathers the updated parameters.",
)

# %% [markdown]
# 50 % more bytes are not the whole price. A gradient can be sent while the backward pass goes on; a parameter is needed
# *now*, and the layer waits for it. In the picture, computing (grey) and messages alternate. It helps to gather the
# next layer while this one computes: **prefetching**. It needs the memory of one more layer:


# %%
def forward(comm, shards, seconds, ahead):
    """Forward over some layers; the messages of ``ahead`` layers are posted before they are needed."""
    n, rank = comm.size, comm.rank

    def post(mine):
        sent = [comm.isend(mine, dest=(rank + i) % n) for i in range(1, n)]
        return sent, [comm.irecv(source=(rank - i) % n) for i in range(1, n)]

    posted = [post(mine) for mine in shards[:ahead]]
    for number in range(len(shards)):
        if number + ahead < len(shards):
            posted.append(post(shards[number + ahead]))
        for requests in posted[number]:
            for request in requests:
                request.wait()
        comm.compute(seconds)


for milliseconds in (0.1, 0.3, 1.0):
    times = [simulate(4, forward, [np.ones(10_000)] * 8, milliseconds / 1e3, ahead).time_s * 1e3 for ahead in (0, 1, 2)]
    told = ", ".join(f"{ahead} ahead {one:5.2f} ms" for ahead, one in enumerate(times))
    print(f"8 layers of {milliseconds} ms: {told}; computing alone {8 * milliseconds:.2f} ms")

# %% [markdown]
# These layers are equal: one layer ahead hides everything that can be hidden, and a second one would need memory and
# gain nothing. Where a small layer stands before a large one, it may gain: the small one computes for less time than
# the large one's parameters travel. Torch's `fully_shard` prefetches one layer ahead. The workbench's stage 3 does not:
# it is meant to be read, and holds one layer at a time.
#
# ## The real thing
#
# Two engines, a network of 16 equal layers, Adam. `MemoryTracker` follows the memory of every tensor from the operation
# that creates it until it is freed, so the bytes are counted, not computed.

# %%
predict(
    "18.measured",
    "Two ranks, Adam, 16 equal layers, P bytes of parameters. What does stage 3 hold at most during a step?",
    choices=["1.0 P", "1.5 P", "2.0 P", "2.2 P", "4.0 P"],
)

# %%
engines = cluster.up(n=2)

# %%
# %%px
import os

import torch
from torch import nn

import workbench.torch as hvd
from workbench.torch.sharded.memory_tracker import MemoryTracker

WIDTH, LAYERS = 128, 16
os.environ["WORKBENCH_BUCKET_BYTES"] = str(8 * (WIDTH * WIDTH + WIDTH))  # a bucket for each layer
hvd.init()


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(*(each for _ in range(LAYERS) for each in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))).double()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(2, 4, WIDTH, generator=generator, dtype=torch.float64)
    return x, y


def train(stage, steps=4):
    """Train so many steps; the weights, and the bytes held at most and after a step, in units of P."""
    model = make_model()
    if stage == "parameters":
        hvd.shard_parameters(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if stage != "serial":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), sharded=stage)
    mine = slice(None) if stage == "serial" else slice(hvd.rank(), None, hvd.size())

    def step(number):
        x, y = batch(number)
        optimizer.zero_grad()
        (model(x[mine]) - y[mine]).square().mean().backward()
        optimizer.step()

    for number in range(steps):
        step(number)
    weights = hvd.full_state_dict(model)
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    whole = stage != "parameters"
    with MemoryTracker([*states, *(model.parameters() if whole else ())]) as live:
        step(steps)
        live.peak = 0
        step(steps + 1)
        after = live.now()
    nbytes = sum(8 * param.numel() for param in model.parameters())
    return weights, live.peak / nbytes, after / nbytes


serial, _, _ = train("serial")
rows = {}
for stage in (False, "optimizer", "gradients", "parameters"):
    weights, most, after = train(stage)
    far = max((weights[name] - value).abs().max().item() for name, value in serial.items())
    rows[str(stage)] = most, after, far

# %%
measured = engines.view.pull("rows", targets=0, block=True)
extra = {
    "False": 0,
    "optimizer": 0,
    "gradients": 2 / 16,
    "parameters": 3 / 16,
}  # the layers during a reduction or a pass
print("sharded=        at most    formula    after a step   weights compared with the serial run")
for stage, name in enumerate(extra):
    most, after, far = measured[name]
    expected = bytes_held(stage, 2, 2) + extra[name]
    same = "within 1e-12" if far < 1e-12 else f"off by {far:.0e}"
    print(f"{name:14} {most:6.1f} P    {expected:6.1f} P    {after:8.1f} P      {same}")

# %%
reveal(
    "18.measured",
    "2.2 P" if 2.15 <= measured["parameters"][0] < 2.25 else f"{measured['parameters'][0]:.2f} P",
    "(2 + 2)/2 · P = 2 P belongs to the rank. During backward one layer is gathered, and the gradients of two layers "
    "are being sent: 3/16 P more. With fewer layers this part is larger.",
)

# %%
drawing.bars({name: round(measured[name][0], 1) for name in extra}, "P", "Bytes at most in a step, measured")

# %% [markdown]
# ## What is different in a script
#
# With `sharded="gradients"` two lines change: the argument, and `optimizer.clip_grad_norm_(limit)` instead of torch's
# function, because no rank has all gradients. With `sharded="parameters"` there is one more line, before the optimizer
# is made: `hvd.shard_parameters(model)`. Then a parameter is whole only while its layer runs. If you read it at another
# time, you get an error:

# %%
# %%px
model = hvd.shard_parameters(make_model())
weight = model[0].weight
print("shape:", tuple(weight.shape))
try:
    weight.sum()
except RuntimeError as error:
    print(str(error).split(" (hvd")[0] + ", and …")
state = hvd.full_state_dict(model, rank=0)
print("full_state_dict on this rank:", len(state), "tensors")
with hvd.full_parameters(model):
    print("within full_parameters, the sum of its absolute values:", round(weight.abs().sum().item(), 2))

# %% [markdown]
# `shard_parameters`, `full_state_dict`, `full_parameters` and `optimizer.state_dict()` are collectives: all ranks call
# them. With `if hvd.rank() == 0:` around one of them, rank 0 waits for the others.
#
# How is the memory freed and filled again? Autograd keeps *views* of a layer's parameters for the backward pass. So
# freeing must not create new tensors: the storage is resized to zero, and filled again when the layer is used:

# %%
from workbench.torch.sharded.flat_parameter import FlatParameter

print(inspect.getsource(FlatParameter.unshard))
print(inspect.getsource(FlatParameter.reshard))

# %%
engines.down()

# %% [markdown] tags=["exercise"]
# ## Owners of the parameters
#
# First run the cell above. `check` judges your function, `hint` gives a hint, `solution` shows the solution.
#
# Parameters are not divided one by one: they are stored one after the other in one array, and that array is cut. So a
# rank may own the end of one parameter and the beginning of another.

# %% tags=["exercise"]
# exercise: 18.owners

# %% tags=["exercise"]
check("18.owners")

# %% [markdown] tags=["exercise"]
# ## A step on the rank's own part
#
# Write the first half of the ring, so that rank r ends with chunk **r**, and then update only that chunk. The update is
# given at the end of the function; the ring is missing.

# %% tags=["exercise"]
# exercise: 18.reduce_scatter_step

# %% tags=["exercise"]
check("18.reduce_scatter_step")

# %% tags=["exercise"]
show("18.reduce_scatter_step")

# %% [markdown] tags=["exercise"]
# ## A layer's parameters, when it is used
#
# Write a forward pass in stage 3. Your messages show whether you hold one layer at a time: the messages of the next
# layer may come only when this layer has been used.

# %% tags=["exercise"]
# exercise: 18.gather_parameters

# %% tags=["exercise"]
check("18.gather_parameters")

# %% tags=["exercise"]
show("18.gather_parameters")

# %% [markdown] tags=["exercise"]
# ## On real ranks
#
# The same functions, unchanged, on two MPI processes:

# %% tags=["exercise"]
engines = cluster.up(n=2)
check("18.reduce_scatter_step")

# %% tags=["exercise"]
check("18.gather_parameters")

# %% tags=["exercise"]
engines.down()

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 55 minutes, 25 of them for the exercises. Draw the three arrays (parameters, gradients,
# state) as bars on four ranks and cut them, one by one; ask at each cut who needs what when. Common wrong answers:
# *owners* cuts each parameter by itself (so small ones leave ranks without work), or gives the rest to the last rank;
# *reduce_scatter_step* ends with chunk r + 1, as in lesson 03, and updates the wrong part with the right shape: only
# the numbers tell; *gather_parameters* gathers all layers first, which is stage 2 with more messages. Those who are
# done early: what does stage 3 send with k backward passes for each step? And why does ZeRO not divide the activations?

# %% [markdown]
# ## Keypoints
#
# - n ranks need not hold n copies: the state, the gradients and the parameters can each be divided by n.
# - Reduce-scatter, update the rank's own part, allgather: 2(n - 1)/n · P, as an allreduce. Stages 1 and 2 send no more
#   bytes, unless gradients are accumulated over several passes: then stage 2 does.
# - With mixed precision (bf16 in forward and backward) the optimizer keeps a float32 copy of the weights. With Adam, 12
#   of a parameter's 16 bytes belong to the optimizer, and stage 1 divides these.
# - Stage 3 gathers each layer twice: 3(n - 1)/n · P, and a layer waits for its parameters unless they are prefetched.
# - The layers that are being sent come on top of the formula: smaller units need fewer bytes, but more messages.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **FSDP2** (`fully_shard`) is stage 3, layer by layer, on sharded tensors (DTensor). NCCL carries it as allgather
#   and reduce-scatter ([source](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)).
# - **FSDP2's `reshard_after_forward=False`** keeps a layer's parameters until backward, which saves the second
#   allgather. A number instead shards them over so many ranks, say a node's
#   ([source](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)).
# - **DeepSpeed** names its stages as the ZeRO paper does. It can also keep parameters or optimizer state in the host's
#   memory or on disk (`offload_param`, `offload_optimizer`) ([source](https://www.deepspeed.ai/docs/config-json/)).
# - **PyTorch's `ZeroRedundancyOptimizer`** is stage 1, for a model in DDP. Here each parameter has one owner, which
#   broadcasts it after the step ([source](https://docs.pytorch.org/docs/stable/distributed.optim.html)).
# - **JAX** has no stages: you say how each array is sharded, parameters and optimizer state included, and the compiler
#   inserts the collectives ([source](https://docs.jax.dev/en/latest/201/sharding.html)).
#
# FSDP2 on two engines of this course, with the model of above, against the serial run:

# %%
engines = cluster.up(n=2)

# %%
# %%px
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("workbench")


def train(shard, steps=4):
    torch.manual_seed(0)
    model = nn.Sequential(*(each for _ in range(16) for each in (nn.Linear(128, 128), nn.Tanh()))).double()
    if shard:
        for layer in [*model[::2], model]:
            fully_shard(layer)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    mine = slice(dist.get_rank(), None, dist.get_world_size()) if shard else slice(None)
    for step in range(steps):
        x, y = torch.randn(2, 4, 128, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        optimizer.zero_grad()
        (model(x[mine]) - y[mine]).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


serial, sharded = train(False), train(True)
far = max((a - b.full_tensor()).abs().max().item() for a, b in zip(serial, sharded, strict=True))
part = sum(b.to_local().numel() for b in sharded) / sum(a.numel() for a in serial)
print(f"{part:.0%} of the parameters; weights within 1e-12 of the serial run: {far < 1e-12}")

# %%
engines.down()
