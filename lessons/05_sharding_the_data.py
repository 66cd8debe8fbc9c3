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
# # Sharding the data
#
# **Question:** which rank trains on which samples, and what happens if the number of samples cannot be divided by the
# number of ranks?
#
# **Afterwards you can**
#
# - cut a data set into shards that are disjoint, complete and new in every epoch, without a single message,
# - say why one sample too many can stop a training, and name three cures,
# - average a metric over ranks that have seen different numbers of samples.
#
# **Needs:** a laptop, no GPU. **Alone:** 20 minutes to read, 12 to do. **Led:** 40 minutes. **Before:** lesson 04.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 01: What belongs into a block <code>if hvd.rank() == 0:</code>, and what must not stand
# there?</summary>
#
# Work that only one rank does: print, write a file. No collective, for the other ranks would never call it.
#
# </details>
#
# <details>
# <summary>Lesson 00: How is it proved that two ranks have computed the same training as one?</summary>
#
# Equal global batches, and then the weights are compared: they agree up to rounding. An equal accuracy proves little.
#
# </details>

# %% tags=["both"]
import inspect

import numpy as np

import workbench as hvd
from workbench import data
from workbench.course import drawing
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.simulator import DeadlockError, simulate
from workbench.data.sampler import ShardedSampler, epoch_order, shard_indices

# %% [markdown]
# ## One order, dealt like cards
#
# Every rank draws the **same** order of all samples, from a seed and the number of the epoch, and takes every n-th of
# it. The ranks send no message for that. These are the workbench's own functions. `epoch_order` gives each sample a
# random number, and sorts by it; `_mend` is explained below, under *The uneven end*.


# %%
def listing(function):
    """Its source, without the docstring and the checks of its arguments."""
    head, _, body = inspect.getsource(function).split('"""', 2)
    print("\n".join(line for line in (head.rstrip() + body).splitlines() if "_check_" not in line) + "\n")


listing(epoch_order)
listing(shard_indices)

# %% [markdown]
# The picture shows 24 samples on three ranks, in four epochs. A column is a sample, a row is an epoch; the digit is the
# rank.

# %%
SAMPLES, RANKS = 24, 3


def shards(epoch, **options):
    return [shard_indices(SAMPLES, rank, RANKS, epoch=epoch, **options) for rank in range(RANKS)]


drawing.coverage([shards(epoch) for epoch in range(4)], SAMPLES, "24 samples on three ranks")

# %% [markdown]
# In every row each sample belongs to exactly one rank, and which rank that is changes from row to row. So after some
# epochs each rank has seen all the data, and the batches have different samples each time.
#
# The *order* needs one seed for all ranks. Other random numbers, for augmentation or dropout, need a different seed on
# each rank, for example `torch.manual_seed(rank)`. A `DataLoader` of torch makes the seeds of its workers from the seed
# of its rank. So if all ranks have one seed, worker 0 of each rank draws the same numbers.
#
# ## Two mistakes without an error
#
# **A different seed on each rank.** It seems right, because the ranks must have different samples. But then their
# orders do not fit together: some samples are seen by two or three ranks (struck through), others by no rank (empty).

# %%
from workbench.course.predictions import predict, reveal

predict(
    "05.seeds",
    "Three ranks take 8 of 24 samples each, every rank from a shuffle with its own seed. How many of the 24 does no "
    "rank see in the first epoch?",
    number="samples",
    tolerance=0.3,
)

# %%
wrong = [[shard_indices(SAMPLES, rank, RANKS, epoch=epoch, seed=rank) for rank in range(RANKS)] for epoch in range(4)]
drawing.coverage(wrong, SAMPLES, "A seed for each rank")

# %%
reveal(
    "05.seeds",
    SAMPLES - len(set(np.concatenate(wrong[0]))),
    "A sample is missed by one rank with probability 2/3, by all three with (2/3)³ = 30 %: about 7 of 24. And two or "
    "three ranks see it with probability 7/27 = 26 %: about 6 of 24.",
)

# %% [markdown]
# **An epoch that never changes.** The sampler is an object that a `DataLoader` holds; `set_epoch()` has to be called
# before each epoch. What happens if it is not called?

# %%
predict(
    "05.forgotten",
    "Without set_epoch(): how many of the 24 samples has rank 0 seen after four epochs?",
    number="samples",
    tolerance=0,
)

# %%
samplers = [ShardedSampler(SAMPLES, rank, RANKS) for rank in range(RANKS)]
forgotten, called = [], []
for _ in range(4):
    forgotten.append([list(sampler) for sampler in samplers])
for epoch in range(4):
    for sampler in samplers:
        sampler.set_epoch(epoch)
    called.append([list(sampler) for sampler in samplers])

