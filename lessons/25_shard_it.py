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
# # Shard it
#
# **Question:** `fully_shard` keeps a part of each parameter on each rank. When is a layer there, what is sent for it,
# what hides it, and how does a checkpoint of four ranks come to two?
#
# **Afterwards you can**
#
# - shard a model by `fully_shard`, and say which rows of which tensor are on which rank,
# - follow one layer through a step: gathered, used, freed, gathered, used, reduced,
# - decide whether weights stay after forward, and how many layers are gathered ahead,
# - save on four ranks, and go on with two, to the same weights.
#
# **Needs:** two cores, no GPU. **Alone:** 35 minutes to read, 30 to do. **Led:** 65 minutes. **Before:** lessons 18 and
# 24.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 18: what does each of the three stages of ZeRO divide?</summary>
#
# The optimizer's state; then also the gradients; then also the parameters.
#
# </details>
#
# <details>
# <summary>Lesson 24: why does a mixed precision training keep float32 copies of its weights?</summary>
#
# A step is often smaller than half of the distance of two numbers in bf16, and would be lost.
#
# </details>

# %% tags=["both"]
import numpy as np

import workbench
from workbench import cluster
from workbench.course import drawing
from workbench.course.cards import cause
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.predictions import predict, reveal
from workbench.course.tasks import task

# %% [markdown]
# ## 1. Rows
#
# After `fully_shard` each parameter is a **DTensor**: a tensor of the whole shape, of which a rank holds some rows.
# Which ones is the rule of `torch.chunk`. Here are ten rows on four ranks, and five:

# %%
shards = task("25.shards").reference  # your first exercise
for rows in (10, 5):
    print(f"{rows:2} rows:", shards(rows, 4))

# %% [markdown]
# The last rank may have less, or nothing. For what is sent all parts are made equally long, so a parameter of 5 rows
# takes the room of 8.
#
# Not each parameter is gathered by itself. A call of `fully_shard(module)` makes one **group** of all parameters of
# this module that no earlier call has taken. A group is gathered by one message. So the calls decide:

# %% [markdown]
# ```python
# for block in model.blocks:
#     fully_shard(block)   # a group each: gathered when the block begins, freed when it ends
# fully_shard(model)       # a group of what is left: embedding, last norm
# ```

# %%
predict(
    "25.peak",
    "8 equal blocks on 4 ranks, a group each, one gathered ahead. Which part of their weights is on a rank at most?",
    choices=["a quarter", "about a third", "a half", "all"],
)

# %%
own, whole_blocks, n, blocks = 1 / 4, 2, 4, 8
peak = own + whole_blocks / blocks  # its own parts, and two blocks that are whole
drawing.bars({"always": own, "at most": peak, "DDP": 1.0}, "of the blocks' weights", "What one of 4 ranks holds")

# %%
reveal(
    "25.peak",
    "a half" if abs(peak - 0.5) < 0.01 else "about a third",
    "A quarter is always there, and two blocks of eight are whole: the one that is used, and the one gathered ahead.",
)

# %% [markdown]
# ## 2. A layer's life
#
# Four engines, the model of lesson 24, in float64. `count` writes down what FSDP2 asks of the group:

# %%
engines = cluster.up(n=4)

# %%
# %%px
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from workbench import data

sys.path.insert(0, "steps/gpt")
import gpt

dist.init_process_group("workbench")
rank, n = dist.get_rank(), dist.get_world_size()
shape = gpt.Shape(layers=4, width=64, heads=4, tokens=32)
text = torch.frombuffer(bytearray(data.shakespeare()), dtype=torch.uint8)


def sharded(model, **options):
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def whole(parameter):
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def train(model, optimizer, steps, alone=False):
    """The losses, of all ranks."""
    losses = []
    for step in steps:
        texts = gpt.batch(text, step, 8, shape.tokens)
        optimizer.zero_grad()
        loss = gpt.loss_of(model, texts if alone else texts.chunk(n)[rank])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().double())
    losses = torch.stack(losses)
    if not alone:
        dist.all_reduce(losses, dist.ReduceOp.AVG)
    return losses


