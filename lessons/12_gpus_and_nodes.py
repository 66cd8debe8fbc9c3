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
# # GPUs and nodes
#
# **Question:** the ranks are spread over several machines with several GPUs each. Which GPU should a rank take, and
# which of the links between the ranks is the slow one?
#
# **Afterwards you can**
#
# - tell rank, local rank and cross rank apart, for any placement of the ranks,
# - pin each rank to its own GPU, with and without `CUDA_VISIBLE_DEVICES`,
# - count the bytes that an allreduce sends between nodes, and say why two levels are used,
# - say what NCCL does and what MPI does.
#
# **Needs:** a laptop, no GPU: nodes, GPUs and links are simulated; two hosts are used if you have them. **Alone:** 30
# minutes to read, 10 to do. **Led:** 55 minutes. **Before:** lesson 03.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 11: No error, and the loss falls. Name three things to compare between the ranks before you trust the
# result.</summary>
#
# Fingerprints of the weights, the coverage of the samples, and the time of the slowest rank.
#
# </details>
#
# <details>
# <summary>Lesson 01: What can you do in a notebook when a cell hangs, and when a rank has died?</summary>
#
# `engines.rescue()` ends what hangs and replaces what has died. The next cell works.
#
# </details>

# %% tags=["both"]
import inspect

import numpy as np

from workbench.collectives.ring import ring_allreduce
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.simulator import simulate
from workbench.course.simulator.topology import Topology, pinned, ring_among
from workbench.course.topology_picture import picture
from workbench.job.context import place

# %% [markdown]
# ## Three numbers
#
# A *node* is a machine. Here are four ranks on two nodes with two GPUs each; `nodes[rank]` is the name of the rank's
# node. `init()` needs only this list to number the ranks. It uses the same function as this cell:

# %%
nodes = ["a", "a", "b", "b"]
for rank, node in enumerate(nodes):
    me = place(nodes, rank)
    print(
        f"rank {me.rank} of {me.size} on node {node}: local rank {me.local_rank} of {me.local_size}, "
        f"cross rank {me.cross_rank} of {me.cross_size}"
    )

# %% [markdown]
# - **rank** numbers all processes. Use it for the data, and for work that is done once: which shard, which rank writes
#   the checkpoint.
# - **local rank** numbers the processes of one node. Use it for the parts of a node: its GPUs, its disk.
# - **cross rank** numbers the ranks with the same local rank, at most one per node.
#
# In a script they are `hvd.rank()`, `hvd.local_rank()` and `hvd.cross_rank()`.
#
# ## Pinning
#
# A process sees all GPUs of its node, and takes number 0 by default. So each rank sets its GPU before it uses one:
#
# ```python
# torch.cuda.set_device(hvd.local_rank())
# ```
#
# Which GPU does each of our four ranks get with this choice, and with two other choices?

# %%
from workbench.course.predictions import predict, reveal

predict(
    "12.pinned",
    "Ranks 2 and 3 are on node b, which has two GPUs. What does rank 2 get from set_device(hvd.rank())?",
    choices=["GPU 0 of a", "GPU 0 of b", "an error: there is no such GPU"],
)

# %%
choices = {
    "nothing, so number 0": lambda me: 0,
    "set_device(rank)": lambda me: me.rank,
    "set_device(local_rank)": lambda me: me.local_rank,
}


def pinning_table(**launcher):
    print(f"{'':25}" + "".join(f"{f'rank {rank} on {node}':13}" for rank, node in enumerate(nodes)))
    for name, choose in choices.items():
        got = pinned(nodes, choose, gpus=2, **launcher)
        print(f"{name:25}" + "".join(f"{gpu.replace('invalid device ordinal', 'error'):13}" for gpu in got))


pinning_table()

# %%
got = pinned(nodes, choices["set_device(rank)"], gpus=2)[2]
reveal(
    "12.pinned",
    "an error: there is no such GPU" if got == "invalid device ordinal" else got,
    "Node b numbers its GPUs 0 and 1, and rank 2 asks for number 2. On one machine, where rank and local rank are the "
    "same, the mistake is not visible.",
)

