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
# # Collectives by hand
#
# **Question:** two verbs, *send* and *receive*, are all that a network offers. How are broadcast, reduce and allgather
# built from them, what do they cost, and why does a program that has always worked suddenly hang?
#
# **Afterwards you can**
#
# - write broadcast, reduce and allgather from send and receive,
# - count their messages, rounds and bytes, and say which algorithm is better,
# - read which rank waits for which when a program hangs, and explain when that happens.
#
# **Needs:** a laptop, no GPU. **Alone:** 25 minutes to read, 15 to do. **Led:** 45 minutes. **Before:** lesson 01.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 01: A collective is called by three of four ranks. When do the three go on?</summary>
#
# Never by themselves: a collective ends when every rank has called it. The workbench raises an error on the three,
# which names the missing rank and the line where the others wait.
#
# </details>
#
# <details>
# <summary>Lesson 00: Why are the weights broadcast before the first step?</summary>
#
# Each rank has drawn random weights of its own. Averaged gradients change all of them by the same amount, so ranks
# that begin with different weights stay different.
#
# </details>

# %% tags=["both"]
import numpy as np

from workbench.course import drawing
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.simulator import DeadlockError, simulate

# %% [markdown]
# ## Two verbs
#
# `comm.send(x, dest=1)` gives an object to rank 1; `comm.recv(source=0)` waits for one from rank 0. All ranks run the
# same function; `comm.rank` is this rank's number, and `comm.size` how many there are.
#
# Here the ranks are simulated: they are threads of this process that run one at a time, and time is measured by a
# virtual clock. A message of m bytes takes α + β·m seconds, with α = 20 µs and β = 1 ns per byte. A rank sends one
# message at a time and receives one at a time; it can send and receive at once. Messages of different ranks do not slow
# each other down, and adding up takes no time. So every run is the same, and can be counted and drawn.


# %%
def hello(comm):
    if comm.rank == 0:
        comm.send(np.arange(3) * 1.5, dest=1)
        return None
    return comm.recv(source=0)


run = simulate(2, hello)
print("results:", run.results)
for message in run.messages:
    print(f"rank {message.source} → rank {message.dest}: {message.nbytes} bytes,", end=" ")
    print(f"{message.end * 1e6:.3f} µs = 20 µs + {message.nbytes} x 1 ns")

# %% [markdown]
# ## Broadcast
#
# One rank, the *root*, has data that all ranks need, for example the initial weights. The obvious algorithm is a star:
# the root sends to every other rank. Time goes to the right; an arrow is a message.


# %%
def star_broadcast(comm, value, root=0):
    if comm.rank != root:
        return comm.recv(source=root)
    for rank in range(comm.size):
        if rank != root:
            comm.send(value, dest=rank)
    return value


def broadcast(comm, algorithm):
    value = np.full(100_000, 7.0) if comm.rank == 0 else None
    return algorithm(comm, value)[0].item()


run = simulate(8, broadcast, star_broadcast)
print("results:", run.results)
drawing.space_time(run, "Star")

# %%
from workbench.course.predictions import predict, reveal

predict(
    "02.rounds",
    "32 ranks: the star takes 31 messages, one after the other. If each rank that has the value passes it on, how many "
    "rounds does it take until all have it? (A round is the time of one message.)",
    number="rounds",
    tolerance=0,
)

# %% [markdown]
# These are n − 1 messages. Fewer are not possible, because n − 1 ranks must receive the value. But they are sent one
# after the other, and meanwhile the ranks that already have the value do nothing. They could pass it on: then 2 ranks
# have it after one round, 4 after two, 8 after three. That is a *tree*, and the communicator's own `bcast` is one:


# %%
def tree_broadcast(comm, value):
    return comm.bcast(value, root=0)


run = simulate(8, broadcast, tree_broadcast)
print("results:", run.results)
drawing.space_time(run, "Tree")

# %% [markdown]
# The tree has the same number of messages in ⌈log2 n⌉ rounds instead of n − 1. A *round* is the time of one message. (A
# large array can be cut into pieces, and each piece passed on while the next one arrives: that is *pipelining*, and
# takes little more than one round in total.)

