"""``ElasticRayExecutor``: a job whose ranks follow Ray's nodes."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.ray.jobs.growing import Growing, limits_of
from workbench.ray.jobs.offers import Takes
from workbench.ray.needed import connected
from workbench.ray.settings import Callbacks, ElasticSettings, check_gpus, elastic_settings, own_discovery


class RayHostDiscovery:
    """Finds Ray's nodes, and how many ranks each has room for if nothing else runs there.

    Args:
        use_gpu, cpus_per_slot, gpus_per_slot: what each rank takes.
    """

    def __init__(self, use_gpu: bool = False, cpus_per_slot: float = 1, gpus_per_slot: float = 1) -> None:
        self.use_gpu, self.cpus_per_slot, self.gpus_per_slot = use_gpu, cpus_per_slot, gpus_per_slot

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """By the address of each node that is alive, its slots; nodes without any are left out."""
        found: dict[str, int] = {}
        for node in connected().nodes():
            if node["Alive"] and (slots := self._slots(node["Resources"])):
                address = str(node["NodeManagerAddress"])
                found[address] = found.get(address, 0) + slots
        return found

    def _slots(self, resources: Mapping[str, float]) -> int:
        """How many fit into a node.

        Example:
            >>> RayHostDiscovery(use_gpu=True, cpus_per_slot=2)._slots({"CPU": 8.0, "GPU": 3.0})
            3
        """
        slots = resources.get("CPU", 0) / self.cpus_per_slot if self.cpus_per_slot else math.inf
        if self.use_gpu:
            slots = min(slots, resources.get("GPU", 0) / self.gpus_per_slot)
        return int(slots) if slots < math.inf else 1


class TestDiscovery(RayHostDiscovery):
    """Pretends that nodes come and go, to try a script: each that Ray has may be hidden for a while.

    Args:
        min_hosts, max_hosts: so many are to be seen.
        change_frequency_s: how often one comes or goes.
        use_gpu, cpus_per_slot, gpus_per_slot: see :class:`RayHostDiscovery`.
        verbose: print how many there are.
    """

    __test__ = False  # Horovod's name; pytest would take it for a test

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: float = 1,
        verbose: bool = True,
    ) -> None:
        super().__init__(use_gpu, cpus_per_slot, gpus_per_slot)
        self._range, self._every_s, self.verbose = (min_hosts, max_hosts), change_frequency_s, verbose
        self._changed_at = time.monotonic()
        self._hidden: set[str] = set()

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Those that are not hidden."""
        hosts = super().find_available_hosts_and_slots()
        if time.monotonic() - self._changed_at >= self._every_s:
            self._changed_at = time.monotonic()
            self._change(sorted(hosts))
        found = {name: slots for name, slots in hosts.items() if name not in self._hidden}
        if self.verbose:
            print(f"Total hosts: {len(hosts)}\nRemaining hosts: {len(found)} -- {found}")
        return found

    def _change(self, hosts: Sequence[str]) -> None:
        self._hidden &= set(hosts)
        seen, (least, most) = [host for host in hosts if host not in self._hidden], self._range
        if self._hidden and (len(seen) <= least or (len(seen) < most and random.random() < 0.5)):
            self._hidden.remove(random.choice(sorted(self._hidden)))
        elif len(seen) > least:
            self._hidden.add(random.choice(seen))


class ElasticRayExecutor:
    """An elastic job in a Ray cluster. Names and order of the arguments are Horovod's.

    A rank that is lost, with its node or alone, ends an epoch; the others begin the next one from the last commit.
    Nodes that come give it further ranks.

    Args:
        settings: from :meth:`create_settings`.
        use_gpu, cpus_per_slot, gpus_per_slot: what each rank takes of its node.
        env_vars: further environment variables of the ranks.
        override_discovery: ask Ray which nodes there are; else ``settings.discovery``.

    Raises:
        ValueError: arguments contradict each other.

    Example:
        >>> settings = ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=4)
        >>> executor = ElasticRayExecutor(settings, cpus_per_slot=2)
        >>> executor.start()  # doctest: +SKIP
        >>> executor.run(train)  # doctest: +SKIP
        [0.31, 0.31, 0.31, 0.31]
    """

    create_settings = staticmethod(elastic_settings)

    def __init__(
        self,
        settings: ElasticSettings,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: float | None = None,
        env_vars: Mapping[str, Any] | None = None,
        override_discovery: bool = True,
    ) -> None:
        check_gpus(use_gpu, gpus_per_slot, "gpus_per_slot")
        if override_discovery:
            settings.discovery = RayHostDiscovery(use_gpu, cpus_per_slot, gpus_per_slot or 1)
        own_discovery(settings)
        self.settings, self.env_vars = settings, dict(env_vars or {})
        takes = Takes(cpus_per_slot, (gpus_per_slot or 1) * use_gpu)
        least, most, rest_s = settings.min_num_proc, settings.max_num_proc, settings.cooldown_range
        limits = limits_of(least, most, settings.reset_limit, rest_s, settings.elastic_timeout)
        self._growing = Growing(settings, settings.discovery, takes, limits)

    def start(self) -> None:
        """Take places on Ray's nodes, and wait until there are enough of them.

        Raises:
            LaunchError: Ray is not initialized, or this process is on none of its nodes.
            DeadlineError: there are too few slots for ``elastic_timeout``.
        """
        self._growing.start(self.env_vars)

    def run(self, worker_fn: Callable[[], Any], callbacks: Callbacks = None) -> list[Any]:
        """Call a function on each rank, and give the places back when all have ended.

        Args:
            worker_fn: as a rule decorated with ``hvd.elastic.run``, or calls such a function.
            callbacks: each is called with what a rank gives to ``workbench.ray.ray_logger.log``.

        Returns:
            What it returned, by the ranks of the last epoch.

        Raises:
            LaunchError: :meth:`start` was not called.
            RankFailedError: no rank is left, or too few for too long.
        """
        try:
            return self._growing.run(worker_fn, callbacks=callbacks)
        finally:
            self.shutdown()

    def shutdown(self) -> None:
        self._growing.close()
