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
# **Question:** the ranks are spread over several machines with several GPUs each. Which GPU is mine, and which of the
# links between us is the slow one?
#
# **Afterwards you can**
#
# - tell rank, local rank and cross rank apart, for any placement of the ranks,
# - pin each rank to a GPU of its own, with and without `CUDA_VISIBLE_DEVICES`,
# - count what an allreduce sends between nodes, and say why one does it in two levels,
# - say what NCCL does and what MPI does.
#
# **Needs:** a laptop, no GPU: nodes, GPUs and links are simulated; two hosts are used if you have them. **Takes** 12
# minutes to read, 10 to do.
# **Before:** lesson 03.

# %% tags=["both"]
import inspect

import numpy as np

from workbench.collectives.ring import ring_allreduce
from workbench.context import place
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.simulator import simulate
from workbench.course.simulator.topology import Topology, picture, pinned, ring_among

# %% [markdown]
# ## Three numbers
#
# A *node* is a machine. Four ranks on two nodes with two GPUs each; `nodes[rank]` is the rank's node. From this list
# alone `init()` works out who is who, by the function that is called here:

# %%
nodes = ["a", "a", "b", "b"]
for rank, node in enumerate(nodes):
    me = place(nodes, rank)
    print(
        f"rank {me.rank} of {me.size} on node {node}: local rank {me.local_rank} of {me.local_size}, "
        f"cross rank {me.cross_rank} of {me.cross_size}"
    )

# %% [markdown]
# - **rank** numbers all processes. It decides about data: whose shard, who writes the checkpoint.
# - **local rank** numbers the processes of one node. It decides about what a node has: its GPUs, its disk.
# - **cross rank** numbers the nodes, as seen by the ranks with the same local rank.
#
# In a script they are `hvd.rank()`, `hvd.local_rank()` and `hvd.cross_rank()`.
#
# ## Pinning
#
# A process sees all GPUs of its node, and takes number 0 if nobody says otherwise. So each rank says, before it
# touches a GPU:
#
# ```python
# torch.cuda.set_device(hvd.local_rank())
# ```
#
# Here is what becomes of that and of two other choices on our four ranks.

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
for name, choose in choices.items():
    print(f"{name:24}", ", ".join(pinned(nodes, choose, gpus=2)))

# %%
got = pinned(nodes, choices["set_device(rank)"], gpus=2)[2]
reveal(
    "12.pinned",
    "an error: there is no such GPU" if got == "invalid device ordinal" else got,
    "Node b numbers its GPUs 0 and 1, and rank 2 asks for number 2. On one machine, where rank and local rank are the "
    "same, nobody would have noticed.",
)

# %% [markdown]
# Without pinning, two ranks share a GPU: half the speed, or out of memory, while the others idle. With `rank` all is
# well on the first node, and so on every laptop where it was tested; the second node has no GPU 2.
#
# `CUDA_VISIBLE_DEVICES` does it from the outside. A process sees only the GPUs that it lists, *numbered from 0 again*.
# Some launchers set it, Slurm with `--gpus-per-task=1` for instance. Then there is one GPU to see, number 0, and
# `local_rank` would be wrong:

# %%
one_each = {"visible": lambda me: str(me.local_rank)}
for name, choose in choices.items():
    print(f"{name:24}", ", ".join(pinned(nodes, choose, gpus=2, **one_each)))

# %% [markdown]
# So pin in one place only. `set_device(hvd.local_rank() % torch.cuda.device_count())` is right in both cases, but says
# nothing when there are more ranks than GPUs. So look at what came of it:
# `torch.cuda.get_device_properties(device).uuid` names the GPU itself, and must differ from rank to rank.
#
# ## Two kinds of links
#
# Inside a node, GPUs are joined by NVLink or PCIe; between nodes there is a network. `Topology` gives each pair of
# ranks its own α and β. The figures are round ones, chosen for this model, not measured: inside 5 µs and 50 GB/s,
# between 30 µs and 5 GB/s.
#
# A flat ring takes the ranks in their order. Thick and dashed: the links between nodes.


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
# Only two of the four links are slow: they have a tenth of the bandwidth.

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
choices = {1: "as long as now", 1.33: "about a third longer", 2: "twice as long", 10: "ten times as long"}
reveal(
    "12.slowest",
    choices[min(choices, key=lambda times: abs(times - longer))],
    "In each of its 2(n − 1) steps everybody passes a chunk on, over the slow links as well, and the next step needs "
    "what has come from there. So the ring goes at the pace of the slowest link.",
)

# %% [markdown]
# And it matters where the ranks are. Many launchers can deal them out to the nodes in turns:

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
picture(turns, dealt, "Flat ring, ranks dealt out in turns")

# %%
reveal(
    "12.turns",
    turns.left(dealt)["a"] / blocks.left(run)["a"],
    "Every link of the ring joins two nodes now. With L ranks per node it is L times as many bytes.",
)

# %% [markdown]
# All of these bytes go through the network card that the ranks of a node share. (The model gives each pair of ranks a
# link of its own, so its clock does not show that; the counted bytes do.)
#
# ## Two levels
#
# **Hierarchical allreduce**, on m nodes:
#
# 1. inside each node, add up to its first rank;
# 2. a ring of these m ranks;
# 3. inside each node, the first rank hands the result on.
#
# This is the way with *leaders*. (Horovod's for NCCL has none: a reduce-scatter inside each node, then an allreduce
# between the ranks of equal local rank, each with its part of the array, then an allgather inside.)
#
# Only the ring in the middle uses slow links, in 2(m − 1) steps instead of 2(n − 1), and it sends 2(m − 1)/m · K bytes
# out of each node, wherever the ranks are. Its ring is this function:

# %%
print(inspect.getsource(ring_among))

