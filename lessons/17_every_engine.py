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
# # The same job on every engine
#
# **Question:** a training runs on this machine. It moves to your own hosts, to Slurm, to Kubernetes, to Spark or to
# Ray: all of these are called *engines* here. What starts the ranks there, what knows the hosts, and what replaces a
# lost rank?
#
# **Afterwards you can**
#
# - read a job description for any of them, and say which program does what,
# - find out from its environment which rank a process is, for any launcher,
# - say what a lost rank costs on each of them.
#
# **Needs:** two cores, no GPU, no cluster and no network: you read the descriptions, and do the same work on this
# machine. **Alone:** 20 minutes to read, 25 to do. **Led:** 60 minutes. **Before:** lessons 12 and 15.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 16: A prediction says 10 ms, and 14 ms are measured. What do you do before you change a
# constant?</summary>
#
# Name the cause: what the model leaves out. A constant that was fitted to this figure must be tested on others, that
# were held out.
#
# </details>
#
# <details>
# <summary>Lesson 12: Two hosts with four GPUs each. How many processes are started, and which GPU does rank 5
# take?</summary>
#
# Eight, one for each GPU. If ranks fill one host after the other, rank 5 is the second on the second host: its local
# rank is 1, so GPU 1 there.
#
# </details>

# %% tags=["both"]
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.training.descriptions import four
from workbench.launch.start import mpi
from workbench.launch.start.starters import free_port

# %% [markdown]
# ## What never changes
#
# A rank needs four things, with every launcher:
#
# 1. a **process** with the script, Python and the packages,
# 2. its **number** and the number of all ranks,
# 3. a **place to meet** the others: an address, a file, or MPI,
# 4. a **secret**, so that no other process can join.
#
# The script asks for none of them. `hvd.init()` finds them in the environment. So the script is the same everywhere:

# %%
folder = tempfile.TemporaryDirectory()
# %cd -q {folder.name}

# %%
# %%writefile train.py
import hashlib

import numpy as np

import workbench as hvd

hvd.init()
weights = np.zeros(10)
for step in range(20):
    gradient = 0.5 * weights + (step + 1) * (hvd.rank() + 1)
    weights -= 0.1 * hvd.allreduce(gradient, name="gradient", op=hvd.Average)
if hvd.rank() == 0:
    bits = hashlib.sha256(weights.tobytes()).hexdigest()[:8]
    print(f"{hvd.size()} ranks: {weights[0]:.6f}, the weights' bits {bits}")

# %% [markdown]
# Start it in three ways on this machine: by `workbench run` without MPI; by `mpiexec`; and by hand. By hand you do the
# work of an engine on a host: start a process for each rank, and give it its number, the place to meet and the secret
# as variables.

# %%
from workbench.course.predictions import predict, reveal

predict(
    "17.bits",
    "The same script, started by workbench run over sockets, by mpiexec over MPI, and by hand: how do the trained "
    "weights compare?",
    choices=["the same bits", "equal up to rounding", "different: the transports add in another order"],
)

# %%
run = [sys.executable, "-m", "workbench.cli.main", "run", "-np", "2", "--gloo", sys.executable, "train.py"]
done = subprocess.run(run, capture_output=True, text=True, timeout=60)
told = [done.stdout.partition("<stdout>:")[2].strip()]
print(told[-1])

# %%
mpiexec = [*mpi.command(2), sys.executable, "train.py"]
done = subprocess.run(mpiexec, capture_output=True, text=True, timeout=60, env=mpi.environment(1))
told.append(done.stdout.strip())
print(told[-1])

# %%
common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
common |= {"WORKBENCH_SECRET": secrets.token_hex(16), "LOCAL_WORLD_SIZE": "2"}
ranks = [
    subprocess.Popen(
        [sys.executable, "train.py"],
        env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        stdout=subprocess.PIPE,
        text=True,
    )
    for rank in range(2)
]
told.append(ranks[0].communicate(timeout=60)[0].strip())
print(told[-1])
print("exit codes:", [rank.wait(60) for rank in ranks])

# %%
same = len({each.rpartition(" ")[2] for each in told}) == 1
rounded = len({each.partition(",")[0] for each in told}) == 1
reveal(
    "17.bits",
    "the same bits"
    if same
    else "equal up to rounding"
    if rounded
    else "different: the transports add in another order",
    "The launcher starts processes and says where they meet. a + b and b + a have the same bits, with every "
    "transport. (From three ranks on, the order of adding matters as well: lesson 15.)",
)

# %% [markdown]
# `init()` has read the variables that each launcher sets. The variables that we set by hand are torchrun's;
# `workbench run` without MPI (`--gloo`) sets the same ones, and `mpiexec` sets others. Your second exercise reads them.
#
# ## Four descriptions of one job
#
# Four ranks, two on each host. **By ssh**, on hosts of your own:

# %%
print(four()["ssh"])

