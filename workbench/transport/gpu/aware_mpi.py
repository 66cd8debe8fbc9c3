"""Arrays on a GPU over an MPI that reads and writes the GPU's memory by itself ("CUDA-aware").

The algorithms are those of the host, for cupy's arrays heed numpy's functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.core.backend.base import Array, Backend, Channel
from workbench.core.backend.memory import PrivateMemory
from workbench.transport.gpu.device import Gpu
from workbench.transport.links import LinkCollectives, SubLink


def aware_backend(link: Channel, ranks: Sequence[int], gpu: Gpu, of_set: bool = False) -> Backend:
    """The backend of some ranks.

    Args:
        link: MPI's, of these ranks; its owner closes it.
        ranks: their global numbers.
        gpu: this rank's.
        of_set: they are a process set.
    """

    def subset(some: Sequence[int]) -> Backend:
        return aware_backend(SubLink(link, [ranks.index(rank) for rank in some]), some, gpu, of_set=True)

    collectives, memory = LinkCollectives(AwareLink(link, gpu)), PrivateMemory(gpu.empty)
    life = gpu.life(subset, (lambda clean: gpu.finish()) if of_set else gpu.close)
    return Backend("MPI_CUDA", link.rank, ranks, collectives, memory, life, gpu)


class AwareLink:
    """MPI's Link in the order of our stream.

    MPI knows nothing of streams: what it is to send must be there, so the CPU waits for our stream before each message.

    Args:
        link: MPI's.
        gpu: this rank's.
    """

    def __init__(self, link: Channel, gpu: Gpu) -> None:
        self._link, self._gpu, self.rank, self.size = link, gpu, link.rank, link.size

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """As the Link's, when our stream has come so far."""
        self._gpu.finish()
        self._link.sendrecv(send, dest, recv, source)
