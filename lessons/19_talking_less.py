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
# # Talking less
#
# **Question:** the network between the ranks is slow. What need they not send, how does that change the training, and
# when does it pay?
#
# **Afterwards you can**
#
# - train with an exchange every H steps (local SGD, DiLoCo), and say what happens if the ranks have different kinds of
#   data,
# - send a gradient as two thin factors (PowerSGD), and say what happens to the part that is left out,
# - predict whether compression will pay on a given network.
#
# **Needs:** two cores, no GPU. **Alone:** 40 minutes to read, 35 to do. **Led:** 75 minutes. **Before:** lessons 04 and
# 06.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 16: Why does one large allreduce need less time than a hundred small ones with as many
# bytes?</summary>
#
# Each message pays its latencies. The bytes are the same.
#
# </details>
#
# <details>
# <summary>Lesson 12: What does an allreduce in two levels save, and where?</summary>
#
# Messages and bytes over the slow links between hosts: one exchange among m hosts in place of n ranks.
#
# </details>

# %% tags=["both"]
import inspect

import numpy as np

from workbench import cluster
from workbench.course import figures
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.predictions import predict, reveal
from workbench.course.simulator import simulate
from workbench.course.tasks import t19a_periodic, t19b_powersgd
from workbench.course.training.measured import talking_less

# %% [markdown]
# ## What a step sends
#
# In every step of data-parallel training each rank sends 2(n − 1)/n · K bytes, for K bytes of gradients (lesson 03).
# ResNet-50 has 25.6 million parameters, K = 102 MB in float32. For four ranks, this is the time on the wire alone:

# %%
K, n = 4 * 25.6e6, 4
for name, bits_per_s in (("data centre", 200e9), ("cluster", 10e9), ("office", 1e9), ("between cities", 100e6)):
    print(
        f"{name:14} {bits_per_s / 1e9:6.1f} Gbit/s: {2 * (n - 1) / n * K * 8 / bits_per_s * 1e3:9.1f} ms in each step"
    )

# %% [markdown]
# A GPU computes such a step in about 100 ms. In the data centre the gradients hide behind the backward pass (lesson
# 06). Between cities the GPU waits 99 % of the time. There are two ways to send less:
#
# - **less often**: each rank steps alone, and the ranks exchange every H steps,
# - **less each time**: send an approximation of the gradient, and add the part that it leaves out to the next gradient.
#
# ## Less often: local SGD
#
# Each rank steps with its own gradients. After H steps the ranks average their *weights* (Stich 2019,
# arXiv:1805.09767). That is the whole method:

# %%
from workbench.torch.low_communication.local_sgd import LocalSGD

print(inspect.getsource(LocalSGD._exchange))

# %% [markdown]
# It sends as many bytes as before, but only in each H-th step. With H = 1 and plain SGD it is the usual training: the
# average of w − lr·gᵢ is w − lr·(average of the gᵢ). On two engines, with scans of digits:

# %%
engines = cluster.up(n=2)

# %%
# %%px
import torch
import torch.nn.functional as F
from torch import nn

import workbench.torch as hvd
from workbench import data
from workbench.data.sampler import batches

hvd.init()
torch.set_num_threads(1)
digits = data.digits()
images, labels = torch.from_numpy(digits.train_x).flatten(1).double(), torch.from_numpy(digits.train_y)
test_images, test_labels = torch.from_numpy(digits.test_x).flatten(1).double(), torch.from_numpy(digits.test_y)


def make_model():
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)]
    return nn.Sequential(*layers).double()


def mixed(epoch):
    """Every rank gets a part of each batch."""
    return batches(len(images), hvd.rank(), hvd.size(), 96, epoch=epoch)