# %% [markdown]
# *Error* is CUDA's `invalid device ordinal`. Without pinning, two ranks share one GPU, at half the speed or out of
# memory, and the other GPU is idle. `set_device(rank)` works on the first node, so it passes every test on one machine.
#
# The environment variable `CUDA_VISIBLE_DEVICES` pins from the outside. A process sees only the GPUs that it lists,
# *numbered from 0 again*. Some launchers set it, for instance Slurm with `--gpus-per-task=1`. It may cost speed: ranks
# that cannot see each other's GPU lose peer-to-peer copies and CUDA IPC in NCCL (issue 1066 of nccl) and in Open MPI
# (issue 11949 of ompi). `--gpus-per-node` lets all see all. With `--gpus-per-task=1` each rank sees one GPU, number 0,
# and `set_device(local_rank)` is wrong:

# %%
pinning_table(visible=lambda me: str(me.local_rank))

# %% [markdown]
# So pin in one place only. `set_device(hvd.local_rank() % torch.cuda.device_count())` is right in both cases, but with
# more ranks than GPUs it lets two ranks share one, without an error. So check the result:
# `torch.cuda.get_device_properties(device).uuid` identifies the GPU, and must be different on each rank.
#
# ## Two kinds of links
#
# Inside a node, GPUs are joined by NVLink or PCIe; between nodes there is a network. `Topology` gives each pair of
# ranks its own latency α and bandwidth 1/β. The figures are round ones, chosen for this model, not measured: inside a
# node 5 µs and 50 GB/s, between nodes 30 µs and 5 GB/s.
#
# A *flat* ring takes all ranks in their order, on any nodes.


# %%
def flat(comm, nodes, length=1_000_000):
    array = np.full(length, float(comm.rank))
    ring_allreduce(comm, array)
    return array[0].item()


blocks = Topology(["a", "a", "b", "b"])
run = simulate(4, flat, blocks.nodes, link=blocks)
print("sums:", run.results)
picture(blocks, run, "Flat ring, ranks node by node")

# %% [markdown]
# Only two of the four links are slow: they have a tenth of the bandwidth of the other two.

# %%
predict(
    "12.slowest",
    "If all four links were slow: how long would the flat ring take, compared with now, where only two are?",
    choices=["as long as now", "about a third longer", "twice as long", "ten times as long"],
)

# %%
alpha_s, beta_s = blocks.between
only_slow = 2 * (4 - 1) * (alpha_s + beta_s * 8_000_000 / 4)
print(f"flat ring {run.time_s * 1e3:.2f} ms; if all links were slow: {only_slow * 1e3:.2f} ms")

# %%
longer = only_slow / run.time_s
answers = {1: "as long as now", 1.33: "about a third longer", 2: "twice as long", 10: "ten times as long"}
reveal(
    "12.slowest",
    answers[min(answers, key=lambda times: abs(times - longer))],
    "In each of its 2(n − 1) steps every rank sends a chunk, also over the slow links, and the next step needs that "
    "chunk. So the slowest link sets the time of every step.",
)

# %% [markdown]
# It also matters which rank is on which node. Many launchers can place the ranks on the nodes in turns (round robin):

# %%
predict(
    "12.turns",
    "Ranks 0 and 2 are on node a now, 1 and 3 on b. How many times as many bytes leave each node as before?",
    number="times",
    tolerance=0,
)

# %%
turns = Topology(["a", "b", "a", "b"])
dealt = simulate(4, flat, turns.nodes, link=turns)
picture(turns, dealt, "Flat ring, ranks placed in turns")

# %%
reveal(
    "12.turns",
    turns.left(dealt)["a"] / blocks.left(run)["a"],
    "Every link of the ring now connects two nodes. With L ranks per node it is L times as many bytes.",
)

# %% [markdown]
# All of these bytes go through the one network card that the ranks of a node share, so they take twice as long. (The
# model gives each pair of ranks its own link, so its times do not show this; the counted bytes do.)
#
# ## Two levels
#
# **Hierarchical allreduce**, on m nodes:
#
# 1. Inside each node, the first rank, the *leader*, adds up the arrays of the node's ranks.
# 2. The m leaders make a ring allreduce among themselves.
# 3. Inside each node, the leader gives the result to the other ranks.
#
# (Horovod's version for NCCL has no leaders: a reduce-scatter inside each node, then an allreduce between the ranks of
# equal local rank, each with its part of the array, then an allgather inside.)
#
# Only step 2 uses slow links. It takes 2(m − 1) messages one after the other instead of 2(n − 1), and sends 2(m − 1)/m
# · K bytes out of each node, for any placement of the ranks. This is the function for it:

