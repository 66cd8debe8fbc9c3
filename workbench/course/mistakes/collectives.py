"""Known wrong versions of collectives that ranks build from messages: lessons 02, 03, 12 and 18."""

from __future__ import annotations

from workbench.course.judging.slips import Slip, slips

_ADD = "chunks[mine] += comm"
_RECEIVE = "chunks[mine] = chunks[mine] + comm"
_FIRST, _SECOND = "range(n - 1):  # reduce", "range(n - 1):  # allgather"
_GATHERED = "chunks[(rank - step) % n] = comm.sendrecv(chunks[(rank - step + 1) % n]"
_SUM, _RING = "x = x + comm.recv(source=rank)", "x = ring_among(comm, leaders, x)"
_BACK = "    for rank in here[1:]:\n        comm.send(x, dest=rank)\n    return x"

SLIPS: dict[str, tuple[Slip, ...]] = {
    "02.tree_broadcast": (
        Slip(
            "the root returns nothing: it receives no value, because it has it from the beginning",
            "Every rank returns the value: also the one that only sends. Which variable has it there?",
            "place, step = (comm.rank - root) % comm.size, 1",
            "got, place, step = None, (comm.rank - root) % comm.size, 1",
            "value = comm.recv",
            "value = got = comm.recv",
            "return value",
            "return got",
        ),
        Slip(
            "the tree begins at rank 0, and not at root",
            "Number the ranks from the root on: what is the place of rank 2 if rank 5 is the root?",
            "(comm.rank - root) % comm.size, 1",
            "comm.rank, 1",
        ),
        Slip(
            "a place is used as a rank: place p belongs to rank (p + root) % comm.size",
            "Places are counted from the root, ranks from 0. Does send get a rank, or a place?",
            "dest=(comm.rank + step) % comm.size",
            "dest=place + step",
            "source=(comm.rank - step) % comm.size",
            "source=place - step",
        ),
        Slip(
            "some ranks send to a place that does not exist: n need not be a power of two",
            "Is there a rank at place + step? If not, nothing is to be sent.",
            "place < step and place + step < comm.size",
            "place < step",
        ),
        Slip(
            "the last round is missing: go on while step is less than the number of ranks",
            "After rounds with step 1, 2 and 4, eight ranks have the value. With which condition does your loop end?",
            "while step < comm.size",
            "while 2 * step < comm.size",
        ),
        Slip(
            "the value that was received is not kept",
            "recv() returns the value. Which variable gets it, and which one do you return?",
            "value = comm.recv",
            "comm.recv",
        ),
        Slip(
            "the ranks to send to are counted past the last one: % comm.size is missing",
            "In a ring, rank n - 1 is followed by rank 0. Count modulo comm.size.",
            "dest=(comm.rank + step) % comm.size",
            "dest=comm.rank + step",
            "source=(comm.rank - step) % comm.size",
            "source=comm.rank - step",
        ),
        Slip(
            "sender and receiver count in opposite directions",
            "If rank r sends to r + step, from which rank does r + step receive?",
            "dest=(comm.rank + step)",
            "dest=(comm.rank - step)",
        ),
        Slip(
            "places are counted in the wrong direction: the place of a rank is (comm.rank - root) % comm.size",
            "Which place has the root, by your formula? It must be place 0, for any root.",
            "(comm.rank - root) % comm.size, 1",
            "(comm.rank + root) % comm.size, 1",
        ),
        Slip(
            "places are counted in the wrong direction: the place of a rank is (comm.rank - root) % comm.size",
            "Which place has the root, by your formula? It must be place 0, for any root.",
            "(comm.rank - root) % comm.size, 1",
            "(comm.rank + root) % comm.size, 1",
            "dest=(comm.rank + step) % comm.size",
            "dest=(place + step + root) % comm.size",
            "source=(comm.rank - step) % comm.size",
            "source=(place - step + root) % comm.size",
        ),
    ),
    "02.shift_right": (
        Slip(
            "x was sent to the left neighbour, and the right one's was received: the other way round",
            "Which rank is to the right of rank 0: rank 1, or the last one? Send to it, and receive from the other.",
            "dest=right, source=left",
            "dest=left, source=right",
        ),
        Slip(
            "each rank receives from the neighbour that it sends to: receive from the left one",
            "x travels to the right. From which side does something come to you?",
            "dest=right, source=left",
            "dest=right, source=right",
        ),
        Slip(
            "each rank returns its own x, and not what it received",
            "recv() and sendrecv() return what has come. What do you return?",
            "return comm.sendrecv(x, dest=right, source=left)",
            "comm.sendrecv(x, dest=right, source=left)\n    return x",
        ),
        Slip(
            "x travels two places: one step to the right is enough",
            "How many neighbours are there between a rank and its right neighbour?",
            "(comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size",
            "(comm.rank + 2) % comm.size, (comm.rank - 2) % comm.size",
        ),
        Slip(
            "all ranks send first, and a large message leaves only when its receiver is there",
            "One rank must receive first, or send and receive at once.",
            "return comm.sendrecv(x, dest=right, source=left)",
            "comm.send(x, dest=right)\n    return comm.recv(source=left)",
        ),
        Slip(
            "all ranks receive first, so nobody sends",
            "Which rank sends the first message, if every rank waits for one?",
            "return comm.sendrecv(x, dest=right, source=left)",
            "got = comm.recv(source=left)\n    comm.send(x, dest=right)\n    return got",
        ),
        Slip(
            "% comm.size is missing: the last rank's right neighbour is rank 0, whose left one is the last rank",
            "Count modulo comm.size: what is (n - 1 + 1) % n, and what is (0 - 1) % n?",
            "(comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size",
            "comm.rank + 1, comm.rank - 1",
        ),
        Slip(
            "the values of both neighbours were added: one is to be passed on as it is",
            "Nothing is added here: return what the left neighbour sent.",
            "return comm.sendrecv(x, dest=right, source=left)",
            "return x + comm.sendrecv(x, dest=right, source=left)",
        ),
    ),
    "03.reduce_scatter": (
        Slip(
            "one step too many: n - 1 are enough. The last one adds what is there already",
            "A chunk visits every other rank once. How many are these?",
            "range(n - 1)",
            "range(n)",
        ),
        Slip(
            "one step is missing: a chunk must visit all n - 1 other ranks",
            "With 2 ranks there is one step. How many does your loop make?",
            "range(n - 1)",
            "range(n - 2)",
        ),
        Slip(
            "the steps are right, but another chunk is returned: the complete one is number (rank + 1) % n",
            "After n - 1 steps one chunk of this rank is complete. Write down for rank 0 of 2 which one.",
            "return chunks[(rank + 1) % n]",
            "return chunks[rank]",
        ),
        Slip(
            "the steps are right, but another chunk is returned: the complete one is number (rank + 1) % n",
            "After n - 1 steps one chunk of this rank is complete. Write down for rank 0 of 3 which one.",
            "return chunks[(rank + 1) % n]",
            "return chunks[(rank - 1) % n]",
        ),
        Slip(
            "the chunk that comes replaces this rank's own: add it",
            "The chunk that you receive is a sum of other ranks' values. Add your own values; do not replace them.",
            _ADD,
            "chunks[mine] = comm",
        ),
        Slip(
            "the chunk that comes is added to the chunk that was sent: it belongs to the one before",
            "The left neighbour sends its chunk (r - 1) - s in step s. To which of your chunks must you add it?",
            "(rank - step) % n, (rank - step - 1) % n",
            "(rank - step) % n, (rank - step) % n",
        ),
        Slip(
            "the same chunk is sent in every step: in step s it is number rank - s",
            "In the next step pass on the chunk that you have just added to. Which number has it?",
            "(rank - step) % n, (rank - step - 1) % n",
            "rank % n, (rank - 1) % n",
        ),
        Slip(
            "chunks go to the right, but are counted as if they went to the left",
            "What comes from rank r - 1 has that rank's number of the step. Is it r - 1 - s, or r + 1 + s?",
            "(rank - step) % n, (rank - step - 1) % n",
            "(rank + step) % n, (rank + step + 1) % n",
        ),
        Slip(
            "the ring is one chunk ahead: it completes chunk rank, and chunk (rank + 1) % n is asked for",
            "In step 0 rank r sends its chunk r. Which one does your function send?",
            "(rank - step) % n, (rank - step - 1) % n",
            "(rank - step - 1) % n, (rank - step - 2) % n",
        ),
        Slip(
            "each step sends this rank's own values, and not the sum so far",
            "What must travel on: your own chunk, or the chunk with what has come?",
            "    for step in range(n - 1):",
            "    first = [chunk.copy() for chunk in chunks]\n    for step in range(n - 1):",
            "chunks[outgoing], dest",
            "first[outgoing], dest",
        ),
        Slip(
            "the sum was divided by n: reduce-scatter adds up",
            "Is a mean asked for, or a sum?",
            "return chunks[(rank + 1) % n]",
            "return chunks[(rank + 1) % n] / n",
        ),
    ),
    "03.ring_allreduce": (
        Slip(
            "one step too many: n - 1 are enough in each half. The last one adds a chunk a second time",
            "A chunk visits every other rank once. How many are these?",
            _FIRST,
            "range(n):  # reduce",
        ),
        Slip(
            "the second half is one step short: a complete chunk must reach all n - 1 other ranks",
            "With 2 ranks each half has one step. How many does your second half make?",
            _SECOND,
            "range(n - 2):  # allgather",
        ),
        Slip(
            "the first half is one step short: a chunk must collect all n - 1 other ranks' values",
            "With 2 ranks each half has one step. How many does your first half make?",
            _FIRST,
            "range(n - 2):  # reduce",
        ),
        Slip(
            "the second half is missing: each rank has one complete chunk, and the others have not got it",
            "After reduce-scatter rank r has chunk r + 1 complete. How do the other ranks get it?",
            _SECOND,
            "range(0):  # allgather",
        ),
        Slip(
            "the second half adds what comes: a complete chunk replaces the one that is there",
            "What comes in the second half is complete. Is there anything to add?",
            _GATHERED,
            "chunks[(rank - step) % n] = chunks[(rank - step) % n] + comm.sendrecv(chunks[(rank - step + 1) % n]",
        ),
        Slip(
            "each chunk holds one rank's values only: either the first half replaces instead of adding, or the "
            "second half passes on chunk rank, and the complete one is number rank + 1",
            "Does your first half add? Then: which chunk is complete after it? Write it down for rank 0.",
            _GATHERED,
            "chunks[(rank - step - 1) % n] = comm.sendrecv(chunks[(rank - step) % n]",
        ),
        Slip(
            "the result is the mean: allreduce gives the sum",
            "Is a mean asked for, or a sum?",
            "return np.concatenate(chunks)",
            "return np.concatenate(chunks) / n",
        ),
        Slip(
            "chunks go to the left, but are counted as if they went to the right",
            "If you receive from the right neighbour, which number has the chunk that comes in step s?",
            "dest=right, source=left",
            "dest=left, source=right",
        ),
        Slip(
            "in the first half, the chunk that comes is added to the chunk that was sent",
            "The left neighbour sends its chunk (r - 1) - s in step s. To which of your chunks must you add it?",
            "(rank - step - 1) % n",
            "(rank - step) % n",
        ),
        Slip(
            "all chunks have len(x) // n elements, so the last len(x) % n elements are in none of them",
            "Cut an array of 7 elements into 3 chunks. How long are they, and how long are yours?",
            "np.array_split(x.copy(), n)",
            "np.split(x.copy()[: len(x) // n * n], n)",
            "return np.concatenate(chunks)",
            "return np.concatenate([*chunks, x[len(x) // n * n :]])",
        ),
        Slip(
            "all chunks have len(x) // n elements, so the last len(x) % n elements are in none of them",
            "Cut an array of 7 elements into 3 chunks. How long are they, and how long are yours?",
            "np.array_split(x.copy(), n)",
            "np.split(x.copy()[: len(x) // n * n], n)",
        ),
    ),
    "12.hierarchical": (
        Slip(
            "the nodes' sums were not added up: call ring_among(comm, leaders, x) on the first ranks",
            "After the first part each leader has its own node's sum. Which call adds these up?",
            _RING,
            "pass",
        ),
        Slip(
            "the leaders alone have the result: the other ranks return their own x",
            "Three parts: in, among the leaders, and out again. Which ranks do not get the result?",
            "        return comm.recv(source=here[0])",
            "        return x",
            _BACK,
            "    return x",
        ),
        Slip(
            "the leaders do not add what their nodes' ranks send",
            "What does here[0] do with what it receives from the other ranks of its node?",
            _SUM,
            "comm.recv(source=rank)",
        ),
        Slip(
            "each leader keeps the last rank's x only: add all of them",
            "x = comm.recv(…) replaces x. What belongs before comm.recv?",
            _SUM,
            "x = comm.recv(source=rank)",
        ),
        Slip(
            "the leaders have sent their node's sum back before the ring: send the result of the ring",
            "In which order come the three parts: in, among the leaders, out?",
            "    x = ring_among(comm, leaders, x)\n    for rank in here[1:]:\n        comm.send(x, dest=rank)\n",
            "    for rank in here[1:]:\n        comm.send(x, dest=rank)\n    x = ring_among(comm, leaders, x)\n",
        ),
        Slip(
            "the result is the mean: the sum is asked for",
            "Is a mean asked for, or a sum?",
            _RING,
            "x = ring_among(comm, leaders, x) / comm.size",
        ),
        Slip(
            "the first rank of a node need not be rank 0: it is here[0]",
            "Who is the first rank of this rank's own node?",
            "comm.rank != here[0]",
            "comm.rank != 0",
            "dest=here[0]",
            "dest=0",
            "source=here[0]",
            "source=0",
        ),
        Slip(
            "only the second rank of a node is added: go through all of here[1:]",
            "How many other ranks can a node have?",
            "    for rank in here[1:]:\n        x = x",
            "    for rank in here[1:2]:\n        x = x",
        ),
    ),
    "18.reduce_scatter_step": (
        Slip(
            "chunk number rank has this rank's own values only. Lesson 03's ring ends with chunk rank + 1 on each; "
            "a ring that is one step short leaves it so, too",
            "In lesson 03 rank r ended with chunk r + 1. What has to be sent one step earlier?",
            "(rank - step - 2) % n",
            "(rank - step - 1) % n",
            "chunks[(rank - step - 1) % n], dest",
            "chunks[(rank - step) % n], dest",
        ),
        Slip(
            "the step goes along the sum: divide by n for the mean",
            "The step goes along the mean of the ranks' gradients. How many ranks are there?",
            "lr * chunks[rank] / n",
            "lr * chunks[rank]",
        ),
        Slip(
            "one step too many: n - 1 are enough, the last one adds what is there already",
            "A chunk visits every other rank once. How many are these?",
            "range(n - 1)",
            "range(n)",
        ),
        Slip(
            "the chunk that comes replaces this rank's own: add it",
            "Add the received chunk to your own, and keep the sum.",
            "chunks[mine] = chunks[mine] + comm",
            "chunks[mine] = comm",
        ),
        Slip(
            "the step goes up: w - lr * gradient goes down",
            "In which direction does the loss become smaller?",
            "shard - lr",
            "shard + lr",
        ),
        Slip(
            "the learning rate is missing",
            "The gradient gives the direction of the step. Which number gives its length?",
            "lr * chunks[rank] / n",
            "chunks[rank] / n",
        ),
        Slip(
            "the sum was divided by n twice",
            "Write down where n stands. How often is the sum divided by it?",
            "lr * chunks[rank] / n",
            "lr * chunks[rank] / n / n",
        ),
        Slip(
            "the weights were divided by n, too: the mean is that of the gradients alone",
            "What does n divide: the gradients' sum, or all that you return?",
            "shard - lr * chunks[rank] / n",
            "(shard - lr * chunks[rank]) / n",
        ),
        Slip(
            "that is the mean gradient, and not the shard after the step",
            "What is to be returned: the gradient, or the weights?",
            "return shard - lr * chunks[rank] / n",
            "return chunks[rank] / n",
        ),
        Slip(
            "the chunk that comes is added to the chunk that was sent: it belongs to the one before",
            "The left neighbour sends its own chunk of that number. To which of your chunks must you add it?",
            "(rank - step - 2) % n",
            "(rank - step - 1) % n",
        ),
    ),
    "18.gather_parameters": (
        Slip(
            "the rows of W are in the order in which they arrived: put rank 0's first, then rank 1's, and so on",
            "Where in W do the rows belong that came from rank 2?",
            "parts[each] for each in range(n)",
            "parts[(rank - each) % n] for each in range(n)",
        ),
        Slip(
            "np.tanh is missing after each layer's product",
            "Which function follows each layer's product?",
            "np.tanh(np.concatenate([parts[each] for each in range(n)]) @ x)",
            "np.concatenate([parts[each] for each in range(n)]) @ x",
        ),
        *slips(
            "np.tanh belongs around the whole product, once: np.tanh(W @ x)",
            "What is computed first in a layer, the product or np.tanh? And how often is np.tanh taken?",
            "np.tanh(np.concatenate([parts[each] for each in range(n)]) @ x)",
            "np.concatenate([parts[each] for each in range(n)]) @ np.tanh(x)",
            "np.tanh(np.concatenate([parts[each] for each in range(n)])) @ x",
            "np.tanh(np.tanh(np.concatenate([parts[each] for each in range(n)]) @ x))",
        ),
        *slips(
            "the product was divided by n: rows are put together, and nothing is averaged",
            "Whose rows are there twice? What would you average?",
            "range(n)]) @ x)",
            "range(n)]) @ x / n)",
            "range(n)]) @ x) / n",
        ),
        Slip(
            "the rows were put side by side, but they belong one below the other: axis 0",
            "W has as many columns as x has elements. What do the ranks' rows have in common: rows, or columns?",
            "np.concatenate([parts[each] for each in range(n)])",
            "np.concatenate([parts[each] for each in range(n)], axis=1)",
        ),
        Slip(
            "all ranks' rows are to be of one length for np.stack, or np.array: n need not divide the rows of W",
            "np.array_split gives some ranks one row more. np.concatenate takes parts of different lengths.",
            "np.concatenate([parts[each] for each in range(n)])",
            "np.vstack(np.stack([parts[each] for each in range(n)]))",
        ),
        Slip(
            "the last rank's rows are missing: the ring makes n - 1 steps",
            "How many other ranks have rows of W?",
            "range(n - 1)",
            "range(n - 2)",
            "for each in range(n)]",
            "for each in range(n) if each in parts]",
        ),
        Slip(
            "only this rank's rows of W were used: gather the others' first",
            "x has to be multiplied with the whole W. Who has the other rows?",
            "for each in range(n)]",
            "for each in [rank]]",
        ),
        Slip(
            "in every step a rank sends its own rows: pass on those that came last",
            "In step s rank r sends the rows that it got in step s - 1. Whose are they?",
            "parts[(rank - step) % n], dest",
            "rows, dest",
        ),
        Slip(
            "W was multiplied from the right: each layer is W @ x",
            "What shapes have W and x? Which product is a vector with one number for each row of W?",
            "for each in range(n)]) @ x)",
            "for each in range(n)]).T @ x)",
        ),
        Slip(
            "each layer was computed from the first x: it takes the x of the layer before",
            "What is the x of the second layer?",
            "    for rows in shards:",
            "    first = x\n    for rows in shards:",
            "@ x)",
            "@ first)",
        ),
        Slip(
            "np.tanh is missing after the last layer: it belongs to each layer",
            "Which function follows each layer's product? The last layer is one of them.",
            "for rows in shards:",
            "for layer, rows in enumerate(shards, 1):",
            "x = np.tanh(np.concatenate([parts[each] for each in range(n)]) @ x)",
            "x = np.concatenate([parts[each] for each in range(n)]) @ x\n"
            "        x = np.tanh(x) if layer < len(shards) else x",
        ),
    ),
}

__all__ = ["SLIPS"]
