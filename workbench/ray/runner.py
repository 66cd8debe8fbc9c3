"""``RayExecutor``: ranks as actors of Ray's, which stay between calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from workbench.ray.elastic_v2 import ElasticAdapter, ElasticParams
from workbench.ray.jobs.fixed import StaticAdapter
from workbench.ray.settings import Args, Callbacks, Func, Kwargs, check_gpus, renamed
from workbench.ray.settings import MiniSettings as MiniSettings
from workbench.ray.worker import BaseHorovodWorker as BaseHorovodWorker


class RayExecutor:
    """A job in a Ray cluster. Names and order of the arguments are Horovod's.

    With ``num_workers``, or ``num_hosts`` and ``num_workers_per_host``, the ranks are actors: they stay until
    :meth:`shutdown`, so what one call leaves in ``executable_cls``'s object, the next one finds. With ``min_workers``
    the job is elastic: ranks start with each :meth:`run`, and their number follows Ray's nodes.

    Args:
        settings: from :meth:`create_settings`.
        num_workers: how many ranks, on as few nodes as possible.
        num_hosts, num_workers_per_host: instead: so many on each of so many nodes.
        cpus_per_worker, use_gpu, gpus_per_worker: what each rank takes of its node.
        use_current_placement_group: use the placement group around this process, if it is in one.
        min_workers, max_workers: an elastic job: with so many ranks it goes on; None: as many as there is room for.
        reset_limit: so many epochs after the first; None: any number.
        cooldown_range: the shortest and the longest rest of a host after a failure, in seconds.
        elastic_timeout: so long it waits for ``min_workers``, in seconds.
        override_discovery: ask Ray which nodes there are; else ``settings.discovery``.
        num_slots, cpus_per_slot, gpus_per_slot: older names, which Horovod's own example has.

    Raises:
        ValueError: arguments contradict each other.

    Example:
        >>> executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=4)
        >>> executor.start()  # doctest: +SKIP
        >>> executor.run(train, kwargs={"lr": 0.1})  # doctest: +SKIP
        [0.31, 0.31, 0.31, 0.31]
        >>> executor.shutdown()  # doctest: +SKIP
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Iterable[str] | str | None = None,
    ) -> MiniSettings:
        """Settings.

        Args:
            timeout_s: deadline until all ranks have started, and again until they have met in ``init()``.
            ssh_identity_file, ssh_str: Horovod's. Nothing here uses ssh, and no key is written to a file.
            placement_group_timeout_s: deadline until Ray has placed the ranks.
            nics: names of interfaces, of which the first that a node has is used; by default the one that Ray uses.
        """
        return MiniSettings(
            nics=nics,
            ssh_identity_file=ssh_identity_file,
            timeout_s=timeout_s,
            placement_group_timeout_s=placement_group_timeout_s,
        )

    def __init__(
        self,
        settings: MiniSettings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[float] | None = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
        *,
        num_slots: int | None = None,
        cpus_per_slot: float | None = None,
        gpus_per_slot: float | None = None,
    ) -> None:
        self.settings = settings or MiniSettings()
        num_workers_per_host = renamed("num_slots", num_slots, "num_workers_per_host", num_workers_per_host)
        cpus_per_worker = renamed("cpus_per_slot", cpus_per_slot, "cpus_per_worker", cpus_per_worker)
        gpus_per_worker = renamed("gpus_per_slot", gpus_per_slot, "gpus_per_worker", gpus_per_worker)
        check_gpus(use_gpu, gpus_per_worker, "gpus_per_worker")
        takes: dict[str, Any] = {
            "cpus_per_worker": cpus_per_worker,
            "use_gpu": use_gpu,
            "gpus_per_worker": gpus_per_worker,
        }
        if max_workers and not min_workers:
            raise ValueError(f"max_workers={max_workers} needs min_workers, at least 1: the job is elastic then.")
        if min_workers and (num_workers or num_hosts):
            raise ValueError(
                f"min_workers={min_workers} makes the job elastic, num_workers={num_workers} or num_hosts={num_hosts} "
                "fixes its size: give one of them."
            )
        self.settings.elastic = min_workers is not None
        self.adapter: StaticAdapter | ElasticAdapter
        if min_workers is not None:
            limits = (reset_limit, cooldown_range, elastic_timeout)
            params = ElasticParams(min_workers, max_workers, *limits, override_discovery, **takes)
            self.adapter = ElasticAdapter(self.settings, params)
        else:
            counts = (num_workers, num_hosts, num_workers_per_host)
            self.adapter = StaticAdapter(self.settings, *counts, use_current_placement_group, takes)

    def start(
        self,
        executable_cls: Func | None = None,
        executable_args: Args = None,
        executable_kwargs: Kwargs = None,
        extra_env_vars: Kwargs = None,
    ) -> None:
        """Start the ranks.

        Args:
            executable_cls: made on each rank, for :meth:`execute`; not in an elastic job.
            executable_args, executable_kwargs: its arguments.
            extra_env_vars: further environment variables of the ranks.

        Raises:
            LaunchError: Ray is not initialized, or a rank did not start.
            DeadlineError: Ray has no room for the ranks, or they did not start in time.
            RankFailedError: ``executable_cls`` raised an exception.
        """
        self.adapter.start((executable_cls, executable_args, executable_kwargs), extra_env_vars)

    def run(self, fn: Func, args: Args = None, kwargs: Kwargs = None, callbacks: Callbacks = None) -> list[Any]:
        """Call a function on each rank.

        Args:
            fn: called with ``args`` and ``kwargs``; it calls ``init()`` itself.
            args, kwargs: its arguments.
            callbacks: each is called with what a rank gives to :func:`workbench.ray.ray_logger.log`.

        Returns:
            The results, by rank.

        Raises:
            RankFailedError: a rank raised an exception; its traceback is in the text, and itself is the ``__cause__``.
            PeerLostError: a rank was lost.
            TypeError: the function cannot be pickled.
        """
        return self.adapter.run(fn, args, kwargs, callbacks)

    def run_remote(self, fn: Func, args: Args = None, kwargs: Kwargs = None) -> list[Any]:
        """As :meth:`run`, without waiting: Ray's references to the results, by rank, for ``ray.get``."""
        return self._fixed("run_remote").run_remote(fn, args, kwargs)

    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks = None) -> list[Any]:
        """Call a function of each rank's object of ``executable_cls``.

        Returns:
            The results, by rank.

        Raises:
            RankFailedError, PeerLostError, TypeError: as :meth:`run`.
        """
        if isinstance(self.adapter, ElasticAdapter):
            return self.adapter.run(fn, (None,), None, callbacks)
        return self.adapter.execute(fn, callbacks)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """The same, on rank 0 alone."""
        return self._fixed("execute_single").execute_single(fn)

    def shutdown(self) -> None:
        """End the ranks, and give back their places."""
        self.adapter.shutdown()

    def _fixed(self, name: str) -> StaticAdapter:
        if isinstance(self.adapter, ElasticAdapter):
            raise NotImplementedError(f"{name}(): the ranks of an elastic job may change. Use run().")
        return self.adapter