# %%
print("          messages      rounds")
print("        star  tree    star  tree")
for n in (2, 4, 8, 16, 32):
    runs = [simulate(n, broadcast, one) for one in (star_broadcast, tree_broadcast)]
    one_message = runs[0].messages[0].end
    messages = [len(run.messages) for run in runs]
    rounds = [round(run.time_s / one_message) for run in runs]
    print(f"n = {n:2}    {messages[0]:2}    {messages[1]:2}      {rounds[0]:2}    {rounds[1]:2}")
    assert messages == [n - 1, n - 1]
    assert rounds == [n - 1, (n - 1).bit_length()]

# %%
reveal(
    "02.rounds",
    rounds[1],
    "The number of ranks that have the value doubles in each round: 1, 2, 4, 8, 16, 32. Twice as many ranks cost one "
    "round more.",
)

# %% [markdown] tags=["exercise"]
# ## Broadcast along a tree
#
# Write the tree yourself, for any root and any n. `check` judges your function, `hint` gives a hint, `solution` shows
# the solution; all of them work without engines. `show` draws what your function does: a digit is the number of the
# rank whose value a rank has after each step. The first wrong step is red, with its line of code.
# `show("02.tree_broadcast", times=True)` draws messages over time.

# %% tags=["exercise"]
# exercise: 02.tree_broadcast

# %% tags=["exercise"]
check("02.tree_broadcast")

# %% tags=["exercise"]
show("02.tree_broadcast")

# %% [markdown]
# ## Reduce
#
# Each rank has a number, or an array, and the root needs the sum. That is a broadcast in reverse: all arrows point the
# other way, and a rank adds what it receives before it sends. In the round with step 1, ranks 1, 3, 5 and 7 send to 0,
# 2, 4 and 6, and are done. With step 2, ranks 2 and 6 send to 0 and 4; with step 4, rank 4 sends to 0.


# %%
def tree_reduce(comm, x):
    total, step = x, 1
    while step < comm.size:
        if comm.rank % (2 * step) == step:
            comm.send(total, dest=comm.rank - step)
            return None
        if comm.rank + step < comm.size:
            total = total + comm.recv(source=comm.rank + step)
        step *= 2
    return total


def reduce(comm):
    total = tree_reduce(comm, np.full(100_000, float(comm.rank)))
    return None if total is None else total[0].item()


run = simulate(8, reduce)
print("results:", run.results)
drawing.space_time(run, "Reduce along a tree")

# %% [markdown]
# Reduce and then broadcast: that is an **allreduce**, 2(n − 1) messages in 2·⌈log2 n⌉ rounds. Lesson 03 is about a
# better one for large arrays.
#
# ## Allgather
#
# Each rank has a piece, and every rank needs all pieces. There are three algorithms:
#
# - *everybody to everybody*: each rank sends its piece to each other rank;
# - *gather and broadcast*: all pieces go to rank 0, and the whole list goes back along a tree;
# - *ring*: the ranks form a ring, with rank + 1 to the right of each, and rank 0 to the right of the last. n − 1 times,
#   each rank sends to the right the piece that it last received from the left. `comm.sendrecv` sends and receives at
#   once.


# %%
predict(
    "02.allgather",
    "Eight ranks, a piece of 80 kB each. Which of the three algorithms takes the longest time?",
    choices=["everybody to everybody", "gather and broadcast", "ring"],
)


# %%
def everybody_to_everybody(comm, piece):
    pieces = [piece] * comm.size
    for step in range(1, comm.size):
        right, left = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        pieces[left] = comm.sendrecv(piece, dest=right, source=left)
    return pieces


def gather_and_broadcast(comm, piece):
    pieces = [piece] if comm.rank == 0 else None
    if comm.rank > 0:
        comm.send(piece, dest=0)
    else:
        pieces += [comm.recv(source=rank) for rank in range(1, comm.size)]
    return comm.bcast(pieces, root=0)