def train(wrap, shards=mixed, epochs=8, after_step=lambda model: None):
    """Train; return the loss and the accuracy at the end, and all weights."""
    model = make_model()
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.5), model)
    for epoch in range(epochs):
        for mine in shards(epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
            after_step(model)
    if not isinstance(optimizer, hvd.DistributedOptimizer):
        optimizer.synchronize()
    with torch.no_grad():
        right = (model(test_images).argmax(1) == test_labels).double().mean().item()
        loss = F.cross_entropy(model(images), labels).item()
    return loss, right, torch.cat([weight.detach().flatten() for weight in model.parameters()])


def averaged(inner, model):
    return hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())


def local(every):
    return lambda inner, model: hvd.LocalSGD(inner, every=every)


plain = train(averaged)
difference = (train(local(1))[2] - plain[2]).abs().max().item()

# %%
plain, difference = engines.client[0].pull(["plain", "difference"], block=True)
print(f"gradients averaged in each of 120 steps: loss {plain[0]:.3f}, accuracy {plain[1]:.1%}")
print(f"weights averaged in each step instead: largest difference of a weight below 1e-12: {difference < 1e-12}")

# %% [markdown]
# ### H = 5, 20, 60
#
# With H = 60 the ranks exchange twice in the whole training. First use **mixed** shards, as before. Then rank 0 has
# only the digits 0 to 4, and rank 1 only the digits 5 to 9. This happens if data may not leave the place where it was
# collected.


# %%
# %%px
def by_class(epoch):
    """Rank 0 gets the digits 0 to 4, rank 1 the others; as many steps."""
    own = torch.nonzero((labels < 5) == (hvd.rank() == 0)).flatten()[:700]
    return [own[mine] for mine in batches(len(own), 0, 1, 48, epoch=epoch, seed=hvd.rank())]


sparse = {
    shards.__name__: {every: train(local(every), shards)[:2] for every in (1, 5, 20, 60)}
    for shards in (mixed, by_class)
}

# %%
sparse = engines.client[0]["sparse"]
print("mixed shards:")
for every, (loss, right) in sparse["mixed"].items():
    print(f"  an exchange every {every:2} steps: loss {loss:.3f}, accuracy {right:.1%}")

# %% [markdown]
# The ranks send sixty times fewer bytes, and loss and accuracy are about the same. Both ranks draw from the same data,
# so both reach about the same weights.

# %%
predict(
    "19.by_class",
    "Now each rank has half of the classes, and the ranks exchange every 60 steps. How large is the loss, compared "
    "with an exchange in every step?",
    choices=["about the same", "two to four times as large", "ten times as large or more"],
)

# %%
print("by class:")
for every, (loss, right) in sparse["by_class"].items():
    print(f"  an exchange every {every:2} steps: loss {loss:.3f}, accuracy {right:.1%}")

# %%
ratio = sparse["by_class"][60][0] / sparse["by_class"][1][0]
sizes = ["about the same", "two to four times as large", "ten times as large or more"]
reveal(
    "19.by_class",
    sizes[int(ratio > 1.5) + int(ratio > 6)],
    f"{ratio:.1f} times. Each rank forgets the digits that it does not see; this is called client drift. The average "
    "of two such models is not a model of all data. The loss is not larger still, because each average corrects a "
    "part of the drift.",
)

# %% [markdown]
# The picture shows the loss over **all** images, on each rank, after every step, with H = 20:


# %%
# %%px
drift = []


def note(model):
    with torch.no_grad():
        drift.append(F.cross_entropy(model(images), labels).item())


_ = train(local(20), by_class, epochs=4, after_step=note)

# %%
drift = {f"rank {rank}": engines.client[rank]["drift"] for rank in range(2)}
figures.curves(drift, "step", "loss over all images", "Half of the classes each, an average every 20 steps")

# %% [markdown]
# Between two averages the loss over all images grows on both ranks, and the average reduces it again. So the best H
# depends on the data as well: mix the data if you may.

# %% [markdown] tags=["exercise"]
# ## Local SGD
#
# The model is least squares, and you write the loop. `check` counts the bytes, too: it reports averages that are more
# frequent than required.