# %% [markdown]
# `workbench run` starts an *agent* on each host by ssh, and the agent starts the ranks there. The agent opens no port:
# it communicates with the launcher through the ssh connection. When the launcher ends, the agents end their ranks.
#
# **Slurm.** The script names no host. Slurm finds two that are free, and runs the script on the first. Inside a Slurm
# job `workbench run` asks Slurm for the hosts, and starts its agents by `srun`, which needs no ssh key:

# %%
print(four()["slurm"])

# %% [markdown]
# **Kubernetes, by the MPI operator.** Kubernetes knows pods, but not ranks. An *operator* is a program in the cluster
# that makes pods from another description, here from an `MPIJob`. It makes a pod for each worker, which runs sshd; a
# pod for the launcher; a key for ssh; and two files in the launcher's pod, which it keeps up to date:
# `/etc/mpi/hostfile` and `/etc/mpi/discover_hosts.sh`. This job is elastic. (The security and storage settings of each
# pod are left out here; `workbench k8s mpijob` writes all of them.)

# %%
print(four()["mpijob"])

# %% [markdown]
# **Kubernetes, without an operator for MPI.** A `JobSet` makes pods that are all alike. Each gets a number and a name
# in DNS, and starts its own ranks by torchrun. All ranks meet at the first pod. There is no launcher, no ssh, no key:

# %%
print(four()["jobset"])

# %%
predict(
    "17.pod",
    "One pod of the JobSet above fails. Which processes are started again?",
    choices=["that pod's", "those of all pods", "none: somebody has to start the job again"],
)

# %% [markdown]
# **Spark and Ray** are clusters that run Python functions. There the description is a call in your Spark or Ray
# program:
#
# ```python
# workbench.spark.run(train, num_proc=4)  # four tasks of one barrier stage
#
# executor = RayExecutor(settings, num_workers=4)  # four actors
# executor.start()
# executor.run(train)
# ```
#
# Their workers are already running, and can start a function. This function connects to the program that called it, and
# offers its worker as a host. So no new port is opened on the workers, and no ssh is needed.
#
# ## The work of each program
#
# | | processes | hosts | meeting | after a loss |
# |---|---|---|---|---|
# | `workbench run` | agent, by ssh | you | launcher's, by ssh | all end; with `--min-np` the launcher fills the slot |
# | Slurm | agent, by srun | Slurm | launcher's, by srun | as above; with `--requeue` the whole job starts again |
# | MPIJob | agent, by ssh | operator | launcher's, by ssh | as above; the kubelet restarts the pod's sshd |
# | JobSet | torchrun in each pod | DNS | the first pod's port | all pods again, `maxRestarts` times |
# | Spark | executor in each task | Spark | the caller's | all end; `run_elastic`: Spark tries the task again |
# | Ray | actor | Ray | the caller's | all end; `ElasticRayExecutor`: another actor |
#
# So engines differ in three things. **What owns the processes** decides what happens when the launcher is killed: an
# agent ends with its launcher; a pod's torchrun has no launcher and goes on. **What knows the hosts** decides whether
# they can change. **What restarts processes** decides what a failure costs: one process, or all of them.

# %%
limit = int(four()["jobset"].partition("maxRestarts: ")[2].split()[0])
reveal(
    "17.pod",
    "those of all pods" if limit else "none: somebody has to start the job again",
    f"The description says maxRestarts: {limit}. With a larger number all pods would start again, not one: a JobSet "
    "knows pods and not ranks, and in a job that is not elastic each rank needs all others.",
)

# %% [markdown]
# ## Hosts that come and go
#
# Once a second the launcher of an elastic job runs a program that prints the hosts: one `host:slots` on each line. The
# MPI operator writes such a program. In our Helm chart the program asks DNS for the pods that are ready. Here the
# program prints a file. At first the file has one slot; after step 5 it has two.

# %%
# %%writefile elastic_train.py
from itertools import groupby
from pathlib import Path

import numpy as np

import workbench as hvd
from workbench import elastic
from workbench.job.objects import broadcast_object

hvd.init()
state = elastic.ObjectState(broadcast_object, hvd.rank, step=0, sizes=[])


@elastic.run
def train(state):
    while len(set(state.sizes)) < 2 or state.step < 20:  # until another rank has come
        hvd.allreduce(np.ones(4), name="gradient")
        state.sizes = [*state.sizes, hvd.size()]
        state.step += 1
        if state.step == 5 and hvd.rank() == 0:
            Path("hosts.txt").write_text("localhost:2\n")  # one more slot
        state.commit()


train(state)
if hvd.rank() == 0:
    print(f"the first step has {state.sizes[0]} rank, the last has {state.sizes[-1]}")
    print("the number of ranks, each time it changed:", [n for n, _ in groupby(state.sizes)])