for name, epochs in (("forgotten", forgotten), ("called", called)):
    seen = set().union(*(epoch[0] for epoch in epochs))
    print(f"set_epoch() {name}: in four epochs rank 0 has seen {len(seen)} of {SAMPLES} samples")
drawing.coverage(forgotten, SAMPLES, "set_epoch() forgotten")

# %%
reveal(
    "05.forgotten",
    len(set().union(*(epoch[0] for epoch in forgotten))),
    "It sees the same third in each epoch, in the same order. There is no error: all ranks together see all samples "
    "in each epoch.",
)

# %% [markdown]
# ## The uneven end
#
# 145 samples on three ranks are 49, 48 and 48. With batches of 16, rank 0 makes 4 steps, and the others make 3. Each
# step contains an allreduce:


# %%
def epoch_of_training(comm, samples, batch):
    mine = shard_indices(samples, comm.rank, comm.size, uneven="keep")
    for start in range(0, len(mine), batch):
        gradient = np.ones(1000) * len(mine[start : start + batch])
        comm.compute(1e-3)
        comm.allreduce(gradient)
    return len(range(0, len(mine), batch))


try:
    simulate(3, epoch_of_training, 145, 16)
except DeadlockError as error:
    stuck = error
print(stuck)
drawing.wait_for(stuck)

# %% [markdown]
# Uneven shards alone do no harm. The training hangs if the longer shard needs one batch more than the shorter one. How
# often does that happen? Try all numbers of samples:


