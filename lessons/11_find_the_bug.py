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
# # Find the bug (12 cards)
#
# **Question:** a distributed program hangs, or is silently wrong. What do you look at, and in which order?
#
# **Afterwards you can**
#
# - read from an error or a stall report which ranks wait, in which line, and which ranks are missing,
# - find mistakes that raise no error with `who_has`, `fingerprint` and `timeline`,
# - find the cause of a symptom, for twelve real mistakes, and repair it.
#
# **Needs:** no GPU; four ranks share the cores that you have. **Alone:** 20 minutes to read, 20 to do. **Led:** 50
# minutes, in pairs: one reads what is printed, the other says what it means. **Before:** lessons 01 to 06.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 10: A script trains on two ranks without an error, and each epoch takes as long as on one. Which step
# is probably missing?</summary>
#
# The sharding: both ranks go through all samples. Look at which samples each rank has seen.
#
# </details>
#
# <details>
# <summary>Lesson 05: Ten samples, four ranks, batches of one. What happens in the third step of an epoch?</summary>
#
# Two ranks have a third sample and two do not. Those with one wait for ever in the allreduce, if nothing was done:
# drop, pad, agree on two steps, or `join()`.
#
# </details>

# %% [markdown]
# ## Where to look first
#
# | what you see | look at | a usual cause |
# |---|---|---|
# | an error names ranks that are idle | the waiting ranks, their line | a collective inside an `if`; a batch too many |
# | an error says that ranks wait for each other | the name that each waits for | a different order or name |
# | `MismatchError` | the dtype, shape and root of each rank | a value that only one rank has |
# | a cell does not end, without an error | the stall report, after a minute | one rank computes, downloads, or loops |
# | a name is not defined, on some ranks | `who_has("name")` | a forgotten `%%px`; a cell that failed on some ranks |
# | a bad accuracy, different on each rank | `fingerprint(model)` | no broadcast; a step that only some ranks make |
# | slow, but right | `workbench.timeline()` | one rank is slower, and the others wait for it |
# | right for one rank, wrong for four | one step by hand: two ranks, two numbers | sum or mean, shards, clipping |
#
# The last line is the most useful one: **make it small**. Two or three ranks, two numbers, one step.

# %%
import os
import textwrap
from itertools import pairwise

import workbench
from workbench import cluster, who_has

os.environ["WORKBENCH_STALL_WARNING_S"] = "1"  # instead of 60, to save time
engines = cluster.up(n=4)

# %%
# %%px
import time

import numpy as np

import workbench as hvd

hvd.init()
rank = hvd.rank()

# %% [markdown]
# ## An error, read from the top
#
# Every rank averages its loss after each step. Rank 2 makes one step more than the others.

# %%
from workbench.course.predictions import predict, reveal

predict(
    "11.named",
    "Rank 2 makes a step more than the others. Which ranks does the error name as missing?",
    choices=["rank 2: the mistake is there", "ranks 0, 1 and 3: they do not come", "none: it cannot know"],
)

# %% tags=["raises-exception"]
# %%px
for step in range(4 if rank == 2 else 3):
    loss = hvd.allreduce(np.array(1.0 / (step + 1)), name="loss")

# %%
engines.view.execute("import sys; error = str(getattr(sys, 'last_value', ''))", block=True)
error = "".join(engines.view.pull("error", block=True))
reveal(
    "11.named",
    "ranks 0, 1 and 3: they do not come"
    if error.startswith("Ranks 0, 1, 3 are idle")
    else "rank 2: the mistake is there"
    if error.startswith("Rank 2 ")
    else "none: it cannot know",
    "An error names the ranks that are missing. It cannot know whether they made the mistake, or the ranks that wait.",
)

# %% [markdown]
# Read such an error from the top. The first line says *which ranks* are missing, and *which* tensor waits for them.
# Then one line for each group of ranks says in which line of code it is. The last line gives a likely cause.
#
# Now you know the line and the tensor, and that ranks 0, 1 and 3 have *finished*: they did not fail, and they are not
# slow. So the next question is: how often does each rank call this? `who_has` shows a variable of all ranks side by
# side:

# %%
who_has("step")

# %% [markdown]
# It also shows which ranks do not have a variable at all. Here only rank 0 has loaded the labels:

# %%
# %%px
if rank == 0:
    labels = np.arange(10)

# %%
who_has("labels")