# %%
Path("hosts.txt").write_text("localhost:1\n")
run = [sys.executable, "-m", "workbench.cli.main", "run", "--min-np", "1", "--max-np", "2"]
run += ["--host-discovery-script", "cat hosts.txt", sys.executable, "elastic_train.py"]
done = subprocess.run(run, capture_output=True, text=True, timeout=90)
print("\n".join(line.partition("<stdout>:")[2] for line in done.stdout.splitlines()))
print(done.stderr.strip().replace(": reset", ":\n    reset"))

# %%
# %cd -q -
folder.cleanup()

# %% [markdown] tags=["exercise"]
# ## Read four job descriptions
#
# The four descriptions are printed here once more. Answer four questions about each. If the answer is not in the
# description, it is in the lesson's text.

# %% tags=["exercise"]
for name, text in four().items():
    print(f"===== {name}\n{text}\n")

# %% tags=["exercise"]
# exercise: 17.table

# %% tags=["exercise"]
check("17.table")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 15 minutes, 5 of them for the exercises. In pairs, each pair with two of the four
# descriptions on paper. Then on the board: which processes end when the launcher is killed? (ssh, Slurm, MPIJob: all
# ranks, because the agents end with it. JobSet: there is no launcher.) Common wrong answers: ssh in Slurm;
# slotsPerWorker of an elastic job; that the operator replaces ranks. It replaces pods, and only the launcher knows what
# a rank is.

# %% [markdown] tags=["exercise"]
# ## The rank of a process
#
# `init()` does this first. One launcher may run inside another: ranks of mpiexec in a batch script have Slurm's
# variables, too.

# %% tags=["exercise"]
# exercise: 17.who_am_i

# %% tags=["exercise"]
check("17.who_am_i")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 15 minutes, 8 of them for the exercises. `workbench/config/launchers.py` is the real one.
# Common wrong answers: Slurm first, so that all ranks of torchrun on a node are the same rank; SLURM_NTASKS, which
# belongs to the job and not to the step; SLURM_PROCID=0 in a batch script, which is no rank; text for numbers, so that
# rank "10" < "2".

# %% [markdown] tags=["exercise"]
# ## Which pods can take ranks?
#
# Write the program that prints the hosts of an elastic job. An old one made three mistakes: it gave each pod one slot,
# whatever the pod had; it used the launcher's pod as a host; and it named pods that were not ready.

# %% tags=["exercise"]
# exercise: 17.discover

# %% tags=["exercise"]
check("17.discover")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 15 minutes, 7 of them for the exercises. Ask why a deleted pod must be left out at once,
# although it still runs: it has 30 s to leave at a commit, and a new rank there would be lost with it. Common wrong
# answers: all three mistakes of the old program; names sorted as text.

# %% [markdown] tags=["exercise"]
# ## What does a lost rank cost?
#
# Count two things: how many processes are started, and how many steps are done again.

# %% tags=["exercise"]
# exercise: 17.recovery

# %% tags=["exercise"]
check("17.recovery")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 15 minutes, 5 of them for the exercises. Then put in the numbers of lesson 15: 16,384 ranks,
# a failure every three hours, five minutes to restart all. Common wrong answers: an elastic job that reads its
# checkpoint; the step during which it failed is forgotten; an elastic job of one rank with a survivor.

# %% [markdown]
# ## Keypoints
#
# - A rank needs a process, a number, a place to meet, and a secret. The script asks for none of them.
# - Engines differ in three things: what owns the processes, what knows the hosts, what restarts them.
# - Kubernetes and Spark restart pods and tasks; they do not know ranks. An elastic launcher starts one process again;
#   without one, all processes are started again.
# - Hosts are the pods that are ready now; a host has one slot for each of its GPUs.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **torchrun:** the nodes of a job meet at one `--rdzv-endpoint`. With `--nnodes=1:4`, between one and four nodes may
#   take part ([source](https://docs.pytorch.org/docs/stable/elastic/run.html)).
# - **Kubeflow Trainer 2.0** (July 2025) has one description, `TrainJob`, for PyTorch, JAX, DeepSpeed, MPI and others.
#   It makes a JobSet from it ([source](https://blog.kubeflow.org/trainer/intro/)).
# - **Ray Train** starts PyTorch's ranks as its workers. With `FailureConfig(max_failures=3)` it starts all of them
#   again from the last checkpoint, up to three times
#   ([source](https://docs.ray.io/en/latest/train/user-guides/fault-tolerance.html)).
# - **Spark** (since 3.4, 2023) starts PyTorch's ranks itself:
#   `TorchDistributor(num_processes=4, local_mode=False).run(train)`
#   ([source](https://spark.apache.org/docs/latest/api/python/reference/pyspark.ml.html)).
# - **JAX:** `jax.distributed.initialize()` needs no argument under Slurm, Open MPI, Kubernetes and on Cloud TPUs: it
#   finds the ranks and the place to meet itself ([source](https://docs.jax.dev/en/latest/501/multiprocess.html)).
