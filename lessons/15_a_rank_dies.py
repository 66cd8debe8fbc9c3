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
# **Question:** one of many ranks fails amid a training. What is lost with it, and how does the training go on?
#
# **Afterwards you can**
#
# - say how often a job of n ranks fails, and how often it should commit,
# - compare three answers by what they cost: restart from disk, shrink to the survivors, copies at a neighbour,
# - deal the shards of the dead out again, so that every sample counts once and the weights keep their bits.
#
# **Needs:** two cores, no GPU: ranks die in the simulator, and real ones at the end. **Takes** 20 minutes to read, 20
# to do. **Before:** lessons 03 and 05.

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
# arXiv:2407.21783, section 3.3.4). So the *mean time between failures* (MTBF) of that job was
# 54 · 24 / 419 hours. If any of n ranks stops the job, and they fail independently, the job fails n times as often as
# one rank does: **MTBF of the job = MTBF of a rank / n**. Read backwards, it gives the MTBF of one GPU with all that
# belongs to it; and from that, other jobs.

# %%
predict(
    "15.mtbf",
    "16,384 GPUs, 419 interruptions in 54 days. How long does one GPU with all that belongs to it run until it fails?",
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
    "54 days · 16,384 / 419. A machine that fails once in six years is a good machine; thousands of them fail every "
    "few hours.",
)

# %% [markdown]
# The last column takes failures to come *without memory*: the time to the next one is exponential, however long the
# last one is ago.
#
# ## What is lost
#
# The simulator lets ranks die: `Kill(rank, at_s=…)` or `Kill(rank, message=…)`. Half a millisecond later the others
# know, and whoever waits then gets a `RankDiedError`. Here four ranks add up ones, twos, threes and fours, and rank 2
# dies at its third message.


# %%
def reduce_once(comm):
    comm.compute(100e-6)
    x = np.full(8, comm.rank + 1.0)
    try:
        ring_allreduce(comm, x)
    except RankDiedError as error:
        return f"{x.astype(int)} at {comm.now * 1e6:.0f} µs: {error}"


run = simulate(4, reduce_once, kills=[Kill(2, message=2)], notice_s=500e-6)
for rank, told in enumerate(run.results):
    print(f"rank {rank}: {told}")
drawing.space_time(run, "Rank 2 dies")

# %% [markdown]
# - **The reduction in flight.** Each survivor's array is neither its own nor the sum. It cannot be finished, for what
#   rank 2 had added up is gone, nor begun again, for the inputs are overwritten.
# - **The step.** So all gradients of this step are lost, those of the survivors too.
# - **Its shard of the data.** The samples that rank 2 had are not seen any more, unless somebody takes them.
# - **Its random state.** Shuffling, dropout and augmentation would have gone on from there.
# - **What it alone had:** with a sharded optimizer, its part of the state.
#
# ## Three answers
#
# | | restart | shrink | copies |
# |---|---|---|---|
# | the state is | on disk, every w seconds | on every rank anyway | in memory, also at the neighbour, each step |
# | after a failure | all start again, from the last commit | the survivors go on | so they do, with the copy |
# | lost per failure | the restart, and w/2 on average | the step | the step |
# | paid without any | C seconds in w | nothing | the copy of each step |
# | is not enough | | if a rank has state of its own | if a rank and its neighbour die at once |
#
# What that costs per second of work, to first order. C = 60 s for a commit to disk and 300 s for a restart; a step
# takes 5 s, noticing 1 s; of a copy 50 ms are not hidden behind computing; and an hour passes before a new rank
# replaces the dead one. These are round numbers, chosen for the model. Put in yours.

# %%
step_s, commit_s, restart_s, notice_s, copy_s, repair_s = 5.0, 60.0, 300.0, 1.0, 0.05, 3600.0

print(" ranks  restart  shrink  copies")
for n in (8, 64, 512, 4096, 16384):
    job_s = mtbf_s / n
    restart = math.sqrt(2 * commit_s / job_s) + restart_s / job_s  # the root is derived below
    shrink = (notice_s + step_s) / job_s + repair_s / n / job_s  # until then an n-th of the speed is missing
    copies = copy_s / step_s + shrink
    print(f"{n:6,} {restart:8.2%} {shrink:7.2%} {copies:7.2%}")

