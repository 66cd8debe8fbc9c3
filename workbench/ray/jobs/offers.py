"""Executors on Ray's nodes, for an elastic job: one actor for each slot that a discovery finds.

::

    discovery ──► offers ──► actor on a node ──► registry ──► hosts of the elastic job
       ▲                         │
       └── node is gone ◄────────┘

A node that comes gets actors; those of a node that goes, end. The launcher knows nothing of Ray: it sees the
registry's hosts.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from workbench.executors.executor import About, Invitation, serve
from workbench.executors.registry import ExecutorRegistry
from workbench.ray.jobs.calls import reason
from workbench.ray.needed import ray

EVERY_S = 1.0
"""Between two looks at Ray's nodes."""
_SHARE = 0.001  # of a node's own resource, which places an actor on it


class HostDiscovery(Protocol):
    """Says which nodes there are."""

    def find_available_hosts_and_slots(self) -> Mapping[str, int]:
        """By a node's address, how many slots it has now."""


class Offer:
    """The actor: an executor, see :mod:`workbench.executors`."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __repr__(self) -> str:
        return self._label

    def serve(self, invitation: Invitation) -> str:
        """Until the launcher needs it no more."""
        return serve(invitation, About(self._label, tuple(str(gpu) for gpu in ray.get_gpu_ids())))


@dataclass(frozen=True)
class Takes:
    """What each slot takes of its node.

    Args:
        cpus, gpus: of Ray's resources.
    """

    cpus: float = 1
    gpus: float = 0


@dataclass(frozen=True)
class _Made:
    """An actor, and the reference that is ready when it has ended."""

    actor: Any
    ended: Any


class RaySlots:
    """Keeps executors where the discovery says; a thread of its own looks after them.

    Args:
        board: where they check in.
        discovery: says where.
        takes: what each takes.
        most: so many at most; 0: any number.

    Attributes:
        complaint: why the last one did not serve, or the discovery does not answer; "" while all is well.
    """

    def __init__(self, board: ExecutorRegistry, discovery: HostDiscovery, takes: Takes, most: int = 0) -> None:
        self._board, self._discovery, self._takes, self._most = board, discovery, takes, most
        self._made: dict[str, list[_Made]] = {}
        self._number, self._over, self.complaint = 0, threading.Event(), ""
        self._thread = threading.Thread(target=self._attend, name="workbench-offers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for address in list(self._made):
            self._shrink(address, 0)

    def _attend(self) -> None:
        while True:
            try:
                self._look(self._discovery.find_available_hosts_and_slots())
            except Exception as error:  # noqa: BLE001 - a user's discovery, or Ray amid the loss of a node
                self.complaint = f"the discovery of hosts failed: {type(error).__name__}: {error}"
            if self._over.wait(EVERY_S):
                return

    def _look(self, slots: Mapping[str, int]) -> None:
        self._forget_ended()
        wanted = limited(slots, self._most)
        for address in list(self._made):
            self._shrink(address, wanted.get(address, 0))
        for address, n in wanted.items():
            for _ in range(n - len(self._made.get(address, []))):
                self._made.setdefault(address, []).append(self._make(address))

    def _forget_ended(self) -> None:
        refs = [each.ended for made in self._made.values() for each in made]
        ended = set(ray.wait(refs, num_returns=len(refs), timeout=0)[0]) if refs else set()
        for ref in ended:
            try:
                ray.get(ref)
            except ray.exceptions.RayError as error:
                self.complaint = reason(error)
        for address, made in self._made.items():
            self._made[address] = [each for each in made if each.ended not in ended]

    def _shrink(self, address: str, n: int) -> None:
        """To the first ``n``: the agent of a host runs in the one that came first."""
        for each in self._made.get(address, [])[n:] if ray.is_initialized() else ():
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(each.actor)
        self._made[address] = self._made.get(address, [])[:n]
        if not self._made[address]:
            del self._made[address]

    def _make(self, address: str) -> _Made:
        self._number += 1
        actor = (
            ray.remote(Offer)
            .options(num_cpus=self._takes.cpus, num_gpus=self._takes.gpus, resources={f"node:{address}": _SHARE})
            .remote(f"slot {self._number}")
        )
        return _Made(actor, actor.serve.remote(self._board.invitation))


def limited(slots: Mapping[str, int], most: int) -> dict[str, int]:
    """The first ``most`` slots; all if it is 0.

    Example:
        >>> limited({"a": 2, "b": 2, "c": 2}, 3)
        {'a': 2, 'b': 1}
    """
    found, left = {}, most or sum(slots.values())
    for address, n in slots.items():
        if mine := min(n, left):
            found[address] = mine
            left -= mine
    return found