# %%
print(inspect.getsource(ring_among))

# %% [markdown]
# Steps 1 and 3 are your exercise. The picture shows the messages of its solution:

# %%
from workbench.course.tasks import task

hierarchical = task("12.hierarchical").reference


def two_levels(comm, nodes, length=1_000_000):
    return hierarchical(comm, nodes, np.full(length, float(comm.rank)))[0].item()


run = simulate(4, two_levels, turns.nodes, link=turns)
print("sums:", run.results)
picture(turns, run, "Two levels, ranks placed in turns")

# %% [markdown]
# How much does it save? The table compares flat and two levels, ranks node by node. *Out* is the number of bytes that
# leave a node, in units of the array; *slow* counts the messages of the busiest rank over slow links.

# %%
print(
    f"{'nodes × ranks':13}{'bytes':>11}"
    + "".join(f"{name:>16}{'out':>6}{'slow':>6}" for name in ("flat, ms", "two levels, ms"))
)
for m, per_node in ((2, 2), (2, 4), (4, 4)):
    spread = Topology([f"node {rank // per_node}" for rank in range(m * per_node)])
    for length in (100, 1_000_000):
        runs = [simulate(m * per_node, each, spread.nodes, length, link=spread) for each in (flat, two_levels)]
        out = [max(spread.left(one).values()) / (8 * length) for one in runs]
        cells = [
            f"{one.time_s * 1e3:16.2f}{sent:6.2f}{spread.rounds(one):6}" for one, sent in zip(runs, out, strict=True)
        ]
        print(f"{f'{m} × {per_node}':13}{8 * length:11,}" + "".join(cells))

# %% [markdown]
# For small arrays the latency counts, and so the number of messages over slow links: two levels take less than half of
# the time on 2 × 2 ranks, and less than a quarter on 4 × 4. For large arrays the bytes count. With ranks node by node
# the flat ring sends less than twice as many bytes out of a node, so the gain is small.
#
# On several machines the workbench itself reduces in two levels, with shared memory inside each machine. Its steps
# inside a machine take longer than in this model, so it reduces the shortest arrays in one level.
#
# ## On real hosts
#
# The cells of this course run on several hosts without a change. Only the call that starts the engines differs:
#
# ```python
# cluster.up(hosts=["node1:2", "node2:2"])           # by ssh
# cluster.up(slurm=dict(nodes=2, tasks_per_node=2))  # on the nodes that Slurm gives
# cluster.up()  # where the file workbench.toml says; if there is none, on this machine
# ```

# %%
from workbench import cluster

engines = cluster.up()

# %%
# %%px
import numpy as np

import workbench as hvd

hvd.init()
print(
    f"rank {hvd.rank()} of {hvd.size()}: local rank {hvd.local_rank()} of {hvd.local_size()}, "
    f"cross rank {hvd.cross_rank()} of {hvd.cross_size()}; the sum is",
    hvd.allreduce(np.full(1_000_000, float(hvd.rank())), op=hvd.Sum)[0],
)

# %%
engines.down()

# %% [markdown]
# If all ranks are on one machine, there is one node, and the cross size is 1. This was measured on two hosts:

# %%
from workbench.course.training.measured import hosts_figures

print(hosts_figures())

