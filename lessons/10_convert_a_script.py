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
# # Convert a script in nine steps
#
# **Question:** you have a training script for one process. Which lines make it a script for N processes, and how do
# you see that no line is missing?
#
# **Afterwards you can**
#
# - take the nine steps in an order in which each can be tested,
# - say for each step what goes wrong without it, and in which behaviour you see that,
# - judge a script by what its ranks do, not by what it looks like.
#
# **Needs:** two cores, no GPU. **Alone:** 25 minutes to read, 20 to do. **Led:** 65 minutes. **Before:** lessons 04 to
# 06.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 06: Where does gradient clipping stand, and why there?</summary>
#
# After `synchronize()` and before `step()`. Before `synchronize()` the gradients are not averaged yet, so each rank
# would clip by a norm of its own.
#
# </details>
#
# <details>
# <summary>Lesson 01: Four ranks print the same line. Why is that no error, and how do you get it once?</summary>
#
# Each rank is a process that runs the whole script. Print on rank 0 only.
#
# </details>

# %% [markdown]
# ## The serial script
#
# It trains a small network on the handwritten digits. If there is a checkpoint it goes on from there, and it writes one
# at the end. It does not know about ranks.

# %%
from pathlib import Path

steps = sorted(Path("steps").glob("0*.py"))
print(steps[0].read_text())

# %% [markdown]
# ## What do two copies of it do?
#
# `workbench run -np 2 python 00_serial.py` starts it twice. `watch` runs a script in the same way on two ranks, and
# also alone, and records what it does, through hooks of torch: which samples go into the model, the weights at the
# first and at the last step, the first gradient, files, output. The script is not changed. Ten *lights* compare the two
# ranks with the one process: ✓ if they do what they should, otherwise ✗ and what is wrong.
#
# As on two machines, each rank has its own folder and its own random numbers. Each script runs twice, and the second
# run is the one that counts: there rank 0 finds the checkpoint of the first run, and rank 1 finds none.

# %%
from workbench.course.predictions import predict, reveal

predict(
    "10.copies",
    "Two ranks start the serial script as it is. What happens?",
    choices=[
        "an error: init() was not called",
        "each rank takes half of the samples, without averaging gradients",
        "two trainings, each on all samples, and no error",
    ],
)

# %%
from workbench.course.training.conversion import difference, table, turned_green, watch

seen = watch(steps, n=2)
print(seen[0])

# %%
alone = [name for name, wrong in seen[0].lights().items() if not wrong]
reveal(
    "10.copies",
    "each rank takes half of the samples, without averaging gradients"
    if "Each sample once per epoch, in a new order" in alone
    else "two trainings, each on all samples, and no error",
    "Sample 0 was seen twice, and one step of both together takes 144 samples. The script does not know that there is "
    "another rank.",
)

# %% [markdown]
# Not one light is green. Now come the nine steps: for each, the lines that change, and the lights that it turns on.
# (They are the six steps of lessons 00 and 14, with the same start as two steps, 5 and 6, and with the metrics and the
# work of rank 0 as steps 8 and 9.)
#
# ### 1. The ranks meet


# %%
def step(k):
    print(difference(steps[k - 1], steps[k]))
    print()
    for name in turned_green(seen[k - 1], seen[k]):
        print("✓", name)


step(1)

# %% [markdown]
# `init()` finds the other ranks. From now on each process knows its number, `hvd.rank()`, and how many there are,
# `hvd.size()`.
#
# ### 2. The device
#
# With GPUs, each rank takes the one with the number `local_rank()`, which counts the ranks of this machine (`rank()`
# counts the ranks of all machines). Some launchers let each rank see only its own GPU, as number 0: hence `% gpus`.
# With more ranks than GPUs, two ranks would share one without any error. So each rank prints the identifier of its GPU,
# and these must differ. Without GPUs, torch would start as many threads as there are cores, *in each rank*.

# %%
step(2)

# %% [markdown]
# ### 3. A shard of the data
#
# Together the ranks see each sample once per epoch. `set_epoch` belongs to this step: without it, each epoch has the
# same order. The test images go to the ranks in turn. There are 357, so rank 0 gets one more.

# %%
step(3)

# %% [markdown]
# ### 4. The batch
#
# With 72 samples *per rank*, two ranks would make half as many steps, with 144 samples each: a different training,
# which needs a different learning rate (lesson 09). If the global batch stays, the learning rate stays.

# %%
step(4)

# %% [markdown]
# ### 5 and 6. The same start
#
# Each rank drew its own weights, and only rank 0 found the checkpoint. So rank 0 sends its weights to all ranks, after
# the checkpoint was read. The optimizer has a state as well, here the momentum. People forget it more often: at the
# first start, without a checkpoint, it is empty on all ranks, and the mistake is not visible.
#
# `torch.manual_seed(0)` on all ranks would give them the same weights, too, but also the same random numbers for
# augmentation and dropout. So broadcast the weights. Seed the random numbers that each rank draws for itself with `seed
# + hvd.rank()`, and the workers of a `DataLoader` by `worker_init_fn` (lesson 05).

