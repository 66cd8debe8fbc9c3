"""``workbench.spark.run``: a function on ranks in Spark's tasks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO, TypeVar

from workbench import config
from workbench.common.text import count
from workbench.errors import LaunchError, PeerLostError, WorkbenchError
from workbench.executors.jobs import run_on
from workbench.executors.switchboard import Switchboard
from workbench.spark import session
from workbench.spark.offers import Offers, check_n

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
    sc = session.context()
    n = check_n(num_proc if num_proc is not None else sc.defaultParallelism, "num_proc")
    if use_mpi:
        raise LaunchError("use_mpi=True: MPI's launcher cannot start ranks inside of Spark's tasks. Leave it out.")
    until = time.monotonic() + (start_timeout if start_timeout is not None else config.spark_start_timeout_s())
    session.wait_for_slots(sc, n, until)
    with (
        Switchboard(session.address(sc), config.ports(env and {**config.child_environment(), **env})) as board,
        Offers(sc, n, board, True, f"workbench: {count(n, 'rank')}") as offers,
    ):
        try:
            board.wait_for(n, max(1.0, until - time.monotonic()), offers.failure)
            return run_on(
                board,
                n,
                fn,
                args,
                kwargs,
                env={**dict.fromkeys(_FROM_THE_DRIVER, ""), **(env or {})},
                nics=tuple(nics or ()),
                executable=executable,
                stdout=stdout,
                stderr=stderr,
                prefix_output_with_timestamp=prefix_output_with_timestamp,
                verbose=verbose > 1,
                as_horovod="workbench.as_horovod" in sys.modules,
            )
        except WorkbenchError as error:
            if lost := offers.lost():
                raise PeerLostError(lost) from error
            raise


__all__ = ["run"]
