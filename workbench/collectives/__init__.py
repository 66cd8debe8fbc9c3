"""What is computed: algorithms over a Link, arrays only. Nothing else of the workbench is imported here.

A Link is any object with ``rank``, ``size`` and ``sendrecv(send, dest, recv, source)``; threads, MPI,
TCP and the course's simulator all are one, so the function that a student reads is the one that runs.
"""

from workbench.collectives.adasum import adasum_allreduce as adasum_allreduce
from workbench.collectives.pairwise import pairwise_alltoall as pairwise_alltoall
from workbench.collectives.reduction import Reduction as Reduction
from workbench.collectives.ring import ring_allgather as ring_allgather
from workbench.collectives.ring import ring_allreduce as ring_allreduce
from workbench.collectives.ring import ring_reduce_scatter as ring_reduce_scatter
from workbench.collectives.traffic import Link as Link
from workbench.collectives.traffic import Traffic as Traffic
from workbench.collectives.tree import tree_broadcast as tree_broadcast
