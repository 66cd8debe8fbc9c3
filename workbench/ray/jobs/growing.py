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
from workbench.ray.settings import Args, Func, Kwargs, MiniSettings

_LOOK_S = 0.1
_REST_S = (1.0, 60.0)


class Growing:
    """Executors that stay between jobs, until :meth:`close`.

    Args:
        settings: interfaces, how much is said.
        discovery: says where slots are.
        takes: what each takes of its node.
        limits: of the jobs.
        env: further environment variables of the ranks.

    Raises:
        LaunchError: Ray is not initialized, or this process is on none of its nodes.
        DeadlineError: not enough executors have come in time.
    """

    def __init__(
        self, settings: MiniSettings, discovery: HostDiscovery, takes: Takes, limits: Limits, env: Mapping[str, Any]
    ) -> None:
        ray = connected()
        if ray.util.client.ray.is_connected():
            raise LaunchError(
                "An elastic job is launched on a node of the cluster, which all others reach, and not over Ray Client. "
                'Start this script there, with ray.init(address="auto"), or as a Ray job.'
            )
        self._settings, self._limits = settings, limits
        self._env = {name: str(value) for name, value in env.items()}
        self._board = ExecutorRegistry(str(ray.util.get_node_ip_address()), config.ports())
        self._offers = RaySlots(self._board, discovery, takes, limits.most)
        try:
            self._wait(limits.least, limits.timeout_s)
        except BaseException:
            self.close()
            raise

    def _wait(self, n: int, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while (there := len(self._board.executors())) < n:
            if time.monotonic() > until:
                why = self._offers.complaint or f"Ray has room for {count(there, 'slot')}"
                raise DeadlineError(
                    f"{there} of {count(n, 'slot')} were available after {timeout_s:g} s: {why}. Add nodes, ask for "
                    f"less, "
                    "or wait longer: elastic_timeout=."
                )
            time.sleep(_LOOK_S)

    def run(
        self, fn: Func, args: Args = None, kwargs: Kwargs = None, env: Mapping[str, str] | None = None
    ) -> list[Any]:
        """See :func:`workbench.executors.jobs.run_on`."""
        return run_on(
            self._board,
            self._limits,
            fn,
            args or (),
            kwargs,
            env={**self._env, **(env or {})},
            nics=self._settings.interfaces(),
            output_dir=getattr(self._settings, "output_filename", ""),
            prefix_output_with_timestamp=getattr(self._settings, "prefix_output_with_timestamp", False),
            verbose=self._settings.verbose > 1,
        )

    def close(self) -> None:
        self._board.close()
        self._offers.close()


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