# %%
step(5)

# %%
step(6)

# %% [markdown]
# ### 7. The gradients
#
# Now the ranks differ only in their gradients: each rank has those of its own samples. `DistributedOptimizer` averages
# them before each step.

# %%
predict(
    "10.seventh",
    "Four lights are still off: gradients, accuracy, saving, and the weights at the end. How many does step 7 turn on?",
    number="lights",
    tolerance=0,
)

# %%
step(7)

# %%
reveal(
    "10.seventh",
    len(turned_green(seen[6], seen[7])),
    "With the average of the gradients the result is that of one process. Nothing else was missing.",
)

# %% [markdown]
# ### 8. The metrics
#
# Each rank counts the right answers among its own test images. The sums over all ranks give the accuracy; a mean of the
# ranks' accuracies would count the smaller shard too much.

# %%
step(8)

# %% [markdown]
# ### 9. Rank 0 saves and prints
#
# Two ranks that write the same file may leave it broken. The line with the collective, `allreduce`, stays *outside* of
# the `if`: all ranks must call it.
#
# The checkpoint is as small as a lesson allows. A real one also has the number of the epoch (or `set_epoch` begins
# again at 0), the state of the scheduler and of the `GradScaler`, and random states. It is written under another name
# and then renamed: if the process dies while it writes, the old checkpoint is still whole (lesson 15).

# %%
step(9)

# %% [markdown]
# ## All steps, all lights
#
# There is a column for each step. Read along a row: a light that is on stays on, so no step undoes another one.

# %%
print(table(seen))

# %% [markdown]
# ## Without one line
#
# What if step 6 is left out of the finished script?

# %%
predict(
    "10.forgotten",
    "The finished script, but without step 6, the broadcast of the optimizer's state. What happens?",
    choices=["an error", "the same accuracy: the weights were broadcast", "no error, and a lower accuracy"],
)

# %%
import tempfile

with tempfile.TemporaryDirectory() as folder:
    forgetful = Path(folder, "without_step_6.py")
    lines = steps[9].read_text().splitlines()
    forgetful.write_text("\n".join(line for line in lines if "broadcast_optimizer_state" not in line))
    found = watch([forgetful])[0]
print(f"accuracy {found.ranks[0].reported:.0%}; with step 6 {seen[9].ranks[0].reported:.0%}")
print("\n".join(f"✗ {name}" for name, wrong in found.lights().items() if wrong))

# %%
reveal(
    "10.forgotten",
    "no error, and a lower accuracy"
    if found.ranks[0].reported < seen[9].ranks[0].reported
    else "the same accuracy: the weights were broadcast",
    "Only the accuracy shows the mistake, and only if you know the right one. The lights name the reason: rank 0 "
    "alone has read the momentum from the checkpoint.",
)

# %% [markdown]
# The ranks begin with the same weights, but each with its own momentum. So after the first step their weights differ,
# and they never become equal again. Each rank then tests its shard with *its own* model, and the printed accuracy
# belongs to no model at all.
#
# `watch` lets such a script run to its end. Where you start it yourself, the ranks compare a sample of their weights
# after 4 steps and now and then later, and all get an error that says so.
#
# `watch` also takes your own script: `help(workbench.course.training.conversion)` says which names it must use.
#
# ## The same in plain PyTorch
#
# Outside of this course you will meet scripts that use `torch.distributed` itself. The lights judge what ranks do, so
# they judge these as well. `ddp.py` is the finished script with `DistributedDataParallel`; `fsdp.py` has `fully_shard`
# (FSDP2): each rank keeps a part of every weight, as in lesson 18. `torchrun --nproc-per-node 2 ddp.py` starts it, and
# so does `workbench run -np 2 python ddp.py`.

# %%
plain = watch(sorted(Path("steps/plain").glob("*.py")), n=2)
print(table(plain))

# %% [markdown]
# The nine steps are there, at other places:
#
# | step | `workbench.torch` | DDP | FSDP2 |
# |---|---|---|---|
# | 1 | `hvd.init()` | `init_process_group("nccl")` | the same |
# | 3 | `ShardedSampler` | `DistributedSampler`: it repeats samples if the ranks do not divide them | the same |
# | 5 | `broadcast_parameters` | DDP sends rank 0's | you: `fully_shard` cuts each rank's own |
# | 6 | `broadcast_optimizer_state` | you: DDP does not know it | each rank's part of a whole checkpoint |
# | 7 | `DistributedOptimizer` | hooks of the wrapped model: call that one | reduce-scatter in `backward()` |
# | 8 | `hvd.allreduce` | `dist.all_reduce` | the same |
# | 9 | `if hvd.rank() == 0` | the same | all ranks gather the weights, rank 0 writes them |

# %% [markdown] tags=["exercise"]
# ## What only rank 0 may do
#
# Here is a usual first version of the code that writes a checkpoint, and what it does.

