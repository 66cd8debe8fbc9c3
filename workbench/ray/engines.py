"""Places for a notebook's engines in a Ray cluster: ``cluster.up(4, ray={})``.

::

    kernel ─┬─ ipyparallel.controller
            └─ executor registry ══ actor on a node ── agent ── supervisors ── engines

The actors are executors, see :mod:`workbench.executors`; the engines are processes of their own below them, so they are
started, watched and rescued as on hosts that ssh reaches.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from workbench import config
from workbench.common.text import count
from workbench.errors import LaunchError
from workbench.executors.registry import ExecutorRegistry
from workbench.launch.hosts.agent_connections import Target
from workbench.ray.jobs.calls import reason
from workbench.ray.jobs.offers import Offer
from workbench.ray.needed import connected, ray
from workbench.ray.strategy import create_placement_group

_CAME_S = 60.0


@dataclass(frozen=True)
class RayRequest:
    """What ``cluster.up(ray=…)`` asks for.

    Args:
        n: how many engines.
        cpus, gpus: what each takes, in Ray's words.
        strategy: ``PACK``: on as few nodes as possible; or ``SPREAD``, ``STRICT_PACK``, ``STRICT_SPREAD``.
        timeout_s: so long it waits until Ray has placed them.
    """

    n: int
    cpus: float = 1
    gpus: float = 0
    strategy: str = "PACK"
    timeout_s: float = 100.0


def request(n: int, asked: Mapping[str, Any]) -> RayRequest:
    """A request by the words of a notebook.

    Raises:
        LaunchError: a word is unknown.

    Example:
        >>> request(4, {"gpus": 1}).gpus
        1
        >>> request(4, {"gpu": 1})
        Traceback (most recent call last):
        workbench.errors.LaunchError: ray: 'gpu' is not known. There are: cpus, gpus, strategy, timeout_s.
    """
    known = [field.name for field in fields(RayRequest) if field.name != "n"]
    if unknown := [name for name in asked if name not in known]:
        raise LaunchError(f"ray: {unknown[0]!r} is not known. There are: {', '.join(known)}.")
    return RayRequest(n, **asked)


class RayPlaces:
    """Places that Ray has given, until :meth:`release`; see :class:`workbench.cluster.reservation.Allocation`.

    Args:
        asked: how many, and what each takes.
        log: gets what happens meanwhile.

    Raises:
        LaunchError: Ray is not initialized, or its actors do not reach this process.
        DeadlineError: Ray has no room.

    Attributes:
        targets: the hosts.
    """

    kind = "ray"

    def __init__(self, asked: RayRequest, log: Callable[[str], None]) -> None:
        connected()
        self.asked, self._owner = asked, os.getpid()
        log(f"Ray is asked for {count(asked.n, 'place')} ({asked.strategy})")
        bundle = {"CPU": asked.cpus, "GPU": asked.gpus}
        self._group, _ = create_placement_group(bundle, asked.n, asked.timeout_s, asked.strategy)
        self._board = ExecutorRegistry(str(ray.util.get_node_ip_address()), config.ports())
        self._actors: list[Any] = []
        atexit.register(self.release)
        try:
            self._fill()
        except BaseException:
            self.release()
            raise
        self.targets: list[Target] = self._board.targets()

    def _fill(self) -> None:
        within = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for i in range(self.asked.n):
            options = {"num_cpus": self.asked.cpus, "num_gpus": self.asked.gpus}
            actor = ray.remote(Offer).options(scheduling_strategy=within(self._group, i), **options)
            self._actors.append(actor.remote(f"place {i}"))
        served = [actor.serve.remote(self._board.invitation) for actor in self._actors]
        self._board.wait_for(self.asked.n, _CAME_S, lambda: _failed(served))

    def left_s(self) -> float | None:
        return None

    def short_s(self) -> float:
        return 0.0

    def ended(self) -> str:
        """Why the places are no more; "" while they are there. A node that is lost is told by the engines."""
        if not ray.is_initialized():
            return "Ray was shut down in this kernel"
        return "" if self._board.executors() else "all of Ray's actors have ended"

    def intact(self) -> bool:
        return not self.ended() and len(self._board.executors()) == self.asked.n

    def line(self) -> str:
        if over := self.ended():
            return over
        names = ", ".join(target.name for target in self.targets)
        return f"{count(self.asked.n, 'place')} in Ray on {names}; cluster.release() gives them back"

    def release(self) -> None:
        """Give them back; called again or in a forked child, do nothing."""
        if self._owner != os.getpid():
            return
        atexit.unregister(self.release)
        self._owner = 0
        self._board.close()
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
            ray.util.remove_placement_group(self._group)


def _failed(served: list[Any]) -> str:
    """Why an actor has ended before it came; "" while none has."""
    for ref in ray.wait(served, timeout=0)[0]:
        try:
            ray.get(ref)
        except ray.exceptions.RayError as error:
            return f"An actor of Ray's did not start: {reason(error)}"
    return ""
