"""Programs of simulated ranks, drawn by a seed: all kinds of messages, and deaths. As text, for a page's cell, too."""

from __future__ import annotations

PROGRAMS = """
import random
import numpy as np
from workbench.course.simulator import Kill, simulate

def program(seed, n):
    def rank(comm):
        own, common, found = random.Random(f"{seed} {comm.rank}"), random.Random(seed), []
        right, left = (comm.rank + 1) % n, (comm.rank - 1) % n
        for i in range(10):
            kind = common.randrange(6)
            if kind == 0:
                found.append(comm.allreduce(comm.rank + i))
            elif kind == 1:
                comm.compute(own.random() * 1e-4)
            elif kind == 2:
                found.append(comm.sendrecv(np.ones(common.randrange(5000)), dest=right, source=left).size)
            elif kind == 3:
                receives, sends = comm.irecv(source=left), comm.isend(i, dest=right)
                while not receives.test()[0]:
                    comm.compute(1e-6)
                sends.wait()
            elif kind == 4:
                found.append(comm.bcast(i if comm.rank == 0 else None, root=0))
            elif comm.rank == 0:
                found.append(sorted(comm.recv() for _ in range(n - 1)))
            else:
                comm.send(comm.rank, dest=0)
        return found, comm.now
    return rank

def told(seed):
    n = random.Random(seed).choice([1, 2, 3, 4, 8])
    kills = [Kill(rank=seed % n, at_s=1e-4)] if seed % 5 == 0 and n > 1 else []
    try:
        run = simulate(n, program(seed, n), kills=kills)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return repr((run.results, run.clocks, run.messages, run.computed, run.died))
"""