def begin(shard=None, dtype=torch.float64, **options):
    torch.manual_seed(0)
    model = gpt.GPT(shape).to(dtype)
    model = shard(model, **options) if shard else model
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


alone, its_optimizer = begin()
model, optimizer = begin(sharded)
weight = model.blocks[0].mlp.up.weight
here = tuple(weight.to_local().shape)
print(f"rank {rank}: {type(weight).__name__} {tuple(weight.shape)}, {weight.placements}, here {here}")

# %%
# %%px
losses = train(alone, its_optimizer, range(3), alone=True)
mine = train(model, optimizer, range(3))
far = max((a - whole(b)).abs().max().item() for a, b in zip(alone.parameters(), model.parameters(), strict=True))
print(f"rank {rank}: losses within 1e-10 of one process: {(mine - losses).abs().max() < 1e-10}; weights: {far < 1e-10}")

# %% [markdown]
# The optimizer has rows alone, too: `AdamW` was made after `fully_shard`, so its moments are DTensors.
# Now look at what is sent. torch calls two functions of the group, one for each group of parameters:

# %%
predict(
    "25.gathers",
    "4 blocks and the rest are 5 groups. How often is something gathered in a step, and how often reduced?",
    choices=["5 and 5", "9 and 5", "10 and 10", "5 and 1"],
)


# %%
# %%px
def count(step):
    """So many calls of the group, by name, and the bytes of what is gathered."""
    group, calls = dist.group.WORLD, Counter()
    for name in ("all_gather_single", "reduce_scatter_single"):
        real = getattr(group, name)

        def call(output, tensor, *args, real=real, name=name):
            calls[name] += 1
            calls["bytes gathered"] += output.nbytes * (name == "all_gather_single")
            return real(output, tensor, *args)

        setattr(group, name, call)
    step()
    for name in ("all_gather_single", "reduce_scatter_single"):
        delattr(group, name)
    return dict(calls)


calls = count(lambda: train(model, optimizer, [3]))
if rank == 0:
    print(calls)

# %%
calls = engines.client[0]["calls"]
reveal(
    "25.gathers",
    f"{calls['all_gather_single']} and {calls['reduce_scatter_single']}",
    "Each block is gathered for forward and again for backward. The outermost group stays after forward, for backward "
    "begins with it.",
)

# %% [markdown]
# The engines' recorders have written down the same step. Each bar is a message of a group; `allgather`
# bars beside those of `reducescatter` are a layer that is gathered while another one's gradients are reduced:

# %%
# %%px
dist.barrier()
_ = train(model, optimizer, [4])

# %% tags=["nbval-ignore-output"]
workbench.timeline(last=16)

# %% [markdown]
# ### Reshard, or keep
#
# `reshard_after_forward=False` keeps the blocks until backward: that is ZeRO's stage 2. It needs the memory of all
# weights, and gathers once:

# %%
# %%px
kept, its_optimizer = begin(sharded, reshard_after_forward=False)
calls = count(lambda: train(kept, its_optimizer, [0]))
if rank == 0:
    print(calls)

# %% [markdown]
# ### Prefetch
#
# A layer is gathered while the one before it is computed. How much of it is hidden? Here are 8 layers: to gather one
# takes 2 ms, to compute it 3 ms. Your third exercise gives the seconds of forward:

# %%
forward_s = task("25.forward_s").reference
for gather in (2.0, 3.0, 6.0):
    taken = [forward_s([gather] * 8, [3.0] * 8, ahead) for ahead in (0, 1, 2)]
    print(f"gather {gather:g} ms, compute 3 ms: {taken[0]:g} ms; one ahead {taken[1]:g}; two ahead {taken[2]:g}")