# %% [markdown]
# Where all ranks have the same weights and optimizer, shrinking is next to free. Copies cost the same on any number
# of ranks; restarts cost more the more ranks there are, and here they become the dearer ones before 512. All three need
# the disk as well, for the day when the power fails.
#
# ## How often to commit
#
# A commit takes C seconds, every w seconds of work, so it costs C/w per second. The job fails once in M seconds (its
# own MTBF!), and each time throws away the work since the last commit, which is w/2 on average. So
#
# $$\text{waste}(w) = \frac{C}{w} + \frac{w}{2M}, \qquad \text{waste}'(w) = -\frac{C}{w^2} + \frac{1}{2M} = 0
# \quad\Rightarrow\quad w = \sqrt{2\,C\,M}.$$
#
# That is Young's interval (1974); Daly (2006) has the next terms, which matter if C is not small beside M. At the
# best interval both parts are equal, √(C/2M) each. The restart takes its time, but does not depend on w.
#
# Now without formula: draw the times between failures, and divide each into a restart, whole intervals with their
# commit, and a rest that is lost.

# %%
print(inspect.getsource(failing_job).partition('"""')[0].strip())
print("    …")
print(inspect.getsource(failing_job).rpartition('"""\n')[2])

# %%
predict(
    "15.interval",
    "16,384 such GPUs; a commit takes one minute. After how many minutes of work should they commit?",
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
print(
    f"simulated: the best of these is every {best} steps, within 20 % of it: {abs(best * step_s / young_s - 1) < 0.2}"
)
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
# The curve is flat at the bottom: half or twice the best interval wastes a quarter more, not twice as much. But who
# takes the MTBF of one rank commits once in 41 hours, and such a job never gets anywhere:

# %%
for words, every in (
    ("Young, M of the job", young_s / step_s),
    ("a tenth of it", young_s / step_s / 10),
    ("M of one rank", math.sqrt(2 * commit_s * mtbf_s) / step_s),
):
    spent = failing_job(round(every), step_s, commit_s, restart_s, mtbf_s, n)
    print(f"{words:20} every {every:8,.0f} steps: {spent.longer:.3g} times the work")

# %% [markdown]
# ## Go on with the same bits
#
# The survivors could divide each batch by n − 1 instead of n. It would be a right training. Would it be the same one?

# %%
predict(
    "15.bits",
    "1,200 float64 numbers are added up by one rank, by three and by four. Which sums have the same bits?",
    choices=["all three", "those of one and of four: 4 is a power of two", "no two of them"],
)

# %%
print("one after the other:", (0.1 + 0.2) + 0.3, "   the other way:", 0.1 + (0.2 + 0.3))

values = np.random.default_rng(0).normal(size=1200)
sums = {n: sum(float(sum(values[rank::n])) for rank in range(n)) for n in (1, 3, 4)}
print(f"1, 3 and 4 ranks: largest difference of their sums {max(sums.values()) - min(sums.values()):.0e}")

# %%
reveal(
    "15.bits",
    "all three"
    if len(set(sums.values())) == 1
    else "those of one and of four: 4 is a power of two"
    if sums[1] == sums[4]
    else "no two of them",
    "Sums of floats depend on their order, and so on who adds up what. The last bits differ.",
)

# %% [markdown]
# After some thousand steps, such a last bit is another model. You cannot tell any more whether a difference comes from
# the failure or from a mistake.
#
# So let the *number of parts* be fixed, whoever lives. The work of a step is cut into S **logical shards**. A shard's
# samples and random numbers follow from the step and the shard, and not from the rank. Ranks only hold shards, any
# number of them. And all add up the shards' gradients in the order of the shards:

# %%
print(inspect.getsource(logical_shards.train))

# %% [markdown]
# Two things to see in it. A rank may have finished a step that another one has not; so each keeps the state before, and
# after a death all go back to the least of their steps. And `reshard` says who holds which shards from then on. It is
# your exercise; its solution at work:

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
    print(
        f"{n} ranks, dead: {sorted(run.died) or 'none'}: same bits",
        all(weights.tobytes() == undisturbed.tobytes() for weights, _ in survivors),
        "and every sample once",
        all(sorted(used) == sorted(samples) and len(set(used)) == len(used) for _, used in survivors),
    )

held = logical_shards.deal([0, 1, 2])
print("before:", held, "  rank 1 dies:", reshard(held, [0, 2]))

# %% [markdown]
# Its price: S·K bytes reach each rank, where a ring brings about 2·K: its order of summing depends on n.
#
# ## Copies at the neighbour
#
# Now each rank has a part of the optimizer's state that nobody else has. After each step it sends a copy to the right.
# A step counts when all copies are there, which the barrier says; if a rank dies before, the step is done again.


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
# One death: one step is done twice, and nothing is lost. Two neighbours at once: the part whose owner and copy are both
# dead is gone, and only the disk has it. So the copy belongs on another node than the original.
#
# ## Real ranks
#
# `workbench run --min-np 1` starts an elastic job: when a rank is lost, the survivors keep their processes, begin the
# next *epoch* with new connections, and call the function under `@elastic.run` again, with the state of the last
# commit. A commit is kept in memory here, by each rank. This is the answer *shrink*, with logical shards.

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
from workbench.training.objects import broadcast_object

victim, target = int(sys.argv[1]), sys.argv[2]
hvd.init()
state = elastic.ObjectState(broadcast_object, hvd.rank, step=0, weights=np.zeros((64, 10)), sizes=[])


@elastic.run
def train(state):
    while state.step < 20:
        mine = np.arange(SHARDS)[hvd.rank() :: hvd.size()]
        shards = hvd.allgather(mine, name="shards")
        if state.step == 7 and hvd.size() == 3 and hvd.rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)  # kill -9, amid the step
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
# Three processes: once undisturbed, once with a `kill -9` of rank 1, once of rank 0. (With the last option the launcher
# starts no new process in place of the dead one for five minutes.)

