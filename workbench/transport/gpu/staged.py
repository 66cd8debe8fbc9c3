"""Arrays on a GPU, reduced on the host: copied into pinned memory, through the host's backend, and back.

Where neither NCCL nor a CUDA-aware MPI can be used (``select.py``). K bytes cross the bus twice, and the CPU
waits for the first of the two copies. Pinned memory, which the system never moves, is what a GPU copies fastest from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.collectives.ring import part
from workbench.core.backend.base import Array, Backend, Reduction, Traffic
from workbench.core.backend.memory import PrivateMemory
from workbench.transport.gpu.device import Gpu, address

_TO_GPU, _TO_HOST = 1, 2  # cudaMemcpyKind


def staged_backend(host: Backend, gpu: Gpu, close: Callable[[bool], None] | None = None) -> Backend:
    """The backend of the same ranks for arrays on a GPU.

    Args:
        host: moves the bytes.
        gpu: this rank's.
        close: see :meth:`Gpu.life`; of a process set, another one than that of all ranks.
    """

    def subset(ranks: Sequence[int]) -> Backend:
        of_set = host.life.subset(ranks)

        def close_set(clean: bool) -> None:
            gpu.finish()  # nothing is copied from the set's memory any more
            of_set.life.close(clean)

        return staged_backend(of_set, gpu, close_set)

    life = gpu.life(subset, close or gpu.close)
    collectives, memory = StagedCollectives(host, gpu), PrivateMemory(gpu.empty)
    return Backend(f"PINNED+{host.name}", host.rank, host.ranks, collectives, memory, life, gpu)


class StagedCollectives:
    """See :class:`workbench.core.backend.base.Collectives`.

    Args:
        host: moves the bytes.
        gpu: where the arrays are.
    """

    def __init__(self, host: Backend, gpu: Gpu) -> None:
        self._rank, self._host, self._gpu = host.rank, host.collectives, gpu
        self._pinned = [_Pinned(gpu), _Pinned(gpu)]

    def allreduce(
        self, array: Array, reduction: Reduction, offsets: Sequence[int] = (), source: Array | None = None
    ) -> Traffic:
        here = self._fetch(array if source is None else source)
        traffic = self._host.allreduce(here, reduction)
        self._bring(here, array)
        return traffic

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """The host's allgather; only this rank's part is fetched."""
        here = self._pinned[0].like(array)
        self._copy_here(part(array, lengths, self._rank), part(here, lengths, self._rank))
        traffic = self._host.allgather(here, lengths)
        self._bring(here, array)
        return traffic

    def broadcast(self, array: Array, root: int, source: Array | None = None) -> Traffic:
        """The host's broadcast; the root fetches, the others bring."""
        if source is not None:
            array[...] = source
        if self._rank == root:
            here = self._fetch(array)
        else:
            here = self._pinned[0].like(array)
            self._gpu.finish()  # the last result may still be on its way out of this memory
        traffic = self._host.broadcast(here, root)
        if self._rank != root:
            self._bring(here, array)
        return traffic

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> Traffic:
        sent, received = self._fetch(send), self._pinned[1].like(recv)
        traffic = self._host.alltoall(sent, send_lengths, received, recv_lengths)
        self._bring(received, recv)
        return traffic

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, offsets: Sequence[int] = ()
    ) -> Traffic:
        """The host's; only this rank's part is brought back."""
        here = self._fetch(array)
        traffic = self._host.reducescatter(here, lengths, reduction)
        self._bring(part(here, lengths, self._rank), part(array, lengths, self._rank))
        return traffic

    def _fetch(self, array: Array) -> Array:
        """A copy in pinned memory, complete when this returns."""
        here = self._pinned[0].like(array)
        self._copy_here(array, here)
        return here

    def _bring(self, here: Array, array: Array) -> None:
        """Copy back in the order of our stream. Nobody waits: a fetch into this memory is queued behind it."""
        self._queue_copy(address(array), here.ctypes.data, here.nbytes, _TO_GPU)

    def _copy_here(self, array: Array, here: Array) -> None:
        self._queue_copy(here.ctypes.data, address(array), here.nbytes, _TO_HOST)
        self._gpu.finish()

    def _queue_copy(self, to: int, source: int, nbytes: int, kind: int) -> None:
        if nbytes:
            self._gpu.copy_async(to, source, nbytes, kind)


class _Pinned:
    """Pinned memory that grows."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._bytes = gpu, np.empty(0, np.uint8)
        self._memory: Any = None  # what the bytes are in

    def like(self, array: Any) -> Array:
        """As much as ``array`` has, in its dtype. What was here before is overwritten."""
        if self._bytes.nbytes < array.nbytes:
            self._gpu.finish()  # what is still copied from the old memory
            self._memory = self._gpu.pinned(array.nbytes)
            self._bytes = np.frombuffer(self._memory, np.uint8, array.nbytes)
        return self._bytes[: array.nbytes].view(array.dtype)
