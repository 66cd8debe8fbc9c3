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
# - read from an error or a stall report who waits, in which line, and who does not come,
# - ask with `who_has`, `fingerprint` and `timeline` what no error tells,
# - tell a cause from its symptom: find it for twelve mistakes that people really make, and repair them.
#
# **Needs:** no GPU; four ranks share the cores that you have. **Takes** 10 minutes to read, 20 to do, in pairs: one
# reads what is printed, the other says what it means. **Before:** lessons 01 to 06.

# %% [markdown]
# ## Where to look first
#
# | what you see | look at | often it is |
# |---|---|---|
# | an error names ranks that are idle | who waits, in which line | a collective inside an `if`; a batch too many |
# | an error says that ranks wait for each other | the name for which each one waits | another order, or another name |
# | `MismatchError` | what each rank has brought | a dtype, shape or root that only one rank has |
# | a cell does not end, without an error | the stall report, after a minute | one rank computes, downloads, or loops |
# | a name is not defined, on some ranks | `who_has("name")` | a forgotten `%%px`; a cell that failed on some ranks |
# | bad accuracy, another one on each rank | `fingerprint(model)` | no broadcast; a step that only some ranks make |
# | slow, but right | `workbench.timeline()` | one rank is slower, and all wait for it |
# | right for one rank, wrong for four | one step by hand: two ranks, two numbers | sum or mean, shards, clipping |
#
# The last line is the most useful one: **make it small**. Two or three ranks, two numbers, one step.

# %%
import os
from itertools import pairwise

import workbench
from workbench import cluster, who_has

os.environ["WORKBENCH_STALL_WARNING_S"] = "1"  # instead of 60: this lesson is not to take minutes
engines = cluster.up(n=4)

# %%
# %%px
import time

import numpy as np

import workbench as hvd

hvd.init()
rank = hvd.rank()

# %% [markdown]
# ## An error names the ranks that did not come
#
# Read it from the top: the first line says *who* is missing and *which* tensor waits for them; then one line for each
# group of ranks says where it stands; the last line guesses why. Here rank 2 makes a step more than the others.

# %%
from workbench.course.predictions import predict, reveal

predict(
    "11.named",
    "Rank 2 makes a step more than the others, and waits. Which ranks does the error name as missing?",
    choices=["rank 2: the mistake is there", "ranks 0, 1 and 3: they do not come", "none: it cannot know"],
)

# %% tags=["raises-exception"]
# %%px
for step in range(4 if rank == 2 else 3):
    loss = hvd.allreduce(np.array(1.0 / (step + 1)), name="loss")


# %%
def last_error():
    """Runs on an engine: the first line of the last error there."""
    import sys

    return str(getattr(sys, "last_value", "")).partition("\n")[0]


said = engines.client[2].apply_sync(last_error)
reveal(
    "11.named",
    "ranks 0, 1 and 3: they do not come"
    if said.startswith("Ranks 0, 1, 3 ")
    else "rank 2: the mistake is there"
    if said.startswith("Rank 2 ")
    else "none: it cannot know",
    "An error names those who do not come. Whether the mistake is theirs or that of those who wait, it cannot know.",
)

# %% [markdown]
# Now you know the line, the tensor, and that ranks 0, 1 and 3 have *finished*: they did not fail, they are not slow.
# So the question is no longer "why does it hang" but "who calls this how often". That is a question for `who_has`,
# which shows a variable of all ranks side by side:

# %%
who_has("step")

# %% [markdown]
# It also shows who has not got a variable at all. Here somebody forgot that a download was for rank 0 only:

# %%
# %%px
if rank == 0:
    labels = np.arange(10)

# %%
who_has("labels")

# %% [markdown]
# ## A stall report, where nobody can be blamed yet
#
# Rank 3 computes for a while before it comes. It may come at any moment, so there is no error; but after
# `WORKBENCH_STALL_WARNING_S` rank 0 writes a warning: the ranks that are missing, the tensors that wait for them, and
# then the lines at which every rank stands. Find those of the missing rank: that is where the time goes.
#
# In a `%%px` cell you would see all of it. Here it is fetched, and without the lines inside Python and the workbench:

# %%
slow = """
if rank == 3:
    time.sleep(2.5)
late = hvd.allreduce(np.array(float(rank)), name="late")
"""
answer = engines.view.execute(slow, silent=False)
answer.get(60)
answer.wait_for_output()
report = answer.stderr[0].splitlines()

# %% tags=["nbval-ignore-output"]
for line, following in pairwise([*report, ""]):
    if "ipykernel_" in line:
        print("   ", following.strip())  # a line of the cell
    elif not line.startswith(" "):
        print(line)

# %%
print("missing, and what waits for it:", [line for line in report if line.startswith("3: ")][:1])
print("it stands in its sleep:", "time.sleep(2.5)" in "".join(report).partition("Rank 3 stands at:")[2])

# %% [markdown]
# Rank 3 came in the end, and the cell went on as if nothing had been:

# %%
who_has("late")

# %% [markdown]
# ## Fingerprints, where there is no error at all
#
# Every rank draws weights of its own, then all train together. All collectives are complete, all losses fall. Is it one
# model? Nothing says so, unless you ask:


# %%
predict(
    "11.apart",
    "Four ranks begin with weights that differ by 1, 2 and 3 from rank 0's. After three steps with averaged gradients, "
    "without a broadcast?",
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
        print(f"{title} a broadcast: one model: {bool(prints)}, first that differs: {prints.first or 'none'}, by")
        print("    ", ", ".join(f"{difference:g}" for difference in prints.largest))

# %%
apart, begin = max(engines.client[0].pull("list(without.largest)", block=True)), 3.0
reveal(
    "11.apart",
    "one model: the average brings them together"
    if apart < 0.1
    else "four models, as far apart as at the beginning"
    if apart < 1.1 * begin
    else "four models, further apart with each step",
    "All ranks subtract the same average, so what was different stays different, to the last digit.",
)

# %% [markdown]
# A fingerprint costs a checksum of the weights on each rank. Take one after the first step, and one at the end of each
# epoch.
#
# ## The timeline, where it is right but slow
#
# Rank 1 needs longer for its part of every step. The others show the same time for the step, for they wait for it in
# the allreduce; a stopwatch on rank 0 would tell you that *communication* is slow. The picture tells for whom they
# wait.

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
print("the others waited for rank", max(waited, key=waited.get))
print("and for it longer than for all the rest together:", waited.pop(1, 0.0) > sum(waited.values()))

# %%
engines.down()
del os.environ["WORKBENCH_STALL_WARNING_S"]

# %% [markdown]
# ## The cards
#
# The exercises of this lesson are twelve short programs, as people write them, with **one** mistake each. A card is
# done when you have done both: *named the cause*, one of four, and *repaired* the program. Most repairs are one line.
# Silencing the symptom does not count: catching the error, or a fix that makes two ranks work and three not.

# %%
from workbench.course.cards import cause

cause("11.epoch")

# %% [markdown] tags=["exercise"]
# In pairs: run the card's cell and its check. One of you reads aloud what is printed, the other says what it means.
# Agree on a cause before you change anything: `cause("11.epoch", "a")` says whether it is (a), and the board counts
# your guesses. Then repair the program and check again. The last line of an error, which guesses the cause, is left out
# here. `show` draws what can be drawn, `hint` helps, `solution` tells.
#
# `hvd` is the workbench on three ranks or so, which are threads here, so that a hang ends within a second; `comm` is
# the simulator's communicator. No engines are needed.

# %% tags=["exercise"]
import numpy as np

from workbench.course.cards import cause
from workbench.course.exercise import check, exercise, hint, progress, show, solution

# %% [markdown] tags=["instructor"]
# **Instructor.** 30 minutes, in pairs; about two minutes for a card. Nobody needs all twelve: cards 1 to 4 hang and
# come with a report, 5 raises an error, 6 to 10 are the silent ones, 11 and 12 are for those who know MPI. Two pairs
# that are stuck may swap cards. Ask each pair for its cause *before* it touches the program: who repairs first mostly
# guesses (a `barrier` here, a `try` there), and the checks are made so that a guess that helps two ranks fails with
# three.
#
# Common wrong answers: `hvd.join()` at the end of card 1 (nothing hangs, and one rank has made a step more than the
# others: its model is another one); an `else: hvd.barrier()` in card 2; no names at all in card 3 (nothing hangs,
# and a is added to b); one seed for all in card 6 (one model, and the same noise everywhere); clipping twice in
# card 7; `.wait()` right after `Isend` in card 11 (the small case passes, the large one is card 12).
#
# Say at the end: four of the twelve gave an error that named the ranks, one an error that named the dtypes. Cards 11
# and 12 raise errors in the simulator, which looks for them; real MPI would send wrong numbers now and then, and hang
# with large arrays only. The other five are found only by those who ask: fingerprint, coverage, the slowest rank, two
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
# After each epoch the accuracy is averaged and rank 0 writes it into its log.

# %% tags=["exercise"]
# exercise: 11.validate

# %% tags=["exercise"]
check("11.validate")

# %% tags=["exercise"]
cause("11.validate")

# %% tags=["instructor"]
cause("11.validate", "a")

# %% [markdown] tags=["exercise"]
# #### Card 3: everybody waits, and nobody is missing
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
# #### Card 6: no error, but accuracy is bad, and another one on every rank
#
# Each rank has a seed of its own, for the noise that it adds to its images.

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
# #### Card 9: too fast to be true: the report says 10 ms, the clock on the wall 30
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
# #### Card 11: right in the test with one row, wrong numbers with more, and not always
#
# Every rank computes row after row, and sends each off while it computes the next.

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
# Each rank's array goes once round the ring.

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
# - An error of the workbench says who waits, where, and who does not come. Read it from the top.
# - Ask how often, and in which order, *every* rank calls its collectives: that must not depend on a rank's own data.
# - No error does not mean that it is right: compare fingerprints, look at the coverage, time the slowest rank.
# - Make it small: two or three ranks, two numbers, one step, by hand. Two ranks hide what three show.
# - Name the cause before you repair.