# %% tags=["exercise"]
# exercise: 19.local_sgd

# %% tags=["exercise"]
show("19.local_sgd")

# %% tags=["exercise"]
check("19.local_sgd")

# %% [markdown]
# ## DiLoCo: the change of H steps is a gradient
#
# Local SGD sets the weights to the average of the ranks' weights. DiLoCo (Douillard et al. 2023, arXiv:2311.08105) uses
# the change from the start to this average only as a *direction*: start − average is called the outer gradient, and an
# outer optimizer steps with it. In the paper that is SGD with Nesterov's momentum, learning rate 0.7, momentum 0.9;
# between two exchanges, each rank uses its own AdamW. With H = 500 and 8 workers their language models were as good as
# with an average in each step.

# %%
from workbench.torch.low_communication.diloco import DiLoCo

print(inspect.getsource(DiLoCo._exchange))


# %%
# %%px
def diloco(every, **outer):
    return lambda inner, model: hvd.DiLoCo(inner, every=every, **outer)


outer = {every: train(diloco(every))[:2] for every in (5, 20)}
same = (train(diloco(20, outer_lr=1.0, momentum=0.0))[2] - train(local(20))[2]).abs().max().item()

# %%
outer, same = engines.client[0].pull(["outer", "same"], block=True)
print(
    f"outer learning rate 1, no momentum: it is local SGD; largest difference of a weight below 1e-12: {same < 1e-12}"
)
print(f"average in each step:  loss {plain[0]:.3f}, accuracy {plain[1]:.1%}")
for every, (loss, right) in outer.items():
    print(
        f"local SGD, H = {every:2}:     loss {sparse['mixed'][every][0]:.3f}, accuracy {sparse['mixed'][every][1]:.1%}"
    )
    print(f"DiLoCo,    H = {every:2}:     loss {loss:.3f}, accuracy {right:.1%}")

# %% [markdown]
# Is this better than the training with an exchange in each step? Be careful. The outer momentum makes larger steps, and
# the plain training here has no momentum at all. Kallusky et al. (2025, arXiv:2510.15830) found that DiLoCo's outer
# step helps on *one* rank, too. The figures show that little is lost with one exchange in H steps. To measure a gain,
# compare with a plain training whose learning rate and momentum were tuned as well.
#
# Both methods have a limit: the ranks must make equally many steps between two exchanges. If a rank has fewer batches,
# the error names it:


# %%
# %%px
from workbench.errors import MismatchError

model = make_model()
optimizer = hvd.LocalSGD(torch.optim.SGD(model.parameters(), lr=0.5), every=20)
for mine in mixed(0)[: 12 - 2 * hvd.rank()]:
    optimizer.zero_grad()
    F.cross_entropy(model(images[mine]), labels[mine]).backward()
    optimizer.step()
try:
    optimizer.synchronize()
except MismatchError as error:
    print(error)

# %% [markdown] tags=["exercise"]
# ## The outer step

# %% tags=["exercise"]
# exercise: 19.outer_step

# %% tags=["exercise"]
check("19.outer_step")

# %% [markdown]
# ## Less each time: gradients have few directions
#
# A gradient of m × n numbers is a sum over samples of (error of the layer's outputs) × (its inputs): one column times
# one row for each sample. Many samples are alike, so a few directions hold most of it. These are the singular values of
# a real gradient, that of the second layer after 60 steps:

# %%
# %%px
model = make_model()
optimizer = averaged(torch.optim.SGD(model.parameters(), lr=0.5), model)
for epoch in range(4):
    for mine in mixed(epoch):
        optimizer.zero_grad()
        F.cross_entropy(model(images[mine]), labels[mine]).backward()
        optimizer.step()
singular = torch.linalg.svdvals(model[2].weight.grad).tolist()