# %% tags=["exercise"]
import inspect

import numpy as np

from workbench import data
from workbench.course import drawing
from workbench.course.exercise import check, exercise, hint, show, solution
from workbench.course.simulator import DeadlockError, simulate
from workbench.course.tasks.t10_conversion import checkpoint_hangs
from workbench.course.training.trial import Job, make_model, train_alone
from workbench.data.sampler import ShardedSampler

print(inspect.getsource(checkpoint_hangs))

# %% tags=["exercise"]
try:
    simulate(3, lambda comm: checkpoint_hangs(comm, 7, 0.5, 4, np.ones(3)))
except DeadlockError as error:
    print(str(error).splitlines()[0])
    picture = drawing.wait_for(error)
picture

# %% [markdown] tags=["exercise"]
# Write it so that it ends. The loss is the mean over all *samples*, and ranks may have different numbers of samples.

# %% tags=["exercise"]
# exercise: 10.rank_zero

# %% tags=["exercise"]
check("10.rank_zero")

# %% [markdown] tags=["exercise"]
# ## The whole conversion
#
# This is the training to convert. Data, model and optimizer are in `job`; `job.pin`, `job.save` and `job.log` stand for
# taking a GPU, writing the checkpoint, and printing.

# %% tags=["exercise"]
print(inspect.getsource(train_alone))
print(data.digits().limit(240, 101))
print(make_model(seed=0))

# %% [markdown] tags=["exercise"]
# Copy its lines and take the nine steps; `check` tests the lights in their order. It runs your function on two ranks,
# which are threads here, and on one.

# %% tags=["exercise"]
# exercise: 10.convert

# %% tags=["exercise"]
check("10.convert")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 65 minutes, 20 of them for the exercises. Walk through the steps at the screen first, with
# the question before each diff: "what do the ranks do wrong now?" Common wrong answers: `rank()` instead of
# `local_rank()` for the GPU; `set_epoch` left out; the batch left as it was; the accuracy of a rank's own shard, or the
# mean of the accuracies; the evaluation inside `if hvd.rank() == 0`, with the allreduce in it (the check names the rank
# that has left). Scaling the learning rate is wrong here, since the global batch stays. For those who are done early:
# which lights stay green if step 5 comes before the checkpoint is read?

# %% [markdown]
# ## Keypoints
#
# - Nine steps: init, device, shard, batch, weights, optimizer state, gradients, metrics, rank 0.
# - Most mistakes raise no error. Look at what the ranks do: samples, weights, gradients, files.
# - Broadcast after the checkpoint is read, weights and optimizer state.
# - With the same global batch, the result of N ranks is that of one, up to rounding.
# - Call no collective inside `if rank == 0`.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **torchrun** replaces `torch.distributed.launch`, which is deprecated. The script reads `LOCAL_RANK` from its
#   environment, and no longer from an argument ([source](https://docs.pytorch.org/docs/stable/elastic/run.html)).
# - **Accelerate:** `Accelerator()` takes steps 1 and 2, `prepare(model, optimizer, loader)` steps 3, 5 and 7;
#   `accelerator.backward(loss)` replaces `loss.backward()`
#   ([source](https://huggingface.co/docs/accelerate/basic_tutorials/migration)).
# - **Lightning:** `Trainer(strategy="ddp", devices=8)` starts the ranks, and gives the loader a `DistributedSampler`
#   ([source](https://lightning.ai/docs/pytorch/stable/accelerators/accelerator_prepare.html)).
# - **PyTorch's distributed checkpoint:** each rank writes its own files, and another number of ranks may read them.
#   `async_save` writes while the training goes on
#   ([source](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html)).
# - **FSDP2**, step 5: with `full_state_dict` and `broadcast_from_rank0`, `set_model_state_dict` sends what rank 0 has
#   read, and each rank keeps its part ([source](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html)).
#
# Plain DDP also runs over the ranks of this course, unchanged. The first run is `ddp.py`; in the second, rank 1 leaves
# out its first batch, so it comes to its `all_reduce` while rank 0 is still in `backward()`. Both are told so at once.

# %%
import re
import subprocess
import sys


def run_as_ddp(text):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "ddp.py").write_text(text)
        words = ["run", "--as-ddp", "-np", "2", sys.executable, "ddp.py"]
        return subprocess.run([sys.executable, "-m", "workbench.cli.main", *words], cwd=folder, capture_output=True)


script = Path("steps/plain/ddp.py").read_text()
print(re.sub(r"[\d.]+%", "…%", run_as_ddp(script).stdout.decode()))  # it draws other weights in each run
said = run_as_ddp(script.replace("in train_loader:", "in list(train_loader)[rank:]:")).stderr.decode()
print(re.search("Mismatched data types: .*", said)[0])
for rank, line in sorted(set(re.findall(r'.rank(\d).:   File ".*ddp.py", line (\d+)', said))):
    print(f"rank {rank}, line {line}: {script.splitlines()[int(line) - 1].strip()}")