# %% [markdown]
# One layer ahead hides all but the first gathering, as long as a layer computes longer than it is
# gathered. From then on the network sets the pace, and more layers ahead change nothing if all are alike. FSDP2 gathers
# one ahead by itself in backward, where it knows the order; in forward on a GPU the CPU is ahead.
# `set_modules_to_forward_prefetch` says it by hand.
#
# ## 3. bf16
#
# `MixedPrecisionPolicy` gathers the rows in bf16, a quarter of the bytes of the float64 above, and keeps the rows
# themselves in float32: these are the masters. The gradients may be reduced in bf16, too; then a sum of n numbers is
# rounded n times. Here they are reduced in float32.

# %%
# %%px
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
plain, _ = begin(dtype=torch.float32)
low, its_optimizer = begin(sharded, dtype=torch.float32, mp_policy=policy)
with torch.no_grad():
    first = gpt.loss_of(plain.to(torch.bfloat16), gpt.batch(text, 0, 8, shape.tokens))
calls = count(lambda: globals().update(losses=train(low, its_optimizer, [0])))
apart = (losses[0] - first).abs().item()
print(f"rank {rank}: within 1e-5 of one process in bf16: {apart < 1e-5}; {calls['bytes gathered']:,} bytes gathered")
print(f"the masters: {low.head.weight.dtype}")

# %% [markdown]
# ## 4. Four ranks save, two go on
#
# Each rank writes its own rows, and a file says who has which. Whoever loads reads the pieces that it needs: your last
# exercise. Weights and states have the same names with and without `fully_shard`, so one process can read it, too.

# %%
# %%px
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

model, optimizer = begin(sharded)
_ = train(model, optimizer, range(3))
weights, moments = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": moments}, checkpoint_id="shard-it")
if rank == 0:
    print(f"{len(list(Path('shard-it').glob('*.distcp')))} files of rows, and one that says whose they are")
dist.destroy_process_group()

# %%
engines.down()
engines = cluster.up(n=2)

# %%
# %%px
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from workbench import data

sys.path.insert(0, "steps/gpt")
import gpt

dist.init_process_group("workbench")
rank, n = dist.get_rank(), dist.get_world_size()
shape = gpt.Shape(layers=4, width=64, heads=4, tokens=32)
text = torch.frombuffer(bytearray(data.shakespeare()), dtype=torch.uint8)


def begin(shard):
    torch.manual_seed(0)
    model = gpt.GPT(shape).double()
    if shard:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model, optimizer, steps, part):
    for step in steps:
        optimizer.zero_grad()
        gpt.loss_of(model, gpt.batch(text, step, 8, shape.tokens)[part]).backward()
        optimizer.step()


