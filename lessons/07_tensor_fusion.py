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
# # Tensor fusion
#
# **Question:** a network has dozens of gradients, most of them small. Should they be sent one by one, or together?
#
# **Afterwards you can**
#
# - tell latency from bandwidth, and say from which size on a message's bytes take longer than its latency,
# - write the function that packs tensors into buckets, and read the workbench's own,
# - find the best threshold for given numbers, and say why it is the best,
# - say what the response cache saves.
#
# **Needs:** two cores, no GPU. **Alone:** 30 minutes to read, 15 to do. **Led:** 45 minutes. **Before:** lesson 06.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 06: What does the hook of a parameter do during <code>backward()</code>, and what does
# <code>step()</code> do?</summary>
#
# The hook starts an allreduce and does not wait. `step()` waits for all of them, and then changes the weights.
#
# </details>
#
# <details>
# <summary>Lesson 04: Two ranks have gradients of 30 and of 10 samples, each a mean over its own. What is the mean over
# all 40?</summary>
#
# (30 · g₀ + 10 · g₁) / 40. The plain average of g₀ and g₁ gives each of the 10 samples twice the weight that it should
# have, and each of the 30 two thirds of it: three times as much to the ones as to the others.
#
# </details>

# %% tags=["both"]
import inspect

import numpy as np

from workbench import cluster
from workbench.course import drawing, figures
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.simulator import simulate
from workbench.course.tasks.t07_fusion import finish_time

# %% [markdown]
# ## What a message costs
#
# A message of m bytes takes α + β·m seconds. Every message, however small, takes the **latency** α; each byte takes β
# more. 1/β is the **bandwidth**. The simulator has α = 20 µs and β = 1 ns for each byte, that is 1 GB/s. At m = α/β
# bytes both parts are equal. A much smaller message costs hardly more than its latency, a much larger one hardly more
# than its bytes.

# %%
alpha, beta = 20e-6, 1e-9
for nbytes in (40, 4_000, 20_000, 400_000, 4_000_000):
    took = alpha + beta * nbytes
    print(f"{nbytes:9,} bytes: {took * 1e6:7.0f} µs, of which latency {alpha / took:6.1%}")

# %% [markdown]
# There are 48 small arrays on four ranks, and every rank needs the sum of each array. Use one allreduce for each array,
# or put all of them in one long array and use one allreduce.


# %%
from workbench.course.predictions import predict, reveal

predict(
    "07.packed",
    "48 arrays of 80 bytes each, on four ranks: how many times as fast is one allreduce for all of them?",
    number="times",
    tolerance=0.25,
)


# %%
def one_by_one(comm, count, length):
    return [comm.allreduce(np.ones(length)) for _ in range(count)]


def packed(comm, count, length):
    together = comm.allreduce(np.concatenate([np.ones(length)] * count))
    return np.split(together, count)


for length in (10, 1_000, 100_000):
    alone, fused = (simulate(4, way, 48, length) for way in (one_by_one, packed))
    print(
        f"48 × {8 * length:7,} bytes: {len(alone.messages)} messages in {alone.time_s * 1e3:6.2f} ms, packed "
        f"{len(fused.messages)} in {fused.time_s * 1e3:6.2f} ms: {alone.time_s / fused.time_s:5.2f} times as fast"
    )

# %%
alone, fused = (simulate(4, way, 48, 10) for way in (one_by_one, packed))
reveal(
    "07.packed",
    alone.time_s / fused.time_s,
    "A message of 80 bytes takes 20 µs of latency and 0.08 µs for its bytes. 48 allreduces pay the latency 48 times as "
    "often as one. The bytes are the same, so with 800 kB each there is hardly a difference.",
)

# %% [markdown]
# ## A network's gradients
#
# A convolutional network with batch normalisation, in the order in which backward finishes its gradients:

# %%
import torch
from torch import nn


def block():
    return [nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]


layers = [layer for _ in range(20) for layer in block()]
network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 64, 10))
gradients = [(name, parameter) for name, parameter in network.named_parameters()][::-1]
sizes = [parameter.numel() * 4 for _, parameter in gradients]