# %% [markdown]
# *Floor* is the time that the bytes alone need on that link: an allreduce of K bytes on two hosts sends at least K from
# each of them, however many ranks it has. *Ours*, in two levels, is close to it: the array is cut into segments, and
# while some are on the network, the ranks of each host reduce others in shared memory. *Flat* is ours in one level: the
# ring sends 50 % more bytes, because 2(n − 1)/n · K is 1.5 K with four ranks, and the tree of its broadcast sends the
# array twice. *MPI* and *Gloo* are these libraries on the same ranks.
#
# ## What runs where: NCCL and MPI
#
# | | MPI | NCCL |
# |---|---|---|
# | made for | any processes, on any machines | NVIDIA's GPUs |
# | starts processes | yes, `mpiexec` | no; another program must tell each rank where the others are |
# | sends from | the host's memory (some builds: the GPU's, too) | the GPU's memory, directly from GPU to GPU |
# | over | shared memory, network | NVLink, PCIe, network |
# | runs on | the CPU | the GPU, as kernels in a stream |
# | knows the topology | mostly nodes | GPUs, switches, network cards; chooses rings or trees itself |
#
# Usually both work together: MPI (or Slurm, or torchrun) starts the ranks, small messages on the CPU agree on which
# gradients are ready, NCCL reduces them. The workbench does the same where cupy is installed: a tensor on a GPU is
# reduced there, on its own stream, while backward goes on. Without NCCL it is copied through the host, in pinned
# memory.
#
# ## Figures of a real GPU
#
# No GPU has been used so far. This cell shows what was measured on one, with machine and date:

# %%
from workbench.course.training.measured import gpu_figures

print(gpu_figures())

# %% [markdown] tags=["exercise"]
# ## The four numbers of a rank
#
# Compute all four numbers of every rank from the list of the ranks' nodes alone. The ranks may be placed in any order,
# and the nodes may have different numbers of ranks.

# %% tags=["exercise"]
# exercise: 12.local_ranks

# %% tags=["exercise"]
check("12.local_ranks")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 55 minutes, 15 of them for the exercises. Half of them are for the second exercise. Ask
# first: on 2 × 2 ranks, which GPU does `set_device(rank)` ask for on the second node? Common wrong answers: `rank %
# local_size` (wrong when ranks are placed in turns), and the node's number for the cross rank (wrong on uneven nodes:
# with hosts a, a, b rank 1 is the only one with local rank 1, so its cross size is 1). In the second exercise: a flat
# ring gives the right sum, and fails by the bytes that leave a node; so does `rank // local_size` for the node, where
# ranks are placed in turns. For those who are done early: every rank of a node could take part in the middle, each with
# its own part of the array. Which collectives are the first and the last step then? (Reduce-scatter and allgather.)

# %% [markdown] tags=["exercise"]
# ## An allreduce for several nodes
#
# `ring_among(comm, leaders, x)` returns the sum of the leaders' `x`; only the leaders call it. About ten lines.

# %% tags=["exercise"]
# exercise: 12.hierarchical

# %% tags=["exercise"]
check("12.hierarchical")

# %% tags=["exercise"]
show("12.hierarchical")

# %% [markdown] tags=["exercise"]
# The same function on four MPI processes. They are all on this machine: the two nodes are names in a list.

# %% tags=["exercise"]
from workbench import cluster

engines = cluster.up(n=4)
check("12.hierarchical")

# %% tags=["exercise"]
engines.down()

# %% [markdown]
# ## Keypoints
#
# - `rank` for data, `local_rank` for the node's GPUs. Pin before the first use, in one place only.
# - `CUDA_VISIBLE_DEVICES` numbers the visible GPUs from 0 again.
# - The slowest link sets the time of a flat ring; with ranks placed in turns every link is slow.
# - Two levels: 2(m − 1) messages over slow links instead of 2(n − 1), and 2(m − 1)/m · K bytes out of each of m nodes.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **NCCL** (since 2.12) may send through the network card of another GPU in the same node, and reaches that GPU over
#   NVLink (PXN) ([source](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-pxn-disable)).
# - **NVLink between nodes:** some racks join the GPUs of several nodes by NVLink. NCCL then uses NVLink, not the
#   network, inside this domain
#   ([source](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/performance_and_tuning.html)).
# - **PyTorch:** `init_process_group(device_id=…)` binds the rank to its GPU, and NCCL connects at once. So a wrong
#   set-up fails at the start
#   ([source](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)).
# - **torchrun:** `--numa-binding=node` keeps each process on the CPU cores near its GPU. `--virtual-local-rank` shows
#   each process its GPU as number 0 ([source](https://docs.pytorch.org/docs/stable/elastic/run.html)).
# - **FSDP2** takes a mesh with two dimensions (HSDP): parameters are sharded along one, usually inside a node, and
#   copied along the other ([source](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)).
