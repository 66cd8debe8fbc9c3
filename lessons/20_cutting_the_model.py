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
# # Cutting the model
#
# **Question:** data parallelism puts the whole model on every rank. What if it does not fit there? How is a model cut,
# and what must the ranks send to each other then?
#
# **Afterwards you can**
#
# - cut a linear layer by columns or by rows, and two layers so that as little as possible is sent,
# - say why the allreduce of a cut layer needs another derivative than that of a gradient,
# - draw a pipeline's step, and compute its bubble and the activations that each stage keeps,
# - say which cut belongs inside a machine, and which between machines.
#
# **Needs:** two cores, no GPU. **Alone:** 30 minutes to read, 40 to do. **Led:** 70 minutes. **Before:** lessons 03 and
# 06.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 19: PowerSGD leaves a part of the gradient out. What is done with that part?</summary>
#
# It is kept, and added to the next gradient. Without that the training does not learn.
#
# </details>
#
# <details>
# <summary>Lesson 09: The global batch is four times as large. What is the first learning rate to try with SGD, and
# what helps if it diverges?</summary>
#
# Four times the rate, with a warm-up in the first epochs; and a smaller rate as a control.
#
# </details>

# %% tags=["both"]
import numpy as np

from workbench import cluster
from workbench.course import drawing
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.pipelines.picture import pipeline_picture
from workbench.course.pipelines.played import gpipe, play
from workbench.course.pipelines.split_layers import split_layers
from workbench.course.predictions import predict, reveal
from workbench.course.simulator import simulate
from workbench.course.tasks import task

# %% [markdown]
# ## 1. Tensor parallelism: cut the layers
#
# A linear layer is a matrix product y = x W. There are two ways to cut W in n parts, one for each rank.
#
# - **By columns:** rank r has some columns of W, and computes the same columns of y, completely. Nothing is sent, but
#   every rank needs the whole x.
# - **By rows:** rank r has some rows of W, and needs only the columns of x that are multiplied with them. Its result
#   has the shape of y, but it is only a part of a sum. So y needs an allreduce.
#
# Here are both on four simulated ranks, compared with the uncut W:

# %%
random = np.random.default_rng(0)
x, w = random.normal(size=(64, 512)), random.normal(size=(512, 256))


def by_columns(comm):
    mine = np.array_split(w, comm.size, axis=1)[comm.rank]
    return x @ mine  # these columns of y are complete


def by_rows(comm):
    mine = np.array_split(w, comm.size)[comm.rank]
    my_x = np.array_split(x, comm.size, axis=1)[comm.rank]
    return comm.allreduce(my_x @ mine)


columns, rows = simulate(4, by_columns), simulate(4, by_rows)
for name, run in (("by columns", columns), ("by rows", rows)):
    (_, nbytes), shape = max(run.sent()), run.results[0].shape
    print(f"{name}: each rank gets {shape} of y's {(x @ w).shape}; the busiest sends {nbytes:,} bytes")
difference = max(abs(one - x @ w).max() for one in rows.results)
print("the sum differs from x W by rounding only:", bool(difference < 1e-11))

# %% [markdown]
# Now two layers with an activation between them, as in every transformer block: y = max(x W₁, 0) W₂. The activation
# works on each element alone. This decides which cut comes first.

# %%
predict(
    "20.two_layers",
    "Two layers on 4 ranks, forward only. With the best cut of W₁ and W₂, how many allreduces are needed?",
    choices=["none", "1", "2", "4"],
)


# %%
def two_cuts(comm, first_by_columns):
    """Forward of two layers; the second one is cut the other way than the first."""
    w1, w2 = np.ones((512, 1024)), np.ones((1024, 512))
    if first_by_columns:
        h = np.maximum(x @ np.array_split(w1, comm.size, axis=1)[comm.rank], 0)  # my own columns of h
        return comm.allreduce(h @ np.array_split(w2, comm.size)[comm.rank])  # they meet my rows of w2
    my_x = np.array_split(x, comm.size, axis=1)[comm.rank]
    h = np.maximum(comm.allreduce(my_x @ np.array_split(w1, comm.size)[comm.rank]), 0)  # max() needs the whole sum
    return np.concatenate(comm.allgather(h @ np.array_split(w2, comm.size, axis=1)[comm.rank]), axis=1)


