"""The flat way: what backends of several levels have in common, which leave all but a few verbs to one of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.backends.base import Array, Backend, Buffer, OwnMemory, Reduction, Traffic


class FlatWay(OwnMemory):
    """See :class:`workbench.backends.base.Backend`; everything goes the way of another one.

    Args:
        beneath: connects all ranks.
        name: as the timeline writes it.
    """

    def __init__(self, beneath: Backend, name: str) -> None:
        self.beneath, self.name, self.rank, self.size = beneath, name, beneath.rank, beneath.size
        self.memory: Any = beneath.memory

    def index(self, rank: int) -> int:
        """All ranks take part."""
        return rank

    def subset(self, ranks: Sequence[int]) -> Backend:
        """The flat way."""
        return self.beneath.subset(ranks)

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """The flat way."""
        return self.beneath.allgather(array, lengths)

    def broadcast(self, array: Array, root: int) -> Traffic:
        """The flat way."""
        return self.beneath.broadcast(array, root)

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> Traffic:
        """The flat way."""
        return self.beneath.alltoall(send, send_lengths, recv, recv_lengths)

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, places: Sequence[int] = ()
    ) -> Traffic:
        """The flat way."""
        return self.beneath.reducescatter(array, lengths, reduction)

    def buffer(self, nbytes: int) -> Buffer:
        """The flat way's."""
        return self.beneath.buffer(nbytes)

    def allocate(self, nbytes: int) -> Array:
        """The flat way's."""
        return self.beneath.allocate(nbytes)

    def tick(self, function: Callable[[], None]) -> None:
        """Wherever the flat way waits."""
        self.beneath.tick(function)

    def close(self, clean: bool = True) -> None:
        """Close the flat way."""
        self.beneath.close(clean)