def ring(comm, piece):
    pieces = [piece] * comm.size
    for step in range(comm.size - 1):
        mine, new = (comm.rank - step) % comm.size, (comm.rank - step - 1) % comm.size
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        pieces[new] = comm.sendrecv(pieces[mine], dest=right, source=left)
    return pieces


def allgather(comm, algorithm):
    pieces = algorithm(comm, np.full(10_000, float(comm.rank)))
    return [piece[0].item() for piece in pieces]


ways = (everybody_to_everybody, gather_and_broadcast, ring)
runs = {way.__name__.replace("_", " "): simulate(8, allgather, way) for way in ways}
sent = {name: max(nbytes for _, nbytes in run.sent()) / 1000 for name, run in runs.items()}
print("                        messages   sent by the busiest rank      time")
for name, run in runs.items():
    assert all(result == [float(rank) for rank in range(8)] for result in run.results)
    print(f"{name:22}        {len(run.messages):2}   {sent[name]:21,.0f} kB   {run.time_s * 1e3:.2f} ms")

# %%
reveal(
    "02.allgather",
    max(runs, key=lambda name: runs[name].time_s),
    "It has the fewest messages, 14 against 56. But rank 0 sends the whole list of eight pieces three times, one "
    "after the other, and most ranks wait during that time.",
)

# %%
drawing.space_time(runs["ring"], "Allgather round a ring")

# %% [markdown]
# The first and the last algorithm send the same bytes: n − 1 pieces from every rank. Fewer bytes in total are not
# possible, because every rank must receive n − 1 pieces. In the ring a rank needs connections to two neighbours only.
# The algorithm with the fewest messages is the slowest here: with large pieces, the bytes on the busiest link count. In
# the picture the dashed line is the least possible, 7 pieces of 80 kB.

# %%
drawing.bars(sent, "kB", "Allgather on 8 ranks, sent by the busiest", best=7 * 80)

# %% [markdown]
# ## A ring that hangs
#
# Why `sendrecv`, and not a send and then a receive? Try it: each rank sends an array to its right neighbour, and
# receives the array of its left neighbour.


# %%
predict(
    "02.hang",
    "Each of four ranks first sends to the right, then receives from the left. When does that hang?",
    choices=["always", "never", "with small messages only", "with large messages only"],
)


# %%
def send_then_receive(comm, length):
    x = np.full(length, float(comm.rank))
    comm.send(x, dest=(comm.rank + 1) % comm.size)
    return comm.recv(source=(comm.rank - 1) % comm.size)[0].item()


print("1,000 numbers:", simulate(4, send_then_receive, 1_000).results)

# %% [markdown]
# It works. The same code, with larger arrays:

# %%
try:
    simulate(4, send_then_receive, 100_000)
except DeadlockError as error:
    print(error)
    picture = drawing.wait_for(error)
picture

# %% [markdown]
# Each rank is still in its *send*, which waits for its receiver. But the receiver has not reached its own `recv`: it is
# in its send, too. **They wait in a circle**: no rank can go on before another rank does. That is a *deadlock*.
#
# With small messages the mistake is not visible. A message up to the *eager limit* is sent at once, and is stored at
# the receiver until the receiver asks for it. A larger message would need too much memory there, so its sender waits
# until the receiver is ready (*rendezvous*). The limit is 8,192 bytes in this simulator. MPI libraries have such a
# limit too. It differs between libraries and networks, and the MPI standard does not promise one. So a program of this
# kind may pass every test with a small model and hang with the real one.


# %%
def passes(length):
    try:
        simulate(4, send_then_receive, length)
    except DeadlockError:
        return "hangs"
    return "passes"


for length in (1, 1_000, 1_024, 1_025, 100_000):
    print(f"{8 * length:7,} bytes: {passes(length)}")

# %%
small, large = passes(1), passes(100_000)
reveal(
    "02.hang",
    "with large messages only" if (small, large) == ("passes", "hangs") else "never" if large == "passes" else "always",
    "A small message is sent whether or not its receiver is ready. A large message waits for its receiver, and here "
    "every receiver is still in its own send.",
)