sent = {}
for name, first_by_columns in (("columns, then rows", True), ("rows, then columns", False)):
    run = simulate(4, two_cuts, first_by_columns)
    sent[name] = max(size for _, size in run.sent())
    print(f"{name}: {sorted({message.verb for message in run.messages})}, {sent[name]:,} bytes from the busiest rank")

# %%
best = simulate(4, two_cuts, min(sent, key=sent.get) == "columns, then rows")
single = simulate(4, lambda comm: comm.allreduce(best.results[0]))
reveal(
    "20.two_layers",
    str(len(best.messages) // len(single.messages)),
    "By columns first: each rank then has complete hidden units, and its own rows of W₂ belong to them. Only y is a "
    "sum.",
)

# %%
split_layers(4)

# %% [markdown]
# ### f and g
#
# Training needs the backward pass too. Megatron-LM (Shoeybi and others, 2019) names the two places where the ranks
# communicate:
#
# | | forward | backward |
# |---|---|---|
# | **f**, before W₁ | identity: every rank has x | allreduce: dx is a sum over the ranks |
# | **g**, after W₂ | allreduce: y is a sum over the ranks | identity: every rank has dy |
#
# f and g are mirrored: the forward pass of one is the backward pass of the other. Gradients of the weights need no
# communication: each rank has its own rows and columns.
#
# ### On real ranks
#
# Two engines, a two-layer perceptron in float64, and `hvd.allreduce` inside two autograd functions:

# %%
engines = cluster.up(n=2)

# %%
# %%px
import torch
import torch.nn.functional as F

import workbench.torch as hvd
from workbench import data

hvd.init()
digits = data.digits()
images = torch.from_numpy(digits.train_x).flatten(1).double()[:256]  # the same on both ranks: only the model is cut
labels = torch.from_numpy(digits.train_y)[:256]


class CopyIn(torch.autograd.Function):
    """Megatron's f."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        return hvd.allreduce(dx, op=hvd.Sum, name="f")


class SumOut(torch.autograd.Function):
    """Megatron's g."""

    @staticmethod
    def forward(ctx, y):
        return hvd.allreduce(y, op=hvd.Sum, name="g")

    @staticmethod
    def backward(ctx, dy):
        return dy


def whole_weights():
    torch.manual_seed(0)
    return torch.randn(64, 128).double() / 8, torch.randn(128, 10).double() / 11


def my_part():
    """My columns of W₁, my rows of W₂."""
    w1, w2 = whole_weights()
    parts = w1.chunk(hvd.size(), dim=1)[hvd.rank()], w2.chunk(hvd.size())[hvd.rank()]
    return [part.clone().requires_grad_() for part in parts]


def serial(x, w1, w2):
    return F.cross_entropy(torch.relu(x @ w1) @ w2, labels)


def cut(x, w1, w2):
    return F.cross_entropy(SumOut.apply(torch.relu(CopyIn.apply(x) @ w1) @ w2), labels)


def gradients(loss, weights):
    """The loss, and the gradients of the input and of the weights."""
    x = images.clone().requires_grad_()
    value = loss(x, *weights)
    return value.item(), *torch.autograd.grad(value, (x, *weights))


w1, w2 = my_part()
print(f"rank {hvd.rank()} has {w1.numel() + w2.numel():,} of {sum(w.numel() for w in whole_weights()):,} weights")

# %%
# %%px
value, dx, dw1, dw2 = gradients(cut, my_part())
s_value, s_dx, s_dw1, s_dw2 = gradients(serial, [w.requires_grad_() for w in whole_weights()])
s_dw1, s_dw2 = s_dw1.chunk(hvd.size(), dim=1)[hvd.rank()], s_dw2.chunk(hvd.size())[hvd.rank()]
print(f"loss: cut {value:.10f}, serial {s_value:.10f}")
found = {"dx": (dx, s_dx), "my columns of dW₁": (dw1, s_dw1), "my rows of dW₂": (dw2, s_dw2)}
for name, (one, other) in found.items():
    close = bool((one - other).abs().max() < 1e-12)
    print(f"{name}: norm {one.norm():.10f}, serial {other.norm():.10f}, equal to 1e-12: {close}")

# %% [markdown]
# Twenty steps of SGD. There is no DistributedOptimizer: each weight exists once, so there is nothing to average.


# %%
# %%px
def train(loss, weights, steps=20):
    losses = []
    for _ in range(steps):
        value, _, *grads = gradients(loss, weights)
        losses.append(value)
        with torch.no_grad():
            for weight, grad in zip(weights, grads, strict=True):
                weight -= 0.5 * grad
    return losses


losses_cut = train(cut, my_part())
losses_serial = train(serial, [w.requires_grad_() for w in whole_weights()])

# %%
from workbench.course import figures

losses_cut, losses_serial = engines.client[0].pull(["losses_cut", "losses_serial"], block=True)
print("all losses equal to 1e-12:", bool(np.abs(np.array(losses_cut) - losses_serial).max() < 1e-12))
series = {"one process": losses_serial, "cut across two ranks": losses_cut}
figures.curves(series, xlabel="step", ylabel="loss", title="The same training")

# %% [markdown]
# ### Why not hvd.allreduce itself?
#
# `hvd.allreduce` has a derivative: you could omit `SumOut` and call it directly. Its derivative is an allreduce of the
# gradients, as in Horovod.

# %%
predict(
    "20.derivative",
    "On two ranks, hvd.allreduce(…, op=hvd.Sum) replaces SumOut. What is the gradient of W₂ then?",
    choices=["right", "half as large", "twice as large", "right on rank 0 only"],
)


# %%
# %%px
def with_its_own_derivative(x, w1, w2):
    return F.cross_entropy(hvd.allreduce(torch.relu(CopyIn.apply(x) @ w1) @ w2, op=hvd.Sum, name="own"), labels)


_, _, _, own = gradients(with_its_own_derivative, my_part())
ratio = (own.norm() / dw2.norm()).item()
print(f"gradient of W₂, compared with the serial one: {ratio:.6f} times")

# %%
ratio = engines.client[0]["ratio"]
reveal(
    "20.derivative",
    "twice as large" if abs(ratio - 2) < 1e-9 else "right",
    "Its derivative is that of the sum of all ranks' losses. Here every rank computes the same loss, so each dy comes "
    "n times. g knows that there is only one loss, and passes dy on without a change.",
)

# %%
engines.down()

# %% [markdown]
# ## 2. Pipeline parallelism: cut between the layers
#
# The other cut is between layers: rank 0 has the first layers, rank 1 the next layers, and so on. Each rank is a
# **stage**. A stage sends its activations to the next one, and gets their gradient back: once for all its layers, where
# a tensor group sends in each layer. But look at one batch in four stages. A forward takes 1 unit of time and a
# backward 2, because it computes two products and forward computes one. Messages take no time here.

# %%
pipeline_picture(play(gpipe, stages=4, microbatches=1), "The whole batch at once")

# %% [markdown]
# One rank works, three wait. The solution is to cut the batch into **micro-batches**: while stage 1 has the first one,
# stage 0 begins the second. Gradients of the micro-batches are summed, and the weights change only at the end of the
# step, so it is the same training. The idle time that remains is the **bubble**.

# %%
predict("20.bubble", "4 stages, 8 micro-batches: for which part of the time is a stage idle?", number="%")

# %%
eight = play(gpipe, stages=4, microbatches=8)
pipeline_picture(eight, "GPipe")

# %%
reveal(
    "20.bubble",
    round(100 * eight.bubble, 1),
    "Each stage works for m micro-batches and is idle for the time of p - 1: (p - 1)/(m + p - 1) = 3/11.",
)

# %% [markdown]
# A micro-batch takes 3 units on each stage, so a stage is busy for 3m. The last micro-batch's forward reaches the last
# stage p − 1 forwards later than the first one, and its backward needs p − 1 backwards to come back. So the step takes
# 3(m + p − 1), and the bubble is **(p − 1)/(m + p − 1)** of it. The simulator's clock gives the same:

# %%
print("stages  micro-batches   on the clock   (p - 1)/(m + p - 1)")
for p, m in ((2, 2), (4, 4), (4, 8), (4, 32), (8, 8), (8, 64)):
    print(f"{p:6} {m:14} {play(gpipe, p, m).bubble:14.1%} {(p - 1) / (m + p - 1):21.1%}")

# %% [markdown]
# Should you take many micro-batches? Look at the column *kept* of the picture. A backward needs the activations of its
# forward. GPipe's schedule does all forwards first, so every stage keeps the activations of all m micro-batches. But
# the pipeline was meant to save this memory. (GPipe's paper keeps each stage's inputs only, and computes the rest again
# in backward: less memory, and a third more computing. The pictures here are without that.)
#
# ### One forward, one backward
#
# The last stage could begin the backward of micro-batch 0 at once. In the **1F1B** schedule (PipeDream, 2019; in the
# form used here, with all weights updated at the end of the step, Megatron-LM, 2021) every stage does a backward as
# soon as one is ready: stage s does p − 1 − s forwards ahead, and then one forward and one backward alternately.

# %%
predict(
    "20.smaller",
    "1F1B begins its backwards earlier than GPipe. How large is its bubble, with 4 stages and 8 micro-batches?",
    choices=["smaller than GPipe's", "as large as GPipe's", "larger than GPipe's"],
)

# %%
one_f_one_b = task("20.one_f_one_b").reference  # your exercise
turns = play(one_f_one_b, stages=4, microbatches=8)
pipeline_picture(turns, "1F1B")

# %%
less = turns.bubble - eight.bubble
fact = "as large as" if abs(less) < 1e-9 else "smaller than" if less < 0 else "larger than"
reveal(
    "20.smaller",
    f"{fact} GPipe's",
    "The first forward must still reach the last stage, and the last backward the first stage. 1F1B saves memory, not "
    "time.",
)

# %%
print("micro-batches   bubble   GPipe keeps   1F1B keeps (by stage)")
for m in (2, 4, 8, 32):
    before, after = play(gpipe, 4, m), play(one_f_one_b, 4, m)
    print(f"{m:13} {after.bubble:8.1%} {max(before.peaks):13}   {', '.join(map(str, after.peaks))}")

# %% [markdown]
# Stage s keeps min(p − s, m) micro-batches, at most p − s for any m. So with 1F1B you can take many small micro-batches
# until the bubble hardly matters. What is the price? A GPU is slow with small products, and every message has its
# latency. If a message takes a tenth of a forward:

# %%
for name, schedule in (("GPipe", gpipe), ("1F1B", one_f_one_b)):
    slow = play(schedule, 4, 8, message_s=0.1)
    print(f"{name}: the step takes {slow.step_s:.1f} instead of 33, idle {slow.bubble:.1%}")

# %% [markdown]
# Now 1F1B *is* slower: in its steady part, each forward waits for the gradient of a backward that must arrive first.
# Real pipelines post their receives early, and let each stage run one micro-batch further ahead.
#
# A schedule in a wrong order is worse than slow. Here stage 0 waits for its gradient before it sends the next
# activation, and stage 1 waits for two activations before it sends a gradient:


# %%
def each_wants_first(stage, stages, microbatches):
    in_turns = [(what, i) for i in range(microbatches) for what in "FB"]
    return in_turns if stage == 0 else gpipe(stage, stages, microbatches)


pipeline_picture(play(each_wants_first, stages=2, microbatches=2), "Both stages wait first")

# %% [markdown]
# ## 3. Which cut where?
#
# What does a rank send in a step? Take a block of two layers, d → 4d → d with d = 4,096, on 4 ranks, in half precision.

# %%
d, n = 4096, 4
weights = 2 * 2 * 4 * d * d  # bytes
ring = 2 * (n - 1) / n
print("tokens     data parallel   tensor parallel   pipeline (a stage in the middle)")
for tokens in (1_024, 8_192, 65_536):
    activations = 2 * tokens * d  # bytes of x, and of y
    sent = ring * weights, 2 * ring * activations, 2 * activations
    print(f"{tokens:6,} {sent[0] / 1e6:13,.0f} MB {sent[1] / 1e6:14,.0f} MB {sent[2] / 1e6:12,.0f} MB")

# %% [markdown]
# The number of bytes is half of the answer. The other half is *when* they are sent:
#
# - **Data parallel** sends gradients, once a step, hidden behind the backward pass (lesson 06). It suffers least from a
#   slow link.
# - **Tensor parallel** sends activations in every block, twice forward and twice backward in a transformer, and the
#   next product waits for each. Nothing hides it here. (Asynchronous tensor parallelism cuts the product in pieces, and
#   sends one while it computes the next: that hides a part.) Tensor parallelism belongs **inside a machine**, on NVLink
#   or in shared memory.
# - **Pipeline parallel** sends one activation and one gradient between neighbours. Their bytes grow with the tokens, as
#   those of tensor parallelism do: with 65,536 tokens they are more than the gradients of this block. A stage of many
#   blocks sends no more than a stage of one. Its other price is the bubble. It is used **between machines**.
#
# Large models use all three at once: tensor inside the machine, a pipeline across some machines, and copies of the
# whole for data parallelism. In Horovod, each rank is then in a *process set* for each cut.

# %% [markdown] tags=["exercise"]
# First run the cell above. `show` draws your function, `check` judges it, `hint` gives a hint, `solution` shows the
# solution. Everything except the last section works without engines.
#
# ## A layer cut by rows
#
# Write this layer with its bias, which every rank has.

# %% tags=["exercise"]
# exercise: 20.row_split

# %% tags=["exercise"]
check("20.row_split")

# %% [markdown] tags=["exercise"]
# ## Two layers, forward and backward
#
# Where is f, and where is g?

# %% tags=["exercise"]
# exercise: 20.two_layers

# %% tags=["exercise"]
check("20.two_layers")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 70 minutes, 40 of them for the exercises. Let them draw the four matrices of `20.two_layers`
# with the ranks' parts before they write. Common wrong answers: the bias is added on each rank and summed; dy is summed
# as well, since "gradients are always averaged"; dW is divided by n. For `20.one_f_one_b` bring the grid of 4 stages on
# paper, and let them fill in the last stage first: its backwards determine all others. `show` draws their schedule,
# also one that deadlocks.

# %% [markdown] tags=["exercise"]
# ## One forward, one backward
#
# `show` draws the step of your schedule, on 4 stages with 8 micro-batches.

# %% tags=["exercise"]
# exercise: 20.one_f_one_b

# %% tags=["exercise"]
show("20.one_f_one_b")

# %% tags=["exercise"]
check("20.one_f_one_b")

# %% [markdown] tags=["exercise"]
# ## A pipeline that trains
#
# Now write a pipeline with messages. Any schedule passes; GPipe's is the simplest. (If stage and neighbour both wait in
# a large `send`, the picture of the deadlock shows it.)

# %% tags=["exercise"]
# exercise: 20.pipeline

# %% tags=["exercise"]
check("20.pipeline")

# %% [markdown] tags=["exercise"]
# ## On real ranks
#
# The same functions, unchanged, on four MPI processes:

# %% tags=["exercise"]
engines = cluster.up(n=4)
check("20.row_split")

# %% tags=["exercise"]
check("20.two_layers")

# %% tags=["exercise"]
check("20.pipeline")

# %% tags=["exercise"]
engines.down()

# %% [markdown]
# ## Keypoints
#
# - By columns, then by rows: two layers need one allreduce forward (g) and one backward (f).
# - g's backward is the identity. An allreduce with its own derivative makes gradients n times too large.
# - A pipeline of p stages with m micro-batches is idle for (p − 1)/(m + p − 1) of its time, with GPipe and with 1F1B.
# - GPipe's schedule keeps the activations of m micro-batches on each stage (without recomputing), 1F1B at most p.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **PyTorch's `torch.distributed.pipelining`** has GPipe, 1F1B and interleaved 1F1B, where each rank has several
#   short stages: a smaller bubble, more messages
#   ([source](https://docs.pytorch.org/docs/stable/distributed.pipelining.html)).
# - **Zero-bubble schedules** (2023) cut backward in two, and fill the bubble with the half that computes the weights'
#   gradients. PyTorch has two of them, and DualPipeV ([source](https://arxiv.org/abs/2401.10241)).
# - **PyTorch's `parallelize_module`** cuts layers by `ColwiseParallel` and `RowwiseParallel`, and inserts f and g.
#   `SequenceParallel` cuts the layers between them along the sequence
#   ([source](https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html)).
# - **Context parallelism** cuts the sequence inside attention, too. Ring Attention (2023) sends keys and values around
#   a ring; PyTorch's `context_parallel` is experimental ([source](https://arxiv.org/abs/2310.01889)).
# - **torchtitan** (2024) and Megatron-LM combine these cuts with FSDP2 or other data parallelism, and with expert
#   parallelism, which divides the experts of a mixture ([source](https://arxiv.org/abs/2410.06511)).
