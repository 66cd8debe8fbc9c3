"""A job whose ranks are actors, as many from the beginning to the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench import config
from workbench.errors import LaunchError
from workbench.executors.calls import NumberedCalls
from workbench.executors.jobs import alias_is_wanted
from workbench.ray.jobs.calls import RankGoneError, gather, within
from workbench.ray.needed import connected, ray
from workbench.ray.places import Location, meeting_point, variables
from workbench.ray.ray_logger import calling
from workbench.ray.settings import Args, Callbacks, Executable, Func, Kwargs, MiniSettings
from workbench.ray.strategy import ColocatedStrategy, PGStrategy

_LEAVE_S = 10.0


class StaticAdapter:
    """See :class:`workbench.ray.RayExecutor`, which hands everything on.

    Args:
        settings: deadlines.
        num_workers: how many ranks; or
        num_hosts, num_workers_per_host: so many on each of so many nodes.
        use_current_placement_group: use the group around this process, if it is in one.
        takes: what each takes, as the strategies have it.

    Raises:
        ValueError: it is not said how many, or in two ways.
    """

    def __init__(
        self,
        settings: MiniSettings,
        num_workers: int | None,
        num_hosts: int | None,
        num_workers_per_host: int,
        use_current_placement_group: bool,
        takes: Mapping[str, Any],
    ) -> None:
        if (num_workers is None) == (num_hosts is None):
            raise ValueError(f"num_workers={num_workers} and num_hosts={num_hosts}: give one of them.")
        if min(num_workers or 1, num_hosts or 1, num_workers_per_host) < 1 or 0 in (num_workers, num_hosts):
            raise ValueError(
                f"num_workers={num_workers}, num_hosts={num_hosts}, num_workers_per_host={num_workers_per_host}: a job "
                "has at least 1 rank."
            )
        self._settings, self._hosts, self._each = settings, num_hosts, num_workers_per_host
        self._n = num_workers or (num_hosts or 1) * num_workers_per_host
        self._takes = {"settings": settings, **takes}
        self._use_current = use_current_placement_group
        self._strategy: ColocatedStrategy | PGStrategy | None = None
        self.places: list[Location] = []
        self._lost, self._calls = "", NumberedCalls(0)

    def start(self, executable: Executable, extra_env_vars: Kwargs) -> None:
        connected()
        if self._strategy:
            raise LaunchError("The ranks are already running. shutdown() ends them.")
        self._lost, self._strategy = "", self._choose()
        try:
            workers, _ = self._strategy.create_workers()
            self._calls = NumberedCalls(len(workers))
            self._make_ranks(workers, {name: str(value) for name, value in (extra_env_vars or {}).items()})
            if executable[0]:
                made = (*executable, self._calls.next(range(len(workers))))
                gather([worker.start_executable.remote(*made) for worker in workers], self.places)
        except BaseException:
            self.shutdown()
            raise

    @property
    def workers(self) -> list[Any]:
        return self._strategy.workers if self._strategy else []

    def _choose(self) -> ColocatedStrategy | PGStrategy:
        inside = self._use_current and ray.util.get_current_placement_group()
        if self._hosts is None or inside:
            return PGStrategy(num_workers=self._n, force_create_placement_group=not self._use_current, **self._takes)
        return ColocatedStrategy(num_hosts=self._hosts, num_workers_per_host=self._each, **self._takes)

    def _make_ranks(self, workers: Sequence[Any], extra: dict[str, str]) -> None:
        limit_s, nics = self._settings.timeout_s, self._settings.interfaces()
        self.places = within([worker.place.remote(nics) for worker in workers], limit_s, "start")
        free = workers[0].free_ports.remote(meeting_point(self.places), config.ports(extra))
        (ports,) = within([free], limit_s, "find a free port")
        common = {"WORKBENCH_INIT_TIMEOUT_S": str(limit_s), "HOROVOD_CONTROLLER": "gloo"}
        by_rank = [common | each | extra for each in variables(self.places, ports)]
        alias = alias_is_wanted()
        within([each.become.remote(env, alias) for each, env in zip(workers, by_rank, strict=True)], limit_s, "start")

    def run(self, fn: Func, args: Args = None, kwargs: Kwargs = None, callbacks: Callbacks = None) -> list[Any]:
        with calling(callbacks or ()) as env:
            return self._gather(self._call(fn, args, kwargs, env))

    def run_remote(self, fn: Func, args: Args = None, kwargs: Kwargs = None) -> list[Any]:
        return self._call(fn, args, kwargs, {})

    def _call(self, fn: Func, args: Args, kwargs: Kwargs, env: Mapping[str, str]) -> list[Any]:
        workers, task = self._workers(), _sent((fn, tuple(args or ()), dict(kwargs or {})), fn)
        said = self._calls.next(range(len(workers)))
        return [worker.call.remote(task, env, said) for worker in workers]

    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks = None) -> list[Any]:
        workers, sent = self._workers(), _sent(fn, fn)
        with calling(callbacks or ()) as env:
            said = self._calls.next(range(len(workers)))
            return self._gather([worker.execute.remote(sent, env, said) for worker in workers])

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        workers, sent = self._workers(), _sent(fn, fn)
        return self._gather([workers[0].execute.remote(sent, None, self._calls.next([0]))])[0]

    def _workers(self) -> list[Any]:
        if self._strategy is None:
            raise LaunchError("There are no ranks: call start() first.")
        if self._lost:
            raise LaunchError(f"{self._lost.splitlines()[0]} Call shutdown(), then start().")
        return self._strategy.workers

    def _gather(self, refs: Sequence[Any]) -> list[Any]:
        try:
            return gather(refs, self.places)
        except RankGoneError as error:
            self._lost = str(error)
            raise

    def shutdown(self) -> None:
        strategy, self._strategy = self._strategy, None
        if strategy is None:
            return
        if (
            strategy.workers and not self._lost and ray.is_initialized()
        ):  # what ranks share is released when they leave together
            left = [worker.leave.remote() for worker in strategy.workers]
            ray.wait(left, num_returns=len(left), timeout=_LEAVE_S)
        strategy.shutdown()


def _sent(what: Any, fn: Callable[..., Any]) -> Any:
    """Pickle it once for all ranks.

    Raises:
        TypeError: it cannot be pickled.
    """
    try:
        return ray.put(what)
    except TypeError as error:
        name = getattr(fn, "__qualname__", repr(fn))
        why = str(error).strip().splitlines()[-1] if str(error) else "no reason given"
        raise TypeError(
            f"{name} and its arguments cannot be sent to the ranks, because they cannot be pickled: {why} Open files "
            "and make locks and connections inside the function."
        ) from error