# %% [markdown]
# A test finds this mistake early if no message may be sent before its receiver is ready: `eager_bytes=0`. In MPI that
# is `Ssend`, the send that always waits for its receiver.

# %%
try:
    simulate(4, send_then_receive, 1, eager_bytes=0)
except DeadlockError as error:
    print(str(error).splitlines()[-3].strip())

# %% [markdown]
# A hang need not be a circle. Here rank 1 sends two messages and returns, and rank 0 waits for a third one:


# %%
def one_too_many(comm):
    if comm.rank == 0:
        return [comm.recv(source=1) for _ in range(3)]
    if comm.rank == 1:
        for _ in range(2):
            comm.send(1.0, dest=0)
    return None


try:
    simulate(3, one_too_many)
except DeadlockError as error:
    print(error)
    picture = drawing.wait_for(error)
picture

# %% [markdown] tags=["exercise"]
# ## Mend the ring
#
# Each rank sends `x` to its right neighbour and returns what its left neighbour sent. It must work with arrays of any
# size. This version is wrong:
#
#     comm.send(x, dest=(comm.rank + 1) % comm.size)
#     return comm.recv(source=(comm.rank - 1) % comm.size)
#
# There is more than one solution. The number of rounds must not grow with n: on four ranks, two at most.

# %% tags=["exercise"]
# exercise: 02.shift_right

# %% tags=["exercise"]
check("02.shift_right")

# %% tags=["exercise"]
show("02.shift_right")

# %% [markdown] tags=["exercise"]
# ## On real ranks
#
# The same two functions, unchanged, on four MPI processes:

# %% tags=["exercise"]
from workbench import cluster

engines = cluster.up(n=4)
check("02.tree_broadcast")

# %% tags=["exercise"]
check("02.shift_right")

# %% tags=["exercise"]
engines.down()

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 45 minutes, 15 of them for the exercises. Play the broadcast with eight people and a coin
# first, once as a star, once as a tree; count the rounds aloud. Common wrong answers: rank 0 taken for the root (use
# *places*, counted from the root); sends to `(rank + step) % n` without asking whether there is such a place, which
# only shows where n is no power of two; the root's value not returned on the root. For the ring, most find `sendrecv`;
# ask for a solution without it (even ranks send first, odd ones receive first) and what that costs: two rounds, three
# where n is odd, since ranks n - 1 and 0 then both send first. *One* rank that receives first also ends the circle, but
# the messages then go one after the other: n rounds. `receive, then send` on all ranks hangs with any size.
#
# Where to stop if time is short: before *Allgather*, then *A ring that hangs*, which all learners should see.

# %% [markdown]
# ## Keypoints
#
# - A broadcast, or a reduction, needs n − 1 messages; a tree needs ⌈log2 n⌉ rounds for them, a star n − 1.
# - Every collective is made of send and receive. Count messages, rounds, and the bytes on the busiest link.
# - Ranks that wait in a circle wait for ever. With small messages this may not be visible, because they are sent at
#   once.
# - `sendrecv` does both at once; `eager_bytes=0`, or MPI's `Ssend`, finds the mistake with small messages too.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **NCCL** has `ncclSend` and `ncclRecv` (since 2.7). Between `ncclGroupStart` and `ncclGroupEnd` neither waits for
#   the other, so the ring does not hang
#   ([source](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html)).
# - **PyTorch's `batch_isend_irecv`** takes a list of sends and receives. Which of them is first in the list does not
#   matter ([source](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.batch_isend_irecv)).
# - **NCCL 2.23** (2024) added PAT for allgather and reduce-scatter: for small arrays the number of steps grows with
#   log n, in a ring with n ([source](https://arxiv.org/abs/2506.20252)).
# - **NCCL 2.29** has one-sided messages: a rank writes into registered memory of another rank, which calls no receive,
#   but waits for a signal
#   ([source](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html#one-sided-communication)).
# - **MPI 4.0** (2021) has persistent collectives: `Bcast_init` prepares a broadcast once, `Start` runs it each time.
#   mpi4py has them, too ([source](https://www.mpi-forum.org/docs/mpi-4.0/mpi40-report.pdf)).
