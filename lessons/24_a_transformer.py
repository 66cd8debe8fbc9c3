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
# # A transformer that you can read
#
# **Question:** what is a language model made of, what of it fills the memory in training, and what do bf16,
# accumulation, checkpoints and several ranks change?
#
# **Afterwards you can**
#
# - read a GPT of 200 lines, and count its parameters and the bytes that backward needs of it,
# - say why weights in bf16 need masters with more digits, and why float16 needs a loss scale and bf16 none,
# - exchange memory for computing with checkpoints, and large batches for more micro-batches,
# - train it with DDP on ranks, to the last digit as one process does.
#
# **Needs:** two cores, no GPU. **Alone:** 35 minutes to read, 35 to do. **Led:** 75 minutes. **Before:** lessons 06 and
# 18.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 18: with Adam and mixed precision a parameter has 16 bytes. Which ones?</summary>
#
# 2 of the parameter in bf16, 2 of its gradient, and 12 of the optimizer: the copy in float32, and two moments.
#
# </details>
#
# <details>
# <summary>Lesson 06: when is a layer's gradient sent?</summary>
#
# As soon as backward has computed it, while the layers before it are still being computed.
#
# </details>

# %% tags=["both"]
import inspect
import sys
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from workbench import cluster, data
from workbench.course import figures
from workbench.course.cards import cause
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.predictions import predict, reveal
from workbench.course.tasks.t24_transformer import bf16

# %% [markdown]
# ## 1. The model
#
# `gpt.py` is one file, with torch alone. A token is a byte. Here is what happens in a block:

# %%
sys.path.insert(0, "steps/gpt")
import gpt

for part in (gpt.Block, gpt.Attention, gpt.Mlp):
    print(inspect.getsource(part.forward))

# %% [markdown]
# Three things of this come again in the next lessons. Each block is two **sums**: what came in, and what attention or
# the two layers add. Attention is the only place where tokens meet. And the heads never meet, so they can be on
# different ranks.
#
# Where are the parameters? With a width of d, a block has 4 matrices of d × d in attention, and 8 d² numbers in its two
# layers:

# %%
shape = gpt.Shape(layers=4, width=128, heads=4, tokens=128)
torch.manual_seed(0)
model = gpt.GPT(shape)
count = sum(each.numel() for each in model.parameters())
blocks = 12 * shape.layers * shape.width**2
print(f"{count:,} parameters: {blocks:,} in the matrices of blocks, {256 * shape.width:,} in the embedding,")
print(f"{count - blocks - 256 * shape.width:,} in norms; the head has none of its own, it is tied to the embedding")

# %% [markdown]
# ### What attention costs
#
# Each token has a score for itself and for each one before it. Written down as in a book, these scores are an array of
# (heads, tokens, tokens), and backward needs it. `scaled_dot_product_attention` computes the same in blocks that fit a
# cache, and computes them again in backward (FlashAttention, 2022). Autograd can be asked which bytes it keeps:


# %%
def kept(forward):
    """The bytes that autograd keeps for backward, without parameters."""
    seen, weights = {}, {each.untyped_storage().data_ptr() for each in model.parameters()}

    def pack(tensor):
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in weights:
            seen[memory.data_ptr()] = memory.nbytes(), tensor  # it is held, so that no other one gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(nbytes for nbytes, _ in seen.values())


def by_the_book(query, key, value):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value


