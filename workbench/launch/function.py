"""Run a function on N ranks, from a script or a notebook, and get what each returns.

::

    def train(lr):
        hvd.init()
        ...
        return hvd.rank(), loss

    workbench.run(train, args=(0.1,), np=2)      # [(0, 0.31), (1, 0.31)]

The ranks are processes of this machine, started as by ``workbench run``. The function may be defined in a notebook or a
script's ``__main__``: it is pickled by value, and the modules that it imports must be importable.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import loads
from signal import SIGINT
from typing import Any, NoReturn, TypeVar

from cloudpickle import dumps

from workbench import config
from workbench.common.whole_file import write_whole
from workbench.errors import DeadlineError, LaunchError, PeerLostError, RankFailedError
from workbench.launch.elastic.command import run_elastic
from workbench.launch.hosts.host_plan import find_hosts
from workbench.launch.hosts.ranks_on_hosts import ranks_on
from workbench.launch.hosts.remote_shell import Ssh
from workbench.launch.ranks.files import FOLDER
from workbench.launch.ranks.output import Printer, log
from workbench.launch.start.run import Outcome
from workbench.launch.start.run import run as start
from workbench.launch.start.starters import JobSpec, check_command, choose, environment
from workbench.launch.sync import sync as copy_folder

T = TypeVar("T")

_WORK = "import sys; from workbench.launch.function import work; work(sys.argv[1])"
_TASK = "task"


def run(
    func: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    num_proc: int | None = None,
    timeout_s: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    sync: bool = False,
    start_timeout: float | None = None,
    output_dir: str | None = None,
    output_filename: str | None = None,
    prefix_output_with_timestamp: bool = False,
    verbose: int | None = None,
    mpi_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    executable: str | None = None,
    as_horovod: bool = False,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[float] | None = None,
    elastic_timeout: float | None = None,
    host_discovery_script: str | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[T]:
    """Call ``func(*args, **kwargs)`` on every rank and return the results by rank.

    Each line that a rank prints is shown with its rank. When one rank fails, all are ended. Ctrl-C, or a notebook's
    stop button, raises KeyboardInterrupt in the ranks, and here when they have ended. The keywords' names are
    Horovod's.

    Args:
        func: called on every rank; it calls ``init()`` itself.
        args, kwargs: for ``func``. They and the results must be picklable; functions and classes of ``__main__`` are.
        np, num_proc: how many ranks; 1 by default.
        timeout_s: deadline of it all.
        use_mpi, use_gloo: insist on one; otherwise MPI where it works.
        hosts, hostfile: see ``workbench run -H``; this folder must be on all of them.
        sync: copy it there first, see ``workbench run --sync``.
        start_timeout: deadline until all ranks run, in seconds.
        output_dir, output_filename: folder for ``rank.N/stdout`` and ``stderr``, as well; on several hosts it is here.
        prefix_output_with_timestamp: begin each line with the time.
        verbose: 1 or more: say what is started.
        mpi_args: further words for mpiexec.
        env: further environment variables of the ranks.
        executable: their Python; by default this one.
        as_horovod: ``import horovod`` in the ranks finds the workbench.
        min_num_proc, max_num_proc, min_np, max_np: the job goes on with so few ranks, and takes so many. With one of
            them, or with ``host_discovery_script``, it is elastic: ``func`` is decorated with ``hvd.elastic.run``, or
            calls such a function, and the results are those of the last epoch's ranks.
        slots, reset_limit, cooldown_range, elastic_timeout: of an elastic job, see ``workbench run --slots-per-host``,
            ``--reset-limit``, ``--blacklist-cooldown-range`` and ``--elastic-timeout``.
        host_discovery_script: a program that prints the hosts that there are, again and again.
        ssh_port, ssh_identity_file: how to reach other hosts.
        disable_cache: ignored; accepted for Horovod compatibility: nothing is remembered from one start to the next.
        network_interfaces, network_interface: names, of which one is used between hosts; the second with commas.

    Raises:
        RankFailedError: a rank raised an exception, or ended without a result; the rank's traceback is in the text, the
            exception itself is the ``__cause__`` if it can be pickled.
        PeerLostError: a rank was killed.
        DeadlineError: ``timeout_s`` has passed.
        LaunchError: the ranks did not start, or this process is a rank itself.

    Example:
        >>> run(pow, args=(2, 5), np=2, use_gloo=True)
        [32, 32]
    """
    least, most = _either(min_num_proc=min_num_proc, min_np=min_np), _either(max_num_proc=max_num_proc, max_np=max_np)
    n = _either(np=np, num_proc=num_proc) or least or 1
    if config.launch().several:
        raise LaunchError("This process is a rank of a job. Call run() in a process that is not a rank.")
    ssh = Ssh(ssh_port or 0, ssh_identity_file or "")
    targets = find_hosts(hosts or "", hostfile or "", n, ssh, host_discovery_script or "", slots or 1)
    networks = list(network_interfaces or filter(None, (network_interface or "").split(",")))
    variables = environment(n, as_horovod, env)
    task = dataclasses.replace(
        task_of(n, variables, func, args, kwargs, executable),
        starter=choose(use_mpi, use_gloo, variables),
        mpi_args=mpi_args,
        start_timeout_s=config.start_timeout_s(variables) if start_timeout is None else start_timeout,
        timeout_s=timeout_s,
    )
    check_command(task.command, variables)
    if sync:
        copy_folder(targets, os.getcwd(), log, bool(verbose))
    folder = output_dir or output_filename or ""
    if (least, most, host_discovery_script) != (None, None, None):
        if timeout_s is not None:
            raise ValueError("timeout_s: an elastic job has no such deadline. See elastic_timeout.")
        words = Namespace(
            num_proc=n,
            min_num_proc=least,
            max_num_proc=most,
            reset_limit=reset_limit,
            blacklist_cooldown_range=cooldown_range,
            elastic_timeout=elastic_timeout,
            host_discovery_script=host_discovery_script,
            slots_per_host=slots,
            ssh_port=ssh_port,
            ssh_identity_file=ssh_identity_file,
            network_interfaces=",".join(networks),
            output_filename=folder,
            prefix_output_with_timestamp=prefix_output_with_timestamp,
            gpus="",
        )
        return results(task, run_elastic(words, task, targets, log, (SIGINT,)))
    ranks, labels = ranks_on(targets, variables, n, networks)
    printer = Printer(sys.stdout, sys.stderr, n, prefix_output_with_timestamp, folder, labels)
    return results(task, start(task, printer, log, bool(verbose), (SIGINT,), ranks))


def task_of(
    n: int,
    env: Mapping[str, str],
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    executable: str | None = None,
) -> JobSpec:
    """The task of calling a function on each rank; :func:`results` has what came of it.

    Args:
        n, env: how many ranks, and their environment.
        func, args, kwargs: what each calls.
        executable: their Python; by default this one.
    """
    content = dumps((sys.path, dumps((func, tuple(args), dict(kwargs or {})))))
    return JobSpec(n, [executable or sys.executable, "-c", _WORK, FOLDER], env, files={_TASK: content})


def results(task: JobSpec, outcome: Outcome) -> list[Any]:
    """What the function returned, by rank; in an elastic job by the ranks of the last epoch.

    Args:
        task: made by :func:`task_of`.
        outcome: of its job.

    Raises:
        RankFailedError, PeerLostError, DeadlineError, KeyboardInterrupt: see :func:`run`.
    """
    if outcome.culprit is not None or outcome.signal or outcome.late or outcome.code:
        _fail(outcome, task.timeout_s)
    ranks = outcome.ranks or {rank: rank for rank in range(task.n)}  # by worker, where the job is elastic
    # Those that never called init() have no rank, and come by their workers' numbers.
    return [_result(worker, outcome) for worker in sorted(ranks, key=lambda each: (ranks[each], each))]


def _either(**names: int | None) -> int | None:
    """The number that was given by one of its names."""
    given = {name: number for name, number in names.items() if number is not None}
    if len(set(given.values())) > 1:
        both = " and ".join(f"{name}={number}" for name, number in given.items())
        raise ValueError(f"{both} mean the same: give one of them.")
    for name, number in given.items():
        if number < 1:
            raise ValueError(f"{name}={number}: a job has at least 1 rank.")
        return number
    return None


def _fail(outcome: Outcome, timeout_s: float | None) -> NoReturn:
    if outcome.culprit is None and outcome.signal:
        raise KeyboardInterrupt(outcome.text)
    if outcome.culprit is None and outcome.late:
        raise DeadlineError(f"run(): the ranks had not ended after {timeout_s:g} s, and were ended.")
    left = outcome.files.get(_name("raised", outcome.culprit))
    if left is not None:
        raised: RankException = loads(left)
        raise RankFailedError(f"Rank {outcome.culprit} raised {raised.what}\n\n{raised.text}") from raised.exception()
    raise (PeerLostError if outcome.killed else RankFailedError)(outcome.text)


def _result(rank: int, outcome: Outcome) -> Any:
    left = outcome.files.get(_name("result", rank))
    if left is None:
        raise RankFailedError(f"Rank {rank} ended without a result: did it call sys.exit() or os._exit()?")
    return loads(left)


def _name(what: str, rank: int | None) -> str:
    return f"{what}.{rank}"


# --- in a rank ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankException:
    """An exception on its way from a rank.

    Args:
        what: its class and text, one line.
        text: its traceback.
        pickled: itself, or nothing if it cannot be pickled.
    """

    what: str
    text: str
    pickled: bytes

    def exception(self) -> BaseException | None:
        """The exception, if it can be had here."""
        try:
            found = loads(self.pickled)
        except Exception:  # noqa: BLE001 - whatever a foreign class does; the text is there in any case
            return None
        return found if isinstance(found, BaseException) else None


def work(folder: str) -> None:
    """What a rank runs: call the function, leave its result or its exception in the folder.

    Raises:
        Exception: the function's own, so that the other ranks hear of it and the launcher sees it.
    """
    rank = config.launch().rank
    paths, content = loads(Path(folder, _TASK).read_bytes())
    sys.path += [path for path in paths if path not in sys.path]
    try:
        func, args, kwargs = loads(content)
        write_whole(Path(folder, _name("result", rank)), dumps(func(*args, **kwargs)))
    except Exception as error:
        write_whole(Path(folder, _name("raised", rank)), dumps(_pack(error)))
        raise


def _pack(error: Exception) -> RankException:
    lines = "".join(traceback.format_exception_only(type(error), error)).splitlines()
    what = next(line for line in lines if line[:1].strip())  # a SyntaxError's begin with the place
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    try:
        return RankException(what, text, dumps(error))
    except Exception:  # noqa: BLE001 - whatever it holds that cannot be pickled
        return RankException(what, text, b"")
