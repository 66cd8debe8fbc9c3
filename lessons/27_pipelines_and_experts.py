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
# # Pipelines and experts
#
# **Question:** how does torch run the pipelines of lesson 20, what do short stages in turn win, and what changes if
# each token goes to an expert of its own?
#
# **Afterwards you can**
#
# - cut a model into stages, run GPipe, 1F1B and interleaved schedules, and say what each keeps and waits for,
# - handle a weight that is in the first and in the last stage,
# - send tokens to experts on other ranks and back, with a gradient,
# - choose a capacity, and say why the balance of experts is a sum over all ranks.
#
# **Needs:** two cores, no GPU. **Alone:** 30 minutes to read, 30 to do. **Led:** 65 minutes. **Before:** lessons 20, 24
# and 26.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 20: p stages, m micro-batches. How large is the bubble of GPipe, and that of 1F1B?</summary>
#
# (p − 1)/(m + p − 1) of the time, both. 1F1B saves memory: a stage keeps at most p micro-batches.
#
# </details>
#
# <details>
# <summary>Lesson 26: a rank is in two groups of a mesh. What does an error name, if one of them waits?</summary>
#
# The dimension of the mesh, the ranks of that group that wait, and the line of the one that is missing.
#
# </details>

# %% tags=["both"]
import numpy as np

from workbench import cluster
from workbench.course.cards import cause
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.pipelines.picture import pipeline_picture
from workbench.course.pipelines.played import gpipe, play
from workbench.course.predictions import predict, reveal
from workbench.course.tasks import task

# %% [markdown]
# ## 1. Stages with torch
#
# A stage is a module: the first one takes tokens, the last one gives scores. `PipelineStage` knows its number, and
# sends to its neighbours. A schedule knows the order. `step()` gets the whole batch on the first rank, and the right
# words on the last one. Four engines, two blocks each:

# %%
engines = cluster.up(n=4)

# %%
# %%px
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from workbench import data

sys.path.insert(0, "steps/gpt")
import gpt

dist.init_process_group("workbench")
rank, n = dist.get_rank(), dist.get_world_size()
shape = gpt.Shape(layers=8, width=32, heads=2, tokens=16)
text = torch.frombuffer(bytearray(data.shakespeare()), dtype=torch.uint8)
ends = dist.new_group([0, n - 1])  # the ranks with the tied weight


class Part(nn.Module):
    """Some neighbouring blocks of a model; the first part has the embedding, the last one norm and head."""

    def __init__(self, model, layers):
        super().__init__()
        self.first, self.last = layers[0] == 0, layers[-1] == len(model.blocks) - 1
        self.blocks = nn.ModuleList(model.blocks[i] for i in layers)
        self.embedding = model.embedding if self.first else None
        self.norm, self.head = (model.norm, model.head) if self.last else (None, None)
        self.register_buffer("turns", model.turns, persistent=False)

    def forward(self, x):
        x = self.embedding(x) if self.first else x
        for block in self.blocks:
            x = block(x, self.turns)
        return self.head(self.norm(x)) if self.last else x


def loss_of(scores, words):
    return F.cross_entropy(scores.flatten(0, 1), words.flatten())


def begin():
    torch.manual_seed(0)
    return gpt.GPT(shape).double()


def serial(steps=3):
    model = begin()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        gpt.loss_of(model, gpt.batch(text, step, 8, shape.tokens)).backward()
        optimizer.step()
    return model


