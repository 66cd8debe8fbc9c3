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
# # Two hours alone: the practical session
#
# **Question:** you have two hours, a terminal and the slides of a practical session about Horovod. What do you type,
# what should you see, and what does it tell you?
#
# **Afterwards you can**
#
# - test a machine for distributed training, and start a script on 1 and on 2 ranks,
# - measure a speed-up, and say which epochs count,
# - find the six steps in a script, in TensorFlow and in PyTorch,
# - send a job to Slurm, and say what the number of GPUs changes in a result.
#
# **Needs:** two cores, no GPU, TensorFlow and PyTorch. **Alone:** 45 minutes to read and try, 75 to do. **Led:** 120
# minutes. **Before:** nothing. The parts are in the order of the slides; the minutes beside them make two hours. They
# include the three exercises: *Find the six steps* belongs to section 5, *How much faster is it?* to 3, and *The batch
# script* to 6.
#
# A *rank* is one of the processes that train together. Ranks have numbers from 0; how many there are is the *size*.

# %% [markdown]
# ## Before you begin (5 minutes)
#
# On the cluster the session begins with three lines, which get a node with GPUs and make the shell ready:
#
# ```console
# $ si-gpu -G2 -t120 -c6 --reservation=hpcschool-gpu
# $ cd /work/projects/ulhpc-tutorials/PS10-Horovod/
# $ source env.sh
# ```
#
# The first line is a command of that cluster; on yours it is `salloc` or `srun --pty`. On a laptop you need no node. In
# place of the third line type one line in the terminal:
#
# ```console
# $ eval "$(workbench env)"
# ```
#
# Then `mpirun`, `python` and `horovodrun` are those of this installation, and `import horovod` finds the workbench. The
# scripts stay as they were written for Horovod. In this notebook a line that begins with `!` is a line for the shell,
# and `begin()` does for such lines what `eval` does in a terminal. It returns a new folder with copies of the scripts;
# for a terminal they are in `notebooks/steps/session` and in `examples`.

# %%
from workbench.course.practical import begin, look

folder = begin("steps/session")
# %cd -q {folder.name}
# !ls

# %% [markdown]
# ## 1. Test the environment (10 minutes)
#
# The slides type `pip list` and `horovodrun --check-build`. `tee` shows what a command prints, and keeps it in a file.

# %% tags=["nbval-ignore-output"]
# !horovodrun --check-build | tee build.txt

# %% [markdown]
# An `[X]` is there, a `[ ]` is not. *Frameworks* are what your script trains with, *controllers* are how the ranks find
# each other and agree, *tensor operations* are libraries that add up the gradients: NCCL between NVIDIA GPUs, MPI and
# Gloo between processors.

# %%
look("build.txt")

# %% [markdown]
# ## 2. The first test (10 minutes)
#
# `test_horovod.py` calls `hvd.init()` and prints what it knows: how many ranks there are, which one it is, the same two
# numbers for this machine alone, and the machine's name. First one process, then two:

# %% tags=["nbval-ignore-output"]
# !mpirun -n 1 python test_horovod.py | tee test_1.txt

# %%
from workbench.course.predictions import predict, reveal

predict(
    "22.places",
    "mpirun -n 2 python test_horovod.py on one machine: what do the two blocks say?",
    choices=[
        "MPI_size = 1, MPI_rank = 0, both of them",
        "MPI_size = 2; MPI_rank = 0 and 1; MPI_local_rank = 0 and 1",
        "MPI_size = 2; MPI_rank = 0 and 1; MPI_local_rank = 0, both of them",
    ],
)

# %% tags=["nbval-ignore-output"]
# !mpirun -n 2 python test_horovod.py | tee test_2.txt

# %%
from pathlib import Path

both = Path("test_2.txt").read_text()
look("test_1.txt", "test_2.txt")
reveal(
    "22.places",
    "MPI_size = 1, MPI_rank = 0, both of them"
    if "MPI_size = 1" in both
    else "MPI_size = 2; MPI_rank = 0 and 1; MPI_local_rank = 0 and 1"
    if "MPI_local_rank = 1" in both
    else "MPI_size = 2; MPI_rank = 0 and 1; MPI_local_rank = 0, both of them",
    "On one machine local ranks and ranks are the same. On two machines with four GPUs each, MPI_rank goes from 0 to 7 "
    "and MPI_local_rank from 0 to 3 on each machine: it says which GPU a rank takes. If both blocks say MPI_size = 1, "
    "mpirun belongs to another MPI than Python's, and you would start the same training twice.",
)

