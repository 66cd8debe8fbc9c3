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
# # Cut it
#
# **Question:** a transformer is cut by heads and columns, by its vocabulary, or along the sequence. Which parts stay
# whole, what is sent, and how is it written with torch?
#
# **Afterwards you can**
#
# - cut attention by heads and a loss by words, and say what each rank has of them,
# - cut a model by `parallelize_module`, and combine that with `fully_shard` on a mesh of two dimensions,
# - say what sequence parallelism saves, though it sends as much,
# - pass keys and values round a ring, and give all ranks as much to do.
#
# **Needs:** two cores, no GPU. **Alone:** 40 minutes to read, 35 to do. **Led:** 80 minutes. **Before:** lessons 20, 24
# and 25.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 20: two layers are cut by columns and then by rows. What is sent in forward, and what in backward?
# </summary>
#
# One allreduce each: of y behind the second layer, and of the gradient of x before the first one.
#
# </details>
#
# <details>
# <summary>Lesson 24: where in a block do tokens meet?</summary>
#
# In attention only. Norms and the two layers work on each token by itself.
#
# </details>

# %% tags=["both"]
import numpy as np

from workbench import cluster
from workbench.course.cards import cause
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.predictions import predict, reveal
from workbench.course.simulator import simulate
from workbench.course.tasks import task

# %% [markdown]
# ## 1. Heads are columns
#
# Query, key and value are three linear layers. Cut by columns, a rank gets the columns of some heads. Heads never meet
# before the layer behind them, `out`, and that one is cut by rows. So attention is the pair of lesson 20: columns, then
# rows, with one allreduce. The two layers behind it are another one.
#
# In torch a plan says which layer is cut how. `parallelize_module` makes DTensors of the weights, and puts f and g of
# lesson 20 before and behind them. A torch layer keeps its weight as (out, in), and computes x @ weight.T. So columns
# are rows of `weight`, and print as `Shard(dim=0)`:

# %%
engines = cluster.up(n=2)

# %%
# %%px
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from workbench import data

sys.path.insert(0, "steps/gpt")
import gpt

dist.init_process_group("workbench")
rank, n = dist.get_rank(), dist.get_world_size()
shape = gpt.Shape(layers=2, width=64, heads=4, tokens=32)
text = torch.frombuffer(bytearray(data.shakespeare()), dtype=torch.uint8)
columns = ("attention.query", "attention.key", "attention.value", "mlp.up")
PLAN = {name: ColwiseParallel() for name in columns} | {
    name: RowwiseParallel() for name in ("attention.out", "mlp.down")
}


def begin(cut=lambda model: model):
    torch.manual_seed(0)
    model = gpt.GPT(shape).double()
    cut(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)


def train(model, optimizer, steps=4, part=slice(None)):
    for step in range(steps):
        optimizer.zero_grad()
        gpt.loss_of(model, gpt.batch(text, step, 8, shape.tokens)[part]).backward()
        optimizer.step()
    return [each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()]


def far(these, those):
    return max((a - b).abs().max().item() for a, b in zip(these, those, strict=True))


def by_heads(model):
    for block in model.blocks:
        parallelize_module(block, init_device_mesh("cpu", (n,)), PLAN)


alone = train(*begin())
cut, optimizer = begin(by_heads)
query = cut.blocks[0].attention.query.weight
print(f"rank {rank}: query {query.placements}, {query.to_local().shape[0] // cut.blocks[0].attention.size} of 4 heads")
print(f"weights within 1e-10 of one process: {far(alone, train(cut, optimizer)) < 1e-10}")

# %% [markdown]
# The batch is the same on both ranks: only the model is cut. The optimizer needs `foreach=False`, for
# some parameters are DTensors and some are not, and torch does not mix them in one call.
#
# What if a rank's part is no whole number of heads? torch cuts the columns all the same, and fails where the heads are
# made:

# %%
# %%px
odd = gpt.GPT(gpt.Shape(layers=1, width=66, heads=3, tokens=8))
parallelize_module(odd.blocks[0], init_device_mesh("cpu", (n,)), PLAN)
try:
    odd(torch.zeros(1, 8, dtype=torch.int64))
except RuntimeError as error:
    print(error)

# %% [markdown]
# 66 columns on two ranks are 33 each, and a head has 22. Take a number of heads that the ranks divide.
#
# ## 2. Words
#
# The head of a language model has a column for each word, and its result is the largest array of all: tokens × words.
# Cut by columns, each rank has the scores of its own words. The loss needs three numbers for each token from all ranks:
# your first exercise.

