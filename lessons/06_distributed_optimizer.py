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
# # DistributedOptimizer
#
# **Question:** one line turns a serial training into a distributed one. What does that line do, and when?
#
# **Afterwards you can**
#
# - write such an optimizer yourself, with a hook per parameter and an asynchronous allreduce,
# - say what has to be broadcast before the first step, and what goes wrong otherwise,
# - hide messages behind the backward pass, and say how much time that can save,
# - put `zero_grad`, `backward`, `synchronize`, clipping and `step` in a right order.
#
# **Needs:** two cores, no GPU. **Alone:** 35 minutes to read, 13 to do. **Led:** 50 minutes. **Before:** lesson 04.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 05: Why must the order of the samples be drawn with the same seed on all ranks?</summary>
#
# Rank r takes every n-th sample from the r-th on, of an order that nobody sends. Only if all ranks have the same order
# are the shards disjoint and complete.
#
# </details>
#
# <details>
# <summary>Lesson 00: The six steps: name them.</summary>
#
# Initialise, local batch, pin the device, shard the data, broadcast the start, average the gradients.
#
# </details>

# %% tags=["both"]
import inspect

from workbench import cluster
from workbench.course import drawing
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.simulator import simulate
from workbench.course.tasks import t06_distributed_optimizer as t06

# %% [markdown]
# ## A gradient is ready long before the backward pass ends
#
# PyTorch calls our function, a *hook*, when a parameter's gradient is complete:

# %%
engines = cluster.up(n=2)

# %%
# %%px
import os
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_

import workbench.torch as hvd
from workbench import data
from workbench.data.sampler import batches

os.environ["WORKBENCH_COMPARE_STEPS"] = "0"  # below, ranks are to stay apart without an error
hvd.init()
digits = data.digits()
images = torch.from_numpy(digits.train_x).flatten(1).double()
labels = torch.from_numpy(digits.train_y)


def make_model(seed):
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 10)]
    return nn.Sequential(*layers).double()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model, mine):
    return F.cross_entropy(model(images[mine]), labels[mine])


# %%
from workbench.course.predictions import predict, reveal

predict(
    "06.hooks",
    "The network has three linear layers: 0 at the input, 2, and 4 at the output. In which order are their gradients "
    "complete?",
    order=["layer 0", "layer 2", "layer 4"],
)

# %%
# %%px --targets 0
model, order = make_model(seed=0), []
for name, parameter in model.named_parameters():
    parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))

loss_of(model, slice(0, 100)).backward()
print("parameters: ", [name for name, _ in model.named_parameters()])
layers = list(dict.fromkeys(name.split(".")[0] for name in order))
print("layers, in the order in which their hooks are called:", layers)

# %%
reveal(
    "06.hooks",
    [f"layer {number}" for number in engines.client[0]["layers"]],
    "Backward goes from the loss to the input, so the last layer's gradients are complete first. They can be sent "
    "while the others are still being computed.",
)

# %% [markdown]
# ## The optimizer by hand
#
# The hook starts an allreduce and does not wait: `allreduce_async` returns a *handle* at once, and the message is sent
# while backward is still running. Before the step we wait for each handle, and its result replaces the gradient.


# %%
# %%px
class ByHand:
    """Send every gradient in its hook; wait for all of them before the step."""

    def __init__(self, model, optimizer):
        self.optimizer, self.handles = optimizer, {}
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(partial(self.send, name=name))

    def send(self, parameter, name):
        handle = hvd.allreduce_async(parameter.grad, name=f"by hand {name}")
        self.handles[parameter] = handle

    def synchronize(self):
        for parameter, handle in self.handles.items():
            parameter.grad = hvd.synchronize(handle)
        self.handles.clear()

    def step(self):
        self.synchronize()
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


def train(model, optimizer, rank, size, epochs=2):
    for epoch in range(epochs):
        for mine in batches(len(images), rank, size, 144, epoch=epoch):
            optimizer.zero_grad()
            loss_of(model, mine).backward()
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


serial = train(model := make_model(seed=0), sgd(model), rank=0, size=1)

model = make_model(seed=0)
by_hand = train(model, ByHand(model, sgd(model)), hvd.rank(), hvd.size())

