"""Where the ranks go: placement groups of Ray's, and the actors in them.

=========================  ===========================================================================================
:class:`PGStrategy`        one bundle for each rank, on as few nodes as possible (``PACK``); or the group around this
                           process
:class:`ColocatedStrategy`  one bundle for each node, with as many ranks on each (``STRICT_SPREAD``)
=========================  ===========================================================================================

Ranks of a node have consecutive numbers, unless the group is somebody else's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from workbench.common.text import count
from workbench.errors import DeadlineError
from workbench.ray.needed import connected, ray
from workbench.ray.settings import MiniSettings
from workbench.ray.worker import BaseHorovodWorker

Bundle = dict[str, float]


def create_placement_group(
    resources_per_bundle: Bundle, num_bundles: int, pg_timeout: float, pg_strategy: str
) -> tuple[Any, list[Bundle]]:
    """Reserve room for the ranks.

    Args:
        resources_per_bundle: of each bundle, by Ray's name of the resource.
        num_bundles: how many.
        pg_timeout: deadline in seconds, in which a cluster that scales may start nodes.
        pg_strategy: ``PACK``, ``SPREAD``, ``STRICT_PACK`` or ``STRICT_SPREAD``.

    Returns:
        The group, and its bundles.

    Raises:
        DeadlineError: there is no room; the text says what was asked for, and what the cluster has.
    """
    bundles = [{name: amount for name, amount in resources_per_bundle.items() if amount} for _ in range(num_bundles)]
    group = connected().util.placement_group(bundles, strategy=pg_strategy)
    if not fits(bundles, pg_strategy, [node["Resources"] for node in ray.nodes() if node["Alive"]]):
        logging.getLogger("workbench").warning(
            f"No node of this cluster can ever hold its part of {count(num_bundles, 'bundle')} of "
            f"{_amounts(bundles[0])} each ({pg_strategy}). {_what_there_is()} The job waits {pg_timeout:g} s for nodes "
            "that a growing cluster may start; else ask for less."
        )
    if not group.wait(pg_timeout):
        ray.util.remove_placement_group(group)
        raise DeadlineError(
            f"Ray has not placed {count(num_bundles, 'bundle')} of {_amounts(bundles[0])} each ({pg_strategy}) within "
            f"{pg_timeout:g} s. {_what_there_is()} Ask for less, wait until other jobs have ended, or add nodes; "
            "placement_group_timeout_s gives a growing cluster more time."
        )
    return group, bundles


def fits(bundles: Sequence[Bundle], strategy: str, nodes: Sequence[Bundle]) -> bool:
    """Would they fit if nothing else ran? All bundles are alike.

    Args:
        bundles: by resource, how much each takes.
        strategy: as in :func:`create_placement_group`.
        nodes: by resource, how much each has.

    Example:
        >>> fits([{"CPU": 8.0}], "PACK", [{"CPU": 4.0}, {"CPU": 4.0}]), fits([{"CPU": 2.0}] * 4, "PACK", [{"CPU": 8.0}])
        (False, True)
    """
    needed = bundles[0]
    room = [min((int(node.get(name, 0.0) // n) for name, n in needed.items()), default=len(bundles)) for node in nodes]
    if strategy == "STRICT_PACK":
        return max(room, default=0) >= len(bundles)
    return sum(min(1, each) if strategy == "STRICT_SPREAD" else each for each in room) >= len(bundles)


def _amounts(resources: Bundle) -> str:
    named = [f"{amount:g} {name}" for name, amount in resources.items() if name in ("CPU", "GPU")]
    return " and ".join(named) or "nothing"


def _what_there_is() -> str:
    """The nodes, and what is free on all together."""
    nodes = [f"{node['NodeManagerAddress']} has {_amounts(node['Resources'])}" for node in ray.nodes() if node["Alive"]]
    return f"Of its nodes {', '.join(nodes)}; free are {_amounts(ray.available_resources())}."


class Strategy:
    """What the strategies have in common.

    Attributes:
        workers: the actors, by rank.
        placement_group: the one that they are in.
    """

    def __init__(self, settings: MiniSettings, cpus: float, gpus: float) -> None:
        self._settings, self._cpus, self._gpus = settings, cpus, gpus
        self.workers: list[Any] = []
        self.placement_group: Any = None
        self._made = False

    def create_workers(self) -> tuple[list[Any], list[Any]]:
        """Make the actors.

        Returns:
            All of them, and those that are the first of their bundle.

        Raises:
            DeadlineError: see :func:`create_placement_group`.
        """
        raise NotImplementedError

    def _place(self, bundle: Bundle, n: int, strategy: str) -> None:
        timeout_s = self._settings.placement_group_timeout_s
        self.placement_group, _ = create_placement_group(bundle, n, timeout_s, strategy)
        self._made = True

    def _fill(self, bundles: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """An actor in each of these bundles; -1 is any."""
        actor = ray.remote(BaseHorovodWorker)
        for rank, bundle in enumerate(bundles):
            where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                self.placement_group, placement_group_bundle_index=bundle
            )
            options = {"num_cpus": self._cpus, "num_gpus": self._gpus, "scheduling_strategy": where}
            self.workers.append(actor.options(**options).remote(rank, len(bundles)))
        return self.workers, [self.workers[list(bundles).index(bundle)] for bundle in dict.fromkeys(bundles)]

    def shutdown(self) -> None:
        """End the actors, and give back what is ours; after ``ray.shutdown()`` there is nothing left to end."""
        if ray.is_initialized():
            for worker in self.workers:
                ray.kill(worker)
            if self._made:
                ray.util.remove_placement_group(self.placement_group)
        self.workers, self.placement_group, self._made = [], None, False


class ColocatedStrategy(Strategy):
    """The same number of ranks on each of several nodes.

    Args:
        settings: deadlines.
        num_hosts, num_workers_per_host: how many.
        use_gpu, cpus_per_worker, gpus_per_worker: what each takes.
    """

    def __init__(
        self,
        *,
        settings: MiniSettings,
        num_hosts: int,
        num_workers_per_host: int,
        use_gpu: bool,
        cpus_per_worker: float,
        gpus_per_worker: float | None,
    ) -> None:
        super().__init__(settings, cpus_per_worker, (gpus_per_worker or 1) * use_gpu)
        self._hosts, self._each = num_hosts, num_workers_per_host

    @property
    def num_workers(self) -> int:
        return self._hosts * self._each

    def create_workers(self) -> tuple[list[Any], list[Any]]:
        self._place({"CPU": self._cpus * self._each, "GPU": self._gpus * self._each}, self._hosts, "STRICT_SPREAD")
        return self._fill([host for host in range(self._hosts) for _ in range(self._each)])


class PGStrategy(Strategy):
    """Ranks on as few nodes as possible, or in the group around this process.

    Args:
        settings: deadlines.
        num_workers: how many.
        use_gpu, cpus_per_worker, gpus_per_worker: what each takes.
        placement_group: to be used; by default the one around this process, if it is in one.
        force_create_placement_group: make one in any case.
    """

    def __init__(
        self,
        *,
        settings: MiniSettings,
        num_workers: int,
        use_gpu: bool,
        cpus_per_worker: float,
        gpus_per_worker: float | None,
        placement_group: Any = None,
        force_create_placement_group: bool = False,
    ) -> None:
        super().__init__(settings, cpus_per_worker, (gpus_per_worker or 1) * use_gpu)
        self.num_workers = num_workers
        if not force_create_placement_group:
            self.placement_group = placement_group or ray.util.get_current_placement_group()

    def create_workers(self) -> tuple[list[Any], list[Any]]:
        if self.placement_group:
            return self._fill([-1] * self.num_workers)
        self._place({"CPU": self._cpus, "GPU": self._gpus}, self.num_workers, "PACK")
        return self._fill(self._by_node())

    def _by_node(self) -> list[int]:
        """The bundles, those of a node one after the other."""
        nodes: dict[int, str] = ray.util.placement_group_table(self.placement_group)["bundles_to_node_id"]
        order = list(dict.fromkeys(nodes.values()))
        return sorted(nodes, key=lambda bundle: (order.index(nodes[bundle]), bundle))
