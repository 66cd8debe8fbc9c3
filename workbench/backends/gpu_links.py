"""Arrays on a GPU over a Link: the same algorithms as on the host, for cupy's arrays heed numpy's functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.backends.base import Array, Backend, Buffer, Link
from workbench.backends.gpu import Gpu
from workbench.backends.links import LinkBackend, SubLink


class GpuBuffer:
    """Memory on a GPU, kept and grown from batch to batch; all that uses it is on one stream."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.array: Any = None

    def grow(self, nbytes: int) -> GpuBuffer:
        """Make room for ``nbytes`` bytes."""
        if self.array is None or self.array.nbytes < nbytes:
            self.array = self._gpu.empty((nbytes,), "uint8", None)
        return self

    def release(self) -> None:
        """Nothing to do: the next batch uses the same memory."""


class GpuLinkBackend(LinkBackend):
    """See :class:`workbench.backends.base.Backend`; the arrays lie on ``gpu``.

    Args:
        link: takes arrays on the GPU; a message is sent in the order of the GPU's stream.
        gpu: this rank's.
        name: as the timeline writes it.
    """

    def __init__(self, link: Link, gpu: Gpu, name: str) -> None:
        super().__init__(link, name)
        self.memory = self.gpu = gpu
        self._on_gpu = GpuBuffer(gpu)

    def within(self, host: Backend, ranks: Sequence[int]) -> Backend:
        """The backend of a process set.

        Args:
            host: the set's backend for arrays on the host.
            ranks: its members.
        """
        return GpuLinkBackend(SubLink(self.link, ranks), self.gpu, self.name)

    def leave(self) -> None:
        """The set is removed: its memory goes, when nothing is copied from there any more."""
        self.gpu.finish()

    def close(self, clean: bool = True) -> None:
        """The Link is closed by its owner; here the GPU is waited for, if it will come to an end."""
        if clean:
            self.gpu.end()

    def buffer(self, nbytes: int) -> Buffer:
        """The fusion buffer, on the GPU."""
        return self._on_gpu.grow(nbytes)

    def tick(self, function: Callable[[], None]) -> None:
        """Also amid waits for the GPU."""
        super().tick(function)
        self.gpu.tick = function


class AwareLink:
    """A Link of an MPI that reads and writes the GPU's memory by itself.

    MPI knows nothing of streams: what it is to send must be there, so the CPU waits for our stream before each message.

    Args:
        link: MPI's.
        gpu: this rank's.
    """

    def __init__(self, link: Link, gpu: Gpu) -> None:
        self._link, self._gpu, self.rank, self.size = link, gpu, link.rank, link.size

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """As the Link's, when our stream has come so far."""
        self._gpu.finish()
        self._link.sendrecv(send, dest, recv, source)