print(f"{len(sizes)} gradients, {sum(sizes):,} bytes")
for size in sorted(set(sizes)):
    print(f"{sizes.count(size):2} of {size:6,} bytes")

# %% [markdown]
# The workbench packs tensors that became ready together. This is the function. All ranks call it with the same
# responses, so all ranks get the same plan. The first `if` finds the tensors that must be sent alone; `key` holds what
# tensors must have in common to be sent together; the last lines pack them.

# %%
from workbench.core.fusion import plan
from workbench.core.messages import Kind, Response

print(inspect.getsource(plan))

# %%
responses = [Response(name, Kind.ALLREDUCE, "float32", tuple(one.shape)) for name, one in gradients]
for threshold in (0, 10_000, 100_000, 400_000, 64 << 20):
    batches = plan(responses, threshold)
    most = max(map(len, batches))
    print(f"threshold {threshold:10,} bytes: messages {len(batches):2}, tensors in one of them at most {most:2}")

# %% [markdown]
# Without a threshold each gradient is sent alone. A convolution has 36,864 bytes: with a threshold below that, only its
# neighbours of 128 bytes are packed, in pairs.
#
# Only tensors of one dtype are sent together. The batch of one dtype stays open while tensors of another dtype come in
# between:

# %%
mixed = [Response(f"{dtype} {i}", Kind.ALLREDUCE, dtype, (10,)) for i in range(3) for dtype in ("float32", "float64")]
for batch in plan(mixed, threshold_bytes=1000):
    print([response.name for response in batch])

# %%
predict(
    "07.threshold",
    "Thresholds from 1,000 to 1,024,000 bytes for this network: with which one is a step shortest, if messages may be "
    "sent during backward?",
    choices=["the smallest: everything leaves at once", "one in between", "the largest: all in one message"],
)

# %% [markdown]
# ## How much in one bucket?
#
# A bucket with all gradients has to wait for the last one: nothing is sent during the backward pass (lesson 06). Here
# is a model of one step on two ranks: a bucket is sent when its last tensor is ready and the previous bucket has
# arrived.

# %%
print(inspect.getsource(finish_time))

# %% [markdown]
# Assume that the backward pass takes 60 µs for each convolution's gradient, and 5 µs for every other gradient. On n
# ranks with a ring, a bucket of m bytes takes 2(n − 1)·α + 2(n − 1)/n · β·m; for two ranks that is 2α + β·m. In the
# simulator two ranks just exchange the bucket: α + β·m.

# %%
ready = np.cumsum([60e-6 if parameter.dim() == 4 else 5e-6 for _, parameter in gradients]).tolist()


def buckets_of(threshold, chosen=responses):
    """The sizes that plan() puts together."""
    return [[4 * int(np.prod(response.shape)) for response in batch] for batch in plan(chosen, threshold)]


def step(comm, buckets, ready):
    """Backward pass and exchange on two ranks, bucket by bucket."""
    requests, done = [], 0
    for bucket in buckets:
        done += len(bucket)
        comm.compute(max(0.0, ready[done - 1] - comm.now))
        message = np.zeros(sum(bucket), np.uint8)
        requests.append((comm.isend(message, dest=1 - comm.rank), comm.irecv(source=1 - comm.rank)))
    for sent, received in requests:
        received.wait()
        sent.wait()


thresholds = [1000 * 2**i for i in range(11)]
modelled = [finish_time(buckets_of(one), ready, alpha, beta) * 1e3 for one in thresholds]
simulated = [simulate(2, step, buckets_of(one), ready).time_s * 1e3 for one in thresholds]
for threshold, model, run in zip(thresholds, modelled, simulated, strict=True):
    messages = len(buckets_of(threshold))
    print(f"{threshold:9,} bytes: messages {messages:2}, model {model:.3f} ms, simulated {run:.3f} ms")
largest = max(abs(one - other) for one, other in zip(modelled, simulated, strict=True))
print(f"largest difference between model and simulator: {largest * 1e6:.3f} ns")

