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
# # A rank dies
#
# **Question:** one of many ranks fails in the middle of a training. What is lost, and how does the training go on?
#
# **Afterwards you can**
#
# - say how often a job of n ranks fails, and how often it should commit,
# - compare the cost of three answers: restart from disk, shrink to the survivors, keep copies at a neighbour,
# - give the shards of dead ranks to the survivors, so that every sample counts once and the weights have the same bits.
#
# **Needs:** two cores, no GPU: ranks die in the simulator, and real ones at the end. **Alone:** 40 minutes to read, 20
# to do. **Led:** 65 minutes. **Before:** lessons 03 and 05.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 12: What is the local rank for, and what the rank?</summary>
#
# The local rank chooses a GPU of the host. The rank chooses the samples, and who prints and saves.
#
# </details>
#
# <details>
# <summary>Lesson 10: Where does the broadcast stand in a script that reads a checkpoint, and what is
# broadcast?</summary>
#
# After the checkpoint was read; the weights and the optimizer's state.
#
# </details>

# %% tags=["both"]
import inspect
import math

import numpy as np

from workbench.collectives.ring import ring_allreduce
from workbench.course import drawing, figures
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.predictions import predict, reveal
from workbench.course.simulator import Kill, RankDiedError, simulate
from workbench.course.tasks import task
from workbench.course.training import logical_shards
from workbench.course.training.failing_job import failing_job

# %% [markdown]
# ## How often?
#
# Llama 3 was trained on 16,384 GPUs. In 54 days there were 419 unexpected interruptions ("The Llama 3 Herd of Models",
# arXiv:2407.21783, section 3.3.4). So the *mean time between failures* (MTBF) of that job was 54 · 24 / 419 hours. If
# any of n ranks stops the job, and they fail independently, the job fails n times as often as one rank does: **MTBF of
# the job = MTBF of a rank / n**. So the job's MTBF gives the MTBF of one rank, which is a GPU with its part of the
# host, the network and the software. And from that we get the MTBF of other jobs.

# %%
predict(
    "15.mtbf",
    "16,384 GPUs, 419 interruptions in 54 days. How long does one rank run until it fails, on average?",
    number="years",
    tolerance=0.2,
)

# %%
DAY_S = 86400
mtbf_s = 54 * DAY_S / 419 * 16384
print(f"one rank fails once in {mtbf_s / DAY_S / 365:.1f} years")
for n in (8, 512, 16384):
    mean_h = mtbf_s / n / 3600
    print(f"{n:6,} ranks: once in {mean_h:8,.1f} hours; a day without a failure: {math.exp(-24 / mean_h):7.2%}")

# %%
reveal(
    "15.mtbf",
    mtbf_s / DAY_S / 365,
    "54 days · 16,384 / 419. A rank that fails once in six years is reliable; 16,384 of them together fail every three "
    "hours.",
)

# %% [markdown]
# The last column assumes failures *without memory*: how long a job has run does not change when it fails next. Then the
# time between failures is exponential, and a day passes without one with probability exp(−24 h / MTBF).
#
# ## What is lost
#
# The simulator lets ranks die: `Kill(rank, at_s=…)` or `Kill(rank, message=…)`. The others notice it after `notice_s`
# seconds, and each rank that is waiting gets a `RankDiedError`. Here four ranks add up arrays of ones, twos, threes and
# fours (so each sum is 10), and rank 2 dies when it should send its third message.


# %%
def reduce_once(comm):
    comm.compute(20e-6)
    x = np.full(8, comm.rank + 1.0)
    try:
        ring_allreduce(comm, x)
    except RankDiedError as error:
        return f"has {x.astype(int)}. At {comm.now * 1e6:.0f} µs:\n        {error}"


run = simulate(4, reduce_once, kills=[Kill(2, message=2)], notice_s=100e-6)
for rank, told in enumerate(run.results):
    print(f"rank {rank} {told or f'died at {run.died[rank] * 1e6:.0f} µs'}")