# %%
predict(
    "26.words",
    "1,024 tokens, 50,000 words, float32, four ranks. How many MB are all scores, which nobody has to send?",
    number="MB",
)

# %%
tokens, words, n = 64, 4 * 1250, 4
random = np.random.default_rng(0)
scores, targets = random.normal(size=(tokens, words)), random.integers(0, words, tokens)


def loss(comm):
    mine = np.split(scores, comm.size, axis=1)[comm.rank]
    return task("26.vocabulary_loss").reference(comm, mine, comm.rank * words // comm.size, targets)


run = simulate(n, loss)
whole = -(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))[np.arange(tokens), targets].mean()
print(f"equal to the whole softmax: {abs(run.results[0] - whole) < 1e-12}")
print(f"scores {scores.nbytes:,} bytes; the busiest rank sends {max(size for _, size in run.sent()):,}")

# %%
reveal(
    "26.words",
    round(1024 * 50_000 * 4 / 1e6, 1),
    "And as much again for their gradient. In torch it is `loss_parallel()`.",
)

# %% [markdown]
# ## 3. The sequence between the cuts
#
# Between the cut layers each rank has all tokens: the norms are computed n times, and their inputs are kept n times.
# **Sequence parallelism** (Korthikanti and others, 2022) cuts these parts along the sequence. The allreduce behind a
# pair becomes a reduce-scatter, and an allgather stands before the next one.

# %%
predict(
    "26.sequence",
    "Sequence parallelism: how many bytes are sent, compared with an allreduce behind each pair of layers?",
    choices=["half as many", "as many", "twice as many"],
)


# %%
# %%px
def by_sequence(model):
    mesh, last = init_device_mesh("cpu", (n,)), len(model.blocks) - 1
    plan = PLAN | {
        "attention_norm": SequenceParallel(),
        "mlp_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None), use_local_output=True
        ),
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "mlp": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
        ),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    ends = {
        "blocks.0": PrepareModuleInput(
            input_layouts=(Replicate(), None), desired_input_layouts=(Shard(1), None), use_local_output=True
        ),
        f"blocks.{last}": PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, ends)


seen = {}
sequence, optimizer = begin(by_sequence)
sequence.blocks[0].mlp_norm.register_forward_hook(lambda module, args, found: seen.update(norm=found.to_local().shape))
print(f"weights within 1e-10 of one process: {far(alone, train(sequence, optimizer)) < 1e-10}")
print(f"rank {rank}: a norm sees {tuple(seen['norm'])} of (8, 32, 64)")

# %%
ring = 3 / 4  # of a buffer, for four ranks: each half of an allreduce
fact = {1: "as many", 2: "twice as many"}[round((ring + ring) / (2 * ring))]
reveal(
    "26.sequence",
    fact,
    "A ring allreduce is a reduce-scatter and an allgather. The norms stand between the two halves now.",
)

# %%
engines.down()

# %% [markdown]
# ## 4. Two dimensions
#
# Four ranks as a mesh: two groups that cut the model, and in each place of it two ranks that share the batch. A rank is
# in two groups. `fully_shard` on the other dimension cuts each part once more, by rows. Two cuts of dimension 0 print
# as `_StridedShard(dim=0, sf=2), Shard(dim=0)`: the second cut is that of the model, and was made first:

# %%
engines = cluster.up(n=4)

# %%
# %%px
import logging
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from workbench import data

sys.path.insert(0, "steps/gpt")
import gpt

logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # full_tensor() of two cuts gathers twice
dist.init_process_group("workbench")
mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
shape = gpt.Shape(layers=2, width=64, heads=4, tokens=32)
text = torch.frombuffer(bytearray(data.shakespeare()), dtype=torch.uint8)
columns = ("attention.query", "attention.key", "attention.value", "mlp.up")
PLAN = {name: ColwiseParallel() for name in columns} | {
    name: RowwiseParallel() for name in ("attention.out", "mlp.down")
}


def two_cuts(model):
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], PLAN)
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])


