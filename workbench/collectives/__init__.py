"""What is computed: algorithms over a Link, arrays only. Nothing else of the workbench is imported here.

A Link is any object with ``rank``, ``size`` and ``sendrecv(send, dest, recv, source)``; threads, MPI,
TCP and the course's simulator all are one, so the function that a student reads is the one that runs.
"""

from workbench.collectives.adasum import adasum_allreduce
from workbench.collectives.pairwise import pairwise_alltoall
from workbench.collectives.reduction import Reduction
from workbench.collectives.ring import ring_allgather, ring_allreduce, ring_reduce_scatter
from workbench.collectives.traffic import Link, Traffic
from workbench.collectives.tree import tree_broadcast

__all__ = [
    "Link",
    "Reduction",
    "Traffic",
    "adasum_allreduce",
    "pairwise_alltoall",
    "ring_allgather",
    "ring_allreduce",
    "ring_reduce_scatter",
    "tree_broadcast",
]
