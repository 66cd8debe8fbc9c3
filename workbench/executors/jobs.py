"""Call a function on ranks in the executors of Spark or Ray, once these have checked in at an executor registry."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from signal import SIGINT
from typing import Any, TextIO

from workbench import config
from workbench.errors import LaunchError
from workbench.executors.registry import ExecutorRegistry
from workbench.launch import function as runner
from workbench.launch.elastic.command import elastic_environment
from workbench.launch.elastic.discovery import Found
from workbench.launch.elastic.run import Limits
from workbench.launch.elastic.run import run as run_elastic
from workbench.launch.elastic.workers_on_hosts import WorkersOnHosts
from workbench.launch.hosts.host_plan import HostPlan
from workbench.launch.hosts.ranks_on_hosts import ranks_on
from workbench.launch.hosts.remote_shell import Relay
from workbench.launch.ranks.events import Signals
from workbench.launch.ranks.output import Printer, log
from workbench.launch.start.run import run
from workbench.launch.start.starters import choose, environment
from workbench.machine import make_room


def run_on(
    board: ExecutorRegistry,
    n: int,
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    nics: Sequence[str] = (),
    use_mpi: bool | None = None,
    executable: str | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    output_dir: str = "",
    prefix_output_with_timestamp: bool = False,
    verbose: bool = False,
    as_horovod: bool = False,
) -> list[Any]:
    """What ``func`` returns on each of ``n`` ranks, which start where executors are.

    Args:
        board: ``n`` executors have checked in there.
        n: how many ranks.
        func, args, kwargs: what each calls; picklable.
        env: further environment variables of the ranks.
        nics: names of interfaces, of which one is used between the hosts.
        use_mpi: refused if true: mpiexec cannot start processes inside an engine's executors.
        stdout, stderr: get the ranks' lines; by default this process's.
        executable, output_dir, prefix_output_with_timestamp, verbose, as_horovod: see :func:`workbench.run`.

    Raises:
        RankFailedError, PeerLostError, KeyboardInterrupt: see :func:`workbench.run`.
        LaunchError: the ranks did not start.
    """
    variables = environment(n, as_horovod, env)
    starter = choose(use_mpi, True, variables)
    task = dataclasses.replace(
        runner.task_of(n, variables, func, args, kwargs, executable),
        starter=starter,
        start_timeout_s=config.start_timeout_s(variables),
    )
    ranks, labels = ranks_on(board.targets(), variables, n, nics, folder=".")
    printer = Printer(stdout or sys.stdout, stderr or sys.stderr, n, prefix_output_with_timestamp, output_dir, labels)
    return runner.results(task, run(task, printer, log, verbose, (SIGINT,), ranks))


def run_elastic_on(
    board: ExecutorRegistry,
    limits: Limits,
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    nics: Sequence[str] = (),
    executable: str | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    output_dir: str = "",
    prefix_output_with_timestamp: bool = False,
    verbose: bool = False,
    as_horovod: bool = False,
    failed: Callable[[], str] = str,
) -> list[Any]:
    """The same in an elastic job: executors that come give further ranks, and those that go take theirs along.

    Args:
        board: as many executors as ``limits`` asks for at least have checked in there.
        limits: how few and how many ranks an epoch may have, and how long is waited for them.
        func: as a rule decorated with ``hvd.elastic.run``, or calls such a function.
        args, kwargs, env, nics, executable, stdout, stderr, output_dir, prefix_output_with_timestamp, verbose,
            as_horovod: as in :func:`run_on`.
        failed: says why no executor will come any more; "" while all is well.

    Returns:
        What it returned, by the ranks of the last epoch.

    Raises:
        RankFailedError: no rank is left, or too few for too long; the cause is the last rank's exception, if it raised.
        KeyboardInterrupt: see :func:`workbench.run`.
        LaunchError: the first ranks did not start, or ``failed`` has said why.
    """
    n = limits.most or max(limits.least, len(board.executors()))
    variables = elastic_environment(environment(n, as_horovod, env), limits, n)
    task = runner.task_of(n, variables, func, args, kwargs, executable)
    make_room(6 * n + 64, f"{n} ranks need")
    printer = Printer(stdout or sys.stdout, stderr or sys.stderr, 0, prefix_output_with_timestamp, output_dir)
    plan = HostPlan(board.targets(), nics, config.ports(variables), folder=".")
    with Signals((SIGINT,)) as signals:
        printer.heed(lambda: signals.came)
        workers = WorkersOnHosts(plan, task, signals, lambda host: Relay(board.path))
        outcome = run_elastic(limits, workers, BoardDiscovery(board, failed), printer, log)
    return runner.results(task, outcome)


class BoardDiscovery:
    """The hosts whose executors have registered, see :class:`workbench.launch.elastic.discovery.FindsHosts`."""

    def __init__(self, board: ExecutorRegistry, failed: Callable[[], str] = str) -> None:
        self._board, self._failed = board, failed
        self._known: Found = []

    def __enter__(self) -> BoardDiscovery:
        return self

    def __exit__(self, *_: object) -> None:
        """The executor registry is its owner's."""

    def news(self) -> tuple[Found | None, str]:
        """The hosts, if they have changed.

        Raises:
            LaunchError: no executor will come any more.
        """
        if why := self._failed():
            raise LaunchError(why)
        found = self._board.hosts()
        if found == self._known:
            return None, ""
        self._known = found
        return found, ""