# %% [markdown]
# ## 3. TensorFlow on 1 and on 2 ranks (20 minutes)
#
# `tensorflow_horovod_basic.py` trains a small network on handwritten digits, for four epochs, and prints the seconds of
# each. *Notice the computing time*, say the slides, and then *compare the time per epoch*. Look at the first epoch. (In
# a terminal TensorFlow prints some warnings, too; `begin()` turns them off here.)

# %% tags=["nbval-ignore-output"]
# !mpirun -n 1 python tensorflow_horovod_basic.py | tee tensorflow_1.txt

# %% tags=["nbval-ignore-output"]
# !mpirun -n 2 python tensorflow_horovod_basic.py | tee tensorflow_2.txt

# %%
predict(
    "22.first",
    "The first epoch takes longer than the others. What is the reason?",
    choices=[
        "in the first epoch the weights are far from good ones",
        "TensorFlow traces the training step and makes a graph of it, and ranks connect; later epochs use that",
        "the first epoch has more images",
    ],
)

# %%
look("tensorflow_1.txt", "tensorflow_2.txt")  # the seconds are those of this machine

# %%
from workbench.course.practical import read

runs = [read(Path(f"tensorflow_{n}.txt").read_text(), n) for n in (1, 2)]
reveal(
    "22.first",
    "TensorFlow traces the training step and makes a graph of it, and ranks connect; later epochs use that"
    if any(run.first > min(run.seconds[1:]) for run in runs)
    else "the first epoch has more images",
    "Each step does the same work whatever the weights are. So measure without the first epoch, or with many epochs. "
    "On GPUs the first epoch also chooses among kernels, and NCCL connects the GPUs.",
)

# %% [markdown]
# Both runs see all images once per epoch, in batches of 96. With two ranks each takes 48 of them, so an epoch has the
# same number of steps, each with half of the work. Yet two ranks gain little here, or nothing: this network is so small
# that a step is mostly what does not become less with more ranks (starting the step's operations, and the sum of the
# gradients). Lesson 08 has one with more work in a step, where two ranks are clearly faster. So compare the time per
# epoch, as the slides say, before you ask for more GPUs. The accuracies may differ by a few images: each rank shuffles
# its own half, so the batches differ.
#
# The slides' longer scripts may take more than ten minutes with their data and network. Here they train on the digits:

# %% [markdown]
# ## 4. PyTorch on 1 and on 2 ranks (15 minutes)

# %% tags=["nbval-ignore-output"]
# !mpirun -n 1 python pytorch_horovod.py | tee pytorch_1.txt

# %% tags=["nbval-ignore-output"]
# !mpirun -n 2 python pytorch_horovod.py | tee pytorch_2.txt

# %%
look("pytorch_1.txt", "pytorch_2.txt")

# %% [markdown]
# Here the loss is nearly the same on 1 and on 2 ranks: the sampler gives both runs the same batches, and the average of
# two half batches' gradients is the gradient of the whole batch. What differs is the order in which numbers are added.
#
# `tensorflow_horovod.py` is the longer script in TensorFlow. Type it in a terminal if you have the time: `mpirun -n 2
# python tensorflow_horovod.py`.
#
# ## 5. The six steps (20 minutes)
#
# The slides change a training in six steps. `show` reads a script, without running it, and says which lines take them:

# %%
from workbench.course import six_steps

six_steps.show("tensorflow_horovod_basic.py")

# %%
six_steps.show("pytorch_horovod.py")

# %% [markdown]
# Compare them step by step. Steps 1, 3 and 6 are alike. Step 4, the *shard* or part of each rank, differs: in
# TensorFlow each rank cuts its piece out of the arrays; in PyTorch a sampler chooses indices, in a new order in each
# epoch. Step 5 *broadcasts*: all ranks get the values of rank 0. Keras has a callback, which does it when `fit()`
# begins, and PyTorch has two calls, for the weights and for the optimizer's state. (The third call in PyTorch comes
# after the training, so that all ranks test one model.)
#
# Write `six_steps.show("…")` with the path of *your own* script. It knows the calls of Horovod and the workbench, and
# no others. A step that is there may still be wrong; lesson 10 judges what a script does.
#
# ## 6. Several nodes: the batch script (15 minutes)
#
# The slides' last command goes to *Slurm*, the program that gives the machines of a cluster to jobs. This is the
# script, letter by letter:

# %%
from workbench.course.tasks.t22_two_hours import SLIDES

print(SLIDES)

# %%
print({letter: f"U+{ord(letter):04X}" for letter in SLIDES if ord(letter) > 127})

