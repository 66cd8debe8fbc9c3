"""Right answers of lesson 02 that are unlike the official ones."""

from __future__ import annotations

import numpy as np


def halves(comm, value, root):
    """Each holder gives to the middle of those that it is responsible for, and keeps the nearer half."""
    place, first, last = (comm.rank - root) % comm.size, 0, comm.size
    while last - first > 1:
        middle = (first + last + 1) // 2
        holder, taker = (first + root) % comm.size, (middle + root) % comm.size
        if place == first:
            comm.send(value, dest=taker)
        elif place == middle:
            value = comm.recv(source=holder)
        first, last = (first, middle) if place < middle else (middle, last)
    return value
def parent_and_children(comm, value, root):
    """The lowest bit of a place says from whom it gets the value, and to whom it passes it on."""
    place, n = (comm.rank - root) % comm.size, comm.size
    bit = 1
    while bit < n and not place & bit:
        bit *= 2
    if place:
        value = comm.recv(source=(place - bit + root) % n)
    while bit > 1:
        bit //= 2
        if place + bit < n:
            comm.send(value, dest=(place + bit + root) % n)
    return value
def even_ranks_send_first(comm, x):  # Blocking verbs alone.
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:
        return x
    if comm.rank % 2 == 0:
        comm.send(x, dest=right)
        return comm.recv(source=left)
    got = comm.recv(source=left)
    comm.send(x, dest=right)
    return got
def begins_and_waits(comm, x):  # The message leaves while this rank receives.
    sent = comm.isend(x, dest=(comm.rank + 1) % comm.size)
    got = comm.recv(source=(comm.rank - 1) % comm.size)
    sent.wait()
    return got
def _plan(n):  # (sender, receiver) of each round: all that have the value send it to as many that have not.
    have, wait = [0], list(range(1, n))
    while wait:
        pairs = list(zip(have, wait, strict=False))
        have, wait = have + wait[: len(pairs)], wait[len(pairs) :]
        yield pairs
def by_a_plan(comm, value, root):  # All ranks make the same list of who sends to whom, and each does its own part.
    n = comm.size
    for pairs in _plan(n):
        for sender, receiver in pairs:
            if comm.rank == (root + sender) % n:
                comm.send(value, dest=(root + receiver) % n)
            elif comm.rank == (root + receiver) % n:
                value = comm.recv(source=(root + sender) % n)
    return value
def with_the_first_swapped(comm, value, root):  # Root and rank 0 change places; a recursion over who has it already.
    n = comm.size
    place = {root: 0, 0: root}.get(comm.rank, comm.rank)
    def rank_of(one):
        return {0: root, root: 0}.get(one, one)
    def from_these(have, mine):
        if have >= n:
            return mine
        if place < have and place + have < n:
            comm.isend(mine, dest=rank_of(place + have)).wait()
        if have <= place < 2 * have:
            mine = comm.irecv(source=rank_of(place - have)).wait()
        return from_these(2 * have, mine)
    return from_these(1, value)
def in_a_buffer(comm, x):  # The receive is posted first, into an array of its own.
    got = np.empty_like(x)
    requests = [comm.Irecv(got, source=comm.rank - 1 if comm.rank else comm.size - 1)]
    requests.append(comm.Isend(x, dest=(comm.rank + 1) % comm.size))
    for request in requests:
        request.wait()
    return got
def odd_ranks_receive_first(comm, x):  # The order of the two by a list of calls; a lone rank keeps what it has.
    n, rank = comm.size, comm.rank
    found = []
    def sends():
        comm.Send(x, dest=(rank + 1) % n)
    def receives():
        found.append(np.zeros_like(x))
        comm.Recv(found[0], source=(rank + n - 1) % n)
    if n > 1:
        for call in [sends, receives][:: -1 if rank % 2 else 1]:
            call()
    return found[0] if found else x
RIGHT = {
    "02.tree_broadcast": [halves, parent_and_children, by_a_plan, with_the_first_swapped],
    "02.shift_right": [even_ranks_send_first, begins_and_waits, in_a_buffer, odd_ranks_receive_first],
}