drawing.space_time(run, "Rank 2 dies")

# %% [markdown]
# Five things are lost:
#
# - **The reduction in flight.** No survivor has its whole input any more, and none has the whole sum: some chunks are
#   complete (10), others are partial sums. The reduction cannot be finished, because the partial sums of rank 2 are
#   lost. It cannot be repeated either, because the inputs are overwritten.
# - **The step.** All gradients of this step are lost, including those of the survivors.
# - **The shard of the data** that rank 2 had. No rank sees these samples any more, unless another rank takes them.
# - **The random state** of rank 2, which its shuffling, dropout and augmentation would have used next.
# - **The state that only rank 2 had:** with a sharded optimizer, its part of the optimizer's state.
#
# ## Three answers
#
# A job can restart from disk; it can shrink to the survivors; or each rank can keep a copy of its neighbour's state.
#
# | | restart | shrink | copies |
# |---|---|---|---|
# | the state is | on disk, every w seconds | on every rank | in memory, and each step at the neighbour |
# | after a failure | all start again, from the last commit | the survivors go on | they go on, with the copy |
# | lost per failure | the restart, and w/2 on average | the step | the step |
# | paid without a failure | a commit of C seconds every w seconds | nothing | a copy in each step |
# | does not help | if the disk is lost | if a rank has its own state | if two neighbours die at the same time |
#
# What does that cost, per second of work? Assume: a commit to disk takes C = 60 s and a restart 300 s; a step takes 5
# s; the others notice a death after 1 s; 50 ms of each copy are not hidden behind computing; and an hour passes before
# a new rank replaces the dead one. These are round numbers. Put in your own.

# %%
step_s, commit_s, restart_s = 5.0, 60.0, 300.0
notice_s, copy_s, repair_s = 1.0, 0.05, 3600.0

print(" ranks  restart   shrink   copies")
for n in (8, 64, 512, 4096, 16384):
    job_s = mtbf_s / n
    restart = math.sqrt(2 * commit_s / job_s) + restart_s / job_s  # the root: see below
    shrink = (notice_s + step_s) / job_s + repair_s / n / job_s  # 1/n slower until the repair
    copies = copy_s / step_s + shrink
    print(f"{n:6,} {restart:8.2%} {shrink:8.3%} {copies:8.3%}")

# %% [markdown]
# If all ranks have the same weights and optimizer state, shrinking costs almost nothing. Copies cost about 1 % on any
# number of ranks. Restarts cost more on more ranks; here they become more expensive than copies between 64 and 512
# ranks. All three answers need commits to disk as well, in case the power fails.
#
# ## How often to commit
#
# A commit takes C seconds, every w seconds of work, so it costs C/w per second of work. The job fails once in M seconds
# (M is the job's own MTBF), and each failure throws away the work since the last commit, which is w/2 on average. So
#
# > waste(w) = C/w + w/(2M)
#
# It is least where its derivative is zero:
#
# > −C/w² + 1/(2M) = 0, so **w = √(2·C·M)**
#
# That is Young's interval (1974). Daly (2006) has a longer formula, which is better if C is not small compared with M.
# At the best interval both parts of the waste are equal, √(C/(2M)) each. A restart costs time too, but its cost does
# not depend on w.
#
# Now check this without the formula: `failing_job` draws random times between failures. It divides each of them into a
# restart, whole intervals with their commits, and a rest that is lost.

# %%
print(inspect.getsource(failing_job).partition('"""')[0].strip())
print("    …")
print(inspect.getsource(failing_job).rpartition('"""\n')[2])

# %%
predict(
    "15.interval",
    "16,384 such GPUs; a commit takes one minute. After how many minutes of work should the job commit?",
    number="minutes",
    tolerance=0.3,
)