def pipeline(make, places, tied=True, microbatches=8, steps=3):
    """This rank's part of the model after some steps of a schedule. places: lists of neighbouring layers, by stage."""
    model, mine = begin(), [s for s in range(len(places)) if s % n == rank]
    parts = [Part(model, places[s]) for s in mine]
    stages = [PipelineStage(part, s, len(places), torch.device("cpu")) for part, s in zip(parts, mine, strict=True)]
    schedule = make(stages if len(stages) > 1 else stages[0], microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW([each for part in parts for each in part.parameters()], lr=1e-3)
    for step in range(steps):
        texts = gpt.batch(text, step, 8, shape.tokens)
        optimizer.zero_grad()
        schedule.step(*[texts[:, :-1]] * (rank == 0), **{"target": texts[:, 1:]} if rank == n - 1 else {})
        if tied and rank in (0, n - 1):
            dist.all_reduce(model.embedding.weight.grad, group=ends)
        optimizer.step()
    return parts, mine


def far(parts, alone, places, mine):
    """The largest difference of this rank's weights from those of one process."""
    wanted = [Part(alone, places[s]) for s in mine]
    pairs = zip(nn.ModuleList(parts).parameters(), nn.ModuleList(wanted).parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


alone, whole = serial(), [list(range(s * 8 // n, (s + 1) * 8 // n)) for s in range(n)]  # neighbouring layers
for make in (ScheduleGPipe, Schedule1F1B):
    parts, mine = pipeline(make, whole)
    print(
        f"rank {rank}, {make.__name__}: weights within 1e-10 of one process: {far(parts, alone, whole, mine) < 1e-10}"
    )

# %% [markdown]
# ### A weight in two stages
#
# The embedding is in the first stage, and the head, which is the same matrix, in the last one. Each has a copy, and
# each copy gets a part of the gradient. The group `ends` adds up both.

# %%
predict(
    "27.tied",
    "Without this sum: which ranks have wrong weights after three steps?",
    choices=["none", "rank 0 and rank 3", "rank 0 alone", "all of them"],
)

# %%
# %%px
parts, mine = pipeline(ScheduleGPipe, whole, tied=False)
wrong = far(parts, alone, whole, mine) > 1e-10

# %%
wrong = [rank for rank, each in enumerate(engines.view["wrong"]) if each]
print("ranks with wrong weights:", wrong)
reveal(
    "27.tied",
    "all of them" if len(wrong) == engines.n else "rank 0 and rank 3" if wrong == [0, 3] else "none",
    "In the first step both copies change differently. From then on the scores are others, and so all gradients.",
)

# %% [markdown]
# ## 2. Short stages in turn
#
# **Interleaved 1F1B** (Megatron-LM, 2021): each rank has several short stages, so a micro-batch passes each rank
# several times. Your first exercise says which layers are where. With v stages on each rank the pipeline fills v times
# as fast, and the bubble is (p − 1)/(v · m + p − 1):

# %%
predict("27.interleaved", "4 ranks, 8 micro-batches, 2 stages on each rank: how large is the bubble now?", number="%")

# %%
p, m = 4, 8
plain = play(gpipe, p, m).bubble
for v in (1, 2, 4):
    print(f"{v} on each rank: bubble {(p - 1) / (v * m + p - 1):5.1%}, messages between stages {2 * m * (v * p - 1):3}")
print(f"on the simulator's clock, one on each: {plain:.1%}")
pipeline_picture(play(gpipe, p, m), "One stage on each rank")

# %%
reveal(
    "27.interleaved",
    round(100 * 3 / (2 * m + 3), 1),
    "3 of 19, in place of 3 of 11. The price: more messages, between 2p stages in place of p.",
)

# %%
# %%px
from workbench.course.tasks import task

layers = task("27.places").reference(8, n, 8 // n)
stages = [[s] for s in range(8)]  # one layer each; stage s is on rank s % n
parts, mine = pipeline(ScheduleInterleaved1F1B, stages)
print(f"rank {rank} has layers {layers[rank]}; weights within 1e-10: {far(parts, alone, stages, mine) < 1e-10}")

# %% [markdown]
# ## 3. Experts
#
# A **mixture of experts** has many pairs of layers where a block had one, and a router that chooses one or two of them
# for each token. A token costs as much as before, and the model has many times as many parameters. With **expert
# parallelism** each rank has some experts, and tokens travel: your second exercise. Here it is on four ranks, with the
# gradient, which travels back the same way:


# %%
# %%px
from torch.distributed._functional_collectives import all_to_all_single_autograd as exchange

torch.manual_seed(0)
size, tokens = 16, 32
experts = [nn.Sequential(nn.Linear(size, 32), nn.GELU(), nn.Linear(32, size)).double() for _ in range(n)]
router = nn.Linear(size, n, bias=False).double()
everything = torch.randn(n * tokens, size, dtype=torch.float64)
x = everything.chunk(n)[rank]


def mixture(x):
    """Each token's expert is on another rank; what comes back is weighted by the router's probability."""
    probabilities = router(x).softmax(-1)
    best, choice = probabilities.max(-1)
    order = choice.argsort(stable=True)
    going = torch.bincount(choice, minlength=n)
    coming = torch.empty_like(going)
    dist.all_to_all_single(coming, going)
    there = exchange(x[order], coming.tolist(), going.tolist(), dist.group.WORLD)
    back = exchange(experts[rank](there), going.tolist(), coming.tolist(), dist.group.WORLD)
    return torch.zeros_like(x).index_copy(0, order, back) * best[:, None], choice


def all_here(x):
    probabilities = router(x).softmax(-1)
    best, choice = probabilities.max(-1)
    return torch.stack([experts[e](row) for row, e in zip(x, choice.tolist(), strict=True)]) * best[:, None]


made, choice = mixture(x)
made.square().sum().backward()
mine = [each.grad.clone() for each in experts[rank].parameters()]
for each in (router, *experts):
    each.zero_grad()
wanted = all_here(everything)
wanted.square().sum().backward()
near = (made - wanted.chunk(n)[rank]).abs().max() < 1e-10
same = max((a - b.grad).abs().max() for a, b in zip(mine, experts[rank].parameters(), strict=True)) < 1e-10
print(f"rank {rank}: what its tokens get is right: {near}; its expert's gradient is that of all tokens: {same}")
print(f"its tokens went to {torch.bincount(choice, minlength=n).tolist()}")

# %% [markdown]
# The expert's gradient needed no allreduce: an expert exists once, and all its tokens came to it.
#
# ### Capacity
#
# Compiled programs and large GPUs want buffers of a fixed size: each expert has **capacity** for so many tokens of a
# batch, say factor · tokens / experts. Who comes late is dropped: it passes the layer by the shortcut alone.

# %%
predict(
    "27.capacity",
    "64 experts, a router that chooses at random, and room for the mean number of tokens. How many tokens are dropped?",
    choices=["none", "about a tenth", "about a third", "a half"],
)

# %%
slots, random = task("27.slots").reference, np.random.default_rng(0)
tokens, number, lost = 1024, 64, {}
for name, choice in (
    ("at random", random.integers(0, number, tokens)),
    ("uneven", (number * random.random(tokens) ** 2).astype(int)),
):
    for factor in (1.0, 1.25, 2.0):
        places = slots(choice.tolist(), number, int(factor * tokens / number))
        lost[name, factor] = places.count(None) / tokens
        print(f"{name:10} factor {factor:4}: {lost[name, factor]:5.1%} dropped")

# %%
reveal(
    "27.capacity",
    "about a tenth" if 0.05 < lost["at random", 1.0] < 0.15 else "none",
    "16 tokens on average, and more or less by chance: what is above 16 is lost, though others have room.",
)

# %% [markdown]
# ### Balance
#
# Nothing makes a router use all experts alike. So a **balance loss** is added (Switch Transformer, 2021): the share of
# tokens of each expert times its mean probability, summed. It is a product of two means over *all* tokens: your last
# exercise. The mean of the ranks' own losses would ask each rank's part of the batch to be balanced, which is another,
# harder wish.

# %% [markdown]
# ## 4. Two ranks see it differently
#
# Rank 2 believes in four micro-batches where the others have eight. With Gloo all would wait for half an hour:

# %% tags=["nbval-ignore-output", "raises-exception"]
# %%px
_ = pipeline(ScheduleGPipe, whole, microbatches=4 if rank == n - 2 else 8, steps=1)

# %%
engines.down()

# %% [markdown] tags=["exercise"]
# First run the cell above with the imports. `show` draws your function, `check` judges it, `hint` gives a hint,
# `solution` shows the solution. Everything except the last section works without engines.
#
# ## Which layers are where?

# %% tags=["exercise"]
# exercise: 27.places

# %% tags=["exercise"]
check("27.places")

# %% [markdown] tags=["exercise"]
# ## To the experts, and back

# %% tags=["exercise"]
# exercise: 27.to_experts

# %% tags=["exercise"]
show("27.to_experts")

# %% tags=["exercise"]
check("27.to_experts")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 65 minutes, 30 of them for the exercises. Play
# `27.to_experts` with people: each table is a rank and an expert, cards are tokens; the usual mistake, results in the
# order of the experts, is seen at once. For the tied weight ask before you run it who will be wrong. Those who are done
# early: with two experts for each token, what travels twice, and what could travel once?

# %% [markdown] tags=["exercise"]
# ## Places

# %% tags=["exercise"]
# exercise: 27.slots

# %% tags=["exercise"]
check("27.slots")

# %% [markdown] tags=["exercise"]
# ## Balance

# %% tags=["exercise"]
# exercise: 27.balance_loss

# %% tags=["exercise"]
check("27.balance_loss")

# %% [markdown] tags=["exercise"]
# ## Find the mistake
#
# Programs on torch's own functions, each with one mistake. Repair it, and name its cause: `cause` lists four, and with
# a letter it says whether that is the one. `check` runs the program on ranks that are threads of this process, with
# torch's real functions and the workbench as backend; it needs no engines.

# %% [markdown] tags=["exercise"]
# ### All micro-batches have arrived, and a rank still waits
#
# Each rank is a stage, and passes micro-batches on.

# %% tags=["exercise"]
# exercise: 27.stages

# %% tags=["exercise"]
check("27.stages")

# %% tags=["exercise"]
cause("27.stages")

# %% tags=["instructor"]
cause("27.stages", "c")

# %% [markdown] tags=["exercise"]
# ### It works in the test, and fails with real tokens
#
# Tokens go to the ranks of their experts, and experts are not equally busy.

# %% tags=["exercise"]
# exercise: 27.dispatch

# %% tags=["exercise"]
check("27.dispatch")

# %% tags=["exercise"]
cause("27.dispatch")

# %% tags=["instructor"]
cause("27.dispatch", "a")

# %% [markdown] tags=["exercise"]
# ### Once in a thousand steps all ranks fail, and one of them first
#
# And back to where they came from.

# %% tags=["exercise"]
# exercise: 27.through_experts

# %% tags=["exercise"]
check("27.through_experts")

# %% tags=["exercise"]
cause("27.through_experts")

# %% tags=["instructor"]
cause("27.through_experts", "b")

# %% [markdown] tags=["exercise"]
# ## On real ranks

# %% tags=["exercise"]
engines = cluster.up(n=2)
check("27.to_experts")

# %% tags=["exercise"]
check("27.balance_loss")

# %% tags=["exercise"]
engines.down()

# %% [markdown]
# ## Keypoints
#
# - A stage is a module, a schedule is an order. GPipe, 1F1B and interleaved come to the same weights.
# - A weight in two stages has two gradients: add them up.
# - v short stages on each rank: the bubble is (p − 1)/(v · m + p − 1), with (v · p − 1)/(p − 1) times
#   as many messages.
# - Tokens go to their experts and back by two alltoalls, and so do their gradients. An expert's own gradient is
#   complete.
# - Capacity drops tokens, also where the router chooses at random. Balance is a product of means over all ranks'
#   tokens.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **PyTorch's pipelining** cuts by hand or by tracing, and has zero-bubble schedules and DualPipeV as well
#   ([source](https://docs.pytorch.org/docs/stable/distributed.pipelining.html)).
# - **DeepSeek-V3** balances without a loss: a bias for each expert grows while it has too few tokens
#   ([source](https://arxiv.org/abs/2412.19437)).
# - **DeepEP** is a library of alltoalls for experts, within a host and between hosts
#   ([source](https://github.com/deepseek-ai/DeepEP)).
# - **MegaBlocks** drops no token: its products take groups of different lengths
#   ([source](https://arxiv.org/abs/2211.15841)).
# - **torchtitan** combines experts with the other dimensions of a mesh
#   ([source](https://github.com/pytorch/torchtitan)).
