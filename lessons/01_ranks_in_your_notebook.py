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
# # Ranks in your notebook: what goes wrong, and how to go on
#
# **Question:** what happens when the ranks do not all do the same, and how do you read the error?
#
# **Afterwards you can**
#
# - tell a rank from an engine, and give each rank its own work,
# - name the rule that every collective follows,
# - break it in three ways on purpose, read the error, and go on in the next cell,
# - end a cell that hangs, and replace a rank that has died.
#
# **Needs:** no GPU; four ranks share the cores that you have. **Alone:** 15 minutes to read and try, half a minute to
# run. **Led:** 30 minutes. **Before:** lesson 00.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 00: Two ranks train with a global batch of 64. How many samples does each rank take in a step, and
# what is done with the two gradients?</summary>
#
# 32 each. The two gradients are averaged, on every rank, before the optimizer's step.
#
# </details>
#
# <details>
# <summary>Lesson 00: With the same global batch, what do N ranks compute that one process does not?</summary>
#
# Nothing: the steps are the same up to rounding. They only share the work.
#
# </details>

# %% [markdown]
# ## Four ranks
#
# An *engine* is a process that runs cells; a *rank* is the number of a process in the job. `cluster.up(n=4)` starts
# four engines, and engine 0 is rank 0, engine 1 is rank 1, and so on. A cell that begins with `%%px` runs on all of
# them.

# %%
from workbench import cluster

engines = cluster.up(n=4)

# %%
# %%px
import numpy as np

import workbench as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
x = np.full(3, float(rank))
print(f"rank {rank} of {size} has x = {x}")

# %%
from workbench.course.predictions import predict, reveal

predict(
    "01.kernel",
    "The next cell looks for rank without %%px. What does it find?",
    choices=["0", "0, 1, 2 and 3", "nothing: rank has no value here"],
)

# %%
print(globals().get("rank", "there is no rank in this process"))

# %%
reveal(
    "01.kernel",
    "0" if "rank" in globals() else "nothing: rank has no value here",
    "Without %%px a cell runs in the notebook's kernel, a fifth process. Variables that the engines define exist only "
    "on the engines.",
)

# %% [markdown]
# ## A collective needs all ranks
#
# `allreduce(x, op=hvd.Sum)` adds what all ranks have, and gives the sum to all of them; without `op` they get the
# average. It is a *collective*: it can end only when **every rank has called it, with the same name**. That is the one
# rule of this notebook. (A call without `name=` gets a number as its name: the first call on each rank, the second, …)

# %%
# %%px
total = hvd.allreduce(x, op=hvd.Sum)
print(f"rank {rank}: {total}")

# %% [markdown]
# Ranks may differ in their *data*, and in code without a collective:

# %%
# %%px
if rank == 0:
    print("only rank 0 prints, saves files, downloads: no collective in here")

# %% [markdown]
# ## Mistake 1: a collective inside `if rank == 0`
#
# This is the most common one.

# %%
predict(
    "01.alone",
    "Rank 0 alone calls allreduce, inside an if. What happens in the next cell?",
    choices=[
        "rank 0 gets its own number back",
        "the cell hangs, and only a restart of the kernel ends it",
        "an error says who waits, and which ranks do not come",
    ],
)

# %% tags=["raises-exception"]
# %%px
mean = x.mean()
if rank == 0:
    mean = hvd.allreduce(mean, name="mean")


# %%
def last_error():
    """Runs on an engine: the first line of the last error there."""
    import sys

    return str(getattr(sys, "last_value", "")).partition("\n")[0]


reveal(
    "01.alone",
    "an error says who waits, and which ranks do not come"
    if "can never complete" in engines.client[0].apply_sync(last_error)
    else "rank 0 gets its own number back",
    "In MPI alone this cell would hang until you restart everything. Here every rank reports to the coordinator, on "
    "rank 0, when its cell has ended; an idle rank can no longer take part, so every rank that waits for it gets an "
    "error.",
)

# %% [markdown]
# Read the error from the top: which ranks wait, which are missing, in which line, and what to do. The next cell works.
# Nothing has to be restarted. **Your turn:** remove the `if` and run the cell again.

# %%
# %%px
print(hvd.allreduce(x.mean(), name="mean"))

# %% [markdown]
# ## Mistake 2: an exception on one rank
#
# On rank 2 the key is mistyped, so rank 2 raises an exception. The other three have already called the allreduce, and
# wait. You see the traceback of the rank that made the mistake, and one line for the rest.

