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
# # Follow one gradient
#
# **Question:** backward has just finished a gradient. Which lines of code run until the weights change, on which
# thread, and what does the timeline record?
#
# **Afterwards you can**
#
# - build a small Horovod yourself, in ten steps: sockets, ring, coordinator, fusion, engine, optimizer,
# - find the five stops in the source: hook, announcement, response, reduction, step,
# - say which of these run during backward, and which make backward wait,
# - read the recorder's events: when each stop was reached, which rank was last, and how long the others waited,
# - say which work a step skips after all names are known.
#
# **Needs:** two cores, no GPU. **Alone:** 65 minutes to read, 45 to do. **Led:** 90 minutes. **Before:** lessons 03, 06
# and 07.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 18: Which of ZeRO's stages sends more bytes than an allreduce, and how many?</summary>
#
# Stage 3: it gathers the parameters twice, so 3(n − 1)/n · P in place of 2(n − 1)/n · P.
#
# </details>
#
# <details>
# <summary>Lesson 10: Which of the nine steps is missing if all ranks save to the same file?</summary>
#
# The last: print and save on rank 0 only.
#
# </details>

# %%
import copy
import inspect
import multiprocessing
import re
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

# %% tags=["both"]
import workbench
from workbench import cluster
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.followed.event import event
from workbench.course.followed.picture import way_picture
from workbench.course.followed.places import PLACES, STOPS
from workbench.course.followed.source import listing
from workbench.course.predictions import predict, reveal

# %% [markdown]
# ## Build it in ten steps
#
# Before you follow a gradient through the workbench, build a small one. `nano.py` is the whole idea in one file of 400
# lines. It uses only the standard library, numpy and torch. It has ten parts, and each part uses only the parts before
# it. We read them one by one, and run each part at once.
#
# Up to step 9 the ranks are threads of this notebook, so you can look at them. The code is the same for both: a socket
# can connect threads as well as processes.

# %%
sys.path.insert(0, "steps/nano")
import nano


def part(number):
    """The source of one part of nano.py."""
    return re.search(rf"# --- {number}\. .*?(?=\n\n\n# ---|\n\n\ndef train)", inspect.getsource(nano), re.DOTALL)[0]


