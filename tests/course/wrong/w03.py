"""Wrong solutions of lesson 03, each with what the check must say."""

from __future__ import annotations

import numpy as np
from wrong_answers import Answers

wrong = Answers()


@wrong("03.reduce_scatter", "✗ right: the chunk that comes replaces this rank's own: add it")
def forgets_to_add(comm, chunks):
    n, rank = comm.size, comm.rank
    chunks = list(chunks)
    for step in range(n - 1):
        chunks[(rank - step - 1) % n] = comm.sendrecv(
            chunks[(rank - step) % n], dest=(rank + 1) % n, source=(rank - 1) % n
        )
    return chunks[(rank + 1) % n]
@wrong("03.reduce_scatter", "n = 2, length 1: rank 1 changes its own chunks, which belongs to the caller")
def adds_into_what_it_was_given(comm, chunks):
    n, rank = comm.size, comm.rank
    for step in range(n - 1):
        chunks[(rank - step - 1) % n] += comm.sendrecv(
            chunks[(rank - step) % n], dest=(rank + 1) % n, source=(rank - 1) % n
        )
    return chunks[(rank + 1) % n]
@wrong("03.reduce_scatter", "✗ right: one step is missing: a chunk must visit all n - 1 other ranks")
def one_step_short(comm, chunks):
    n, rank = comm.size, comm.rank
    chunks = [chunk.copy() for chunk in chunks]
    for step in range(n - 2):
        chunks[(rank - step - 1) % n] += comm.sendrecv(
            chunks[(rank - step) % n], dest=(rank + 1) % n, source=(rank - 1) % n
        )
    return chunks[(rank + 1) % n]
@wrong("03.reduce_scatter", "first wrong in step 1, on rank 0: chunk 2 comes into the place of chunk 1")
def adds_to_the_next_chunk(comm, chunks):
    n, rank = comm.size, comm.rank
    chunks = [chunk.copy() for chunk in chunks]
    for step in range(n - 1):
        chunks[(rank - step + 1) % n] += comm.sendrecv(
            chunks[(rank - step) % n], dest=(rank + 1) % n, source=(rank - 1) % n
        )
    return chunks[(rank + 1) % n]
@wrong("03.reduce_scatter", "bytes per rank; the limit")
def gathers_everything(comm, chunks):
    everything = comm.allgather(chunks)
    return sum(each[(comm.rank + 1) % comm.size] for each in everything)
@wrong("03.ring_allreduce", "n = 2, length 1: rank 0 changes its own x, which belongs to the caller")
def works_in_place(comm, x):
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = np.array_split(x, n)  # views of x
    for step in range(n - 1):
        chunks[(rank - step - 1) % n] += comm.sendrecv(chunks[(rank - step) % n], dest=right, source=left)
    for step in range(n - 1):
        chunks[(rank - step) % n][:] = comm.sendrecv(chunks[(rank - step + 1) % n], dest=right, source=left)
    return x
@wrong(
    "03.ring_allreduce",
    "✗ right: n = 2: rank 0, chunk 0: your result = chunk 1 of rank 1; ranks 0 and 1 missing\n"
    "      first wrong in step 2, on rank 0: chunk 1 comes into the place of chunk 0\n"
    "          in line 15 of your function: chunks[(rank - step) % n] = comm.sendrecv(",
)
def sends_the_chunk_of_the_first_half_again(comm, x):
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = np.array_split(x.copy(), n)
    for step in range(n - 1):
        mine = (rank - step - 1) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(chunks[(rank - step) % n], dest=right, source=left)
    for step in range(n - 1):
        chunks[(rank - step) % n] = comm.sendrecv(chunks[(rank - step) % n], dest=right, source=left)
    return np.concatenate(chunks)
@wrong("03.ring_allreduce", "✗ right: the second half adds what comes: a complete chunk replaces the one that is there")
def adds_in_the_second_half_too(comm, x):
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = np.array_split(x.copy(), n)
    for step in range(n - 1):
        mine = (rank - step - 1) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(chunks[(rank - step) % n], dest=right, source=left)
    for step in range(n - 1):
        chunks[(rank - step) % n] += comm.sendrecv(chunks[(rank - step + 1) % n], dest=right, source=left)
    return np.concatenate(chunks)
@wrong("03.ring_allreduce", "first wrong in step 1, on rank 0: what was there of rank 0 is lost")
def replaces_in_the_first_half(comm, x):
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = np.array_split(x.copy(), n)
    for step in range(2 * (n - 1)):
        chunks[(rank - step - 1) % n] = comm.sendrecv(chunks[(rank - step) % n], dest=right, source=left)
    return np.concatenate(chunks)
@wrong("03.ring_allreduce", "no step brings what is missing")
def each_half_a_step_short(comm, x):
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = np.array_split(x.copy(), n)
    for step in range(n - 2):
        mine = (rank - step - 1) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(chunks[(rank - step) % n], dest=right, source=left)
    for step in range(n - 2):
        chunks[(rank - step) % n] = comm.sendrecv(chunks[(rank - step + 1) % n], dest=right, source=left)
    return np.concatenate(chunks)
@wrong("03.ring_allreduce", "✗ right: the result is the mean: allreduce gives the sum")
def takes_the_mean(comm, x):
    return comm.allreduce(x) / comm.size
@wrong("03.ring_allreduce", "✗ right: n = 2: n times the right number")
def adds_up_what_is_added_up(comm, x):
    return comm.allreduce(comm.allreduce(x))
@wrong("03.ring_allreduce", "your result is None")
def returns_nothing(comm, x):
    comm.allreduce(x)
@wrong("03.ring_allreduce", "✗ score")
def tree_for_large_arrays(comm, x):
    return comm.allreduce(x)
@wrong("03.ring_allreduce", "the chunks cannot all be equally long, unless n divides the length")
def only_even_lengths(comm, x):
    n, rank = comm.size, comm.rank
    chunks = list(x.copy().reshape(n, len(x) // n))
    for step in range(n - 1):
        mine = (rank - step - 1) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(
            chunks[(rank - step) % n], dest=(rank + 1) % n, source=(rank - 1) % n
        )
    for step in range(n - 1):
        chunks[(rank - step) % n] = comm.sendrecv(
            chunks[(rank - step + 1) % n], dest=(rank + 1) % n, source=(rank - 1) % n
        )
    return np.concatenate(chunks)
@wrong("03.ring_allreduce", "They wait in a circle")
def everybody_sends_first(comm, x):
    n, rank = comm.size, comm.rank
    total = x.copy()
    for other in range(n):
        if other != rank:
            comm.send(np.concatenate([x] * 1000), dest=other)
    for other in range(n):
        if other != rank:
            total = total + comm.recv(source=other)[: len(x)]
    return total
@wrong("03.ring_allreduce", "✗ score: n = 4, length 100,000: the smaller cases were right, this one is wrong")
def only_small_arrays(comm, x):
    return x if len(x) > 1000 else comm.allreduce(x)
@wrong("03.ring_allreduce", "your result has dtype float16, expected float64")
def half_precision(comm, x):
    return comm.allreduce(x.astype("f2"))
@wrong("03.ring_allreduce", "All of your numbers fit into 16 bits: they were rounded")
def half_on_the_way(comm, x):
    return comm.allreduce(x.astype("f2")).astype(float)
@wrong("03.ring_allreduce", "it ends the whole process (SystemExit: done); a function ends by return")
def leaves_the_process(comm, x):
    raise SystemExit("done")