# %% [markdown]
# ## A stall report, when a rank is late
#
# Rank 3 computes for a while before it calls the allreduce. It may call it at any moment, so there is no error. But
# after `WORKBENCH_STALL_WARNING_S` seconds rank 0 writes a warning: the ranks that are missing, the tensors that wait
# for them, and then the line of code in which each rank is. Look for the missing rank: its line is where the time is
# spent.
#
# A `%%px` cell shows the whole report. Here only its lines about the cell are printed, without those inside Python and
# the workbench:

# %%
slow = """
if rank == 3:
    time.sleep(2.5)
late = hvd.allreduce(np.array(float(rank)), name="late")
"""
answer = engines.view.execute(slow, silent=False)
answer.get(60)
answer.wait_for_output()
begin = "One or more tensors"
report = begin.join(answer.stderr[0].split(begin)[:2]).splitlines()  # once: it is repeated every second

# %% tags=["nbval-ignore-output"]
for line, following in pairwise([*report, ""]):
    if "ipykernel_" in line:
        print("   ", following.strip())  # a line of the cell
    elif not line.startswith(" "):
        print(textwrap.fill(line, 90))

# %%
late = "\n".join(report).partition("Rank 3 stands at:")[2].splitlines()
print("rank 3 is missing, and this waits for it:", *[line[3:] for line in report if line.startswith("3: ")])
print("rank 3 stands at:", *[after.strip() for line, after in pairwise(late) if "ipykernel_" in line])

# %% [markdown]
# Rank 3 called the allreduce in the end, and the cell went on as usual:

# %%
who_has("late")

# %% [markdown]
# ## Fingerprints, when there is no error at all
#
# Every rank draws its own weights, then all train together. All collectives are complete, all losses fall. You cannot
# see whether the ranks have one model, unless you compare them.


# %%
predict(
    "11.apart",
    "Ranks 1, 2 and 3 begin with weights that differ by 1, 2 and 3 from rank 0's. There is no broadcast. What do the "
    "ranks have after three steps with averaged gradients?",
    choices=[
        "one model: the average brings them together",
        "four models, as far apart as at the beginning",
        "four models, further apart with each step",
    ],
)


# %%
# %%px
def trained(broadcast):
    """Three steps with averaged gradients, from weights that each rank has drawn."""
    w = np.arange(4.0) + hvd.rank()
    if broadcast:
        w = hvd.broadcast(w, root_rank=0, name="w")
    for _ in range(3):
        w = w - 0.25 * hvd.allreduce(w + hvd.rank(), name="gradient")
    return w


without, with_broadcast = hvd.fingerprint({"w": trained(False)}), hvd.fingerprint({"w": trained(True)})
if rank == 0:
    for title, prints in (("without", without), ("with", with_broadcast)):
        differences = ", ".join(f"{difference:g}" for difference in prints.largest)
        print(f"{title + ' a broadcast':19}: {'one model' if prints else 'not one model'}; w differs by {differences}")

# %%
apart, begin = max(engines.client[0].pull("list(without.largest)", block=True)), 3.0
reveal(
    "11.apart",
    "one model: the average brings them together"
    if apart < 0.1
    else "four models, as far apart as at the beginning"
    if apart < 1.1 * begin
    else "four models, further apart with each step",
    "All ranks subtract the same average, so their differences do not change, to the last digit.",
)

# %% [markdown]
# `fingerprint` compares a checksum of the weights on each rank, which takes little time. Call it after the first step
# and at the end of each epoch.
#
# ## The timeline, when the result is right but slow
#
# Rank 1 needs longer for its part of every step. The step takes equally long on all ranks, because the others wait for
# rank 1 in the allreduce. A stopwatch on rank 0 would say that *communication* is slow. The picture shows for which
# rank rank 0 waits.

# %%
# %%px
for _ in range(5):
    time.sleep(0.08 if rank == 1 else 0.005)
    hvd.allreduce(np.ones(1000), name="gradient")

# %% tags=["nbval-ignore-output"]
picture = workbench.timeline(last=5)
picture

# %%
waited = picture.waited_s
print("the longest waits were for rank", max(waited, key=waited.get))

# %%
engines.down()
del os.environ["WORKBENCH_STALL_WARNING_S"]

# %% [markdown]
# ## The cards
#
# The exercises of this lesson are twelve *cards*: short programs with **one** real mistake each. A card is done when
# you have *named the cause*, one of four, and *repaired* the program. Most repairs are one line. It is no repair to
# hide the symptom: to catch the error, or to make two ranks work and three fail.

