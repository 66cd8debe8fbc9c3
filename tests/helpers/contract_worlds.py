"""Where the checks of Links and Backends run: in worlds of threads, and in worlds of processes.

In a world of threads they run in the test's own process. In a world of processes this file is the program that
each rank runs, ``python contract_worlds.py FOLDER WORLD``: it does all checks and writes down how each one ended.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from backend_checks import BACKEND_CHECKS, a_backend_ends
from link_checks import LINK_CHECKS, Check, Rank

from workbench.config import Launch, Settings
from workbench.core.backend.base import Backend, Channel
from workbench.transport.host.single import SingleLink
from workbench.transport.host.threads import Mailboxes, ThreadBootstrap, ThreadLink, spawn
from workbench.transport.links import SubLink, link_backend
from workbench.transport.shm.backend import reserved_bytes, shm_backend
from workbench.transport.shm.node import join_memory

JOB_S = 60.0
CHECKS = [*BACKEND_CHECKS, *LINK_CHECKS, a_backend_ends]


# --- worlds in this process ---------------------------------------------------------------------------

HERE = ["single", *(f"threads-{n}" for n in (1, 2, 3, 4)), "part-2", "part-3", *(f"threads+shm-{n}" for n in (2, 3, 4))]


def run_here(world: str, check: Check) -> None:
    """Run a check in a world within this process; ``part-n``: n of n + 1 threads, in another order."""
    name, _, number = world.partition("-")
    if name == "single":
        check(Rank(SingleLink(), link_backend(SingleLink()), lambda timeout_s: SingleLink()))
        return
    n = int(number)
    ranks = [*range(n, 0, -1)] if name == "part" else [*range(n)]
    impatient = Mailboxes(n + (name == "part"), late_s := 0.2)

    def run(thread: ThreadLink) -> None:
        if thread.rank not in ranks:
            return
        link, late = thread, impatient.link(thread.rank)
        backend: Backend = link_backend(thread)
        if name == "threads+shm":
            bootstrap = ThreadBootstrap(thread.mailboxes, thread.rank)
            node, problem = join_memory(bootstrap.exchange, thread.rank, reserved_bytes(100_000), timeout_s=20)
            assert node, problem
            backend = shm_backend(backend, node, 100_000)
        if name == "part":
            link, late = SubLink(thread, ranks), SubLink(late, ranks)
            backend = link_backend(link)
        check(Rank(link, backend, lambda timeout_s: late, late_s))

    spawn(n + (name == "part"), run, timeout_s=30)


# --- worlds of processes ------------------------------------------------------------------------------

ELSEWHERE = [
    *["mpi-2@mpiexec", "mpi-3@mpiexec", "shm-2@mpiexec", "shm-3@mpiexec", "hosts-3@mpiexec", "hosts-4@mpiexec"],
    *["sockets-2@mpiexec", "sockets-3@mpiexec", "sockets-2@plain"],
    *["nano-2@plain", "nano-3@plain"],  # examples/nano.py
]
"""Backend, number of ranks, and who starts them: mpiexec, or this file one by one, with torchrun's variables."""
BESIDE_MPI = [f"{world}@mpiexec" for world in ("single", "threads-3", "part-3", "threads+shm-3")]
"""Each kind of world within a process, in each of two processes that MPI connects, as those of a user's script."""
_LAUNCHERS = ("PMI", "HYDRA_", "MPI_LOCAL", "OMPI_", "PRTE_", "SLURM_", "WORKBENCH_", "HOROVOD_")
MPI_LEFT_ALONE = "MPI is left alone"


