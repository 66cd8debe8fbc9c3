"""``workbench.spark.run`` and ``run_elastic``: a function on ranks in Spark's tasks."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO, TypeVar

from workbench import config
from workbench.common.text import count
from workbench.errors import LaunchError, PeerLostError, WorkbenchError
from workbench.executors.jobs import run_on
from workbench.executors.registry import ExecutorRegistry
from workbench.launch.elastic.run import Limits
from workbench.spark import session
from workbench.spark.offers import SparkSlots, check_n

T = TypeVar("T")

# Whoever knows these commands the driver's JVM; ranks have no use for them.
_FROM_THE_DRIVER = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")


def run(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[T]:
    """Call ``fn(*args, **kwargs)`` on every rank and return the results by rank. The names are Horovod's.

    The ranks run where Spark has started the tasks of a barrier stage; those of one node share memory and have local
    ranks, whatever executors they belong to. Ctrl-C here, or the end of the stage in Spark, ends the ranks.

    Args:
        fn: called on every rank; it calls ``init()`` itself.
        args, kwargs: for ``fn``; picklable, as the results are.
        num_proc: how many ranks; ``spark.default.parallelism`` by default.
        start_timeout: deadline until all tasks run, in seconds; HOROVOD_SPARK_START_TIMEOUT, or 600, by default.
        use_mpi: refused: MPI's launcher cannot start ranks inside of tasks. They talk over TCP and shared memory.
        use_gloo, extra_mpi_args: there for Horovod's sake.
        env: further environment variables of the ranks.
        stdout, stderr: get the ranks' lines; by default this process's.
        verbose: 2 or more: say what is started.
        nics: names of interfaces, of which one is used between nodes.
        prefix_output_with_timestamp: begin each line with the time.
        executable: the ranks' Python; by default this one.

    Raises:
        LaunchError: no SparkContext is active, it has fewer slots than ranks, or the ranks did not start.
        PeerLostError: a task was lost; which, where and why is in the text.
        RankFailedError, KeyboardInterrupt: see :func:`workbench.run`.

    Example:
        >>> run(pow, args=(2, 5), num_proc=2)  # doctest: +SKIP
        [32, 32]
    """
    if use_mpi:
        raise LaunchError("use_mpi=True: MPI's launcher cannot start ranks inside of Spark's tasks. Leave it out.")
    sc = session.context()
    n = check_n(num_proc if num_proc is not None else sc.defaultParallelism, "num_proc")
    until = _deadline(start_timeout)
    session.wait_for_slots(sc, n, until)
    with _tasks(sc, n, n, until, env, barrier=True) as (board, _):
        return run_on(
            board,
            n,
            fn,
            args,
            kwargs,
            env=_for_ranks(env),
            nics=tuple(nics or ()),
            executable=executable,
            stdout=stdout,
            stderr=stderr,
            prefix_output_with_timestamp=prefix_output_with_timestamp,
            verbose=verbose > 1,
        )


def run_elastic(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[T]:
    """The same as an elastic job: it goes on while ``min_num_proc`` ranks are left. The names are Horovod's.

    The tasks are independent of each other. Spark starts a lost one again, up to ``spark.task.maxFailures`` times for
    one task (4; in ``local[n]`` none: ``local[n, failures]``), and its new rank joins at a commit. With more tasks than
    slots, the rest begin when slots become free. Where a node's first task is lost, that node's ranks are; those of
    other nodes go on.

    Args:
        fn: as a rule decorated with ``hvd.elastic.run``, or calls such a function.
        args, kwargs, start_timeout, env, stdout, stderr, verbose, nics, prefix_output_with_timestamp: see :func:`run`.
        num_proc: how many ranks to begin with; ``spark.default.parallelism`` by default.
        min_num_proc, max_num_proc: the fewest and the most ranks; ``num_proc`` by default.
        elastic_timeout: deadline for ``min_num_proc`` ranks after a loss, in seconds; HOROVOD_ELASTIC_TIMEOUT, or 600.
        reset_limit: the job ends after so many resets.
        min_np, max_np: the older names.

    Returns:
        What ``fn`` returned, by the ranks of the last epoch.

    Raises:
        LaunchError: see :func:`run`.
        RankFailedError: no rank is left, or too few for too long; Spark's reason is in the text if it has one.
    """
    least, most = _either(min_num_proc, min_np, "min"), _either(max_num_proc, max_np, "max")
    sc = session.context()
    n = max(min(sc.defaultParallelism, most or sc.defaultParallelism), least or 1) if num_proc is None else num_proc
    limits = _limits(check_n(n, "num_proc"), least, most, env)
    if elastic_timeout is not None:
        limits = dataclasses.replace(limits, timeout_s=float(elastic_timeout))
    until = _deadline(start_timeout)
    session.wait_for_slots(sc, limits.least, until)
    with _tasks(sc, limits.most, min(n, session.slots(sc)), until, env, barrier=False) as (board, failed):
        return run_on(
            board,
            dataclasses.replace(limits, resets=reset_limit),
            fn,
            args,
            kwargs,
            env=_for_ranks(env),
            nics=tuple(nics or ()),
            stdout=stdout,
            stderr=stderr,
            prefix_output_with_timestamp=prefix_output_with_timestamp,
            verbose=verbose > 1,
            failed=failed,
        )


@contextlib.contextmanager
def _tasks(
    sc: Any, n: int, first: int, until: float, env: Mapping[str, str] | None, barrier: bool
) -> Iterator[tuple[ExecutorRegistry, Callable[[], str]]]:
    """``n`` tasks of Spark, of which ``first`` have checked in; an error within the block says which task was lost."""
    ports = config.ports(config.child_environment(**(env or {})))
    title = f"workbench: {count(n, 'rank')}"
    with ExecutorRegistry(session.address(sc), ports) as board, SparkSlots(sc, n, board, barrier, title) as offers:
        began = False
        try:
            board.wait_for(first, max(1.0, until - time.monotonic()), offers.failure)
            began = True
            yield board, offers.failure
        except WorkbenchError as error:
            if not (lost := offers.lost(error)):
                raise
            if not began:
                raise LaunchError(f"The ranks were not started. {lost}") from error
            raise PeerLostError(lost if barrier else f"{error} {lost}") from error


def _deadline(start_timeout: float | None) -> float:
    return time.monotonic() + (start_timeout if start_timeout is not None else config.spark_start_timeout_s())


def _limits(n: int, least: int | None, most: int | None, env: Mapping[str, str] | None) -> Limits:
    least, most = n if least is None else least, n if most is None else most
    if not 1 <= least <= n <= most:
        raise LaunchError(
            f"min_num_proc={least}, num_proc={n}, max_num_proc={most}: each must be at least 1, and no smaller than "
            "the one before it."
        )
    settings = config.settings(config.child_environment(**(env or {})))
    return Limits(least, most, timeout_s=settings.elastic_timeout_s, peer_timeout_s=settings.peer_timeout_s)


def _either(new: int | None, old: int | None, which: str) -> int | None:
    if old is not None:
        text = f"{which}_np is deprecated, use {which}_num_proc instead"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
    return new if old is None else old


def _for_ranks(env: Mapping[str, str] | None) -> dict[str, str]:
    return {**dict.fromkeys(_FROM_THE_DRIVER, ""), **(env or {})}
