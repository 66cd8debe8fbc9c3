"""What a function on a simulated rank gets as ``comm``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from workbench.course.simulator.communicator import Array, Communicator, Pending
from workbench.course.simulator.failures import Failures


class CommunicatorWorld(Protocol):
    """What a communicator needs of the scheduler. Ranks are members of the world; an epoch is a set of them."""

    failures: Failures

    def now(self, rank: int) -> float: ...
    def compute(self, rank: int, seconds: float, label: str) -> None: ...
    def shrink(self, rank: int, epoch: int) -> int: ...
    def begins(self, rank: int, epoch: int, call: str) -> None: ...
    def post_send(self, rank: int, epoch: int, data: Any, dest: int, tag: int, verb: str) -> Pending: ...
    def post_recv(self, rank: int, epoch: int, buffer: Array | None, source: int, tag: int, verb: str) -> Pending: ...


class Comm(Communicator):
    """A simulated rank's communicator; see :class:`workbench.course.simulator.communicator.Communicator`.

    It is a Link as well, so :mod:`workbench.collectives` runs on it.
    """

    def __init__(self, world: CommunicatorWorld, member: int, epoch: int = 0) -> None:
        self._world, self._member, self._epoch = world, member, epoch
        self.rank, self.size = self.members.index(member), len(self.members)

    @property
    def members(self) -> tuple[int, ...]:
        """By rank, each one's number at the beginning of the run: the same as its rank until somebody dies."""
        return self._world.failures.epochs[self._epoch]

    @property
    def now(self) -> float:
        """This rank's clock, in virtual seconds."""
        return self._world.now(self._member)

    def compute(self, seconds: float, label: str = "") -> None:
        self._world.compute(self._member, seconds, label)

    def shrink(self) -> Comm:
        """Wait for all who live, and return a communicator of them: as MPI's ULFM does.

        Their order is kept. A rank that has returned is left out, as the dead are.
        """
        return Comm(self._world, self._member, self._world.shrink(self._member, self._epoch))

    def sendrecv(self, *args: Any, **options: Any) -> Any:
        """As mpi4py's; with two arrays or None, ``sendrecv(send, dest, recv, source)``, as a Link's."""
        if len(args) == 4 and not options and isinstance(args[0] if args[0] is not None else args[2], np.ndarray):
            return self._as_link(*args)
        return super().sendrecv(*args, **options)

    def _as_link(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        pending = [] if send is None else [self.post_send(send, dest, 0, "sendrecv")]
        pending += [] if recv is None else [self.post_recv(recv, source, 0, "sendrecv")]
        self.finish(pending, "sendrecv")

    def _begins(self, call: str) -> None:
        self._world.begins(self._member, self._epoch, call)

    def post_send(self, data: Any, dest: int, tag: int, verb: str) -> Pending:
        return self._world.post_send(self._member, self._epoch, data, self.members[dest], tag, verb)

    def post_recv(self, buffer: Array | None, source: int, tag: int, verb: str) -> Pending:
        peer = source if source < 0 else self.members[source]
        return self._world.post_recv(self._member, self._epoch, buffer, peer, tag, verb)

    def finish(self, pending: Sequence[Pending], verb: str) -> list[Any]:
        return [one.wait() for one in pending]