# %% tags=["raises-exception"]
# %%px
settings = {"lr": 0.1} if rank != 2 else {"Lr": 0.1}
step = hvd.allreduce(x * settings["lr"], name="step")

# %%
# %%px
settings = {"lr": 0.1}
print(hvd.allreduce(x * settings["lr"], name="step"))

# %% [markdown]
# ## Mistake 3: the same calls in a different order
#
# Every rank calls both collectives, *loss* and *accuracy*, but rank 3 calls them in a different order.

# %%
predict(
    "01.order",
    "Ranks 0 to 2 average loss, then accuracy; rank 3 accuracy, then loss. What happens?",
    choices=[
        "both averages are right: names are matched",
        "loss and accuracy are added to each other",
        "the ranks wait for each other",
    ],
)

# %% tags=["raises-exception"]
# %%px
for name in ["accuracy", "loss"] if rank == 3 else ["loss", "accuracy"]:
    hvd.allreduce(x, name=name)

# %%
reveal(
    "01.order",
    "the ranks wait for each other"
    if "wait for each other" in engines.client[0].apply_sync(last_error)
    else "both averages are right: names are matched",
    "Rank 0 waits for loss, which rank 3 would submit after accuracy, which rank 0 would submit after loss. In MPI "
    "alone, where nothing has a name, the two would be added to each other, without an error.",
)

# %% [markdown]
# Only *waiting* in a different order is a mistake. Submit both first, with `allreduce_async`, and wait for them
# afterwards: then any order works. Gradients are sent like this, because they may be ready in a different order on each
# rank:

# %%
# %%px
names = ["accuracy", "loss"] if rank == 3 else ["loss", "accuracy"]
handles = {name: hvd.allreduce_async(x, name=name) for name in names}
print(sorted((name, handle.wait().tolist()) for name, handle in handles.items()))

# %% [markdown]
# ## A rank that is busy for ever
#
# From outside, an endless loop on one rank looks like a long computation. So there is no error at once: after a minute
# a warning says for which rank the others wait, and in which line each rank is. If you know that it is a loop, press
# the stop button of the notebook, or run `engines.rescue()` in a cell. Both interrupt the busy ranks; the variables
# stay.

# %%
loop = engines.view.execute("while rank == 1: pass", block=False)
engines.rescue()

# %% [markdown]
# ## A rank that dies
#
# A process can die: it runs out of memory, a library crashes, or a user calls `kill -9`. Ranks that wait for it get an
# error within seconds. A process cannot be put back into a running MPI job, so `rescue()` restarts all of them. The
# variables on the engines are gone: run the cells again.

# %%
import os
import signal

os.kill(engines.pids()[-1], signal.SIGKILL)

# %% tags=["nbval-ignore-output"]
engines.rescue()

# %%
# %%px
import numpy as np

import workbench as hvd

hvd.init()
x = np.full(3, float(hvd.rank()))
print(f"rank {hvd.rank()} of {hvd.size()}: {hvd.allreduce(x, op=hvd.Sum)}")

# %%
engines.down()

# %% [markdown]
# ## Keypoints
#
# - A collective ends when every rank has called it, with the same name.
# - Work that only one rank does must not contain a collective.
# - An error names the rank that is missing, the line where the others wait, and the cure. The next cell works.
# - Submit all tensors, then wait in any order. If you wait for one before you submit the next, all ranks need the same
#   order.
# - `engines.rescue()` ends what hangs and replaces what has died.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **PyTorch** with `TORCH_DISTRIBUTED_DEBUG=DETAIL` compares the kind and the shapes of each collective on all ranks
#   first: a mismatch is then an error, and no hang. It is slow
#   ([source](https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug)).
# - **PyTorch's `monitored_barrier`** (1.10, Gloo only): if a rank does not come in time, rank 0 names it
#   ([source](https://docs.pytorch.org/docs/stable/distributed.html#monitored-barrier)).
# - **Timeouts:** in PyTorch a collective of NCCL may take 10 minutes, one of other backends 30. Then an NCCL rank ends
#   its process. `init_process_group(timeout=…)` sets another limit
#   ([source](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)).
# - **mpi4py:** under `python -m mpi4py script.py`, an exception that no rank handles aborts the whole MPI job. Without
#   it the other ranks may wait for ever ([source](https://mpi4py.readthedocs.io/en/stable/mpi4py.run.html)).
# - **JAX** has the same rule: all processes apply the same operations, in the same order, to an array that they share
#   ([source](https://docs.jax.dev/en/latest/501/multiprocess.html)).