def train(cut=None, steps=4):
    torch.manual_seed(0)
    model = gpt.GPT(shape).double()
    if cut:
        cut(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    share = 8 // mesh["data"].size() if cut else 8
    part = (
        slice(share * mesh["data"].get_local_rank(), share * (mesh["data"].get_local_rank() + 1)) if cut else slice(8)
    )
    for step in range(steps):
        optimizer.zero_grad()
        gpt.loss_of(model, gpt.batch(text, step, 8, shape.tokens)[part]).backward()
        optimizer.step()
    return model


alone, model = train(), train(two_cuts)
apart = max(
    (a - b.full_tensor()).abs().max().item() for a, b in zip(alone.parameters(), model.parameters(), strict=True)
)
up = model.blocks[0].mlp.up.weight
print(f"rank {dist.get_rank()} is {mesh.get_coordinate()}: mlp.up {up.placements}, here {tuple(up.to_local().shape)}")
print(f"weights within 1e-10 of one process: {apart < 1e-10}")

# %% [markdown]
# If a rank is missing now, which of its groups waits? The error names the dimension of the mesh:

# %% tags=["raises-exception"]
# %%px
if dist.get_rank() != dist.get_world_size() - 1:
    dist.all_reduce(torch.ones(1), group=mesh["tensor"].get_group())

# %% [markdown]
# ## 5. Attention round a ring
#
# A long text may not fit a rank, whatever is cut. **Context parallelism** cuts it along the sequence everywhere, also
# in attention: each rank keeps its queries, and keys and values pass by (Ring Attention, 2023). That is your third
# exercise. Here it is on four ranks with torch, and messages to the neighbours:


# %%
# %%px
def ring(query, key, value):
    """Causal attention of this rank's tokens. (heads, tokens, size); exact, for sums are kept up to date."""
    rank, n, tokens = dist.get_rank(), dist.get_world_size(), query.shape[1]
    most, total, found = torch.full_like(query[..., :1], -torch.inf), torch.zeros_like(query[..., :1]), 0.0
    at = torch.arange(tokens)
    for step in range(n):
        source = (rank - step) % n
        coming = torch.empty(2, *key.shape, dtype=key.dtype)
        messages = [
            dist.P2POp(dist.isend, torch.stack((key, value)), (rank + 1) % n),
            dist.P2POp(dist.irecv, coming, (rank - 1) % n),
        ]
        works = dist.batch_isend_irecv(messages) if step < n - 1 else []  # they travel while this rank computes
        scores = query @ key.mT / query.shape[-1] ** 0.5
        scores = scores.masked_fill(source * tokens + at > (rank * tokens + at)[:, None], -torch.inf)
        larger = torch.maximum(most, scores.amax(-1, keepdim=True))
        weights, shrunk = (scores - larger).exp(), (most - larger).exp()
        most, total, found = larger, total * shrunk + weights.sum(-1, keepdim=True), found * shrunk + weights @ value
        for work in works:
            work.wait()
        key, value = coming
    return found / total


torch.manual_seed(0)
parts = torch.randn(3, 4, 64, 16, dtype=torch.float64)  # query, key, value of 4 heads and 64 tokens, alike on all ranks
whole = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
mine = [part.chunk(dist.get_world_size(), dim=1)[dist.get_rank()] for part in parts]
apart = (ring(*mine) - whole.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]).abs().max()
print(f"rank {dist.get_rank()}: within 1e-12 of the whole attention: {apart < 1e-12}")

# %%
engines.down()

# %%
predict(
    "26.balance",
    "A causal text in four equal parts, one for each rank. Which part of all scores does the last rank compute?",
    choices=["a quarter", "about a third", "nearly a half", "more than a half"],
)

