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
from workbench.launch.elastic.discovery import FindsHosts, Found
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
    size: int | Limits,
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
    failed: Callable[[], str] = str,
) -> list[Any]:
    """What ``func`` returns on each rank, which start where executors are.

    Args:
        board: as many executors as are needed at least have checked in there.
        size: how many ranks; or, of an elastic job, how few and how many an epoch may have, and how long is waited for
            them: executors that come give further ranks, and those that go take theirs along.
        func, args, kwargs: what each calls; picklable. In an elastic job ``func`` is as a rule decorated with
            ``hvd.elastic.run``, or calls such a function.
        env: further environment variables of the ranks.
        nics: names of interfaces, of which one is used between the hosts.
        stdout, stderr: get the ranks' lines; by default this process's.
        executable, output_dir, prefix_output_with_timestamp, verbose: see :func:`workbench.run`.
        failed: in an elastic job, says why no executor will come any more; "" while all is well.

    Returns:
        The results by rank; in an elastic job by the ranks of the last epoch.

    Raises:
        RankFailedError, PeerLostError, KeyboardInterrupt: see :func:`workbench.run`. In an elastic job: no rank is
            left, or too few for too long; the cause is the last rank's exception, if it raised.
        LaunchError: the first ranks did not start, or ``failed`` has said why.
    """
    limits = size if isinstance(size, Limits) else None
    n = size if isinstance(size, int) else size.most or max(size.least, len(board.executors()))
    variables = environment(n, alias_is_wanted(), env)
    variables = elastic_environment(variables, limits, n) if limits else variables
    task = runner.task_of(n, variables, func, args, kwargs, executable)
    out, err = stdout or sys.stdout, stderr or sys.stderr
    if limits is None:
        start: dict[str, Any] = {
            "starter": choose(None, True, variables),
            "start_timeout_s": config.start_timeout_s(variables),
        }
        ranks, labels = ranks_on(board.targets(), variables, n, nics, folder=".")
        printer = Printer(out, err, n, prefix_output_with_timestamp, output_dir, labels)
        return runner.results(task, run(dataclasses.replace(task, **start), printer, log, verbose, (SIGINT,), ranks))
    make_room(6 * n + 64, f"{n} ranks need")
    printer = Printer(out, err, 0, prefix_output_with_timestamp, output_dir)
    plan = HostPlan(board.targets(), nics, config.ports(variables), folder=".")
    with Signals((SIGINT,)) as signals:
        printer.heed(lambda: signals.came)
        workers = WorkersOnHosts(plan, task, signals, lambda host: Relay(board.path))
        outcome = run_elastic(limits, workers, BoardDiscovery(board, failed), printer, log)
    return runner.results(task, outcome)


def alias_is_wanted() -> bool:
    """Does ``import horovod`` mean the workbench in this process? Then in the ranks, too."""
    return "workbench.as_horovod" in sys.modules


class BoardDiscovery(FindsHosts):
    """The hosts whose executors have registered."""

    def __init__(self, board: ExecutorRegistry, failed: Callable[[], str] = str) -> None:
        self._board, self._failed = board, failed
        self._known: Found = []

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