# %% [markdown]
# The three parts around it are your exercise. Its solution, at work:

# %%
from workbench.course.tasks import task

hierarchical = task("12.hierarchical").reference


def two_levels(comm, nodes, length=1_000_000):
    return hierarchical(comm, nodes, np.full(length, float(comm.rank)))[0].item()


run = simulate(4, two_levels, turns.nodes, link=turns)
print("sums:", run.results)
picture(turns, run, "Two levels, ranks dealt out in turns")

# %% [markdown]
# How much does it save? Flat against two levels, ranks node by node. *Out* is what leaves a node, in units of the
# array, *steps* the messages of the busiest rank over slow links.

# %%
for m, per_node in ((2, 2), (2, 4), (4, 4)):
    spread = Topology([f"node {rank // per_node}" for rank in range(m * per_node)])
    for length in (100, 1_000_000):
        runs = [simulate(m * per_node, each, spread.nodes, length, link=spread) for each in (flat, two_levels)]
        out = [max(spread.left(one).values()) / (8 * length) for one in runs]
        print(
            f"{m} × {per_node}, {8 * length:9,} bytes: "
            + "; ".join(
                f"{name} {one.time_s * 1e3:5.2f} ms, out {sent:.2f}, steps {spread.rounds(one)}"
                for name, one, sent in zip(("flat", "two levels"), runs, out, strict=True)
            )
        )

# %% [markdown]
# For small arrays it is latency that counts, and the number of slow steps: two levels take less than half of the time
# on 2 × 2 ranks, and less than a quarter on 4 × 4. For large ones the gain is modest as long as the flat ring's
# neighbours share a node. On several machines the workbench itself reduces in two levels, inside a machine in its
# shared memory; there the steps inside are not as cheap as in this model, so the shortest arrays go the flat way.
#
# ## On real hosts
#
# The cells of this course run on several hosts as they run on one. Only the call that starts the engines differs:
#
# ```python
# cluster.up(hosts=["node1:2", "node2:2"])               # by ssh
# cluster.up(slurm=dict(nodes=2, tasks_per_node=2))      # where Slurm gives the hosts
# cluster.up()                                           # where the site file workbench.toml says; else on this machine
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
# Was it one machine? Then there is one node, and the cross size is 1. This is what was measured on two hosts:

# %%
from workbench.course.training.measured import hosts_figures

print(hosts_figures())

# %% [markdown]
# *Floor* is what the bytes alone need on that link: an allreduce of K bytes on two hosts sends K from each of them,
# however many ranks it has. *Ours* comes near it, because the link never waits: the array is cut into segments, and
# while some are on the network, the ranks of each host reduce others in shared memory. A flat ring sends half as much
# again on this link, for 2(n − 1)/n · K is 1.5 K with four ranks.
#
# ## What runs where: NCCL and MPI
#
# | | MPI | NCCL |
# |---|---|---|
# | made for | any processes, on any machines | NVIDIA's GPUs |
# | starts processes | yes, `mpiexec` | no, needs somebody who tells the ranks about each other |
# | moves | the host's memory (some builds: the GPU's, too) | the GPU's memory, straight from GPU to GPU |
# | over | shared memory, network | NVLink, PCIe, network |
# | runs on | the CPU | the GPU, as kernels in a stream |
# | knows the topology | mostly nodes | GPUs, switches, network cards; chooses rings or trees itself |
#
# The usual division of labour: MPI (or Slurm, or torchrun) starts the ranks, small messages on the CPU agree on what is
# ready, NCCL moves the gradients. So it is with the workbench where cupy is installed: a tensor on a GPU is reduced
# there, on a stream of its own, while backward goes on; without NCCL it goes by way of the host, through pinned memory.
#
# ## Figures of a real GPU
#
# All times above come from the model. What was measured, if anything has been, with the machine and the date:

# %%
from workbench.course.training.measured import gpu_figures

print(gpu_figures())

# %% [markdown]
# How to read it: *over plain torch* is what a step costs more with the workbench; the *whole way* on one rank is hooks,
# buckets, engine and NCCL without anybody to talk to, beside DDP, which does the same. *Pack* and *unpack* bring many
# gradients into one buffer and back, by one launch each; no more can be had of the GPU's memory than a plain copy gets.

# %% [markdown] tags=["exercise"]
# ## Who am I?
#
# From the list of the ranks' hosts alone, all four numbers of every rank. The ranks may be dealt out in any way, and
# the nodes need not have equally many.

# %% tags=["exercise"]
# exercise: 12.local_ranks

# %% tags=["exercise"]
check("12.local_ranks")

# %% [markdown] tags=["instructor"]
# **Instructor.** 20 minutes, half of them for the second exercise. Ask first: on 2 × 2 ranks, which GPU does
# `set_device(rank)` ask for on the second node? Common wrong answers: `rank % local_size` (wrong when ranks are dealt
# out in turns), and the node's number for the cross rank (wrong on uneven nodes: with hosts a, a, b rank 1 is the only
# one with local rank 1, so its cross size is 1). In the second exercise: a flat ring gives the right sum, and fails by
# the bytes that leave a node; so does `rank // local_size` for the node, where ranks are dealt out in turns. For those
# who are done early: every rank of a node could take part in the middle, each with its own part of the array. Which
# collectives are the first and the last step then? (Reduce-scatter and allgather.)

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
# The same function on four MPI processes. They are all on this machine; the two nodes are only said to be two.

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
# - `CUDA_VISIBLE_DEVICES` numbers what it shows from 0 again.
# - A flat ring goes at the pace of its slowest link; ranks dealt out in turns make every link slow.
# - Two levels: 2(m − 1) slow steps instead of 2(n − 1), and 2(m − 1)/m · K bytes out of each of m nodes.