# %%
tokens, n = 4096, 4
pieces = {
    "in order": [[(r * tokens // n, (r + 1) * tokens // n)] for r in range(n)],
    "there and back": task("26.zigzag").reference(tokens, n),
}
work = {
    name: [sum((e * (e + 1) - b * (b + 1)) / 2 for b, e in mine) for mine in ranks] for name, ranks in pieces.items()
}
for name, each in work.items():
    print(f"{name:14}", " ".join(f"{part / sum(each):5.1%}" for part in each))

# %%
last = work["in order"][-1] / sum(work["in order"])
reveal(
    "26.balance",
    "nearly a half" if 0.4 < last < 0.5 else "about a third",
    "7 of 16: its tokens see all others. With two pieces each, one from the front and one from the back, all ranks "
    "have a quarter.",
)

# %% [markdown] tags=["exercise"]
# First run the cell above with the imports. `show` draws your function, `check` judges it, `hint` gives a hint,
# `solution` shows the solution. Everything except the last section works without engines.
#
# ## A loss whose scores nobody has whole

# %% tags=["exercise"]
# exercise: 26.vocabulary_loss

# %% tags=["exercise"]
check("26.vocabulary_loss")

# %% [markdown] tags=["exercise"]
# ## Tokens outside, columns and rows inside

# %% tags=["exercise"]
# exercise: 26.sequence_parallel

# %% tags=["exercise"]
show("26.sequence_parallel")

# %% tags=["exercise"]
check("26.sequence_parallel")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 80 minutes, 45 of them for the exercises.
# `26.ring_attention` is the hardest of the course: let them write it for one rank first, with the keys in two halves,
# and compare with `24.attention`. Then the only new question is whose keys these are. In `26.vocabulary_loss` many
# subtract their own largest score. Those who are done early: which steps of the ring need no computing at all on rank
# 0, and what becomes of that with two pieces each?

# %% [markdown] tags=["exercise"]
# ## Attention round a ring

# %% tags=["exercise"]
# exercise: 26.ring_attention

# %% tags=["exercise"]
show("26.ring_attention")

# %% tags=["exercise"]
check("26.ring_attention")

# %% [markdown] tags=["exercise"]
# ## As much for everybody

# %% tags=["exercise"]
# exercise: 26.zigzag

# %% tags=["exercise"]
check("26.zigzag")

# %% [markdown] tags=["exercise"]
# ## Find the mistake
#
# Programs on torch's own functions, each with one mistake. Repair it, and name its cause: `cause` lists four, and with
# a letter it says whether that is the one. `check` runs the program on ranks that are threads of this process, with
# torch's real functions and the workbench as backend; it needs no engines.

# %% [markdown] tags=["exercise"]
# ### No error, but tensor-parallel training is worse than training by one process
#
# Four ranks, two rows of two. Each row is a tensor group.

# %% tags=["exercise"]
# exercise: 26.dropout

# %% tags=["exercise"]
check("26.dropout")

# %% tags=["exercise"]
cause("26.dropout")

# %% tags=["instructor"]
cause("26.dropout", "c")

# %% [markdown] tags=["exercise"]
# ### No error, but a layer of 4,096 columns learns as one of 1,024
#
# Each rank draws the first weights of its columns.

# %% tags=["exercise"]
# exercise: 26.columns

# %% tags=["exercise"]
check("26.columns")

# %% tags=["exercise"]
cause("26.columns")

# %% tags=["instructor"]
cause("26.columns", "a")

# %% [markdown] tags=["exercise"]
# ### An addition is refused
#
# A product of DTensors, and a bias.

# %% tags=["exercise"]
# exercise: 26.with_bias

# %% tags=["exercise"]
check("26.with_bias")

# %% tags=["exercise"]
cause("26.with_bias")

# %% tags=["instructor"]
cause("26.with_bias", "d")

# %% [markdown] tags=["exercise"]
# ### No error, and no loss that falls
#
# The same grid, and the sampler of DDP.

# %% tags=["exercise"]
# exercise: 26.samples

# %% tags=["exercise"]
check("26.samples")

# %% tags=["exercise"]
cause("26.samples")

# %% tags=["instructor"]
cause("26.samples", "b")

# %% [markdown] tags=["exercise"]
# ## On real ranks

# %% tags=["exercise"]
engines = cluster.up(n=2)
check("26.vocabulary_loss")

# %% tags=["exercise"]
check("26.sequence_parallel")

# %% tags=["exercise"]
check("26.ring_attention")

# %% tags=["exercise"]
engines.down()

# %% [markdown]
# ## Keypoints
#
# - Heads are columns: query, key and value by columns, `out` by rows, one allreduce.
# - The loss of a cut vocabulary needs three numbers for each token, and no scores.
# - Sequence parallelism sends as much as tensor parallelism, and keeps the parts between the cuts once.
# - On a mesh a rank is in one group for each dimension. A part of a weight is cut once more by the other dimension.
# - Round a ring, attention needs one rank's keys at a time. Two pieces each, there and back, balance causal attention.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **`parallelize_module`** has these plans, and `loss_parallel()` for the cut vocabulary
#   ([source](https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html)).
# - **Asynchronous tensor parallelism** cuts a product in pieces, and sends one while it computes the next
#   ([source](https://discuss.pytorch.org/t/distributed-w-torchtitan-introducing-async-tensor-parallelism-in-pytorch/209487)).
# - **`context_parallel`** passes keys and values round a ring, or gathers them, for CUDA's attention kernels
#   ([source](https://docs.pytorch.org/tutorials/prototype/context_parallel.html)).
# - **DeepSpeed's Ulysses** exchanges heads for tokens by an all-to-all before and behind attention
#   ([source](https://arxiv.org/abs/2309.14509)).
# - **Megatron-LM** has all of these in one program ([source](https://arxiv.org/abs/2205.05198)).
