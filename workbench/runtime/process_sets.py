"""The process sets of one rank: who belongs to which, and the backend that connects them."""

from __future__ import annotations

from workbench.backends.base import Backend
from workbench.runtime.messages import Kind, Response


class SetTable:
    """Changed by responses only, so at the same place in the order of all collectives on every rank.

    Args:
        rank: this rank.
        backend: connects all ranks; it is the set 0.
    """

    def __init__(self, rank: int, backend: Backend) -> None:
        self._rank = rank
        self._backends = {0: backend}  # only of the sets that this rank belongs to
        self.members: dict[int, tuple[int, ...]] = {0: tuple(range(backend.size))}

    @property
    def everybody(self) -> Backend:
        """The backend of all ranks."""
        return self._backends[0]

    def backend(self, set_id: int) -> Backend | None:
        """The backend of a set; None if this rank does not belong to it."""
        return self._backends.get(set_id)

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
        elif response.kind is Kind.REMOVE_SET:
            self.members.pop(response.root, None)
            self._backends.pop(response.root, None)