# %%
n = 16384
job_s = mtbf_s / n
young_s = math.sqrt(2 * commit_s * job_s)
tried = [round(young_s * factor / step_s) for factor in np.linspace(0.2, 3, 29)]
simulated = [failing_job(every, step_s, commit_s, restart_s, mtbf_s, n).longer for every in tried]
formula = [1 + commit_s / (every * step_s) + every * step_s / (2 * job_s) + restart_s / job_s for every in tried]
best = tried[int(np.argmin(simulated))]
print(f"MTBF of the job {job_s / 3600:.2f} h; Young: every {young_s / 60:.1f} minutes, or {young_s / step_s:.0f} steps")
print(f"simulated: the best of {len(tried)} intervals from {tried[0]} to {tried[-1]} steps is {best} steps")
figures.curves(
    {"simulated": simulated, "1 + C/w + w/2M + R/M": formula},
    "minutes between commits",
    "time / work",
    "Commit how often?",
    x=[every * step_s / 60 for every in tried],
)

# %%
reveal(
    "15.interval",
    young_s / 60,
    f"√(2·C·M), with C = 1 minute and M = {job_s / 60:.0f} minutes, the job's own mean time between failures.",
)

# %% [markdown]
# The curve is flat at the bottom: half or twice the best interval wastes a quarter more in commits and lost work, not
# twice as much. (The simulated curve is higher: failures also happen during commits, restarts and repeated work.) A
# much worse mistake is to use the MTBF of one rank instead of the job's. Then the job commits once in 41 hours, and it
# fails every 3 hours. None of 50,000 simulated times between failures is long enough for one commit:

# %%
for words, every in (
    ("Young, M of the job", young_s / step_s),
    ("a tenth of it", young_s / step_s / 10),
    ("M of one rank", math.sqrt(2 * commit_s * mtbf_s) / step_s),
):
    spent = failing_job(round(every), step_s, commit_s, restart_s, mtbf_s, n)
    longer = f"{spent.longer:.2f} times the work" if spent.work_s else "no step is ever committed"
    print(f"{words:20} every {every:8,.0f} steps: {longer}")

# %% [markdown]
# ## Go on with the same bits
#
# The survivors could share each batch among n − 1 ranks instead of n. That is a correct training. But does it give the
# same weights, to the last bit?

# %%
predict(
    "15.bits",
    "1,200 float64 numbers are added up by one rank, by three and by four: each rank adds its share, then the shares' "
    "sums are added. Which sums have the same bits?",
    choices=["all three", "those of one and of four: 4 is a power of two", "no two of them"],
)

# %%
print("one after the other:", (0.1 + 0.2) + 0.3, "   the other way:", 0.1 + (0.2 + 0.3))

values = np.random.default_rng(1).random(1200)
sums = {}
for n in (1, 3, 4):
    shares = [np.cumsum(values[rank::n])[-1] for rank in range(n)]  # cumsum adds one after the other
    sums[n] = float(np.cumsum(shares)[-1])
    print(f"added by {n}: {sums[n]!r}")

# %%
reveal(
    "15.bits",
    {1: "all three", 3: "no two of them"}.get(len(set(sums.values())), "those of one and of four: 4 is a power of two"),
    "A sum of floats is rounded after each addition, so it depends on the order, and on which rank adds which "
    "numbers. The first 14 digits agree, the last ones do not. (With other numbers two of the sums may agree, by "
    "chance.)",
)

# %% [markdown]
# In a long training such differences grow. Then the weights after a failure are not those of an undisturbed run, and
# you cannot tell whether that comes from rounding or from a mistake.
#
# So fix the *number of parts*, for any number of living ranks. The work of a step is cut into S **logical shards**. A
# shard's samples and random numbers depend on the step and on the shard, not on the rank. A rank holds any number of
# shards. And all ranks add up the shards' gradients in the order of the shards:

# %%
print(inspect.getsource(logical_shards.train))

# %% [markdown]
# Note two things. First: when a rank dies, one survivor may have finished a step that another one has not. So each rank
# keeps the state before its last step, and after a death all go back to the lowest step. Second: `reshard` says which
# rank holds which shards from then on. It is your exercise. Here its solution is used; the weights are compared with
# those of one rank without failures:

# %%
reshard = task("15.reshard").reference
undisturbed, samples = simulate(1, logical_shards.train, reshard).results[0]

for n, kills in (
    (4, []),
    (3, [Kill(1, message=2)]),
    (4, [Kill(0, at_s=0.005)]),
    (4, [Kill(3, at_s=0.004), Kill(1, at_s=0.0041)]),
):
    run = simulate(n, logical_shards.train, reshard, kills=kills)
    survivors = [run.results[rank] for rank in range(n) if rank not in run.died]
    other = sum(int((weights != undisturbed).sum()) for weights, _ in survivors)
    seen = {(len(used), len(set(used) & set(samples))) for _, used in survivors}
    print(f"{n} ranks, dead {sorted(run.died) or 'none'}: {other} of {undisturbed.size} weights differ;", end=" ")
    print(*(f"{used} samples used, {there} of them different" for used, there in seen))

held = logical_shards.deal([0, 1, 2])
print("before:     ", held)
print("rank 1 dead:", reshard(held, [0, 2]))

# %% [markdown]
# The price: with K bytes of gradients, each rank receives S·K bytes. With a ring allreduce it receives only about 2·K,
# but there the order of adding depends on n.
#
# ## Copies at the neighbour
#
# Now each rank has a part of the optimizer's state that no other rank has. In each step it sends a copy to the next
# rank. A step counts when all copies have arrived; the barrier makes sure of that. If a rank dies before that, all
# ranks repeat the step.


# %%
def with_copies(comm, steps=20):
    parts, copies, step = {comm.rank: np.zeros(2)}, {}, 0
    before, died, begun = (parts, copies, step), False, 0
    while step < steps:
        try:
            if died:
                if step > min(comm.allgather(step)):
                    parts, copies, step = before
                there = set().union(*comm.allgather(set(parts)))
                parts = {**parts, **{part: copy for part, copy in copies.items() if part not in there}}
                died = False
            begun += 1
            comm.compute(100e-6)
            new = {part: 0.9 * value + part + step for part, value in parts.items()}
            kept = comm.sendrecv(new, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
            comm.barrier()
        except RankDiedError:
            comm, died = comm.shrink(), True
            continue
        before = parts, copies, step
        parts, copies, step = new, kept, step + 1
    return parts, begun


wanted = {part: value for parts, _ in simulate(4, with_copies).results for part, value in parts.items()}
for kills in ([Kill(1, at_s=0.0021)], [Kill(1, at_s=0.0021), Kill(2, at_s=0.0021)]):
    run = simulate(4, with_copies, kills=kills)
    alive = [result for result in run.results if result is not None]
    found = {part: value for parts, _ in alive for part, value in parts.items()}
    right = [part for part in found if found[part].tobytes() == wanted[part].tobytes()]
    begun = max(begun for _, begun in alive)
    print(f"dead: {sorted(run.died)}; 20 steps, begun {begun} times; parts with the right bits: {sorted(right)}")

# %% [markdown]
# One rank dies: one step is done twice, and nothing is lost. Two neighbours die at the same time: part 1 is lost,
# because its owner (rank 1) and the rank with its copy (rank 2) are both dead. Only a commit on disk would have it. So
# keep the copy on another node.
#
# ## Real ranks
#
# `workbench run --min-np 1` starts an elastic job. When a rank is lost, the survivors keep their processes, begin the
# next *epoch* with new connections, and call the function under `@elastic.run` again, with the state of the last
# commit. Here each rank keeps its commits in memory. This is the answer *shrink*, with logical shards.

# %%
import tempfile

folder = tempfile.TemporaryDirectory()
# %cd -q {folder.name}

# %%
# %%writefile train.py
import os
import signal
import sys

import numpy as np

import workbench as hvd
from workbench import elastic
from workbench.course.training.logical_shards import RATE, SHARDS, gradient
from workbench.job.objects import broadcast_object

victim, target = int(sys.argv[1]), sys.argv[2]
hvd.init()
state = elastic.ObjectState(broadcast_object, hvd.rank, step=0, weights=np.zeros((64, 10)), sizes=[])


@elastic.run
def train(state):
    while state.step < 20:
        mine = np.arange(SHARDS)[hvd.rank() :: hvd.size()]
        shards = hvd.allgather(mine, name="shards")
        if state.step == 7 and hvd.size() == 3 and hvd.rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)  # kill -9, inside the step
        parts = hvd.allgather(np.array([gradient(state.weights, state.step, shard) for shard in mine]), name="parts")
        total = np.zeros_like(state.weights)
        for place in np.argsort(shards):  # in the order of the shards
            total += parts[place]
        state.weights = state.weights - RATE * total
        state.sizes = [*state.sizes, hvd.size()]
        state.step += 1
        state.commit()