def ready_made(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


# %%
predict(
    "24.attention",
    "A text of twice as many tokens, by the book: how many times as many bytes does attention keep, about?",
    choices=["2", "3", "4", "8"],
)

# %%
found = {}
for tokens in (512, 1024, 2048):
    parts = [torch.randn(1, 4, tokens, 32, requires_grad=True) for _ in range(3)]
    torch.testing.assert_close(by_the_book(*parts), ready_made(*parts), rtol=0, atol=1e-5)
    found[tokens] = [kept(partial(each, *parts)) for each in (by_the_book, ready_made)]
    print(
        f"{tokens:5} tokens: by the book {found[tokens][0] / 1e6:6.1f} MB, ready-made {found[tokens][1] / 1e6:4.1f} MB"
    )

# %%
reveal(
    "24.attention",
    str(round(found[2048][0] / found[1024][0])),
    "The scores are tokens × tokens. Ready-made attention keeps query, key, value and what comes out: tokens × size.",
)

# %% [markdown]
# ## 2. bf16, and why there are masters
#
# bf16 has the exponent of float32, and 8 digits in base 2. float16 has 11 digits, and an exponent of 5 bits:

# %%
for kind in (torch.float32, torch.bfloat16, torch.float16):
    info = torch.finfo(kind)
    print(f"{str(kind)[6:]:9} after 1 comes {1 + info.eps:.10g}, largest {info.max:.1e}, smallest {info.tiny:.1e}")

# %% [markdown]
# Products of matrices lose little in bf16: a sum of many products is added up in float32. Weights are another matter.
# Here is one weight, 1.0, and a thousand steps of −0.001:

# %%
predict(
    "24.masters",
    "The weight is stored in bf16 after each step. What is it after a thousand steps, in place of 0?",
    choices=["about 0", "about 0.5", "1", "a negative number"],
)

# %%
weight = 1.0
for _ in range(1000):
    weight = float(bf16(weight - 0.001))
reveal(
    "24.masters",
    "1" if weight == 1 else "about 0.5" if weight > 0.3 else "about 0",
    "Below 1 the numbers of bf16 are 1/256 = 0.0039 apart. 0.999 is rounded to 1 again, a thousand times.",
)

# %% [markdown]
# So a copy of the weights is kept with all digits, the **masters**. The optimizer steps on them, and the products use
# their rounded copy. `torch.autocast` does that: parameters stay in float32, and each product gets rounded copies.
#
# ### Why float16 needs a loss scale
#
# A gradient is mostly small. Which part of this model's first gradient would be 0, or lose digits?

# %%
text = torch.frombuffer(bytearray(data.shakespeare()), dtype=torch.uint8)
gpt.loss_of(model, gpt.batch(text, 0, 8, shape.tokens)).backward()
gradient = torch.cat([each.grad.flatten() for each in model.parameters()])
gradient = gradient[gradient != 0]
for name, scale in (("as it is", 1.0), ("times 65,536", 65536.0)):
    for kind in (torch.bfloat16, torch.float16):
        lost = ((gradient * scale).to(kind) == 0).float().mean()
        inexact = ((gradient * scale).abs() < torch.finfo(kind).tiny).float().mean()
        print(f"{name:12} {str(kind)[6:]:9} zero {lost:6.1%}, with fewer digits than usual {inexact:6.1%}")

# %% [markdown]
# The loss is multiplied by a **scale** before backward, so all gradients are, and the optimizer divides by it. If it is
# too large, some gradient overflows. Then the step is left out and the scale halved; after many good steps it is
# doubled. All ranks must decide alike: that is an exercise below. bf16 reaches as far as float32, so it needs no scale.

# %% [markdown]
# ## 3. Memory for computing
#
# What a block keeps for backward grows with the batch. A **checkpoint** keeps the block's input alone, and computes the
# rest again when backward comes there.

# %%
predict(
    "24.checkpoints",
    "With a checkpoint around each block: by how much does a step compute more, about?",
    choices=["a tenth", "a fifth", "a half", "twice"],
)


# %%
def checkpointed(tokens):
    x = model.embedding(tokens)
    for block in model.blocks:
        x = checkpoint(block, x, model.turns[: tokens.shape[1]], use_reentrant=False)
    return model.head(model.norm(x))


def flops(forward):
    with FlopCounterMode(display=False) as counter:
        forward().backward()
    return counter.get_total_flops()


texts, ways = gpt.batch(text, 0, 8, shape.tokens), {"plain": model, "checkpoints": checkpointed}
for name, way in ways.items():
    loss = partial(gpt.loss_of, way, texts)
    print(f"{name:11} keeps {kept(loss) / 1e6:5.1f} MB, computes {flops(loss) / 1e9:.1f} GFLOP")

# %%
more = flops(partial(gpt.loss_of, checkpointed, texts)) / flops(partial(gpt.loss_of, model, texts))
reveal(
    "24.checkpoints",
    "a fifth" if 1.15 < more < 1.25 else "a half",
    "Backward computes two products where forward computes one, so one more forward makes 4 of 3. PyTorch stops a bit "
    "earlier: what a block's last product returns is not needed again, and that product is a third of the block.",
)

# %% [markdown]
# And the seconds, on this machine, the best of five:

# %% tags=["nbval-ignore-output"]
import time


def seconds(way):
    begun = time.perf_counter()
    gpt.loss_of(way, texts).backward()
    return time.perf_counter() - begun


torch.set_num_threads(1)
taken = {name: min(seconds(way) for _ in range(5)) for name, way in ways.items()}
print(
    {name: f"{1e3 * each:.0f} ms" for name, each in taken.items()}, f"{taken['checkpoints'] / taken['plain']:.2f} times"
)

# %% [markdown]
# The other way to save memory is a smaller batch: k **micro-batches**, whose gradients add up before the step. The
# step is the same, if each loss is divided by k. On ranks only the last of them needs to send.
#
# ## 4. On ranks
#
# Two engines, DDP from torch, and the workbench as its backend. In float64 the ranks' weights can be compared with
# those of one process, digit by digit:

# %%
engines = cluster.up(n=2)

# %%
# %%px
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from workbench import data

sys.path.insert(0, "steps/gpt")
import gpt

dist.init_process_group("workbench")
rank, n = dist.get_rank(), dist.get_world_size()
shape = gpt.Shape(layers=2, width=64, heads=4, tokens=64)
text = torch.frombuffer(bytearray(data.shakespeare()), dtype=torch.uint8)


def count(sent, bucket):
    """A hook that DDP calls for each bucket of gradients that it sends."""
    sent.append(bucket.buffer().nbytes)
    return default_hooks.allreduce_hook(None, bucket)


def train(wrap=None, steps=6, micro=1, cast=False):
    """The weights, the losses, and how often DDP has sent in the last step. Without a wrapper, one process alone."""
    torch.manual_seed(0)
    model, losses, sent = gpt.GPT(shape) if cast else gpt.GPT(shape).double(), [], []
    if wrap:
        model = wrap(model)
        model.register_comm_hook(sent, count)
    optimizer = gpt.optimizer_of(model)
    for step in range(steps):
        mine = gpt.batch(text, step, 8, shape.tokens).chunk(n if wrap else 1)[rank if wrap else 0]
        optimizer.zero_grad()
        sent.clear()
        losses.append(0.0)
        for i, part in enumerate(mine.chunk(micro)):
            sends = i == micro - 1 or not wrap
            with nullcontext() if sends else model.no_sync(), torch.autocast("cpu", torch.bfloat16, enabled=cast):
                loss = gpt.loss_of(model, part) / micro
            loss.backward()
            losses[-1] += loss.detach()
        if wrap:
            dist.all_reduce(losses[-1], dist.ReduceOp.AVG)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return [each.detach() for each in model.parameters()], torch.stack(losses), len(sent)


def far(these, those):
    return max((a - b).abs().max().item() for a, b in zip(these, those, strict=True))


# %%
# %%px
alone, _, _ = train()
together, _, sent = train(DistributedDataParallel)
print(f"rank {rank}: weights within 1e-10 of one process: {far(together, alone) < 1e-10}; sent {sent} times")

# %% [markdown]
# `clip_grad_norm_` needed no message: behind DDP's backward each rank has the whole mean gradient. Where the ranks
# share a gradient, it needs one number (the last exercise). Now the same step in four micro-batches on each rank. In
# `no_sync()` DDP adds up, and sends nothing:

# %%
predict(
    "24.no_sync",
    "Four micro-batches, and somebody forgets no_sync(). What becomes of the weights?",
    choices=[
        "right, with four times as much sent",
        "wrong by a factor of 4",
        "different on the two ranks",
    ],
)

# %%
# %%px
accumulated, _, sent = train(DistributedDataParallel, micro=4)
print(f"rank {rank}: within 1e-10 of one process: {far(accumulated, alone) < 1e-10}; sent {sent} times")


class Forgotten(DistributedDataParallel):
    def no_sync(self):
        return nullcontext()


forgotten, _, often = train(Forgotten, micro=4)
right = far(forgotten, alone) < 1e-10
print(f"without no_sync(): within 1e-10: {right}; sent {often} times")

# %%
right, often, sent = engines.client[0].pull(["right", "often", "sent"], block=True)
reveal(
    "24.no_sync",
    "right, with four times as much sent" if right and often == 4 * sent else "wrong by a factor of 4",
    "Each allreduce averages what has been added up so far. A mean of equal numbers stays what it is, so all is "
    "right, and slow: no test of results finds it. A count of what is sent does.",
)

# %% [markdown]
# In bf16 the products are rounded, and a sum over half of a batch is not rounded as that over the whole. The first loss
# is that of equal weights. From then on the two trainings are near each other, and not equal:

# %%
# %%px
cast_alone, losses_alone, _ = train(cast=True)
cast_together, losses, _ = train(DistributedDataParallel, cast=True)
apart = (losses - losses_alone).abs()
print(f"rank {rank}: first loss within 1e-5: {apart[0] < 1e-5}; all within 1e-2: {apart.max() < 1e-2}")
print(f"weights equal: {far(cast_together, cast_alone) == 0}")

# %% [markdown]
# ### Half a minute of training
#
# All of it, on both engines: 120 steps of the larger shape. In your own time, 1,000 steps write whole words.

# %%
# %%px
dist.destroy_process_group()

# %% tags=["nbval-ignore-output"]
# %%px
losses = gpt.main(steps=120)

# %%
losses = engines.client[0]["losses"]
print(f"the loss falls: {losses[0] > 5.4 and np.mean(losses[-20:]) < 2.4}")
figures.curves({"loss": losses}, xlabel="step", ylabel="nats per byte", title="120 steps on two ranks")

# %%
engines.down()

# %% [markdown] tags=["exercise"]
# First run the cell above with the imports. `show` draws your function, `check` judges it, `hint` gives a hint,
# `solution` shows the solution. Everything except the last section works without engines.
#
# ## Attention
#
# One head, one text, in numpy.

# %% tags=["exercise"]
# exercise: 24.attention

# %% tags=["exercise"]
check("24.attention")

# %% [markdown] tags=["exercise"]
# ## Small steps

# %% tags=["exercise"]
# exercise: 24.train

# %% tags=["exercise"]
check("24.train")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 75 minutes, 40 of them for the exercises. `24.attention` takes longest: let them write the
# 3 × 3 matrix of scores on paper, and cross out what a token must not see. In `24.loss_scale` nearly everybody looks at
# the own gradient first; ask what the weights of both ranks are after that step. In `24.accumulate` the mean of means
# is right for equal micro-batches: ask what the last batch of an epoch looks like. Those who are done early: why does
# a checkpoint around half a block save less?

# %% [markdown] tags=["exercise"]
# ## A loss scale that all ranks agree on

# %% tags=["exercise"]
# exercise: 24.loss_scale

# %% tags=["exercise"]
check("24.loss_scale")

# %% [markdown] tags=["exercise"]
# ## Where to set checkpoints
#
# A checkpoint need not be around one layer. With long segments few inputs are kept, but more is inside the one that
# backward is in.

# %% tags=["exercise"]
# exercise: 24.segments

# %% tags=["exercise"]
check("24.segments")

# %% [markdown] tags=["exercise"]
# ## Accumulation over micro-batches and ranks

# %% tags=["exercise"]
# exercise: 24.accumulate

# %% tags=["exercise"]
show("24.accumulate")

# %% tags=["exercise"]
check("24.accumulate")

# %% [markdown] tags=["exercise"]
# ## Clip a shared gradient

# %% tags=["exercise"]
# exercise: 24.clip

# %% tags=["exercise"]
check("24.clip")

# %% [markdown] tags=["exercise"]
# ## Find the mistake
#
# Programs on torch's own functions, each with one mistake. Repair it, and name its cause: `cause` lists four, and with
# a letter it says whether that is the one. `check` runs the program on ranks that are threads of this process, with
# torch's real functions and the workbench as backend; it needs no engines.

# %% [markdown] tags=["exercise"]
# ### No error, but each rank has gradients of its own
#
# Gradients of several micro-batches are added up, and sent once.

# %% tags=["exercise"]
# exercise: 24.accumulate_ddp

# %% tags=["exercise"]
check("24.accumulate_ddp")

# %% tags=["exercise"]
cause("24.accumulate_ddp")

# %% tags=["instructor"]
cause("24.accumulate_ddp", "c")

# %% [markdown] tags=["exercise"]
# ### DDP refuses a model that every rank has
#
# Some layers keep their weights. Which ones stands in a file of rank 0.

# %% tags=["exercise"]
# exercise: 24.fine_tune

# %% tags=["exercise"]
check("24.fine_tune")

# %% tags=["exercise"]
cause("24.fine_tune")

# %% tags=["instructor"]
cause("24.fine_tune", "a")

# %% [markdown] tags=["exercise"]
# ### Training hangs, after hours, when a loss is large
#
# With float16 a gradient may be infinite on one rank.

# %% tags=["exercise"]
# exercise: 24.scaled_step

# %% tags=["exercise"]
check("24.scaled_step")

# %% tags=["exercise"]
cause("24.scaled_step")

# %% tags=["instructor"]
cause("24.scaled_step", "b")

# %% [markdown] tags=["exercise"]
# ## On real ranks
#
# The same functions, unchanged, on two MPI processes:

# %% tags=["exercise"]
engines = cluster.up(n=2)
check("24.loss_scale")

# %% tags=["exercise"]
check("24.accumulate")

# %% tags=["exercise"]
check("24.clip")

# %% tags=["exercise"]
engines.down()

# %% [markdown]
# ## Keypoints
#
# - A block adds two things to its input: attention, where tokens meet, and two layers, where they do not. 12 d²
#   parameters each.
# - Scores by the book take tokens² bytes. Attention in blocks keeps tokens × size, and computes the scores again.
# - bf16 needs masters: a step smaller than half of the distance of two numbers is lost. float16 needs a loss scale,
#   too, and all ranks must leave out the same steps.
# - Checkpoints cost up to a third more computing. Accumulation costs time alone, and sends once: with `no_sync()`.
# - DDP's ranks compute what one process computes, up to rounding.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **PyTorch's SDPA** chooses among FlashAttention, cuDNN and others; FlexAttention compiles masks of your own
#   ([source](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html)).
# - **`torch.amp.GradScaler`** is the loss scale; with FSDP2 its flag of infinite gradients is summed over the ranks
#   ([source](https://docs.pytorch.org/docs/stable/amp.html)).
# - **Selective checkpoints** keep what is dear to compute, and compute again what is cheap
#   ([source](https://docs.pytorch.org/docs/stable/checkpoint.html)).
# - **FP8** on newer GPUs has a scale for each tensor or block of it, for the reason of section 2
#   ([source](https://arxiv.org/abs/2209.05433)).
# - **nanoGPT** and its successor nanochat train such a model on one node
#   ([source](https://github.com/karpathy/nanochat)).