model = make_model(seed=0)
optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
wrapped = train(model, optimizer, hvd.rank(), hvd.size())

print("largest difference of a weight to the serial run")
print(f"by hand:              {(by_hand - serial).abs().max():.0e}")
print(f"DistributedOptimizer: {(wrapped - serial).abs().max():.0e}")

# %% [markdown]
# The workbench's own hook does the same in the first step. From the second step on the gradients are stored in buckets
# of up to 16 MB (lesson 07), and a bucket is sent when its last gradient is ready. A model as small as this one has one
# bucket, which is sent when backward has ended: then no communication is hidden.
#
# The real hook does three more things. `_left` counts backward passes, if several belong to one step. `group_of` names
# the gradients that are sent together; the last of them sends all. And `finish`, which `step()` calls, also sends the
# gradients of parameters that this rank has not used, because no hook has sent them:

# %%
from workbench.torch.gradients.dense import DenseGradients
from workbench.torch.hooks import Hook

print(inspect.getsource(Hook.__call__))
print(inspect.getsource(DenseGradients.ready))
print(inspect.getsource(DenseGradients.finish))

# %% [markdown]
# ## Before the first step
#
# If the ranks start with different weights and make the same steps, their weights stay different. What else must be the
# same at the start? Here rank 0 has trained for an epoch, as if it had read a checkpoint. So it has other weights than
# rank 1, and its momentum is not zero.


# %%
predict(
    "06.state",
    "Only the weights are broadcast, not the optimizer's state. Do the ranks have the same weights after an epoch with "
    "averaged gradients?",
    choices=["yes: the same weights and the same gradients", "yes, up to rounding", "no: the ranks stay apart"],
)


# %%
# %%px
def goes_on(*, weights, state):
    """Rank 0 starts from a checkpoint. Train for an epoch; how far apart are the ranks' weights?"""
    model = make_model(seed=hvd.rank())
    optimizer = sgd(model)
    if hvd.rank() == 0:
        train(model, optimizer, rank=0, size=1, epochs=1)
    if weights:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    if state:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    mine = train(model, optimizer, hvd.rank(), hvd.size(), epochs=1)
    everyone = hvd.allgather(mine[None])
    return (everyone - everyone[0]).abs().max().item()


nothing = goes_on(weights=False, state=False)
weights = goes_on(weights=True, state=False)
both = goes_on(weights=True, state=True)

# %% [markdown]
# The largest difference of a weight between the ranks, after an epoch:

# %%
apart = engines.client[0].pull(["nothing", "weights", "both"], block=True)
for what, difference in zip(("nothing", "weights", "weights and state"), apart, strict=True):
    print(f"{what + ' broadcast:':28} {difference:.2g}")

# %%
reveal(
    "06.state",
    "yes: the same weights and the same gradients"
    if apart[1] == 0
    else "yes, up to rounding"
    if apart[1] < 1e-9
    else "no: the ranks stay apart",
    "The step is made of the gradient and the momentum. Ranks with different momentum make different steps, from the "
    "first one on. So broadcast both: the weights and the optimizer's state.",
)

# %% [markdown]
# The workbench would have told you: after 4, 8, 16, 32 and then every 64 steps the ranks compare a sample of their
# weights, and a difference is an error on all of them. This lesson has switched that off where it called `init()`.

# %% [markdown]
# ## Batch normalisation sees one rank's samples
#
# Averaged gradients equal the serial ones if the loss of a sample depends on that sample alone. With BatchNorm it does
# not: BatchNorm takes mean and variance over the batch, and each rank has only a part of the batch. `SyncBatchNorm`
# takes them over the samples of all ranks.