train(state)
same = hvd.fingerprint({"weights": state.weights})
if hvd.rank() == 0:
    np.save(target, state.weights)
    print(f"{state.step} steps: {state.sizes.count(3)} by three ranks, {state.sizes.count(2)} by two")
    print(f"the {hvd.size()} ranks have the same weights, bit by bit: {bool(same)}")

# %% [markdown]
# Three runs with three processes each: undisturbed, with a `kill -9` of rank 1, and with one of rank 0. The option
# `--blacklist-cooldown-range 300 600` prevents the launcher from replacing the dead process for at least 300 s.

# %%
import subprocess
import sys

found = {}
for victim in (-1, 1, 0):
    words = [sys.executable, "-m", "workbench.cli.main", "run", "-np", "3", "--min-np", "1"]
    words += ["--blacklist-cooldown-range", "300", "600", sys.executable, "train.py", str(victim), f"{victim}.npy"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    for line in done.stderr.splitlines():
        if "was lost" in line and line.startswith("workbench:"):
            print(line)
    for line in done.stdout.splitlines():
        print(line.partition("<stdout>:")[2])
    found[victim] = np.load(f"{victim}.npy").tobytes()
print("different weights after the three runs:", len(set(found.values())))

# %%
# %cd -q -
folder.cleanup()

# %% [markdown]
# ## In this notebook
#
# Engines may die as well, if they were started for it: `cluster.up(3, min_np=1)`. An engine keeps its number as long as
# it lives; ranks get new numbers in each epoch. `train` is the function of the script.

# %%
from workbench import cluster

engines = cluster.up(3, min_np=1)

# %%
# %%px
import logging
import os
import signal

import numpy as np

import workbench as hvd
from workbench import elastic
from workbench.course.training.logical_shards import RATE, SHARDS, gradient
from workbench.job.objects import broadcast_object

logging.getLogger("workbench").setLevel("ERROR")  # the notebook says by itself who was lost
hvd.init()
state = elastic.ObjectState(broadcast_object, hvd.rank, step=0, weights=np.zeros((64, 10)))


@elastic.run
def train(state, until, victim=-1):
    while state.step < until:
        mine = np.arange(SHARDS)[hvd.rank() :: hvd.size()]
        shards = hvd.allgather(mine, name="shards")
        if state.step == 7 and hvd.size() == 3 and hvd.rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        parts = hvd.allgather(np.array([gradient(state.weights, state.step, shard) for shard in mine]), name="parts")
        total = np.zeros_like(state.weights)
        for place in np.argsort(shards):
            total += parts[place]
        state.weights = state.weights - RATE * total
        state.step += 1
        state.commit()


# %% [markdown]
# Engine 0, which is rank 0, dies at step 7. The cell goes on without it.

# %%
# %px train(state, 12, victim=0)

# %%
print(engines.status())

# %% [markdown]
# `rescue()` starts a new engine. The new engine runs the cells that the others have run, but leaves out calls that need
# the other engines, such as `train`. It gets the trained weights at the beginning of the next call of `train`.

# %%
engines.rescue()

# %%
# %px train(state, 20)

# %%
weights = engines.view["state.weights"]
same = sum(each.tobytes() == found[-1] for each in weights)
print(f"{same} of {len(weights)} engines have the bits of the undisturbed script")

# %% [markdown]
# The picture has a track for each engine, and marks when one was lost and when an epoch began. The track of engine 0 is
# empty: its record is lost with it.

# %%
import workbench

picture = workbench.timeline(last=500)
print("\n".join(mark.text for mark in picture.marks))

# %% tags=["nbval-ignore-output"]
picture

# %%
cluster.down()

# %% [markdown] tags=["exercise"]
# ## How often to commit
#
# Write Young's interval as a function, in whole steps. `check` changes one argument at a time; then it compares your
# interval with the best one in four simulated jobs, of 64 to 16,384 ranks.

# %% tags=["exercise"]
# exercise: 15.commit_every

# %% tags=["exercise"]
check("15.commit_every")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 30 minutes, 8 of them for the exercises. Let all learners guess first how often 16,384 GPUs
# should commit; guesses are in hours, the answer is 19 minutes. Common wrong answers: the MTBF of one rank instead of
# the job's; the whole interval as the loss of a failure, so that the 2 is missing; seconds for steps; the restart
# counted with each commit.

# %% [markdown] tags=["exercise"]
# ## New holders for the shards
#
# `held = {0: [0, 3], 1: [1, 4], 2: [2, 5]}` and rank 1 is dead: which ranks take the shards 1 and 4? `check` uses your
# function in trainings in which one or two ranks die, and compares the weights with those of an undisturbed one, bit by
# bit.

# %% tags=["exercise"]
# exercise: 15.reshard

# %% tags=["exercise"]
check("15.reshard")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 35 minutes, 12 of them for the exercises. Do it with people first: four of them hold eight
# cards, one leaves the room, and nobody may speak. Do all write down the same new holders? Common wrong answers: all
# shards distributed from the beginning (right, but all state moves); the neighbour of the dead takes everything; ties
# decided by the order of a dict, which differs from rank to rank; 0 … n − 2 as the numbers of the living ranks. For
# those who are done early: what if a rank comes back? (Some ranks must give shards away; the rank with the most gives
# first.)

# %% [markdown]
# ## Keypoints
#
# - n ranks fail n times as often as one. Commit every √(2·C·MTBF/n).
# - When a rank dies, these are lost: the reduction in flight, the step, its shard, its random state, its own state.
# - Restarts cost more with every rank. Shrinking is cheap if all ranks have the state. Copies cost the same for any n.
# - Let samples, random numbers and the order of adding depend on logical shards: then 4, 3 or 2 ranks give the same
#   bits.
# - A result that each survivor computes for itself must not depend on the order in which it lists the ranks.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **torchrun:** if one process fails, all are stopped and started again, at most `--max-restarts` times (0 by
#   default). The same happens when a node comes or goes
#   ([source](https://docs.pytorch.org/docs/stable/elastic/run.html)).
# - **torchft** finds out in each step which groups of ranks are healthy. They go on; a group that comes back copies
#   its state from a healthy one ([source](https://github.com/meta-pytorch/torchft)).
# - **NCCL 2.27** (2025) has `ncclCommShrink`, which makes a communicator without the ranks that failed.
#   `ncclCommGrow`, which adds ranks, came later
#   ([source](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html)).
# - **JAX:** if one process fails, the others end, too. Going on without it is experimental, and works fully on GPUs
#   only ([source](https://docs.jax.dev/en/latest/501/fault-tolerance.html)).
# - **NVIDIA's resiliency extension** for PyTorch restarts training inside the processes, writes checkpoints to local
#   storage, and finds slow ranks ([source](https://nvidia.github.io/nvidia-resiliency-ext/)).