# %%
from workbench.course.cards import cause

cause("11.epoch")

# %% [markdown] tags=["exercise"]
# In pairs: run the card's cell and its check. One of you reads aloud what is printed, the other says what it means.
# Agree on a cause before you change anything: `cause("11.epoch", "a")` says whether it is (a), and the board counts
# your guesses. Then repair the program and check again. The last line of an error, which gives a likely cause, is left
# out here. `show` draws what the program does, `hint` gives three hints, `solution` shows the repaired program.
#
# `hvd` is the workbench on two or three ranks, which are threads here, so that a hang ends within a second; `comm` is
# the simulator's communicator. No engines are needed.

# %% tags=["exercise"]
import numpy as np

from workbench.course.cards import cause
from workbench.course.exercise import check, exercise, hint, progress, show, solution

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 50 minutes, 20 of them for the exercises. In pairs; about two minutes for a card. Nobody
# needs all twelve: cards 1 to 4 hang and come with a report, 5 raises an error, 6 to 10 are the silent ones, 11 and 12
# are for those who know MPI. Two pairs that are stuck may swap cards. Ask each pair for its cause *before* it touches
# the program: who repairs first mostly guesses (a `barrier` here, a `try` there), and the checks are made so that a
# guess that helps two ranks fails with three.
#
# Common wrong answers: `hvd.join()` at the end of card 1 (nothing hangs, and one rank has made a step more than the
# others: its model is another one); an `else: hvd.barrier()` in card 2; no names at all in card 3 (nothing hangs,
# and a is added to b); one seed for all in card 6 (one model, and the same noise everywhere); clipping twice in
# card 7; `.wait()` right after `Isend` in card 11 (the small case passes, the large one is card 12).
#
# Say at the end: four of the twelve gave an error that named the ranks, one an error that named the dtypes. Cards 11
# and 12 raise errors in the simulator, which looks for them; real MPI would sometimes send wrong numbers, and hang with
# large arrays only. The other five are found only with the right tool: fingerprint, coverage, the slowest rank, two
# ranks and two numbers by hand.

# %% [markdown] tags=["exercise"]
# ### It hangs
#
# #### Card 1: the epoch never ends
#
# Batches of 12, one training step after the other. 96 samples on two ranks end, 145 on three do not.

# %% tags=["exercise"]
# exercise: 11.epoch

# %% tags=["exercise"]
check("11.epoch")

# %% tags=["exercise"]
cause("11.epoch")

# %% tags=["instructor"]
cause("11.epoch", "c")

# %% [markdown] tags=["exercise"]
# #### Card 2: training runs, validation hangs
#
# After each epoch the accuracy is averaged, and rank 0 writes it into its log.

# %% tags=["exercise"]
# exercise: 11.validate

# %% tags=["exercise"]
check("11.validate")

# %% tags=["exercise"]
cause("11.validate")

# %% tags=["instructor"]
cause("11.validate", "a")

# %% [markdown] tags=["exercise"]
# #### Card 3: all ranks wait, and no rank is missing
#
# Every rank averages its gradients, one after the other.

# %% tags=["exercise"]
# exercise: 11.gradients

# %% tags=["exercise"]
check("11.gradients")

# %% tags=["exercise"]
cause("11.gradients")

# %% tags=["instructor"]
cause("11.gradients", "d")

# %% [markdown] tags=["exercise"]
# #### Card 4: it hangs at some batches only
#
# A network with a trunk and two heads; a batch uses one head or both.

# %% tags=["exercise"]
# exercise: 11.two_heads

# %% tags=["exercise"]
check("11.two_heads")

# %% tags=["exercise"]
cause("11.two_heads")

# %% tags=["instructor"]
cause("11.two_heads", "b")

# %% [markdown] tags=["exercise"]
# ### An error, but whose mistake?
#
# #### Card 5: it trains, but does not resume from its file
#
# Rank 0 reads the weights from its file, and the others get them from rank 0.

# %% tags=["exercise"]
# exercise: 11.restore

# %% tags=["exercise"]
check("11.restore")

# %% tags=["exercise"]
cause("11.restore")

# %% tags=["instructor"]
cause("11.restore", "a")

# %% [markdown] tags=["exercise"]
# ### No error at all
#
# #### Card 6: no error, but a bad accuracy, different on every rank
#
# Each rank has its own seed, for the noise that it adds to its images.