# %%
figures.curves(
    {"model": modelled, "simulated": simulated},
    xlabel="threshold, kB",
    ylabel="ms for a step",
    title="Too small: latency; too large: nothing hidden",
    x=[one // 1000 for one in thresholds],
    doubling=True,
)

# %% [markdown]
# No plan can be faster than the backward pass followed by a message with only the last gradient. That is the line in
# the next picture, and the best threshold reaches it.

# %%
best = min(thresholds, key=lambda one: finish_time(buckets_of(one), ready, alpha, beta))
print(f"backward pass: {ready[-1] * 1e3:.3f} ms; best of these thresholds: {best:,} bytes")
ways = {f"{one:,} bytes": finish_time(buckets_of(one), ready, alpha, beta) for one in (1000, best, 1_024_000)}
ways = {name: round(seconds * 1e3, 3) for name, seconds in ways.items()}
drawing.bars(ways, "ms", "A step", best=round((ready[-1] + alpha + beta * sizes[-1]) * 1e3, 3))

# %%
extremes = {
    min(thresholds): "the smallest: everything leaves at once",
    max(thresholds): "the largest: all in one message",
}
reveal(
    "07.threshold",
    extremes.get(best, "one in between"),
    f"{best:,} bytes. With a smaller one the latency is paid more often; with a larger one more tensors wait for the "
    "last one of their bucket.",
)

# %% [markdown]
# The first 6 gradients, with too small a threshold, a good one, and all in one. The time of each is above its picture;
# the time axes differ.

# %%
drawing.space_time(simulate(2, step, buckets_of(0, responses[:6]), ready), "One by one")

# %%
drawing.space_time(simulate(2, step, buckets_of(best, responses[:6]), ready), f"Up to {best:,} bytes")

# %%
drawing.space_time(simulate(2, step, buckets_of(64 << 20, responses[:6]), ready), "All in one")

# %% [markdown]
# ### Set it yourself
#
# Now the same model for a ring of n ranks, with the package's own buckets: 50 layers, 100 MB of gradients, 100 ms of
# computing, a third of it forward. The time that communication takes after backward has ended is **exposed**: the ranks
# wait (red). The **efficiency** is the part of the step in which they compute.

# %%
from workbench.course.calculators import explore

explore.step()

# %% [markdown]
# In a running notebook there are sliders; a page without a kernel has these three settings.
#
# - Which bucket is best at α = 200 µs? And at 20 µs: by how much is the best one better than none?
# - The third setting is bandwidth-bound. How much does the best bucket help? What else would help?
# - Set α back to 200 µs, the bandwidth to 10 GB/s and the bucket to 100 MB. How long is the network idle, and why?

# %% [markdown]
# ## On two real ranks
#
# The threshold is an environment variable, which `init()` reads; it has Horovod's name. The gradients of the same
# network are submitted as a group, so that all are ready at once. (A tensor of up to 4 kB would be sent inside its
# announcement and need no message. That is switched off here, to see only fusion.)

# %%
engines = cluster.up(n=2)

# %%
# %%px
import os
import time

import torch

import workbench.torch as hvd


def rounds(shapes, threshold, count=8):
    """Sum tensors of these shapes over the ranks; the best time of a round, in ms."""
    os.environ["HOROVOD_FUSION_THRESHOLD"] = str(threshold)
    os.environ["WORKBENCH_EAGER_BYTES"] = "0"
    hvd.init()
    tensors = [torch.ones(shape) for shape in shapes]
    took = []
    for _ in range(count):
        hvd.barrier()
        begun = time.perf_counter()
        hvd.grouped_allreduce(tensors, name="gradients")
        took.append(time.perf_counter() - begun)
    best = torch.tensor(min(took), dtype=torch.float64)
    return 1e3 * hvd.allreduce(best, op=hvd.Max, name="took").item()  # of the slowest rank


# %% [markdown]
# How many batches were sent? `workbench.timeline()` has recorded them; the table also shows the number that `plan()`
# gives.

# %%
import workbench

shapes = [tuple(parameter.shape) for _, parameter in gradients]
engines.view.push({"shapes": shapes}, block=True)
measured = {}
for threshold in (0, 10_000, 100_000, 400_000, 64 << 20):
    engines.view.execute(f"found = rounds(shapes, {threshold})", block=True)
    measured[threshold] = engines.client[0]["found"]
    bars = [bar for bar in workbench.timeline(last=512).tracks[0].bars if "gradients" in bar.names[0]]
    engines.view.execute("hvd.shutdown()", block=True)
    planned = len(plan(responses, threshold))
    print(f"threshold {threshold:10,} bytes: batches in a round {len(bars) / 8:.0f}, planned {planned}")

# %% tags=["nbval-ignore-output"]
bars = {f"{threshold:,} bytes": round(took, 2) for threshold, took in measured.items()}
drawing.bars(bars, "ms", "A round on two real ranks, by threshold")

# %% [markdown]
# All tensors are ready at once here, so no communication can be hidden, and one batch for all is the best choice. The
# gain depends on this machine's latency. In a training two more things count. The engine delays announcements for a
# moment while more arrive (`HOROVOD_CYCLE_TIME`, 1 ms by default). And `DistributedOptimizer` stores the gradients in
# buckets of 16 MB (`WORKBENCH_BUCKET_BYTES`) from the second step on: they are *stored* next to each other in memory,
# and can be sent together without a copy. (PyTorch's DDP has buckets of 25 MB. Its first bucket is small, 1 MB, so that
# it is sent early.)
#
# ## The response cache
#
# Before a tensor is sent, each rank announces it to rank 0: name, dtype, shape, operation. In a training the same
# gradients come in every step:

# %%
predict(
    "07.announced",
    "In the first step this rank announces its 62 gradients in about 5,800 bytes. How many bytes are these "
    "announcements in later steps?",
    choices=["5,800 bytes, as in the first", "about 2,900 bytes", "less than 300 bytes"],
)

# %%
from dataclasses import replace

from workbench.core.handle import Handle
from workbench.core.messages import Decision, ReduceOp, Request
from workbench.core.pending import Entry
from workbench.core.protocols import PlainAnnouncer
from workbench.runtime.control.codec import encode_event
from workbench.runtime.steady.cache import CachingAnnouncer

rank_1 = CachingAnnouncer(PlainAnnouncer(1), rank=1)
requests = [Request(name, Kind.ALLREDUCE, "float32", tuple(one.shape), op=ReduceOp.AVERAGE) for name, one in gradients]
entries = [Entry(request, None, None, Handle(request.name)) for request in requests]
first = encode_event(rank_1.announce(entries, seen=0))
rank_1.read(Decision(1, [replace(response, cache_id=number) for number, response in enumerate(responses)]))
later = encode_event(rank_1.announce(entries, seen=1))

print("the first announcement begins:", first[:58].decode())
print(f"{len(first):,} bytes for {len(requests)} gradients in the first step, {len(later)} in a later one")

# %%
reveal(
    "07.announced",
    "less than 300 bytes"
    if len(later) < 300
    else "about 2,900 bytes"
    if len(later) < 4000
    else "5,800 bytes, as in the first",
    f"{len(later)} bytes. In the first step the ranks have agreed on the name, dtype, shape and operation of each "
    "gradient. From then on one number replaces all of that.",
)

# %%
engines.down()

# %% [markdown]
# ## Calculated and measured
#
# The calculator from above, compared with this machine. Two ranks measure their α and β, and how long a network of 14
# layers computes without communication. From these the calculator says how long a step takes, for three sizes of
# buckets. Then the network is trained with each.

# %% tags=["nbval-ignore-output"]
from workbench.course.calculators import measured_step

measured_step.measured(ranks=2)

# %% [markdown]
# `exposed` is calculated: the time that communication adds to computing. The last column shows what the calculator
# leaves out. On one machine ranks share cores and memory, a waiting rank needs time until it runs again, and other
# programs run as well. Each row is a job with its own measurements, so on a busy machine the rows differ not only by
# their buckets.

# %% [markdown] tags=["exercise"]
# ## Pack them
#
# First run the cell above. `check` judges your function, `hint` gives a hint, `solution` shows the solution.
#
# You get the sizes of the tensors in their order, and a threshold. Return the buckets.

# %% tags=["exercise"]
# exercise: 07.plan_buckets

# %% tags=["exercise"]
check("07.plan_buckets")

# %% [markdown] tags=["exercise"]
# Is this the plan that the workbench makes?

# %% tags=["exercise"]
from workbench.core.fusion import plan
from workbench.core.messages import Kind, Response

random = np.random.default_rng(0)
lengths = random.integers(1, 100, 40).tolist()
tensors = [Response(f"gradient {i}", Kind.ALLREDUCE, "float32", (length,)) for i, length in enumerate(lengths)]
theirs = [[4 * response.shape[0] for response in batch] for batch in plan(tensors, 500)]
print("the same as plan():", plan_buckets([4 * length for length in lengths], 500) == theirs)

# %% [markdown] tags=["exercise"]
# ## The best threshold
#
# Find the best threshold in the model of the lesson. `finish_time` is given. Times and sizes have no units here.

# %% tags=["exercise"]
print(inspect.getsource(finish_time))

# %% tags=["exercise"]
# exercise: 07.best_threshold

# %% tags=["exercise"]
check("07.best_threshold")

# %% [markdown] tags=["exercise"]
# How does the best threshold change with the latency? Twenty tensors of size 1 to 9, one ready in each unit of time:

# %% tags=["exercise"]
lengths, times = np.random.default_rng(1).integers(1, 10, 20).tolist(), list(range(1, 21))
for latency in (0, 1, 2, 4, 8, 16):
    chosen = best_threshold(lengths, times, latency, 0.1)
    buckets = plan_buckets(lengths, chosen)
    end = finish_time(buckets, times, latency, 0.1)
    print(f"α = {latency:2}: threshold {chosen:3}, {len(buckets):2} buckets, ends at {end:.1f}")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 45 minutes, 15 of them for the exercises. Let them guess first: 48 arrays of 80 bytes, how
# much faster if packed? 40 times. And 48 of 800 kB? Hardly at all. Common wrong answers in *plan_buckets*: the last
# bucket is forgotten; an empty one in front; `<` for `<=`; the tensor that crosses the limit still goes in. In
# *best_threshold*: α/β, where latency and transfer cost the same: a first guess, and no more; only single sizes are
# tried, not their sums. Those who are done early: which plan is best if the buckets need not all have the same
# threshold?
#
# The sliders. At 200 µs: 10 MB, 105 ms, compared with 192 ms without buckets. At 20 µs no buckets at all are best,
# 100.6 ms; 10 MB take 102. Bandwidth-bound: 20 MB, 236 ms, compared with 350 without and 278 with one of 100 MB; only
# fewer bytes or a faster network help more. One of 100 MB: the network is idle until backward has ended, so all 20 ms
# are exposed.

# %% [markdown]
# ## Keypoints
#
# - Small messages pay latency. Packing saves α for each tensor that is not sent alone.
# - A bucket is sent when its last tensor is ready. If it is too large, nothing is hidden behind the backward pass.
# - `HOROVOD_FUSION_THRESHOLD` sets the size. All ranks make the same plan from the same responses.
# - The response cache: after the ranks have agreed on a gradient once, they announce it by a number.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **PyTorch DDP** first packs the parameters in reverse order. After the first step it packs once more, in the order
#   in which the gradients came (without `find_unused_parameters=True`)
#   ([source](https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.hpp)).
# - **PyTorch DDP** copies gradients into its buckets. With `gradient_as_bucket_view=True` they are stored there; with
#   `batched_grad_copy=True` (in 2.13) a bucket is copied at once
#   ([source](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)).
# - **FSDP2** has one bucket for each call of `fully_shard`: one allgather of its parameters, one reduce-scatter of its
#   gradients ([source](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)).
# - **DeepSpeed's ZeRO** reduces up to 500 million numbers at once (`reduce_bucket_size`). The buffer's memory grows
#   with it ([source](https://www.deepspeed.ai/docs/config-json/)).
# - **NCCL** (since 2.2) starts several collectives in one launch if they are called between `ncclGroupStart` and
#   `ncclGroupEnd` ([source](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/groups.html)).