# %% [markdown]
# The program for slides has made dashes of two hyphens. Copied as it is, the file fails: the shell takes `–l` for the
# name of a file, and mpirun takes `–n` for the name of a program. And there is more to put right: that is an exercise.
#
# Without Slurm at hand, `workbench slurm` shows what a right script looks like for your job, and `--submit` sends it
# where Slurm is. (Leave `--gpus-per-node` out where there are no GPUs.)

# %%
options = "--nodes 2 --tasks-per-node 4 --gpus-per-node 4 --time 2:00:00"
# !workbench slurm {options} job.sbatch python test_horovod.py > said.txt 2>&1
# !grep -v activate job.sbatch

# %% [markdown]
# ## 7. Two scripts read side by side (25 minutes)
#
# The slides end with two of Horovod's own examples, `keras_mnist.py` and `pytorch_lightning_mnist.py`, and three
# questions. These are the lines that answer them, in our words:
#
# | | Keras | Lightning |
# |---|---|---|
# | data | each process loads all of MNIST, as `float32` | each process loads all of MNIST, as bytes |
# | samples of a rank | all: `fit(x_train, …)` shuffles them on each rank | a part, by a `DistributedSampler` |
# | batch of a rank | 128 | 64 |
# | epochs | `ceil(12 / hvd.size())` | 10 |
# | learning rate | `1.0 * hvd.size()` | 0.01, which the trainer multiplies by the number of ranks |
# | test | each rank, all test images | each rank its part; then an average over the ranks |
# | saving | rank 0 | into a folder that is deleted at the end |
#
# **How does the number of GPUs affect the result?** Count the steps. MNIST has 60,000 images.

# %%
predict(
    "22.steps",
    "Keras: 12 epochs / number of GPUs, and each rank goes through all 60,000 images in batches of 128. How many steps "
    "does a rank make with 1 GPU, and with 4?",
    choices=["5,628 and 5,628", "5,628 and 1,407", "5,628 and 352"],
)

# %%
from math import ceil

print("GPUs  Keras: steps, images in a step  Lightning: steps, images in a step")
for n in (1, 2, 4, 8):
    keras = ceil(12 / n) * ceil(60_000 / 128)
    lightning = 10 * ceil(ceil(60_000 / n) / 64)
    print(f"{n:4}  {keras:12,} {128 * n:17,}  {lightning:16,} {64 * n:17,}")

# %%
steps = [ceil(12 / n) * ceil(60_000 / 128) for n in (1, 4)]
reveal(
    "22.steps",
    f"{steps[0]:,} and {steps[1]:,}",
    "There are fewer epochs, and each rank goes through all images in each of them. All ranks together see each image "
    "12 times, with 1 GPU and with 4 (with 8 it is 16 times: 12 / 8 is rounded up). But with 4 GPUs there are a "
    "quarter of the steps, each with four times the images and four times the learning rate.",
)

# %% [markdown]
# So in both scripts more GPUs mean *another training*: fewer steps with larger batches. Up to some batch size the
# result is as good, if the learning rate grows as well (lesson 09). It does in both: the Keras script multiplies it by
# the number of GPUs, and Lightning's trainer does so before the first step, without a line in the script. (Who
# multiplies it in the script, too, has it twice.) The session's own scripts take the other way: the batch of all ranks
# together, the *global batch*, stays, so the steps, the rate and the result stay, too.
#
# **How many times is the data set in memory?** Let two processes load 64 MB in three ways, and add up what they
# really occupy (*PSS*: a page that two processes share counts half for each):

# %%
# %%writefile memory.py
import sys

import numpy as np
import psutil

import workbench as hvd

hvd.init()
way, file = sys.argv[1:]
before = psutil.Process().memory_full_info().pss
if way == "each loads all":
    data = np.load(file)
elif way == "each loads its part":
    data = np.load(file, mmap_mode="r")[hvd.rank() :: hvd.size()].copy()
else:  # each maps the file, and reads what it needs
    data = np.load(file, mmap_mode="r")
total = float(data.sum())  # so that every page has been read
hvd.barrier()
mine = psutil.Process().memory_full_info().pss - before
hvd.barrier()
everybody = float(hvd.allreduce(np.array(float(mine)), op=hvd.Sum))
if hvd.rank() == 0:
    print(f"{way}: {everybody / 2**20 / 64:.1f} times in memory")

# %%
import numpy as np

