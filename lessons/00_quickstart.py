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
# # Quickstart: one training run on N engines
#
# **Question:** how does a training script for one process become one for N, and is it the same training?
#
# **Afterwards you can**
#
# - start MPI ranks from a notebook and run a cell on all of them with `%%px`,
# - name the six steps that turn a serial script into a data-parallel one,
# - measure speed-up and efficiency, and prove that the result is that of the serial run.
#
# **Needs:** two cores, no GPU. **Alone:** 25 minutes to read and try, less than a minute to run. **Led:** 35 minutes.
# **Before:** for the whole course you should know Python with numpy, and how PyTorch trains a network: model, loss,
# backward pass, optimizer step. MPI, networks and GPUs are explained where they are needed.

# %% [markdown]
# ## Start the engines
#
# This notebook's kernel does not train. It starts N processes, the *engines*. MPI numbers them from 0 to N − 1: the
# number is the *rank*, and N is the *size*. A cell that begins with `%%px` runs on all engines at once.

# %%
from workbench import cluster
from workbench.course.predictions import predict, reveal

engines = cluster.up(n=2)

# %% [markdown]
# ## The serial script
#
# The data are scans of handwritten digits (1,797 images of 8 × 8 pixels, from scikit-learn), the model is a small
# convolutional network: two convolutions and a linear layer, its *head*. So far nothing is distributed: every engine
# only defines the same things.

# %%
# %%px
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

from workbench import data
from workbench.data.sampler import batches

GLOBAL_BATCH = 288
device = "cuda" if torch.cuda.is_available() else "cpu"
digits = data.digits()


def make_model(seed, width=64):
    torch.manual_seed(seed)
    layers = OrderedDict(
        conv1=nn.Conv2d(1, width, 3, padding=1),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(width, width, 3, padding=1),
        relu2=nn.ReLU(),
        pool=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        head=nn.Linear(16 * width, 10),
    )
    return nn.Sequential(layers).to(device)


def pixels(images, dtype=torch.float32):
    """Images as input of a network: mean 0, standard deviation 1."""
    centred = (images - digits.train_x.mean()) / digits.train_x.std()
    return torch.from_numpy(centred).to(device, dtype)