# %%
def steps_of_each(samples, ranks, batch=16):
    parts = [shard_indices(samples, rank, ranks, uneven="keep") for rank in range(ranks)]
    return [-(-len(part) // batch) for part in parts]  # rounded up


for ranks in (2, 3, 8):
    period = 16 * ranks  # with so many samples more, each rank has one batch more
    hangs = sum(len(set(steps_of_each(samples, ranks))) > 1 for samples in range(period))
    print(f"{ranks} ranks: it hangs with {hangs} of {period} numbers of samples, {hangs / period:.1%}")

# %% [markdown]
# So most training scripts never show this mistake, and then, with one data set, the training hangs at the end of the
# first epoch.
#
# ### Cures 1 and 2: make the shards equal
#
# `uneven="drop"` leaves out the last `samples % n` of the epoch's order; in the next epoch these are other samples.
# `uneven="pad"` repeats samples from the beginning of the epoch's order. `uneven="keep"` does neither.

# %%
for uneven in ("drop", "pad", "keep"):
    parts = [shard_indices(145, rank, 3, uneven=uneven) for rank in range(3)]
    together = np.concatenate(parts)
    print(
        f"{uneven}: {[len(part) for part in parts]} samples; {145 - len(set(together))} left out, "
        f"{len(together) - len(set(together))} seen twice"
    )

# %%
SAMPLES = 10
ways = [shards(0, uneven=uneven) for uneven in ("drop", "pad", "keep")]
drawing.coverage(ways, SAMPLES, "Ten samples on three ranks", rows=("drop", "pad", "keep"))

# %% [markdown]
# ### Cure 3: agree, or join
#
# Sometimes the shards cannot be made equal: each rank has its own files, and these have different lengths. Then the
# ranks agree before the epoch on the **least** number of steps:


# %%
def agreed(comm, samples, batch):
    mine = shard_indices(samples, comm.rank, comm.size, uneven="keep")
    steps = comm.allreduce(-(-len(mine) // batch), op=min)
    for step in range(steps):
        comm.allreduce(np.ones(1000) * len(mine[step * batch : (step + 1) * batch]))
    return steps


print("steps:", simulate(3, agreed, 145, 16).results)

# %% [markdown]
# Or a rank that has no more data calls `join()`. It then contributes zeros to the allreduces of the others, until all
# ranks have called `join()`. Nothing is left out and nothing is repeated. Below, in the last step, one of three ranks
# still has data. In that step its batch is only the 49th sample.
#
# `run_threads` starts the whole runtime on three threads of this process.


# %%
predict(
    "05.join",
    "In the last step rank 0 alone has data; its gradient is 1, and ranks 1 and 2 have joined. What is the average?",
    choices=["1", "1/3", "0", "not a number"],
)


# %%
def joined():
    mine = shard_indices(145, hvd.rank(), hvd.size(), uneven="keep")
    averages = []
    for _ in range(0, len(mine), 16):
        averages.append(hvd.allreduce(np.ones(1), name="gradient").item())
    hvd.join()
    return averages


all_averages = hvd.run_threads(3, joined)
for rank, averages in enumerate(all_averages):
    print(f"rank {rank}: {[round(one, 3) for one in averages]}")

# %%
last = all_averages[0][-1]
reveal(
    "05.join",
    "1" if last == 1 else "1/3" if round(last, 3) == 0.333 else "0" if last == 0 else "not a number",
    "A rank that has joined gives a zero and is still counted: the sum is divided by 3. So this one sample counts as "
    "much as 16 samples in the steps before.",
)

# %% [markdown]
# ## A mean over uneven shards
#
# In evaluation no sample may be left out, and none may count twice. Take the 357 test digits and a simple classifier,
# the nearest of the ten mean images; each of four ranks tests a block of 100 images; the last block is shorter.

# %%
digits = data.digits()
train, test = (images.reshape(len(images), -1) for images in (digits.train_x, digits.test_x))
means = np.stack([train[digits.train_y == digit].mean(axis=0) for digit in range(10)])
distances = ((test[:, None] - means) ** 2).sum(axis=2)
right = (distances.argmin(axis=1) == digits.test_y).astype(float)

parts = [right[start : start + 100] for start in range(0, 400, 100)]
for rank, part in enumerate(parts):
    print(f"rank {rank}: {part.mean():.4f} of {len(part)}")
print(f"mean of the means:  {np.mean([part.mean() for part in parts]):.4f}")
print(f"weighted by counts: {sum(part.sum() for part in parts) / sum(map(len, parts)):.4f}")
print(f"in one process:     {right.mean():.4f}")

# %% [markdown]
# In the mean of the means an image of rank 3 counts 100/57 = 1.75 times as much as one of another rank. And a fifth
# rank would have no image and no mean: 0/0 is `nan`, which makes the average `nan` on all ranks. Sums and counts can
# always be added.

# %% [markdown] tags=["exercise"]
# ## A shard
#
# First run the cell above. Then write the sampler: `shard` returns the indices of one rank in one epoch, padded to
# equal lengths. `check` tries it with many numbers of samples and ranks, and prints the smallest case that is wrong;
# `hint` gives a hint, `show` draws 13 samples on 3 ranks, `solution` shows the solution.

# %% tags=["exercise"]
# exercise: 05.shard

# %% tags=["exercise"]
check("05.shard")

# %% [markdown] tags=["exercise"]
# Look at your shards. In every row each of the 22 samples has a rank, and two samples have two ranks: 3 · 8 = 24.

# %% tags=["exercise"]
drawing.coverage([[shard(22, epoch, 0, 3, rank) for rank in range(3)] for epoch in range(4)], 22, "Your shards")

# %% [markdown] tags=["exercise"]
# ## A mean
#
# Each rank has the values of its own samples: an array, with a different length on each rank, and empty on some ranks.
# Return the mean over all samples, on every rank. Send sums and counts, not the values themselves; a single allreduce
# is enough.

# %% tags=["exercise"]
# exercise: 05.weighted_mean

# %% tags=["exercise"]
check("05.weighted_mean")

# %% tags=["exercise"]
show("05.weighted_mean")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 40 minutes, 12 of them for the exercises. Ask before the picture of the two seeds: how many
# of 24 samples does an epoch miss if each rank draws its own eight? About (2/3)³ of them, 7. Common wrong answers: the
# rank in the seed; `seed + epoch`, so that epoch 1 of seed 0 is epoch 0 of seed 1; shuffling only the rank's own part;
# padding with `order[: n - samples % n]`, which adds n samples where n divides their number, and too few where there
# are fewer samples than ranks. In the mean: leaving early on a rank without samples, which is the `if rank == 0` of
# lesson 01 again. Those who are done early: what does `join()` do to the learning rate of the last steps?

# %% [markdown]
# ## Keypoints
#
# - Same seed, same epoch, same order on all ranks; rank r takes every n-th sample from the r-th on.
# - Call `set_epoch()` before each epoch, or every rank sees the same samples in every epoch.
# - Uneven shards can give the ranks different numbers of steps, and then the ranks with more steps hang. Drop, pad, or
#   agree on the least number, or `join()`.
# - Add up sums and counts, then divide. Never average means.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **PyTorch's `DistributedSampler`** pads with the beginning of the epoch's order, as `shard` does, or drops the end
#   with `drop_last=True`. Without `set_epoch(epoch)` each epoch has the same order
#   ([source](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)).
# - **PyTorch DDP** can join: inside `with model.join():` a rank without data takes part in DDP's own collectives until
#   all ranks are done
#   ([source](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)).
# - **Accelerate** repeats samples to make batches equal (`even_batches=True`). They would count twice in a metric;
#   `gather_for_metrics` drops them ([source](https://huggingface.co/docs/accelerate/package_reference/accelerator)).
# - **torchdata's `StatefulDataLoader`** (0.8, 2024) has a `state_dict`, so a job can go on in the middle of an epoch.
#   Each rank keeps its own ([source](https://pytorch.org/data/0.11/stateful_dataloader_tutorial.html)).
# - **MosaicML's `StreamingDataset`** reads samples from cloud storage, in an order that does not depend on the number
#   of GPUs, nodes or workers ([source](https://docs.mosaicml.com/projects/streaming)).