def on_ranks(n, function):
    """Call function(rank, n, folder) on n threads; return what each has returned."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(n) as threads:
        return list(threads.map(lambda rank: function(rank, n, folder), range(n)))


# %% [markdown]
# ### Step 1: meet
#
# Processes that do not know each other need one thing in common. Here it is a folder. Of two ranks, the lower one
# listens at a file in it, and the higher one connects.

# %%
print(part(1))


# %%
def greet(rank, n, folder):
    others = [other for other in range(n) if other != rank]
    sockets = nano.meet(rank, others, f"{folder}/", deadline_s=10)
    for other, sock in sockets.items():
        sock.sendall(f"from {rank} to {other}".encode())
    return [sock.recv(100).decode() for sock in sockets.values()]


for rank, heard in enumerate(on_ranks(3, greet)):
    print(f"rank {rank} has received:", *heard, sep="   ")

# %% [markdown]
# No rank waits for ever. If a rank is missing, the error on the others names it:

# %%
with tempfile.TemporaryDirectory() as folder:
    try:
        nano.meet(0, [1], f"{folder}/", deadline_s=0.2)
    except nano.RankError as error:
        print(error)

# %% [markdown]
# ### Step 2: a link
#
# One function sends all arrays: `sendrecv`. A ring needs nothing else.

# %%
print(part(2))


# %%
def swap(rank, n, folder):
    link, theirs = nano.Link(rank, n, folder), np.empty(1_000_000)
    link.sendrecv(np.full(1_000_000, float(rank)), 1 - rank, theirs, 1 - rank)
    link.close()
    return theirs


print("8 MB each way at the same time:", *on_ranks(2, swap))

# %% [markdown]
# ### Step 3: collectives
#
# The ring of lesson 03, in ten lines.

# %%
print(part(3))


# %%
def collect(rank, n, folder):
    link, summed, copied = nano.Link(rank, n, folder), np.full(10, float(rank)), np.full(10, float(rank))
    nano.ring_allreduce(link, summed)
    nano.broadcast(link, copied, root=2)
    link.close()
    return summed[0], copied[0]


for rank, (summed, copied) in enumerate(on_ranks(4, collect)):
    print(f"rank {rank}: the sum of 0, 1, 2, 3 is {summed:g}; rank 2 has sent {copied:g}")

# %% [markdown]
# That would be enough if all ranks called the ring at the same time, for the same tensor. They do not: backward of one
# rank is faster than that of another, and hooks may be called in a different order. So ranks first *announce* the
# tensors that are ready.
#
# ### Step 4: a request

# %%
print(part(4))

# %%
request = nano.Request("average", "gradient head.weight", (10, 1024), "float32", 40_960)
mine, rank_0 = multiprocessing.Pipe()
mine.send(request)
print(nano.hear(rank_0, "rank 1"))
mine.close()
try:
    nano.hear(rank_0, "rank 1")
except nano.RankError as error:
    print(error)

# %% [markdown]
# ### Step 5: fusion

# %%
print(part(5))

# %%
gradients = [nano.Request("average", f"gradient {i}", (i,), "float32", 4 * i) for i in (10, 20, 30, 40)]
for limit_bytes in (0, 200, 10_000):
    print(
        f"{limit_bytes:6,} bytes:", [[request.name for request in batch] for batch in nano.fuse(gradients, limit_bytes)]
    )
arrays = [np.ones((2, 3)), np.zeros(2)]
packed = nano.pack(arrays)
packed += 1
nano.unpack(packed, arrays)
print(*arrays)

# %% [markdown]
# ### Step 6: the coordinator
#
# It runs on rank 0 only. Because of it all ranks execute the same tensors in the same order. It has no sockets and no
# clock. So you can play the ranks yourself:

# %%
print(part(6))

# %%
predict(
    "21.late",
    "Both ranks submit a and b. Rank 0 begins with a, rank 1 with b, and rank 1 never submits a. What is ready?",
    choices=["a: rank 0 has submitted it first", "b: both have submitted it", "nothing: they disagree about the order"],
)

# %%
coordinator = nano.Coordinator(size=2, deadline_s=10)
for now, (rank, name) in enumerate([(0, "a"), (1, "b"), (0, "b")]):
    coordinator.take(rank, nano.Request("sum", name, (3,), "float32", 12), now)
    print(f"{now} s: rank {rank} has announced {name}; ready: {[request.name for request in coordinator.ready]}")
try:
    coordinator.check(now=10)
except nano.RankError as error:
    print("10 s:", error)

# %%
(only,) = coordinator.ready
reveal(
    "21.late",
    {"a": "a: rank 0 has submitted it first", "b": "b: both have submitted it"}[only.name],
    "Names are matched, so the order of submission does not matter. And rank 0 knows which rank is missing.",
)

# %% [markdown]
# ### Step 7: the server
#
# A thread on rank 0 reads the ranks' announcements, asks the coordinator, and sends every decision to all ranks.

# %%
print(part(7))

# %%
pipes = [multiprocessing.Pipe() for _ in range(2)]
ours = [pipe[0] for pipe in pipes]
rank_of = {pipe[1]: rank for rank, pipe in enumerate(pipes)}
server = threading.Thread(target=nano.serve, args=(rank_of, nano.Coordinator(size=2)))
server.start()
for rank, names in enumerate([("a", "b"), ("b", "a")]):
    for name in names:
        ours[rank].send(nano.Request("sum", name, (3,), "float32", 12))
    ours[rank].send(nano.Request("shutdown", "shutdown", (0,), "float64", 0))


def decided(connection):
    batch = nano.hear(connection, "rank 0")
    return batch if batch[0].verb == "shutdown" else batch + decided(connection)


orders = [[request.name for request in decided(connection)] for connection in ours]
server.join()
print("both ranks do", *sorted(orders[0][:-1]), "in the same order:", orders[0] == orders[1])

# %% [markdown]
# ### Step 8: the engine
#
# `submit` announces a tensor and returns. A thread waits for decisions, and executes them. The workbench does the same
# in `workbench/core/engine.py`.

# %%
print(part(8))


# %%
def any_order(rank, n, folder):
    engine = nano.Engine(rank, n, folder)
    names = np.roll(["a", "b", "c"], rank).tolist()  # another order on each rank
    futures = {name: engine.submit("sum", np.full(2, 10.0**rank), name) for name in names}
    sums = {name: futures[name].result().tolist() for name in "abc"}
    engine.close()
    return names, sums


for rank, (names, sums) in enumerate(on_ranks(3, any_order)):
    print(f"rank {rank} has submitted {names}: {sums}")


# %%
def one_is_wrong(rank, n, folder):
    engine = nano.Engine(rank, n, folder)
    try:
        engine.submit("sum", np.ones(4 if rank == 2 else 3), "a").result()
    except nano.RankError as error:
        return error


print(*on_ranks(3, one_is_wrong), sep="\n")

# %% [markdown]
# ### Step 9: the optimizer
#
# This step uses torch. Backward calls a hook for each parameter as soon as its gradient is complete. The hook submits
# the gradient and returns, so the gradient is sent while backward goes on.

# %%
print(part(9))

# %%
torch.manual_seed(0)
start, x, y = torch.nn.Linear(8, 1), torch.randn(60, 8), torch.randn(60, 1)


def one_step(model, optimizer, x, y):
    (model(x) - y).square().mean().backward()
    optimizer.step()
    return model.weight.detach()


def distributed(rank, n, folder):
    engine, model = nano.Engine(rank, n, folder), copy.deepcopy(start)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = nano.DistributedOptimizer(engine, sgd, model.named_parameters())
    weight = one_step(model, optimizer, x[rank::n], y[rank::n])  # each rank has its share of the rows
    engine.close()
    return weight


serial = copy.deepcopy(start)
alone = one_step(serial, torch.optim.SGD(serial.parameters(), lr=0.1), x, y)
for rank, weight in enumerate(on_ranks(3, distributed)):
    print(f"rank {rank}: as one process with all rows: {torch.allclose(weight, alone, atol=1e-6)}")

# %% [markdown]
# ### Step 10: processes
#
# The last step uses real ranks. If one is killed, the error says which one.

# %%
print(part(10))

# %%
print(inspect.getsource(nano.train))

# %%
losses = nano.run(nano.train, 2)
print("2 ranks:", " ".join(f"{loss:.4f}" for loss in losses[0][::4]))
print("all ranks see the same:", losses[0] == losses[1])

# %% [markdown]
# That is a small Horovod. It trains a CNN, a ResNet-18 and a large MLP at more than half of the workbench's images per
# second (`benchmarks/training.py` measures both). The rest of the workbench adds what it lacks: gradients that are
# stored where they are reduced, short announcements for known names, other transports, jobs that go on after an error.
#
# ## The real workbench
#
# The workbench has the same parts, in more files. From here on we follow one gradient through them. It has five stops:

# %%
for stop, what in STOPS.items():
    print(f"{stop:13} {what}")

# %% [markdown]
# You can check this: Python itself reports which lines run. `sys.settrace` calls our own function for every line, on
# every thread. Our `Follower` watches about twenty functions of the workbench, and keeps the calls that are about *one*
# tensor: the gradient of `conv2.weight`, in the network of lesson 00.
#
# Three settings make the path the same in every run. Only up to 160 kB are packed together, so this gradient is sent
# alone (lesson 07). The engine's work stays on the engine's thread; by default, a thread that waits does it itself. And
# rank 1 is late by half a second, so it is clear which rank the others wait for.

# %%
engines = cluster.up(n=2)

# %%
# %%px
import os
import time
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

import workbench.torch as hvd
from workbench import data
from workbench.course.followed.trace import Follower

os.environ |= {"HOROVOD_FUSION_THRESHOLD": "160000", "WORKBENCH_CALLER_RUNS": "0", "WORKBENCH_SLOTS": "0"}
follower = Follower()  # before init(), which starts the threads: they are to be traced as well
hvd.init()
follower.close()

digits = data.digits()
torch.manual_seed(0)
layers = OrderedDict(
    conv1=nn.Conv2d(1, 64, 3, padding=1),
    relu1=nn.ReLU(),
    conv2=nn.Conv2d(64, 64, 3, padding=1),
    relu2=nn.ReLU(),
    pool=nn.MaxPool2d(2),
    flatten=nn.Flatten(),
    head=nn.Linear(16 * 64, 10),
)
model = nn.Sequential(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

mine = slice(hvd.rank(), 288, hvd.size())
images, labels = torch.from_numpy(digits.train_x)[mine], torch.from_numpy(digits.train_y)[mine]


def step(late_s):
    if hvd.rank() == 1:
        time.sleep(late_s)
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()


name = "conv2.weight"
print(f"{name}: {model.conv2.weight.nbytes:,} of {sum(p.nbytes for p in model.parameters()):,} bytes")

# %% [markdown]
# First make two guesses:

# %%
predict(
    "21.thread",
    "On which thread does the hook of a gradient run?",
    choices=["the main thread, within backward()", "the engine's thread", "a thread of its own"],
)

# %%
predict(
    "21.order",
    "Rank 1 is late. In which order does this happen to conv2.weight's gradient?",
    order=[
        "rank 1's hook is called",
        "the ranks' gradients are added up",
        "rank 0's backward has ended, and step() waits",
        "rank 0's hook is called",
        "rank 0 has heard of it from all ranks",
    ],
)

# %% [markdown]
# ## The first step
#
# Both ranks take one step. We look at the calls on rank 0.

# %%
# %%px
with follower.following(name):
    step(late_s=0.5)
first = follower.passed

# %%
rank_0 = engines.client[0]
first = rank_0.pull("first", block=True)
picture = workbench.timeline()  # what the recorders of both ranks know of the same step
print(f"{len(first)} of {len(PLACES)} functions were called for this gradient")

# %% [markdown]
# ### Stop 1: the hook
#
# Autograd calls it when the gradient is complete. The lines below are the lines of the source that *ran*; `…` replaces
# lines that did not run.

# %%
print(listing(first, "hook"))
print()
print(event(picture.tracks, "allreduce.conv2.weight", "hook"))

# %% [markdown]
# In the first step the gradient is sent alone, under its own name. The hook only puts it into a table that two threads
# share; then it returns, and backward goes on with conv1. The lock is held for two assignments.

# %%
where = {"main": "the main thread, within backward()", "engine": "the engine's thread"}
reveal(
    "21.thread",
    where.get(first[0].thread, "a thread of its own"),
    "Autograd calls it between two layers, so backward waits for the hook. Therefore the hook does very little.",
)

# %% [markdown]
# ### Stop 2: the announcement
#
# The engine's thread wakes up, takes the new entries from the table, and announces them to rank 0: name, shape, dtype,
# operation. It does not send the values, because the other ranks may not be ready for them yet. (Tensors up to 4 kB are
# an exception. The biases are sent inside their announcement.)

# %%
print(listing(first, "announcement"))
print()
print(event(picture.tracks, "allreduce.conv2.weight", "announcement"))

# %% [markdown]
# ### Stop 3: the response
#
# Rank 0 counts the announcements. Here is the call that made the name complete: that of rank 1, the last one. Then
# `respond` compares the announcements. If the ranks had different shapes, the error for all of them would be created
# here.

# %%
print(listing(first, "response"))
print()
print(event(picture.tracks, "allreduce.conv2.weight", "response"))

# %% [markdown]
# ### Stop 4: the reduction
#
# All ranks get the response, and their engines execute it: all ranks are ready now. On one machine the gradients are
# added up in shared memory. This gradient is stored where torch has put it, so it is copied there and back, piece by
# piece, through a buffer that the code calls *stage*.

# %%
print(listing(first, "reduction"))
print()
print(event(picture.tracks, "allreduce.conv2.weight", "reduction"))

# %% [markdown]
# ### Stop 5: the step
#
# `step()` waits for the handles. The engine finishes them, the result is in `.grad`, and the wrapped optimizer steps.
# The last listing is the outermost: `step()` calls the two functions before it.

# %%
print(listing(first, "step"))
print()
print(event(picture.tracks, "allreduce.conv2.weight", "step"))

# %%
at = {one.name: one.begin_ns for one in first}
at_rank_1 = {one.name: one.begin_ns for one in engines.client[1].pull("first", block=True)}  # by the same clock
happened = {
    "rank 0's hook is called": at["Hook.__call__"],
    "rank 0's backward has ended, and step() waits": at["DenseGradients.finish"],
    "rank 1's hook is called": at_rank_1["Hook.__call__"],
    "rank 0 has heard of it from all ranks": at["CountingCoordinator._complete"],
    "the ranks' gradients are added up": at["ShmCollectives.allreduce"],
}
reveal(
    "21.order",
    sorted(happened, key=happened.get),
    "Rank 0's backward does not wait for rank 1: it goes on to its end, and only step() waits. The engine adds up "
    "when rank 0 has the announcements of all ranks.",
)

# %% [markdown]
# ### The whole path
#
# The picture shows which thread ran which function. Point at a box to see the file.

# %%
way_picture(first, "conv2.weight in the first step")

# %% [markdown]
# ## What the timeline records
#
# The recorder has recorded the same stops, on every rank and without any tracing: see the line below each listing. Here
# are all bars of the step. Rank 0 waits half a second for rank 1; rank 1 does not wait.

# %% tags=["nbval-ignore-output"]
picture

# %% [markdown]
# `submit` lasts from the hook to the announcement, `wait` until rank 0 has the announcement of the last rank,
# `negotiate` until the response has arrived, `reduce` is the transfer. In your exercises you read these events
# yourself.
#
# ## A steady step
#
# From the second step on the gradients are stored in buckets (lesson 07), here also of up to 160 kB. From the third
# step on all names are known: the training is in its *steady state*. What does such a step skip?

# %%
predict(
    "21.skipped",
    "What does a steady step skip?",
    choices=[
        "nothing: it only gets faster",
        "the announcement: nobody is told any more",
        "the comparison: shapes and types are not looked at again",
        "the reduction: it happens in the hook",
    ],
)

# %%
# %%px
step(late_s=0), step(late_s=0)
bucket = optimizer._distributed.grads.buckets[name].layout.name
for _ in range(20):
    with follower.following(name, bucket):
        step(late_s=0.03)
    steady = follower.passed
    responded = {(one.name, one.thread) for one in steady if one.stop == "response"}
    in_steady_state = responded == {("SteadyCoordinator._advance", "coordinator")}
    if hvd.broadcast_object(in_steady_state, root_rank=0, name="steady?"):  # as rank 0 has seen it
        break

# %% [markdown]
# (Why more than one try? If a rank waits for longer than 0.1 s, it reports this to rank 0, which then counts name by
# name to find the missing rank. On a busy machine that can happen.)

# %%
steady, bucket = rank_0.pull(["steady", "bucket"], block=True)
print("the bucket:", bucket.rpartition(",")[0])
print()
threads = [{one.path: one.thread for one in passed} for passed in (first, steady)]
print(f"{'stop':13} {'function':31} {'first step':12} steady step")
for place in PLACES:
    print(f"{place.stop:13} {place.name:31} {threads[0].get(place.path, '–'):12} {threads[1].get(place.path, '–')}")

# %%
called = {one.name for one in steady}
compares = "respond" in called or "Engine._announce" not in called
reveal(
    "21.skipped",
    "nothing: it only gets faster" if compares else "the comparison: shapes and types are not looked at again",
    "The same names come in the same order, so each rank announces one number for everything that was agreed on. Rank "
    "0 compares sequences of numbers, and nothing else.",
)

# %%
print(listing(steady, "response"))

# %% [markdown]
# Two more things are skipped. The bucket is stored in memory that *both ranks can read and write*, and every `.grad` is
# a view of it. The hook copies the gradient there while it is still in the cache. (After `zero_grad(set_to_none=False)`
# backward itself writes there, and nothing is copied at all.) So there is no stage: each rank takes one half, reads it
# in both buckets, and writes the sum to both. And nothing must be copied afterwards: the result is in `.grad` already.

# %%
print(listing([one for one in steady if one.name in ("GradBucket.take", "ShmCollectives.allreduce", "reduce_across")]))

# %%
way_picture(steady, "Its bucket in a steady step")

# %% [markdown]
# One thing is *not* skipped: in each step every rank must still announce that its bucket is ready. Without it, a rank
# would read the other's memory before backward has written there.
#
# By default two more things change, which we have turned off to see each stop on a thread of its own. With
# `WORKBENCH_CALLER_RUNS` 1 a main thread that waits in `step()` may run the engine's lines itself, because waking
# another thread would take longer. With `WORKBENCH_SLOTS` 1 the ranks of one machine do not even ask rank 0: each
# writes its numbers into memory that all can read, and sees for itself when all have written the same.

# %%
engines.down()

# %% [markdown] tags=["exercise"]
# First run the cell above. `check` judges your function, `hint` gives a hint, `solution` shows the solution. No engines
# are needed.
#
# Two exercises rebuild the decisions of rank 0 in `nano.py`.
#
# ## What is ready?
#
# This is the main part of the coordinator: ranks announce tensors in any order, and in the next step the same names
# again.

# %% tags=["exercise"]
# exercise: 21.ready

# %% tags=["exercise"]
check("21.ready")

# %% [markdown] tags=["exercise"]
# ## The missing ranks
#
# The errors of the coordinator need this: for each tensor that is late, which ranks are missing after the deadline.

# %% tags=["exercise"]
# exercise: 21.culprits

# %% tags=["exercise"]
check("21.culprits")

# %% [markdown] tags=["exercise"]
# Two more exercises read the records of the workbench's recorder.
#
# ## In which order?
#
# From the records of all ranks, find what happened to a tensor, on which rank, in the order of time.

# %% tags=["exercise"]
# exercise: 21.order

# %% tags=["exercise"]
check("21.order")

# %% [markdown] tags=["exercise"]
# ## The late rank
#
# For each collective: which rank announced last, and how long did the others wait for it?

# %% tags=["exercise"]
# exercise: 21.late

# %% tags=["exercise"]
check("21.late")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 90 minutes, 45 of them for the exercises. The first two exercises take 20, with
# `examples/nano.py` open. Then open `workbench/core/engine.py`, too: its docstring lists the
# steps. Let them find the line in which backward waits (only the hook's own lines). Common wrong answers: a name is not
# forgotten when it is ready; the waiting ranks are named instead of the missing ones; the answers are looked for on the
# rank itself, but only rank 0 has them; ranks are compared by place in the list and not by `index`, although one may
# remember more than another; `submitted` is used instead of `announced`.

# %% [markdown]
# ## Keypoints
#
# - The whole idea is 400 lines: announce, decide on rank 0, reduce in a ring, step. Tensors have names, so they may be
#   submitted in any order, and rank 0 knows which rank is missing.
# - Hook, announcement, response, reduction, step: each waits for the one before it. Backward waits only for the hook.
# - Order, size and route are decided on rank 0, when all ranks have announced. So no rank begins a
#   transfer before the others are ready for it.
# - From the third step on a bucket is announced by a number, compared with nothing, and reduced where it is stored.
# - The recorder always records all of this: `workbench.timeline()` shows for which rank the others waited.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **PyTorch DDP** announces nothing: every rank reduces the buckets in the order of their numbers. A bucket that is
#   ready too early waits ([source](https://docs.pytorch.org/docs/stable/notes/ddp.html)).
# - **NCCL** expects the same order from all ranks. Another order on one rank gives a hang or wrong results
#   ([source](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/groups.html)).
# - **PyTorch on GPUs:** `wait()` on a handle makes the CUDA stream wait for the collective, and not the CPU. So Python
#   runs ahead of the network ([source](https://docs.pytorch.org/docs/stable/distributed.html)).
# - **JAX** has no thread that decides: the compiler puts the collectives into each process's program, so their order
#   is known before the first step ([source](https://docs.jax.dev/en/latest/201/sharding.html)).
# - **NCCL's Inspector**, a profiler plug-in, writes size, time and bandwidth of each collective while the job runs. It
#   needs no change in the script ([source](https://github.com/NVIDIA/nccl/tree/master/plugins/profiler/inspector)).