alone, its_optimizer = begin(False)
train(alone, its_optimizer, range(6), slice(None))
model, optimizer = begin(True)
weights, moments = get_state_dict(model, optimizer)
parts = {"model": weights, "optimizer": moments}
dcp.load(parts, checkpoint_id="shard-it")
set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])
train(model, optimizer, range(3, 6), slice(rank * 8 // n, (rank + 1) * 8 // n))
far = max((a - b.full_tensor()).abs().max().item() for a, b in zip(alone.parameters(), model.parameters(), strict=True))
print(f"rank {rank}: three steps of four ranks, three of two, within 1e-10 of six of one process: {far < 1e-10}")
dist.barrier()
if rank == 0:
    shutil.rmtree("shard-it")
dist.destroy_process_group()

# %%
engines.down()

# %% [markdown]
# **Offload.** `CPUOffloadPolicy` keeps a GPU's rows, gradients and moments in the host's memory, and the
# optimizer steps there. A layer then comes over PCI Express before it is gathered. There is nothing to try without a
# GPU: here all is in the host's memory already.

# %% [markdown] tags=["exercise"]
# First run the cell above with the imports. `show` draws your function, `check` judges it, `hint` gives a hint,
# `solution` shows the solution. Everything except the last section works without engines.
#
# ## Rows

# %% tags=["exercise"]
# exercise: 25.shards

# %% tags=["exercise"]
check("25.shards")

# %% [markdown] tags=["exercise"]
# ## A layer's step

# %% tags=["exercise"]
# exercise: 25.layer_step

# %% tags=["exercise"]
show("25.layer_step")

# %% tags=["exercise"]
check("25.layer_step")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 65 minutes, 35 of them for the exercises. Let one group be
# the layers and another the clock, and play forward with cards: gathered, used, freed. In `25.layer_step` most forget
# to divide, or gather the gradient whole. `25.forward_s` is hard for many: let them draw two rows, network and
# processor, for three layers first. Those who are done early: what does a group of two blocks change in bytes, in
# messages, and in memory?

# %% [markdown] tags=["exercise"]
# ## Prefetch

# %% tags=["exercise"]
# exercise: 25.forward_s

# %% tags=["exercise"]
check("25.forward_s")

# %% [markdown] tags=["exercise"]
# ## A checkpoint for other ranks

# %% tags=["exercise"]
# exercise: 25.pieces

# %% tags=["exercise"]
check("25.pieces")

# %% [markdown] tags=["exercise"]
# ## Find the mistake
#
# Programs on torch's own functions, each with one mistake. Repair it, and name its cause: `cause` lists four, and with
# a letter it says whether that is the one. `check` runs the program on ranks that are threads of this process, with
# torch's real functions and the workbench as backend; it needs no engines.

# %% [markdown] tags=["exercise"]
# ### The checkpoint is never written
#
# Rank 0 writes the whole model, now and then.

# %% tags=["exercise"]
# exercise: 25.checkpoint

# %% tags=["exercise"]
check("25.checkpoint")

# %% tags=["exercise"]
cause("25.checkpoint")

# %% tags=["instructor"]
cause("25.checkpoint", "d")

# %% [markdown] tags=["exercise"]
# ### No error, but with more ranks gradients are clipped less
#
# The gradients are clipped to a norm, as one process would.

# %% tags=["exercise"]
# exercise: 25.clip_sharded

# %% tags=["exercise"]
check("25.clip_sharded")

# %% tags=["exercise"]
cause("25.clip_sharded")

# %% tags=["instructor"]
cause("25.clip_sharded", "b")

# %% [markdown] tags=["exercise"]
# ## On real ranks

# %% tags=["exercise"]
engines = cluster.up(n=2)
check("25.layer_step")

# %% tags=["exercise"]
engines.down()

# %% [markdown]
# ## Keypoints
#
# - A DTensor has the whole shape, and the rows of `torch.chunk` on each rank: the last ranks may have none.
# - Each call of `fully_shard` makes a group. A group is gathered by one message, in forward and again in backward, and
#   its gradients are reduced by one.
# - `reshard_after_forward=False` gathers once, and keeps all weights until backward.
# - One layer ahead is enough, while computing takes longer than gathering. Else the network sets the pace.
# - A checkpoint has rows and a table. Any number of ranks reads the pieces that it needs.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **FSDP2** replaced FSDP1, which kept one flat array for a group; its DTensors make checkpoints and mixed use with
#   tensor parallelism simple ([source](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)).
# - **`reshard_after_forward` as a number** keeps the weights sharded over so many ranks of a host, so backward gathers
#   inside it ([source](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)).
# - **torchtitan** shards by `fully_shard` on a mesh of several dimensions, and saves asynchronously by DCP
#   ([source](https://arxiv.org/abs/2410.06511)).
# - **SimpleFSDP** writes the same as plain tensor operations, so that a compiler orders and joins what is gathered
#   ([source](https://arxiv.org/abs/2411.00284)).
# - **DeepSpeed's ZeRO-3** gathers by hooks on modules, and can keep parameters on a disk
#   ([source](https://www.deepspeed.ai/docs/config-json/)).
