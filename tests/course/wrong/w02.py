"""Wrong solutions of lesson 02, each with what the check must say."""

from __future__ import annotations

from wrong_answers import Answers

wrong = Answers()


@wrong("02.tree_broadcast", "✗ right: the tree begins at rank 0, and not at root")
def takes_rank_0_for_the_root(comm, value, root):
    step = 1
    while step < comm.size:
        if comm.rank < step and comm.rank + step < comm.size:
            comm.send(value, dest=comm.rank + step)
        elif step <= comm.rank < 2 * step:
            value = comm.recv(source=comm.rank - step)
        step *= 2
    return value
@wrong("02.tree_broadcast", "✗ score: 7 rounds; the limit is 3")
def root_sends_to_everybody(comm, value, root):
    if comm.rank != root:
        return comm.recv(source=root)
    for rank in range(comm.size):
        if rank != root:
            comm.send(value, dest=rank)
    return value
@wrong("02.tree_broadcast", "that nobody received")
def only_powers_of_two(comm, value, root):
    place, step = (comm.rank - root) % comm.size, 1
    while step < comm.size:
        if place < step:
            comm.send(value, dest=(comm.rank + step) % comm.size)
        elif place < 2 * step:
            value = comm.recv(source=(comm.rank - step) % comm.size)
        step *= 2
    return value
@wrong("02.tree_broadcast", "✗ right: n = 2: rank 0 returns the value of rank 0, expected that of rank 1")
def one_round_short(comm, value, root):
    place, step = (comm.rank - root) % comm.size, 1
    while step < comm.size // 2:
        if place < step:
            comm.send(value, dest=(comm.rank + step) % comm.size)
        elif place < 2 * step:
            value = comm.recv(source=(comm.rank - step) % comm.size)
        step *= 2
    return value
@wrong("02.tree_broadcast", "✗ right: the root returns nothing: it receives no value, because it has it from")
def forgets_the_root_s_return(comm, value, root):
    if comm.rank == root:
        for rank in range(comm.size):
            if rank != root:
                comm.send(value, dest=rank)
        return None
    return comm.recv(source=root)
@wrong("02.tree_broadcast", "✗ no deadlock: n = 3")
def receives_before_it_may(comm, value, root):
    place, step = (comm.rank - root) % comm.size, 1
    while step < comm.size:
        if place >= step:
            value = comm.recv(source=(comm.rank - step) % comm.size)
        elif place + step < comm.size:
            comm.send(value, dest=(comm.rank + step) % comm.size)
        step *= 2
    return value
@wrong("02.tree_broadcast", "✗ score: 7 messages of ready-made collectives")
def ready_made(comm, value, root):
    return comm.bcast(value, root)
@wrong("02.tree_broadcast", "n = 2: rank 0 returns 2 times the value of rank 1, expected it as it is")
def doubles_the_value(comm, value, root):
    place, step = (comm.rank - root) % comm.size, 1
    while step < comm.size:
        if place < step and place + step < comm.size:
            comm.send(2 * value, dest=(comm.rank + step) % comm.size)
        elif step <= place < 2 * step:
            value = comm.recv(source=(comm.rank - step) % comm.size)
        step *= 2
    return value
@wrong("02.tree_broadcast", "✗ no deadlock: a place is used as a rank: place p belongs to rank (p + root) % comm.size")
def sends_to_places(comm, value, root):
    place, step = (comm.rank - root) % comm.size, 1
    while step < comm.size:
        if place < step and place + step < comm.size:
            comm.send(value, dest=place + step)
        elif step <= place < 2 * step:
            value = comm.recv(source=place - step)
        step *= 2
    return value
@wrong("02.shift_right", "✗ no deadlock: n = 1, length 100,000")
def forgets_a_rank_alone(comm, x):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank % 2 == 0:
        comm.send(x, dest=right)
        return comm.recv(source=left)
    got = comm.recv(source=left)
    comm.send(x, dest=right)
    return got
@wrong("02.shift_right", "They wait in a circle: 0 → 1 → 0")
def sends_first(comm, x):
    comm.send(x, dest=(comm.rank + 1) % comm.size)
    return comm.recv(source=(comm.rank - 1) % comm.size)
@wrong("02.shift_right", "✗ no deadlock: all ranks receive first, so nobody sends")
def receives_first(comm, x):
    received = comm.recv(source=(comm.rank - 1) % comm.size)
    comm.send(x, dest=(comm.rank + 1) % comm.size)
    return received
@wrong(
    "02.shift_right", "✗ right: x was sent to the left neighbour, and the right one's was received: the other way round"
)
def the_other_way_round(comm, x):
    return comm.sendrecv(x, dest=(comm.rank - 1) % comm.size, source=(comm.rank + 1) % comm.size)
@wrong("02.shift_right", "In a ring: % comm.size")
def not_round_the_corner(comm, x):
    return comm.sendrecv(x, dest=comm.rank + 1, source=comm.rank - 1)
@wrong("02.shift_right", "✗ score: 4 rounds; the limit is 2")
def one_rank_receives_first(comm, x):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:
        return x
    if comm.rank == 0:
        received = comm.recv(source=left)
        comm.send(x, dest=right)
        return received
    comm.send(x, dest=right)
    return comm.recv(source=left)
@wrong("02.shift_right", "✗ right: n = 2, length 1: rank 0: your result is None")
def forgets_to_return(comm, x):
    comm.sendrecv(x, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
@wrong("02.shift_right", "never waited for its Isend()")
def never_waits(comm, x):
    right, left, got = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, x.copy()
    comm.Isend(x, dest=right)
    comm.Recv(got, source=left)
    return got
@wrong("02.shift_right", "must not lie in the same memory")
def one_memory_for_both(comm, x):
    comm.Sendrecv(x, dest=(comm.rank + 1) % comm.size, recvbuf=x, source=(comm.rank - 1) % comm.size)
    return x
@wrong("02.tree_broadcast", "✗ score: 8 messages; the limit is 7, the best possible 7. Every rank but the root")
def rank_0_gets_it_first(comm, value, root):
    if root != 0:
        if comm.rank == root:
            comm.send(value, dest=0)
        elif comm.rank == 0:
            value = comm.recv(source=root)
    return takes_rank_0_for_the_root(comm, value, root)
@wrong("02.tree_broadcast", "✗ no deadlock: places are counted in the wrong direction")
def places_the_other_way(comm, value, root):
    place, step = (comm.rank + root) % comm.size, 1
    while step < comm.size:
        if place < step and place + step < comm.size:
            comm.send(value, dest=(place + step + root) % comm.size)
        elif step <= place < 2 * step:
            value = comm.recv(source=(place - step + root) % comm.size)
        step *= 2
    return value