# %%
singular = engines.client[0]["singular"]
held = np.cumsum(np.square(singular)) / np.square(singular).sum()
print("part of the squared length in the first directions:")
print("  ".join(f"{rank}: {held[rank - 1]:.1%}" for rank in (1, 2, 4, 8, 64)))
figures.curves({"singular value": singular}, "number", "size", "A gradient of 64 x 64: its 64 singular values")

# %% [markdown]
# So send these directions: a matrix of rank r is a product of two factors, m × r and r × n.

# %%
predict(
    "19.factors",
    "A gradient of 1024 x 1024 in float32 is 4.2 MB. How many kB are its two factors of rank 4?",
    number="kB",
)

# %%
factors = 4 * 4 * (1024 + 1024) / 1000
reveal("19.factors", factors, "The factors have r (m + n) numbers, and not m n: 4 · 2048 · 4 bytes, 128 times fewer.")

# %% [markdown]
# Which factors should the ranks send? Singular vectors take too long to compute, and each rank would find different
# ones, so they could not be averaged. PowerSGD (Vogels et al. 2019, arXiv:1905.13727) takes one step of power iteration
# instead, with two sums over ranks:
#
# 1. M = gradient + error, on each rank,
# 2. P = average of M Q, made orthonormal: the same P on all ranks. Q is the Q of the previous step; the first one is
#    random,
# 3. Q = average of Mᵀ P: now P Qᵀ is the average of all M, projected on P's columns,
# 4. error = M − P Pᵀ M: the part of M that P cannot express. This rank adds it to its next gradient.
#
# In the workbench it is one argument: `compression=hvd.Compression.powersgd(rank)`. Its code holds both factors
# transposed, r × m and r × n, so M Q is `q @ matrix.T` there:

# %%
from workbench.torch.low_communication.powersgd import PowerSGDCompression

for method in (PowerSGDCompression.begin, PowerSGDCompression.project):
    print(inspect.getsource(method))

# %% [markdown]
# The fourth step looks unimportant. Here we train with it, and without it: then the errors are forgotten after each
# step.

# %%
predict(
    "19.memory",
    f"Plain averaging ends with a loss of {plain[0]:.2f}, PowerSGD of rank 1 comes close to it. What is the loss of "
    "rank 1 if the errors are forgotten?",
    choices=["the same as with it", "about twice the loss", "more than five times the loss"],
)


# %%
# %%px
def powersgd(rank, remember):
    """Loss and accuracy with gradients of this rank."""
    low = hvd.Compression.powersgd(rank)

    def wrap(inner, model):
        return hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters(), compression=low)

    def forget(model):
        if not remember:
            low.load_state_dict({**low.state_dict(), "error": {}})

    return train(wrap, after_step=forget)[:2]


compressed = {(rank, remember): powersgd(rank, remember) for rank in (1, 2, 4) for remember in (True, False)}

# %%
compressed = engines.client[0]["compressed"]
print(f"{'':8} with errors remembered    forgotten")
for rank in (1, 2, 4):
    kept, forgotten = compressed[rank, True], compressed[rank, False]
    print(f"rank {rank}:  loss {kept[0]:.3f}, {kept[1]:.1%}        loss {forgotten[0]:.3f}, {forgotten[1]:.1%}")
print(f"plain:   loss {plain[0]:.3f}, {plain[1]:.1%}")

# %%
times = compressed[1, False][0] / compressed[1, True][0]
size = (
    "more than five times the loss" if times > 5 else "about twice the loss" if times > 1.5 else "the same as with it"
)
reveal(
    "19.memory",
    size,
    f"{times:.1f} times. With warm start the same directions are sent again and again, and the part outside of them "
    "is never learnt. If it is remembered, it adds up until it is one of the large directions.",
)

# %% [markdown]
# The errors in numbers: add the gradients that were applied and the ranks' average of the errors that are kept. The sum
# is the average of all gradients so far. Nothing is lost; it is only applied later. Here are two ranks by hand, with
# the function of the exercise:

