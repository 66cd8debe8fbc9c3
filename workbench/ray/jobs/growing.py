"""An elastic job on Ray's nodes: executors as actors, and the launcher of elastic jobs over them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from workbench import config
from workbench.common.text import count
from workbench.errors import DeadlineError, LaunchError
from workbench.executors.jobs import run_on
from workbench.executors.registry import ExecutorRegistry
from workbench.launch.elastic.run import Limits
from workbench.ray.jobs.offers import HostDiscovery, RaySlots, Takes
from workbench.ray.needed import connected
from workbench.ray.ray_logger import calling
from workbench.ray.settings import Args, Callbacks, Func, Kwargs, MiniSettings

_LOOK_S = 0.1
_REST_S = (1.0, 60.0)


class Growing:
    """Executors that stay between jobs, from :meth:`start` to :meth:`close`.

    Args:
        settings: interfaces, how much is said.
        discovery: says where slots are.
        takes: what each takes of its node.
        limits: of the jobs.
    """

    def __init__(self, settings: MiniSettings, discovery: HostDiscovery, takes: Takes, limits: Limits) -> None:
        self._settings, self._discovery, self._takes, self._limits = settings, discovery, takes, limits
        self._env: dict[str, str] = {}
        self._places: tuple[ExecutorRegistry, RaySlots] | None = None

    def start(self, env: Mapping[str, Any]) -> None:
        """Take places on Ray's nodes, and wait until there are enough of them.

        Args:
            env: further environment variables of the ranks.

        Raises:
            LaunchError: Ray is not initialized, this process is on none of its nodes, or the places are taken already.
            DeadlineError: not enough executors have come in time.
        """
        if self._places:
            raise LaunchError("The job already has its resources: call run(). shutdown() releases them.")
        ray = connected()
        if ray.util.client.ray.is_connected():
            raise LaunchError(
                "An elastic job is launched on a node of the cluster, which all others reach, and not over Ray Client. "
                'Start this script there, with ray.init(address="auto"), or as a Ray job.'
            )
        self._env = {name: str(value) for name, value in env.items()}
        board = ExecutorRegistry(str(ray.util.get_node_ip_address()), config.ports())
        offers = RaySlots(board, self._discovery, self._takes, self._limits.most)
        self._places = board, offers
        try:
            _wait(board, offers, self._limits.least, self._limits.timeout_s)
        except BaseException:
            self.close()
            raise

    def run(self, fn: Func, args: Args = None, kwargs: Kwargs = None, callbacks: Callbacks = None) -> list[Any]:
        """See :func:`workbench.executors.jobs.run_on`; the callbacks get what ranks log.

        Raises:
            LaunchError: :meth:`start` was not called.
        """
        if self._places is None:
            raise LaunchError("There are no resources for ranks: call start() first.")
        with calling(callbacks or ()) as env:
            return run_on(
                self._places[0],
                self._limits,
                fn,
                args or (),
                kwargs,
                env={**self._env, **env},
                nics=self._settings.interfaces(),
                output_dir=getattr(self._settings, "output_filename", ""),
                prefix_output_with_timestamp=getattr(self._settings, "prefix_output_with_timestamp", False),
                verbose=self._settings.verbose > 1,
            )

    def close(self) -> None:
        places, self._places = self._places, None
        for each in places or ():
            each.close()


def _wait(board: ExecutorRegistry, offers: RaySlots, n: int, timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while (there := len(board.executors())) < n:
        if time.monotonic() > until:
            why = offers.complaint or f"Ray has room for {count(there, 'slot')}"
            raise DeadlineError(
                f"{there} of {count(n, 'slot')} were available after {timeout_s:g} s: {why}. Add nodes, ask for less, "
                "or wait longer: elastic_timeout=."
            )
        time.sleep(_LOOK_S)


def limits_of(
    least: int, most: int | None, resets: int | None, rest_s: Sequence[float] | None, timeout_s: float
) -> Limits:
    """What an elastic job may do, by Horovod's arguments.

    Raises:
        ValueError: they contradict each other.
    """
    if least < 1 or (most is not None and most < least):
        raise ValueError(f"at least {least} and at most {most} ranks: the first is 1 or more, the second not smaller.")
    if resets is not None and resets < 0:
        raise ValueError(f"reset_limit={resets}: a number of resets is not negative.")
    shortest, longest = rest_s or _REST_S
    if not 0 <= shortest <= longest:
        raise ValueError(f"cooldown_range={tuple(rest_s or ())}: first the shorter time, then the longer.")
    rest = float(shortest), float(longest)
    return Limits(least, most or 0, resets, timeout_s, rest, config.settings().peer_timeout_s)
