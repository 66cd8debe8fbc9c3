"""The process sets of one rank: who belongs to which, and the backend that connects them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from workbench.core.backend.base import Backend
from workbench.errors import CollectiveError


class SetTable:
    """Changed by the engine only, so at the same place in the order of all collectives on every rank.

    Args:
        rank: this rank.
        backend: connects all ranks; it is the set 0.
    """

    def __init__(self, rank: int, backend: Backend) -> None:
        self._rank = rank
        self._backends = {0: backend}  # only of the sets that this rank belongs to
        self._on_gpu: dict[int, Backend] = {}  # of the same sets, for arrays on GPUs
        self.members: dict[int, tuple[int, ...]] = {0: tuple(range(backend.size))}

    @property
    def everybody(self) -> Backend:
        return self._backends[0]

    def backend(self, set_id: int, device: str = "cpu") -> Backend | None:
        """The backend of a set, for arrays on a kind of device; None if this rank does not belong to it."""
        on_gpu = self._on_gpu.get(set_id) if device != "cpu" else None
        return on_gpu or self._backends.get(set_id)

    def use_gpu(self, backend: Backend) -> None:
        """From now on arrays on GPUs have a backend of their own, which connects all ranks, too."""
        self._on_gpu[0] = backend

    @property
    def gpu(self) -> Any:
        """This rank's :class:`workbench.transport.gpu.device.Gpu`; None without."""
        return self._on_gpu[0].memory if self._on_gpu else None

    def watch(self, broke: Callable[[str], None]) -> CollectiveError | None:
        """Look after what a GPU has not finished yet: what went wrong there, if anything did.

        Args:
            broke: is told why, where it broke on this rank.
        """
        try:
            return self._on_gpu[0].memory.watch() if self._on_gpu else None
        except CollectiveError as error:
            broke(str(error).rstrip("."))
            return error

    def give_up(self, why: CollectiveError, clean: bool) -> None:
        """The job has ended; if not ``clean``, what has not been done by now has no result, and never gets one."""
        if clean:
            return
        try:
            self.everybody.life.give_up(why)
            if self._on_gpu:
                self._on_gpu[0].life.give_up(why)
        except Exception:
            logging.getLogger("workbench").exception("Arrays in flight may still change.")  # who waits is told of why

    def close(self, clean: bool) -> None:
        """Give everything back. ``clean``: all ranks close at the same point."""
        try:
            if self._on_gpu:  # first: it may move what it has by the host's backend
                self._on_gpu[0].life.close(clean)
        except Exception:
            logging.getLogger("workbench").exception("The backend for GPUs did not close.")
        self._backends[0].life.close(clean)

    def add(self, set_id: int, ranks: Sequence[int]) -> None:
        self.members[set_id] = tuple(ranks)
        if self._rank in ranks:
            for backends in filter(None, (self._backends, self._on_gpu)):
                backends[set_id] = backends[0].life.subset(ranks)

    def remove(self, set_id: int) -> None:
        self.members.pop(set_id, None)
        for backends in (self._on_gpu, self._backends):
            if gone := backends.pop(set_id, None):
                gone.life.close()