# %%
random = np.random.default_rng(0)
q = random.normal(size=(9, 1))
applied, total, errors = np.zeros((12, 9)), np.zeros((12, 9)), [np.zeros((12, 9))] * 2
for _ in range(10):
    gradients = [random.normal(size=(12, 9)) for _ in range(2)]
    both = list(zip(gradients, errors, strict=True))
    run = simulate(2, lambda comm, both=both: t19b_powersgd.powersgd(comm, *both[comm.rank], q))
    applied, total = applied + run.results[0][0], total + np.mean(gradients, axis=0)
    errors = [error for _, error in run.results]
kept = np.mean(errors, axis=0)
for name, matrix in (("all gradients", total), ("applied", applied), ("kept", kept)):
    print(f"length of {name:13} {np.linalg.norm(matrix):5.2f}")
print(f"applied + kept - all: below 1e-12: {np.abs(applied + kept - total).max() < 1e-12}")

# %% [markdown] tags=["exercise"]
# ## PowerSGD
#
# Write one round, with two sums over the ranks. The order matters: what is averaged, and what is made orthonormal?

# %% tags=["exercise"]
# exercise: 19.powersgd

# %% tags=["exercise"]
show("19.powersgd")

# %% tags=["exercise"]
check("19.powersgd")

# %% [markdown]
# ## Does it pay?
#
# The aim is fewer seconds, and not fewer bytes. A compressed step saves time on the wire, but compression takes time.
# Also, a plain gradient hides behind the backward pass; the second of PowerSGD's rounds begins only after it. So
# measure. `benchmarks/talking_less.py` trains an MLP on Fashion-MNIST on two ranks: first over links that are limited
# to a rate, then on one host, where ranks read each other's memory.

# %%
measured = talking_less()
here = measured.step_ms["one host, shared memory"]
fewer = measured.learnt["plain"]["reduced_bytes_per_step"] / measured.learnt["powersgd(4)"]["reduced_bytes_per_step"]
predict(
    "19.pays",
    f"On one host a plain step takes {here['plain']:.0f} ms. PowerSGD of rank 4 sends {fewer:.0f} times fewer bytes. "
    "How long does its step take there?",
    choices=["a tenth of the time", "half of the time", "the same time", "more time"],
)

# %%
print(measured.table())

# %%
relative = here["powersgd(4)"] / here["plain"]
names = ((0.3, "a tenth of the time"), (0.75, "half of the time"), (1.1, "the same time"), (np.inf, "more time"))
reveal(
    "19.pays",
    next(name for limit, name in names if relative < limit),
    f"{relative:.1f} times as long. Without a network there is nothing to save, but the factors must be computed.",
)

# %% [markdown]
# Where is the limit? Compression pays if the bytes that it saves would take longer than computing the factors:
#
# (K − K′) · 2(n − 1)/n · β  >  seconds to compress
#
# The right side is the extra time of PowerSGD on one host, where bytes cost almost nothing. So both sides are known,
# and they give the limit. The measured steps at 100 Mbit/s and 1 Gbit/s show whether it is right:

# %%
saved = measured.learnt["plain"]["reduced_bytes_per_step"] - measured.learnt["powersgd(4)"]["reduced_bytes_per_step"]
costs_ms = here["powersgd(4)"] - here["plain"]
border = saved * 8 / (costs_ms / 1e3) / 1e9
print(f"saves {saved / 1e6:.2f} MB a step, costs {costs_ms:.1f} ms: pays below {border:.1f} Gbit/s")
for place, ms in measured.step_ms.items():
    plain_ms, low_ms = ms["plain"], ms["powersgd(4)"]
    print(
        f"  {place:24} plain {plain_ms:6.1f} ms, powersgd(4) {low_ms:5.1f} ms: {plain_ms / low_ms:4.1f} times as fast"
    )

