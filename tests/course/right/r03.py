"""Right answers of lesson 03 that are unlike the official ones."""

from __future__ import annotations

from itertools import accumulate

import numpy as np


def on_copies(comm, chunks):  # The last chunk received is the one that goes on; nothing of the input is written.
    n, rank = comm.size, comm.rank
    passed = chunks[rank]
    for step in range(n - 1):
        passed = chunks[(rank - step - 1) % n] + comm.sendrecv(passed, dest=(rank + 1) % n, source=(rank - 1) % n)
    return passed
def straight_to_the_owner(comm, chunks):  # Each chunk goes at once to the rank that sums it.
    n, mine = comm.size, (comm.rank + 1) % comm.size
    total = chunks[mine].copy()
    for step in range(1, n):
        other = (comm.rank + step) % n
        total += comm.sendrecv(chunks[(other + 1) % n], dest=other, source=(comm.rank - step) % n)
    return total
def to_the_left(comm, x):  # The ring the other way round.
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = np.array_split(x.copy(), n)
    for step in range(n - 1):
        mine = (rank + step + 1) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(chunks[(rank + step) % n], dest=left, source=right)
    for step in range(n - 1):
        chunks[(rank + step) % n] = comm.sendrecv(chunks[(rank + step - 1) % n], dest=left, source=right)
    return np.concatenate(chunks)
def pairwise(comm, x):  # No ring: each pair of ranks exchanges parts directly, as many messages and bytes.
    n, rank = comm.size, comm.rank
    parts = np.array_split(x, n)
    total = parts[rank].copy()
    for step in range(1, n):
        total += comm.sendrecv(parts[(rank + step) % n], dest=(rank + step) % n, source=(rank - step) % n)
    sums = list(parts)
    sums[rank] = total
    for step in range(1, n):
        sums[(rank - step) % n] = comm.sendrecv(total, dest=(rank + step) % n, source=(rank - step) % n)
    return np.concatenate(sums)
def one_array_of_chunks(comm, chunks):  # Upper-case verbs, with buffers of their own for what leaves and what comes.
    n, me = comm.size, comm.rank
    sums = [np.array(chunk) for chunk in chunks]
    for leaves in range(me, me - (n - 1), -1):
        arrives = leaves - 1
        got = np.empty_like(sums[arrives % n])
        request = comm.Isend(sums[leaves % n], dest=(me + 1) % n)
        comm.Recv(got, source=(me - 1) % n)
        request.wait()
        sums[arrives % n] = np.add(sums[arrives % n], got)
    return sums[me + 1 - n]
def recursively(comm, chunks):  # What a rank has after k steps comes from what its neighbour had after k - 1.
    n = comm.size
    def after(steps):
        own = chunks[(comm.rank - steps) % n]
        if steps == 0:
            return own
        before = after(steps - 1)
        sending = comm.isend(before, dest=(comm.rank + 1) % n)
        partial = comm.recv(source=(comm.rank - 1) % n)
        sending.wait()
        return own + partial
    return after(n - 1)
def both_rounds_in_one_loop(comm, x):  # The first n - 1 steps add, the others replace.
    n, rank = comm.size, comm.rank
    parts = dict(enumerate(np.array_split(x, n)))
    for step in range(2 * n - 2):
        leaving = comm.isend(parts[(rank - step) % n], dest=(rank + 1) % n)
        comes = comm.irecv(source=(rank - 1) % n).wait()
        leaving.wait()
        place = (rank - step - 1) % n
        parts[place] = parts[place] + comes if step < n - 1 else comes
    return np.hstack([parts[place] for place in range(n)])
def into_one_array(comm, x):  # Chunks are slices of the result, found by their bounds; messages go into buffers.
    n, rank = comm.size, comm.rank
    bounds = [0, *accumulate(len(x) // n + (place < len(x) % n) for place in range(n))]
    total = x.copy()
    def piece(place):
        return total[bounds[place % n] : bounds[place % n + 1]]
    for first, adds in ((rank, True), (rank + 1, False)):
        for step in range(n - 1):
            target = piece(first - step - 1)
            got = np.zeros_like(target)
            comm.Sendrecv(piece(first - step), dest=(rank + 1) % n, recvbuf=got, source=(rank - 1) % n)
            target[:] = target + got if adds else got
    return total
RIGHT = {
    "03.reduce_scatter": [on_copies, straight_to_the_owner, one_array_of_chunks, recursively],
    "03.ring_allreduce": [to_the_left, pairwise, both_rounds_in_one_loop, into_one_array],
}