def train(model, optimizer, epochs, rank, size, dtype=torch.float32):
    """Train on this rank's part of every global batch; return the loss of each step."""
    images = pixels(digits.train_x, dtype)
    labels = torch.from_numpy(digits.train_y).to(device)
    losses = []
    for epoch in range(epochs):
        for mine in batches(len(images), rank, size, GLOBAL_BATCH, epoch=epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


# %% [markdown]
# ## Six steps to a distributed script
#
# (Lesson 10 has nine steps: the same six, but step 5 is two steps there, weights and optimizer state, and two steps are
# added, the metrics and the work of rank 0.)
#
# ### 1. Initialise
#
# `init()` finds the other ranks. From here on each rank knows its number.

# %%
# %%px
import workbench.torch as hvd

hvd.init()
print(f"I am rank {hvd.rank()} of {hvd.size()}")

# %% [markdown]
# ### 2. Choose the local batch size
#
# The *global batch* does not change, so the training does not change. Each rank takes its share of it.

# %%
# %%px
local_batch = GLOBAL_BATCH // hvd.size()
print(f"{local_batch} of {GLOBAL_BATCH} images per step")

# %% [markdown]
# ### 3. Pin the device
#
# With GPUs, each rank takes the GPU with the number `local_rank()`, the rank's number on its machine. The `%` is for
# launchers that let each rank see one GPU only. Without GPUs the ranks share the cores: `cluster.up()` has given each
# engine its share of threads.

# %%
# %%px
if gpus := torch.cuda.device_count():
    device = f"cuda:{hvd.local_rank() % gpus}"
    torch.cuda.set_device(device)
print("device:", device)

# %% [markdown]
# ### 4. Shard the data
#
# Every rank trains on different images. `batches()` cuts each global batch into N parts. The parts of step *k* together
# are the batch that the serial run takes in step *k*.

# %%
# %%px
first = next(iter(batches(len(digits.train_x), hvd.rank(), hvd.size(), GLOBAL_BATCH)))
everyone = hvd.allgather(torch.as_tensor(first))
print(f"{len(first)} images here, {len(everyone.unique())} different ones on all ranks")

# %% [markdown]
# ### 5. Broadcast the initial weights
#
# Every rank has drawn its own random weights (the seed is the rank). `broadcast_parameters` gives all ranks the weights
# of rank 0.

# %%
# %%px
model = make_model(seed=hvd.rank())
before = hvd.allgather(model[0].bias[:1])
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
after = hvd.allgather(model[0].bias[:1])
if hvd.rank() == 0:
    print("first bias of each rank, before:", [round(one, 4) for one in before.tolist()])
    print("                          after:", [round(one, 4) for one in after.tolist()])

# %% [markdown]
# ### 6. Average the gradients
#
# `DistributedOptimizer` sends gradients while the backward pass is still running, and waits for all of them in
# `step()`. In the first step each gradient is sent alone. From the second step on they are stored in buckets of up to
# 16 MB, and a bucket is sent when its last gradient is finished. This small model fills one bucket only, which is sent
# at the end of the backward pass. This is the only change to the training itself.

# %%
# %%px
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

# %% [markdown]
# ## Watch it learn
#
# Everything is ready: six epochs of five steps each, two or three seconds of training. What will the result be?
#
# Here, and before other surprises of this course, `predict` asks for your guess. Choose one, press *Store my guess*,
# and run the next cells; `reveal` then shows your guess and the fact. A guess gives no points, and you learn most from
# wrong ones. You can change it until the answer is shown. (If this notebook already shows results, remove them first:
# *Edit*, *Clear Outputs of All Cells*. Guesses in a published notebook are invented.)

# %%
predict(
    "00.accuracy",
    "After 30 steps on two ranks: what part of the 357 digits that it never saw does the network classify correctly?",
    choices=["about 10 %, as by chance", "about 50 %", "about 75 %", "more than 90 %"],
)

# %%
# %%px
losses = train(model, optimizer, epochs=6, rank=hvd.rank(), size=hvd.size())
losses = hvd.allreduce(torch.tensor(losses), name="losses").tolist()  # the mean over the ranks

with torch.no_grad():
    answers = model(pixels(digits.test_x)).argmax(dim=1).cpu()
right = (answers == torch.from_numpy(digits.test_y)).double().mean().item()

# %% tags=["nbval-ignore-output"]
from workbench.course import figures

rank_0 = engines.client[0]
losses, right = rank_0.pull(["losses", "right"], block=True)
title = f"{right:.0%} of the unseen digits are read right"
figures.curves({"loss": losses, "guessing: ln 10": [2.303] * len(losses)}, xlabel="step", ylabel="loss", title=title)

# %%
bounds = {"more than 90 %": 0.9, "about 75 %": 0.62, "about 50 %": 0.3, "about 10 %, as by chance": 0.0}
reveal(
    "00.accuracy",
    next(choice for choice, least in bounds.items() if right >= least),
    f"The loss began at {losses[0]:.1f}, that of guessing among ten digits (ln 10 = 2.3). Thirty steps are enough for "
    "a small network on small images. Each step has used the images of both ranks.",
)

# %% [markdown]
# The engines record what they do. `timeline()` draws the last part of this record, with rows for each rank: when it
# computed, when it waited and for which rank, and when the gradients were sent. Point at a bar to read more.

# %% tags=["nbval-ignore-output"]
import workbench

workbench.timeline(last=5)

# %% [markdown]
# ## Is it the same training?
#
# The average of the ranks' gradients over equal parts is the gradient over the whole batch. So N ranks must make the
# same steps as one process, up to rounding. To see that the difference is only rounding, train in float64, where
# rounding errors are tiny, and with SGD, which does not increase them: every rank trains with the others, and rank 0
# also trains alone. (In float32 the curves differ after some epochs, and nothing is wrong. On GPUs some kernels add in
# a different order in each run, unless `torch.use_deterministic_algorithms(True)` forbids them. And with BatchNorm or
# dropout it would not be the same training: lesson 04.)

# %%
predict(
    "00.same",
    "Two ranks with half of each batch each, and one process with the whole: after 30 steps in float64, how large is "
    "the largest difference of a weight?",
    choices=["0: the same bits", "less than 1e-12, but not 0", "about 1e-3: the runs have parted"],
)


# %%
# %%px
def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


together = make_model(seed=hvd.rank(), width=16).double()
alone = make_model(seed=0, width=16).double()
hvd.broadcast_parameters(together.state_dict(), root_rank=0)
distributed = hvd.DistributedOptimizer(sgd(together), named_parameters=together.named_parameters())

loss_together = train(together, distributed, 6, hvd.rank(), hvd.size(), torch.float64)
loss_together = hvd.allreduce(torch.tensor(loss_together), name="loss").tolist()
if hvd.rank() == 0:
    loss_alone = train(alone, sgd(alone), 6, rank=0, size=1, dtype=torch.float64)

weights = torch.cat([p.detach().flatten() for p in together.parameters()])
replicas = hvd.allgather(weights[None])
print("all replicas hold the same bits:", bool((replicas == replicas[0]).all()))
if hvd.rank() == 0:
    serial = torch.cat([p.detach().flatten() for p in alone.parameters()])
    difference = (weights - serial).abs().max().item()
    print(f"largest difference to the serial run: {difference:.0e}")

# %%
difference = rank_0.pull("difference", block=True)
bounds = {"about 1e-3: the runs have parted": 1e-12, "less than 1e-12, but not 0": 1e-300, "0: the same bits": 0.0}
reveal(
    "00.same",
    next(choice for choice, least in bounds.items() if difference >= least),
    "The two halves are added in a different order than the whole batch, and a sum of floats depends on its order. "
    "Nothing else is different: the average of the ranks' gradients is the gradient of the whole batch.",
)

# %%
loss_together, loss_alone = rank_0.pull(["loss_together", "loss_alone"], block=True)
series = {"one engine": loss_alone, "two engines": loss_together}
figures.curves(series, xlabel="step", ylabel="loss", title="Two curves, one on top of the other")

# %% [markdown]
# ## Is it faster?
#
# Time one engine alone and all engines together, alternately, because the machine may be busier at one moment than at
# another. While rank 0 trains alone, the others wait in the `allreduce` of the times. This costs no CPU time.
#
# Two rules of honest timing: warm up first, and take the time of the *slowest* rank. "Alone" is one engine with *its
# share* of the cores; one process with all cores is faster, and is a different comparison (lesson 08).

# %%
# %%px
import time


def seconds(ranks, epochs=1):
    """Time an epoch on the first ``ranks`` ranks; the slowest counts."""
    model = make_model(seed=0, width=96)
    optimizer = sgd(model)
    if ranks > 1:
        optimizer = hvd.DistributedOptimizer(optimizer)
    hvd.barrier()
    start = time.perf_counter()
    if hvd.rank() < ranks:
        train(model, optimizer, epochs, hvd.rank(), ranks)
    took = time.perf_counter() - start
    return hvd.allreduce(torch.tensor(took, dtype=torch.float64), op=hvd.Max).item()


seconds(1), seconds(hvd.size())  # warm up
rounds = [(seconds(1), seconds(hvd.size())) for _ in range(5)]

# %%
from workbench.course.training.timing import speedup_table

rounds, images = rank_0.pull(["rounds", "len(digits.train_x)"], block=True)
alone, together = zip(*rounds, strict=True)
table = speedup_table({1: alone, engines.n: together}, images)
print(table)

# %% tags=["nbval-ignore-output"]
figures.speedup(table)

# %% [markdown]
# In each round, divide the time alone by the time together. The **speed-up** is the median of these ratios, so a busy
# moment affects both sides. (Where other programs use the cores all the time, two engines may be no faster than one:
# look with `top`.) It need not be the quotient of the two medians in the table. **Efficiency** is the speed-up
# divided by the number of engines: the part of each engine's time that was used for training. The rest was
# communication and waiting. Here the network is small and the batch is large, so there is little to send and much to
# compute (the network is 1.5 times as wide as above). Lesson 08 shows when this is not the case.
#
# ## Stop the engines

# %%
engines.down()

# %% [markdown]
# ## Keypoints
#
# - Six steps: initialise, local batch, pin the device, shard, broadcast, average.
# - With an equal global batch, N ranks make the same steps as one process, up to rounding.
# - Every rank must call the same collectives. If a rank does not, the error on the other ranks names it.