# %% [markdown]
# So it pays in the office, and not in the data centre. Agarwal et al. (*On the Utility of Gradient Compression in
# Distributed Training Systems*, MLSys 2022, arXiv:2103.00543) tested more than 200 setups that are usual in data
# centres, compared with a plain training that hides its gradients well: compression was faster in **six** of them. The
# time to compress is not hidden, and communication that was hidden anyway saves nothing.
#
# Look at fp16, too: it halves the bytes, and at 1 Gbit/s it gains little. Each bucket (lesson 07) is cast twice, and a
# CPU takes longer to add numbers of 16 bits than of 32.
#
# The other price is quality: after equally many samples all of these methods have a somewhat higher loss than the plain
# training. (All use the learning rate of the plain training; it was tuned for none of them.) So compare the loss after
# equal *seconds*, not after equal steps: at 100 Mbit/s the training with PowerSGD makes about 25 steps while the plain
# one makes one, and that decides. On one host it does not.
#
# | network | first | then |
# |---|---|---|
# | within a host | plain | plain |
# | data centre, 10 Gbit/s and more | plain, overlapped (06), fused (07) | measure: 16 bits were slower above |
# | about 1 Gbit/s | larger batches (09) | PowerSGD, if large matrices hold the parameters |
# | less, or between sites | local SGD, DiLoCo | PowerSGD |

# %%
engines.down()

# %% [markdown] tags=["exercise"]
# ## On real ranks
#
# With engines, `check` also runs your functions on MPI processes:

# %% tags=["exercise"]
engines = cluster.up(n=2)
check("19.local_sgd")

# %% tags=["exercise"]
check("19.outer_step")

# %% tags=["exercise"]
check("19.powersgd")

# %% tags=["exercise"]
engines.down()

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 75 minutes, 35 of them for the exercises. Ask before the first exercise: what must the ranks
# do if the number of steps is no multiple of H? Common wrong answers: no average at the end; the count from 0, so that
# the first average comes after one step; the sum and not the average. In the outer step: w − start, which climbs; plain
# momentum, which is the result of Nesterov's step with the *old* velocity. In PowerSGD: np.linalg.qr before the
# average, so that P is the average of two bases and none itself; the error left out, or measured from the average.
# Published code does the last one, and it works: the ranks' average is the same. But then a rank keeps its difference
# from the others, which adds up over the steps.
#
# To say: compression is a trade of quality and computing for bytes. Let the class compute the limit for their own
# cluster: its Gbit/s, the model's K, and ten milliseconds.

# %% [markdown]
# ## Keypoints
#
# - An exchange every H steps sends an H-th of the bytes. With mixed data little is lost; with different kinds of data
#   the ranks drift apart.
# - DiLoCo uses the change of H steps as a gradient, with momentum.
# - PowerSGD sends r (m + n) numbers instead of m n. The part that it leaves out must be kept and sent later, or the
#   training does not learn.
# - Compression pays if the saved bytes would take longer than compressing. Within a host and in most data centres they
#   do not.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **PyTorch DDP** has communication hooks: 16 bits (`fp16_compress_hook`, `bf16_compress_hook`), and PowerSGD, whose
#   state starts to compress after 1,000 steps by default
#   ([source](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html)).
# - **FSDP2** reduces gradients in bf16 if `MixedPrecisionPolicy` has `param_dtype=torch.bfloat16`; with
#   `reduce_dtype=torch.float32` it does not
#   ([source](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)).
# - **DeepSpeed's ZeRO++** (2023) quantises weights before they are gathered, and gradients before they are reduced
#   ([source](https://arxiv.org/abs/2306.10209)).
# - **Other families** are top-k (send the largest numbers only, and keep the rest as the error) and quantisation to a
#   few bits (QSGD, 1-bit Adam) ([source](https://arxiv.org/abs/1712.01887)).
# - **DiLoCo** and its descendants train between sites: INTELLECT-1 (2024) trained 10 billion parameters on three
#   continents. torchft has DiLoCo as an experiment ([source](https://arxiv.org/abs/2412.01152)).