# %%
import subprocess
import sys

found = {}
for victim in (-1, 1, 0):
    words = [sys.executable, "-m", "workbench.launch.cli", "run", "-np", "3", "--min-np", "1"]
    words += ["--blacklist-cooldown-range", "300", "600", sys.executable, "train.py", str(victim), f"{victim}.npy"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    for line in done.stderr.splitlines():
        if "was lost" in line and line.startswith("workbench:"):
            print(line)
    for line in done.stdout.splitlines():
        print(line.partition("<stdout>:")[2])
    found[victim] = np.load(f"{victim}.npy").tobytes()
print("the same bits in all three:", len(set(found.values())) == 1)

# %%
# %cd -q -
folder.cleanup()

# %% [markdown]
# ## In this notebook
#
# Engines may die as well, if they were started for it: `cluster.up(3, min_np=1)`. An engine keeps its number for life,
# a rank's holds for one epoch. `train` is the function of the script.

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
from workbench.training.objects import broadcast_object

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
# A new engine runs the cells again that the others have run, but for what needs the others: it is alone then. What was
# trained it gets at the beginning of the next call of `train`.

# %%
engines.rescue()

# %%
# %px train(state, 20)

# %%
weights = engines.view["state.weights"]
print("the bits of the undisturbed script:", {each.tobytes() for each in weights} == {found[-1]})

# %% [markdown]
# The picture has a track for each engine, and says when one was lost and when an epoch began. What engine 0 has
# recorded is lost with it.

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
# As a function, in whole steps. `check` changes one argument at a time, and then compares with the best interval of
# simulated jobs on 64 to 16,384 ranks.

# %% tags=["exercise"]
# exercise: 15.commit_every

# %% tags=["exercise"]
check("15.commit_every")

# %% [markdown] tags=["instructor"]
# **Instructor.** 15 minutes. Let everybody guess first how often 16,384 GPUs should commit; guesses are in hours, the
# answer is 19 minutes. Common wrong answers: the MTBF of one rank for that of the job; the whole interval as the
# loss of a failure, so that the 2 is missing; seconds for steps; the restart counted with each commit.

# %% [markdown] tags=["exercise"]
# ## Deal the shards out again
#
# `held = {0: [0, 3], 1: [1, 4], 2: [2, 5]}` and rank 1 is dead: who takes 1 and 4? Your function is then used in a
# training whose ranks die, also two at once, and its weights are compared with those of an undisturbed one, bit by bit.

# %% tags=["exercise"]
# exercise: 15.reshard

# %% tags=["exercise"]
check("15.reshard")

# %% [markdown] tags=["instructor"]
# **Instructor.** 20 minutes. Do it with people first: four of them hold eight cards, one leaves the room, and nobody
# may speak. Do all write down the same new holders? Common wrong answers: all shards dealt anew (right, but all state
# moves); the neighbour of the dead takes everything; ties decided by the order of a dict, which differs from rank to
# rank; 0 … n − 2 as the numbers of those who live. For those who are done early: what if a rank comes back? (Somebody
# has to give; who has most gives first.)

# %% [markdown]
# ## Keypoints
#
# - n ranks fail n times as often as one. Commit every √(2·C·MTBF/n).
# - With a rank are lost: the reduction in flight, the step, its shard, its random numbers, its own state.
# - Restart costs more with every rank; shrinking is cheap where all have the state; copies cost the same for any n.
# - Data, random numbers and order of sums belong to logical shards: then 4, 3 or 2 ranks give the same bits.
# - Whatever survivors work out for themselves must not depend on the order in which they know each other.