# %%
# %%px
def normalised(norm, rank, size):
    """Two epochs with a layer of batch normalisation."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), norm(32), nn.Tanh(), nn.Linear(32, 10)).double()
    optimizer = sgd(model)
    if size > 1:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return train(model, optimizer, rank, size)


serial = normalised(nn.BatchNorm1d, rank=0, size=1)
for norm in (nn.BatchNorm1d, hvd.SyncBatchNorm):
    difference = (normalised(norm, hvd.rank(), hvd.size()) - serial).abs().max().item()
    apart = f"{difference:.0e}" if difference > 1e-9 else "below 1e-9"
    print(f"{norm.__name__:13} largest difference of a weight to the serial run: {apart}")

# %% [markdown]
# ## Overlap, as recorded
#
# A larger model, three steps of training, and three groups of gradients, one for each layer. A group is sent as soon as
# it is complete. `workbench.timeline()` shows the last step: when each group was submitted, which rank waited for
# which, and when the group was sent.

# %%
# %%px
torch.manual_seed(0)
layers = [nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 10)]
wide = nn.Sequential(*layers).double()
optimizer = hvd.DistributedOptimizer(sgd(wide), named_parameters=wide.named_parameters(), groups=3)
for mine in batches(len(images), hvd.rank(), hvd.size(), 480):
    optimizer.zero_grad()
    loss_of(wide, mine).backward()
    optimizer.step()

# %%
import workbench

# Four bars: the small bias of layer 4 is sent in its announcement (lesson 07), and not with the group. Two groups may
# be sent together on a busy machine: then the bars begin in the step before: a layer counts where it came last.
picture = workbench.timeline(last=4)
bars = sorted(picture.tracks[0].bars, key=lambda bar: bar.announced)
layers = [name.removeprefix("allreduce.").split(".")[0] for bar in bars for name in bar.names]
print("layers, in the order of submission:", *reversed(dict.fromkeys(reversed(layers))))

# %% tags=["nbval-ignore-output"]
picture

# %% [markdown]
# Grey means that no message is being sent. While a group is being sent, the backward pass goes on: look for the first
# layer's group, which is submitted while the 8 MB of the middle layer are being reduced.
#
# ## Overlap in the simulator
#
# A recorded picture is different each time. In the simulator `comm.compute(seconds)` takes virtual time, so the picture
# is always the same. Five layers, 1 ms of backward pass each. First without overlap:

# %%
print(inspect.getsource(t06.in_turn))
layers = t06.some_layers([1e-3] * 5, [20_000, 100_000, 150_000, 100_000, 50_000])
without = simulate(2, t06.in_turn, layers)
drawing.space_time(without, "Messages after the backward pass")

# %% [markdown]
# Now each gradient is sent as soon as it is ready. To write this is the exercise of this lesson.

# %%
hidden = simulate(2, t06.overlap, layers)
drawing.space_time(hidden, "Messages hidden behind the backward pass")

# %%
alpha, beta = 20e-6, 1e-9
message = alpha + beta * layers[-1][1].nbytes
times = {"in turn": without.time_s * 1e3, "overlapped": hidden.time_s * 1e3}
drawing.bars(times, "ms", "Until all averages are there", best=(5e-3 + message) * 1e3)

# %% [markdown]
# The line is the time of the backward pass and of the last message. That message cannot be hidden: its gradient, of the
# layer next to the input, is ready when the backward pass is over. The step takes 0.04 ms more, because at 5 ms the
# fourth message has not arrived yet. The gain depends on how long computing and sending take:

# %%
predict(
    "06.overlap",
    "Computing and sending may take any time, in any ratio. How many times as fast can overlap make the backward pass "
    "with its messages, at best?",
    choices=["at most 1.1 times", "at most twice", "at most n times, on n ranks", "there is no limit"],
)


# %%
def gain(backward, messages, count):
    """How many times as fast is overlap, with so many equal layers?"""
    length = round((messages / count / 1e3 - alpha) / beta / 8)
    layers = t06.some_layers([backward / count / 1e3] * count, [length] * count)
    return simulate(2, t06.in_turn, layers).time_s / simulate(2, t06.overlap, layers).time_s


ratios = [(1, 8), (4, 8), (8, 8), (16, 8), (64, 8)]
gains = {count: [gain(*both, count) for both in ratios] for count in (5, 50)}
print("backward / messages      " + "".join(f"{backward / messages:7.3g}" for backward, messages in ratios))
for count, values in gains.items():
    print(f"{count:2} layers: times as fast " + "".join(f"{value:7.2f}" for value in values))

# %%
largest = max(max(values) for values in gains.values())
reveal(
    "06.overlap",
    "at most 1.1 times" if largest < 1.1 else "at most twice" if largest < 2 else "there is no limit",
    "In turn, they take the sum of computing and sending. Overlapped, they take at least the longer one of the two, "
    "and the sum is at most twice that. The gain is close to twice if both take equally long and there are many "
    "layers. A whole step gains less: its forward pass stays as long as it was.",
)

# %% [markdown]
# ## The order of a step
#
# While a gradient is being sent, it must not be changed. Here are three wrong orders. What does each of them cause?

# %%
# %%px
import textwrap

model = make_model(seed=0)
optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
mine = slice(hvd.rank(), 144, hvd.size())


def told(*lines):
    """Run some lines of a step; say what comes of it."""
    names = ", ".join(line.__name__ for line in lines)
    try:
        for line in lines:
            line()
        print(f"{names}:\n    no error")
    except (AssertionError, RuntimeError) as error:
        first = f"{type(error).__name__}: {str(error).split('. ')[0]}"
        print(f"{names}:\n    " + "\n    ".join(textwrap.wrap(first, 84)))
        optimizer.abandon_step()


def backward():
    loss_of(model, mine).backward()


def clip(limit=0.1):
    return clip_grad_norm_(model.parameters(), limit)


told(backward, optimizer.zero_grad)
told(backward, clip, optimizer.synchronize)
told(optimizer.zero_grad, backward, optimizer.synchronize, optimizer.zero_grad)

# %% [markdown]
# The last one raises nothing: the averages are thrown away, and `step()` finds no gradients. So also look at the
# losses: they do not fall.
#
# Clip between `synchronize()`, after which the gradients are averages, and `step()`. `skip_synchronize()` tells
# `step()` that the averages are there already. Then the training is the same as the serial one, with clipping:


# %%
# %%px
def clipped(model, optimizer, rank, size):
    for mine in batches(len(images), rank, size, 144):
        optimizer.zero_grad()
        loss_of(model, mine).backward()
        if size > 1:
            optimizer.synchronize()
        clip_grad_norm_(model.parameters(), 0.1)
        if size > 1:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


serial = clipped(model := make_model(seed=0), sgd(model), rank=0, size=1)
model = make_model(seed=0)
optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
together = clipped(model, optimizer, hvd.rank(), hvd.size())
print(f"largest difference of a weight to the serial run: {(together - serial).abs().max():.0e}")

# %% [markdown]
# ## Around the step
#
# - **Accumulation.** With `backward_passes_per_step=k` the gradients are sent after k backward passes; they are added
#   up and not divided, so divide the loss by k. (In DDP, put the other passes into `with model.no_sync():`.)
# - **Mixed precision.** A `GradScaler` multiplies the loss. So: `backward()`, `synchronize()`,
#   `scaler.unscale_(optimizer)`, *then* clip, then `scaler.step(optimizer)` within `skip_synchronize()`.
# - **DDP,** PyTorch's own, wraps the model instead of the optimizer. There gradients are averages when `backward()`
#   returns, and clipping may follow at once. A parameter that a rank has not used is an error there, unless
#   `find_unused_parameters=True` makes DDP search the graph in every step. With `DistributedOptimizer` that rank's
#   gradient counts as zero.

# %%
engines.down()

# %% [markdown] tags=["exercise"]
# ## Hide the messages behind the backward pass
#
# First run the cell above. `check` judges your function, `hint` gives a hint, `solution` shows the solution.
#
# Two ranks. Each layer's gradient is ready after `comm.compute(seconds)`. Return the averages as early as possible.

# %% tags=["exercise"]
# exercise: 06.overlap

# %% tags=["exercise"]
check("06.overlap")

# %% [markdown] tags=["exercise"]
# The grey strip is the backward pass. Are the messages sent during it, or only after it?

# %% tags=["exercise"]
show("06.overlap")

# %% [markdown] tags=["exercise"]
# ## Six lines
#
# These six lines are one step of a training with gradient clipping, on several ranks. More than one order is right.

# %% tags=["exercise"]
# exercise: 06.in_order

# %% tags=["exercise"]
check("06.in_order")

# %% [markdown] tags=["exercise"]
# ## Your order on two real ranks
#
# Ten steps with your lines in your order, compared with ten serial steps.

# %% tags=["exercise"]
engines = cluster.up(n=2)
sent = engines.view.push({"order": ""}, block=True)

# %% tags=["exercise"]
sent = engines.view.push({"order": "".join(in_order()).upper()}, block=True)

# %% tags=["exercise"]
# %%px
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_

import workbench.torch as hvd
from workbench import data
from workbench.data.sampler import batches

hvd.init()
digits = data.digits()
all_images = torch.from_numpy(digits.train_x).flatten(1).double()
all_labels = torch.from_numpy(digits.train_y)
LINES = {
    "A": "clip_grad_norm_(model.parameters(), 0.1)",
    "B": "loss.backward()",
    "C": "with optimizer.skip_synchronize(): optimizer.step()",
    "D": "optimizer.zero_grad()",
    "E": "loss = F.cross_entropy(model(images), labels)",
    "F": "optimizer.synchronize()",
}
SERIAL = {**LINES, "C": "optimizer.step()", "F": ""}


def trained(lines, wrap, rank, size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).double()
    names = {"F": F, "clip_grad_norm_": clip_grad_norm_, "model": model}
    names["optimizer"] = wrap(torch.optim.SGD(model.parameters(), lr=1.0))
    for mine in batches(len(all_images), rank, size, 144):
        names |= {"images": all_images[mine], "labels": all_labels[mine]}
        for letter in lines:
            exec(lines[letter], names)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


alone = trained({letter: SERIAL[letter] for letter in "DEBFAC"}, lambda optimizer: optimizer, 0, 1)
together = trained({letter: LINES[letter] for letter in order}, hvd.DistributedOptimizer, hvd.rank(), hvd.size())
print(f"largest difference of a weight to the serial run: {(together - alone).abs().max():.0e}")

# %% tags=["exercise"]
engines.down()

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 50 minutes, 13 of them for the exercises. Ask first: which layer's gradient is ready first,
# and whose cannot be hidden? Common wrong answers in *overlap*: waiting in the loop, which is no overlap at all;
# `isend` in the loop, but `recv` only after it: a large message is sent when its receiver is ready, so nothing is sent
# before; sending before `compute`, which would send a gradient that does not exist yet. In the order: clipping before
# `synchronize()`. Each rank then clips by a norm of its own. Here the optimizer notices that a gradient was changed
# while it was being sent; other libraries may not. Those who are done early: all of the 720 orders have been tried, and
# three are right. Which?

# %% [markdown]
# ## Keypoints
#
# - Hooks start asynchronous allreduces, of one gradient or of a bucket; `step()` waits for all.
# - Broadcast weights and optimizer state before the first step. Otherwise the ranks are different, and stay different.
# - Overlap hides the messages that are sent during the backward pass: at best all except the last one. It makes the
#   backward pass with its messages at most twice as fast, and a step with its forward pass less.
# - Do not change gradients between `backward()` and `synchronize()`. Clip after `synchronize()`.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **PyTorch DDP** sends rank 0's weights when it is made, and rank 0's buffers before each forward pass. In 2.13
#   `forward_sync_buffers` replaces `broadcast_buffers`
#   ([source](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)).
# - **`torch.compile`** makes one graph of backward, and hooks would run only after it. Its `DDPOptimizer` cuts the
#   graph where DDP's buckets end, so messages overlap again
#   ([source](https://docs.pytorch.org/docs/stable/notes/ddp.html#torchdynamo-ddpoptimizer)).
# - **FSDP2** accumulates gradients without communication after `model.set_requires_gradient_sync(False)`
#   ([source](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)).
# - **PyTorch's `convert_sync_batchnorm`** replaces each BatchNorm layer of a model. Call it before DDP; each process
#   must have one GPU ([source](https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html)).
# - **JAX** needs no hooks: XLA puts the collectives into the compiled step, and its latency-hiding scheduler overlaps
#   them with computing ([source](https://docs.jax.dev/en/latest/gpu_performance_tips.html)).