# %% tags=["exercise"]
# exercise: 11.start

# %% tags=["exercise"]
check("11.start")

# %% tags=["exercise"]
cause("11.start")

# %% tags=["instructor"]
cause("11.start", "c")

# %% [markdown] tags=["exercise"]
# #### Card 7: no error, but four ranks do not train as one does
#
# Gradients that are too long are clipped, so that no step is too large.

# %% tags=["exercise"]
# exercise: 11.clip

# %% tags=["exercise"]
check("11.clip")

# %% tags=["exercise"]
cause("11.clip")

# %% tags=["instructor"]
cause("11.clip", "d")

# %% [markdown] tags=["exercise"]
# #### Card 8: no error, but more ranks learn less from the same data
#
# Every rank takes its samples out of the shuffled data.

# %% tags=["exercise"]
# exercise: 11.shards

# %% tags=["exercise"]
check("11.shards")

# %% tags=["exercise"]
show("11.shards")

# %% tags=["exercise"]
cause("11.shards")

# %% tags=["instructor"]
cause("11.shards", "b")

# %% [markdown] tags=["exercise"]
# #### Card 9: too fast: the report says 10 ms, the clock on the wall says 30 ms
#
# How long does an epoch take on all ranks?

# %% tags=["exercise"]
# exercise: 11.seconds

# %% tags=["exercise"]
check("11.seconds")

# %% tags=["exercise"]
show("11.seconds")

# %% tags=["exercise"]
cause("11.seconds")

# %% tags=["instructor"]
cause("11.seconds", "a")

# %% [markdown] tags=["exercise"]
# #### Card 10: no error, but the accuracy changes with the number of ranks
#
# Every rank has tested its own samples.

# %% tags=["exercise"]
# exercise: 11.accuracy

# %% tags=["exercise"]
check("11.accuracy")

# %% tags=["exercise"]
cause("11.accuracy")

# %% tags=["instructor"]
cause("11.accuracy", "b")

# %% [markdown] tags=["exercise"]
# ### Messages
#
# #### Card 11: right with one row, sometimes wrong numbers with more
#
# Every rank computes row after row, and sends each row while it computes the next one.

# %% tags=["exercise"]
# exercise: 11.pipeline

# %% tags=["exercise"]
check("11.pipeline")

# %% tags=["exercise"]
cause("11.pipeline")

# %% tags=["instructor"]
cause("11.pipeline", "c")

# %% [markdown] tags=["exercise"]
# #### Card 12: right in every test, hangs with the real model
#
# Each rank's array goes once around the ring.

# %% tags=["exercise"]
# exercise: 11.ring

# %% tags=["exercise"]
check("11.ring")

# %% tags=["exercise"]
show("11.ring")

# %% tags=["exercise"]
cause("11.ring")

# %% tags=["instructor"]
cause("11.ring", "b")

# %% [markdown] tags=["exercise"]
# ## The board

# %% tags=["exercise"]
progress("11")

# %% [markdown]
# ## Keypoints
#
# - An error of the workbench says which ranks wait, where, and which are missing. Read it from the top.
# - Ask how often, and in which order, *every* rank calls its collectives: that must not depend on a rank's own data.
# - No error does not mean that the result is right: compare fingerprints, look at the coverage, time the slowest rank.
# - Make it small: two or three ranks, two numbers, one step, by hand. Some mistakes show only with three ranks.
# - Name the cause before you repair.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **Flight Recorder** (PyTorch): each rank keeps its last 2,000 collectives of NCCL. `torchfrtrace` compares the
#   ranks' files, and shows where they differ
#   ([source](https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html)).
# - **PyTorch's debug server** (`torch.distributed.debug`, experimental) shows the stacks and the Flight Recorder of
#   all ranks on a web page of rank 0
#   ([source](https://docs.pytorch.org/tutorials/intermediate/debug_hangs_with_flight_recorder.html)).
# - **NCCL** (since 2.24) can be asked while a job runs: the RAS client `ncclras` reports processes that do not respond
#   ([source](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html)).
# - **JAX:** `multihost_utils.assert_equal(values)` raises an error if a process has other values than the rest
#   ([source](https://docs.jax.dev/en/latest/jax.experimental.multihost_utils.html)).
# - **PyTorch's `CommDebugMode`** counts the collectives that are called in a `with` block, so a test can compare them
#   with what you expect ([source](https://docs.pytorch.org/docs/stable/distributed.tensor.html)).
