"""The process sets of one rank: who belongs to which, and the backend that connects them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from workbench.backends.base import Backend
from workbench.errors import CollectiveError
from workbench.runtime.messages import Broke, Event, Kind, Response


class SetTable:
    """Changed by responses only, so at the same place in the order of all collectives on every rank.

    Args:
        rank: this rank.
        backend: connects all ranks; it is the set 0.
    """

    def __init__(self, rank: int, backend: Backend) -> None:
        self._rank = rank
        self._backends = {0: backend}  # only of the sets that this rank belongs to
        self._on_gpu: dict[int, Any] = {}  # of the same sets, for arrays on GPUs
        self.members: dict[int, tuple[int, ...]] = {0: tuple(range(backend.size))}

    @property
    def everybody(self) -> Backend:
        """The backend of all ranks."""
        return self._backends[0]

    def backend(self, set_id: int, device: str = "cpu") -> Backend | None:
        """The backend of a set, for arrays on a kind of device; None if this rank does not belong to it."""
        on_gpu = self._on_gpu.get(set_id) if device != "cpu" else None
        return on_gpu or self._backends.get(set_id)

    def use_gpu(self, backend: Any) -> None:
        """From now on arrays on GPUs have a backend of their own, which connects all ranks, too."""
        self._on_gpu[0] = backend

    @property
    def gpu(self) -> Any:
        """This rank's :class:`workbench.backends.gpu.Gpu`; None without."""
        return self._on_gpu[0].memory if self._on_gpu else None

    def watch(self, report: Callable[[Event], None]) -> CollectiveError | None:
        """Look after what a GPU has not finished yet: what went wrong there, if anything did; rank 0 is told."""
        try:
            return self._on_gpu[0].memory.watch() if self._on_gpu else None
        except CollectiveError as error:
            report(Broke(self._rank, str(error).rstrip(".")))
            return error

    def give_up(self, why: CollectiveError, clean: bool) -> None:
        """The job has ended; if not ``clean``, what a GPU has not done by now has no result."""
        if self._on_gpu and not clean:
            self._on_gpu[0].memory.give_up(why)

    def close(self, clean: bool) -> None:
        """Give everything back. ``clean``: all ranks close at the same point."""
        try:
            if self._on_gpu:
                self._on_gpu[0].close(clean)
        except Exception:
            logging.getLogger("workbench").exception("The backend for GPUs did not come to its end.")
        self._backends[0].close(clean)

    def find(self, ranks: tuple[int, ...]) -> int | None:
        """The id of the set with just these ranks, if there is one."""
        return next((set_id for set_id, members in self.members.items() if members == ranks), None)

    def apply(self, response: Response) -> None:
        """Take note of a set that begins or ends; of all other responses nothing."""
        if response.error:
            return
        if response.kind is Kind.ADD_SET:
            self.members[response.root] = response.rows
            if self._rank in response.rows:
                self._backends[response.root] = self._backends[0].subset(response.rows)
                if self._on_gpu:
                    self._on_gpu[response.root] = self._on_gpu[0].within(self._backends[response.root], response.rows)
        elif response.kind is Kind.REMOVE_SET:
            self.members.pop(response.root, None)
            self._backends.pop(response.root, None)
            if gone := self._on_gpu.pop(response.root, None):
                gone.leave()