def outcome(world: str) -> dict[str, str]:
    """Check → what went wrong in a world of processes, empty if nothing did.

    Under mpiexec there is one more, :data:`MPI_LEFT_ALONE`: when all is over, the job's own communicator still works.
    """
    what, _, starter = world.partition("@")
    n = 2 if what in HERE else int(what.partition("-")[2])
    with tempfile.TemporaryDirectory() as folder, Path(folder, "said").open("w+b") as said:
        processes = [
            subprocess.Popen(
                [*words, folder, what],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            for words, env in _commands(what, starter, n)
        ]
        try:
            deadline = time.monotonic() + JOB_S
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        files = [path.read_text().splitlines() for path in Path(folder).glob("*.json")]
        said.seek(0)
        names = [check.__name__ for check in CHECKS] + [MPI_LEFT_ALONE] * (starter == "mpiexec")
        return _judge([json.loads(line) for lines in files for line in lines], names, said.read().decode("utf-8"), n)


def _commands(world: str, starter: str, n: int) -> Iterator[tuple[list[str], dict[str, str]]]:
    name = world.partition("-")[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    env = {key: text for key, text in os.environ.items() if not key.startswith(_LAUNCHERS)} | where
    env |= {"WORKBENCH_BACKEND": name, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, "-W", "error", "-X", "faulthandler", str(Path(__file__).resolve())]
    if starter == "mpiexec":
        from workbench.launch.start.mpi import command, find_mpiexec

        start = command(n)
        if name == "hosts":  # on one machine: MPI takes ranks of different names for ranks that share no memory
            start = [find_mpiexec(), "-n", str(n), "-launcher", "fork", "-hosts", "here:2,there:2"]
            env |= {"WORKBENCH_BACKEND": "auto", "WORKBENCH_HIERARCHICAL_BYTES": "100"}
        yield [*start, *words], env
        return
    for rank in range(n):
        yield words, env | {"RANK": str(rank), "WORLD_SIZE": str(n)}


def _judge(ends: list[tuple[str, str]], names: list[str], said: str, n: int) -> dict[str, str]:
    ended: dict[str, list[str]] = {}
    for check, problem in ends:
        ended.setdefault(check, []).append(problem)
    problems = {check: "\n".join(filter(None, ended.get(check, []))) for check in names}
    for check in names:
        if not problems[check] and len(ended.get(check, [])) < n:
            problems[check] = f"only {len(ended.get(check, []))} of {n} ranks came through it; they said:\n{said}"
    return problems


def main(folder: Path, world: str) -> None:
    """One rank: do every check and write down how it ended."""
    from workbench import config

    launch = config.launch()
    beside_mpi = launch.launcher != "torchrun" and world in HERE
    if beside_mpi:
        import mpi4py.MPI  # noqa: F401 - initialises it, as a user's script does
    run = partial(run_here, world) if world in HERE else _all_checks_of(launch, folder)
    with (folder / f"{os.getpid()}.json").open("w") as ends:
        for check in CHECKS:
            print(json.dumps((check.__name__, _problem(partial(run, check), launch.rank))), file=ends, flush=True)
        if mpi := sys.modules.get("mpi4py.MPI"):
            print(json.dumps((MPI_LEFT_ALONE, _problem(partial(_use, mpi), launch.rank))), file=ends, flush=True)


def _use(mpi: Any) -> None:
    """What a user's script does with MPI after the job's end."""
    assert mpi.Is_initialized()
    assert not mpi.Is_finalized()
    assert mpi.COMM_WORLD.allreduce(1) == mpi.COMM_WORLD.size
    mpi.COMM_WORLD.Dup().Free()


def _problem(function: Callable[[], None], rank: int) -> str:
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - it is written down, and the parent judges it
        return f"rank {rank}: {''.join(traceback.format_exception(error))}"
    return ""


def _all_checks_of(launch: Launch, folder: Path) -> Callable[[Check], None]:
    """Runs a check on this rank's backend."""
    from workbench import config
    from workbench.transport.select import connect, find_ranks

    settings = replace(config.settings(), data_timeout_s=20.0)
    if settings.backend == "nano":
        from nano_world import nano_rank

        example = nano_rank(launch.rank, launch.size, folder)
        return lambda check: check(example)

    def backend(settings: Settings) -> Backend:
        return connect(find_ranks(launch, settings), settings)

    def impatient(timeout_s: float) -> Channel:
        return link_of(backend(replace(settings, data_timeout_s=timeout_s)))

    mine = backend(settings)
    rank = Rank(link_of(mine), mine, impatient)
    return lambda check: check(rank)


def link_of(backend: Backend) -> Channel:
    """What connects the ranks, whatever is over it."""
    assert backend.link
    return backend.link


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