predict(
    "22.memory",
    "Two ranks on one machine load a data set of 64 MB as both scripts do: each process loads all of it. How many "
    "times is it in memory?",
    number="times",
    tolerance=0.25,
)

# %% tags=["nbval-ignore-output"]
np.save("data.npy", np.ones((8192, 1024)))
# !mpirun -n 2 python memory.py "each loads all" data.npy | tee memory.txt
# !mpirun -n 2 python memory.py "each loads its part" data.npy | tee -a memory.txt
# !mpirun -n 2 python memory.py "each maps the file" data.npy | tee -a memory.txt

# %%
times = [float(line.split()[-4]) for line in Path("memory.txt").read_text().splitlines()]
print([round(each) for each in times])
reveal(
    "22.memory",
    round(times[0]),
    "Once for each rank of a machine, in both scripts: a sampler chooses indices, but the arrays are whole. With 8 "
    "GPUs a data set of 100 GB would need 800 GB. If each rank loads its part, or if all map the same file, it is "
    "there once.",
)

# %% [markdown]
# **Which differences matter?** Keras hides the loop, so its step 5 is a callback. Lightning hides the loop and some of
# the steps: its trainer wraps the optimizer, broadcasts the weights and multiplies the learning rate. What a rank
# trains on is decided in different places: in Keras by the arrays, in PyTorch by the sampler. And the two print
# different accuracies: Keras that of each rank on all test images, the other an average of the ranks' averages. Such an
# average is only right if all parts have the same size; `DistributedSampler` makes them so, and repeats images where it
# has to.
#
# ## What you have seen
#
# - `check-build` first, then a script that only prints: two minutes that save an hour.
# - The first epoch does not count in a measurement; the slowest rank decides.
# - Six steps make a script distributed. Only the data step differs much between the frameworks.
# - Batch scripts are copied as text, not from slides. Slurm is told nodes, processes and GPUs.
# - The number of GPUs changes the result if it changes the global batch, the epochs or the rate.
# - What each rank loads whole is in memory once for each rank.
#
# To go on: lessons 01 to 04 show how the ranks add up gradients, lesson 10 converts a script with you.

# %% [markdown] tags=["exercise"]
# ## Find the six steps
#
# Here is a script without comments, with the numbers of its lines. Which lines take the six steps? 1: initialization,
# 2: the local batch size, 3: the process's GPU, 4: its part of the data, 5: equal weights at the beginning, 6: averaged
# gradients.

# %% tags=["exercise"]
import statistics

from workbench.course.exercise import check, exercise, hint, show, solution
from workbench.course.tasks.t22_two_hours import SCRIPT, SLIDES

for number, line in enumerate(SCRIPT.splitlines(), 1):
    print(f"{number:3}  {line}")

# %% tags=["exercise"]
# exercise: 22.six_steps

# %% tags=["exercise"]
check("22.six_steps")

# %% [markdown] tags=["exercise"]
# ## How much faster is it?
#
# Each rank prints the seconds of its epochs. The ranks wait for each other in every step, so an epoch is over when the
# slowest is done.

# %% tags=["exercise"]
# exercise: 22.speed_up

# %% tags=["exercise"]
check("22.speed_up")

# %% [markdown] tags=["exercise"]
# ## The batch script
#
# As the slide has it:

# %% tags=["exercise"]
print(SLIDES)

# %% [markdown] tags=["exercise"]
# Put it right. Remember that a node starts with a shell of its own.

# %% tags=["exercise"]
# exercise: 22.batch_script

# %% tags=["exercise"]
check("22.batch_script")

# %% [markdown] tags=["exercise"]
# Save it and send it, if there is a Slurm: `from pathlib import Path`, `Path("job.sbatch").write_text(batch_script())`,
# then `!sbatch job.sbatch`.

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 120 minutes, 75 of them for the exercises. The plan of the slides, with the minutes in the
# headings. For a class, walk through sections 1 to 3 together, so that everybody's machine is known to work, and let
# pairs do the rest. Common mistakes: mpirun of another MPI (both blocks say `MPI_size = 1`); `python` of another
# environment in a batch script; the speed-up of the first epoch. Section 7 is for a discussion: let the pairs write
# down their answers before the cells are run. Who is done early runs `six_steps.show` on a script of their own.

# %% [markdown]
# ## Keypoints
#
# - One line makes a shell ready: `eval "$(workbench env)"`. Then the slides' commands run as typed.
# - Compare epochs without the first, by the slowest rank.
# - Six steps: init, local batch, device, shard, same start, averaged gradients.
# - More GPUs give the same result only if the global batch, the steps and the rate stay.
