"""Arrays on a GPU by way of the host: into pinned memory, through the host's backend, and back.

Where NCCL cannot be had: without it, or where ranks share a GPU. A batch of K bytes crosses the bus twice, and the CPU
waits for the first of the two copies. Pinned memory, which the system never moves, is what a GPU copies fastest from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.backends.base import Array, Backend, Reduction, Traffic
from workbench.backends.gpu import Gpu, address
from workbench.backends.gpu_links import GpuLinkBackend

_TO_GPU, _TO_HOST = 1, 2  # cudaMemcpyKind


class StagedBackend(GpuLinkBackend):
    """See :class:`workbench.backends.base.Backend`; the arrays lie on ``gpu``.

    Args:
        host: moves the bytes.
        gpu: this rank's.
    """

    def __init__(self, host: Backend, gpu: Gpu) -> None:
        super().__init__(_Nobody(host), gpu, f"PINNED+{host.name}")
        self._host, self._pinned = host, [_Pinned(gpu), _Pinned(gpu)]

    def index(self, rank: int) -> int:
        """As on the host."""
        return self._host.index(rank)

    def within(self, host: Backend, ranks: Sequence[int]) -> Backend:
        """By way of the set's backend on the host."""
        return StagedBackend(host, self.gpu)

    def allreduce(self, array: Array, reduction: Reduction, places: Sequence[int] = ()) -> Traffic:
        """The host's allreduce."""
        here = self._fetch(array)
        traffic = self._host.allreduce(here, reduction)
        self._bring(here, array)
        return traffic

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """The host's allgather; only this rank's part is fetched."""
        here = self._pinned[0].like(array)
        start = sum(lengths[: self.rank])
        mine = slice(start, start + lengths[self.rank])
        self._copy_here(array[mine], here[mine])
        traffic = self._host.allgather(here, lengths)
        self._bring(here, array)
        return traffic

    def broadcast(self, array: Array, root: int) -> Traffic:
        """The host's broadcast; the root fetches, the others bring."""
        if self.rank == root:
            here = self._fetch(array)
        else:
            here = self._pinned[0].like(array)
            self.gpu.finish()  # the last result may still be on its way out of this memory
        traffic = self._host.broadcast(here, root)
        if self.rank != root:
            self._bring(here, array)
        return traffic

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> Traffic:
        """The host's alltoall."""
        sent, received = self._fetch(send), self._pinned[1].like(recv)
        traffic = self._host.alltoall(sent, send_lengths, received, recv_lengths)
        self._bring(received, recv)
        return traffic

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, places: Sequence[int] = ()
    ) -> Traffic:
        """The host's; only this rank's part is brought back."""
        here = self._fetch(array)
        traffic = self._host.reducescatter(here, lengths, reduction)
        start = sum(lengths[: self.rank])
        mine = slice(start, start + lengths[self.rank])
        self._bring(here[mine], array[mine])
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
        self.gpu.finish()

    def _queue_copy(self, to: int, source: int, nbytes: int, kind: int) -> None:
        if nbytes:
            self.gpu.copy_async(to, source, nbytes, kind)


class _Pinned:
    """Pinned memory that grows."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._bytes = gpu, np.empty(0, np.uint8)
        self._memory: Any = None  # what the bytes lie in

    def like(self, array: Any) -> Array:
        """As much as ``array`` has, in its dtype. What was here before is overwritten."""
        if self._bytes.nbytes < array.nbytes:
            self._gpu.finish()  # what is still copied from the old memory
            self._memory = self._gpu.pinned(array.nbytes)
            self._bytes = np.frombuffer(self._memory, np.uint8, array.nbytes)
        return self._bytes[: array.nbytes].view(array.dtype)


class _Nobody:
    """The Link of a backend that uses none."""

    def __init__(self, host: Backend) -> None:
        self.rank, self.size = host.rank, host.size

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """Never called."""
        raise NotImplementedError("a staged backend sends nothing by itself")
