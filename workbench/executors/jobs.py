"""Call a function on ranks in the executors of Spark or Ray, once these have checked in at a switchboard."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from signal import SIGINT
from typing import Any, TextIO

from workbench import config, runner
from workbench.executors.switchboard import Switchboard
from workbench.launch.hosts.ranks_on_hosts import ranks_on
from workbench.launch.ranks.output import Printer, say
from workbench.launch.start.run import run
from workbench.launch.start.starters import choose, environment


def run_on(
    board: Switchboard,
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
    return runner.results(task, run(task, printer, say, verbose, (SIGINT,), ranks))


__all__ = ["run_on"]
