"""Starts jobs for tests: under mpiexec, or as plain processes; nothing of them is left."""

from __future__ import annotations

import faulthandler
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "WORKBENCH_TEST_JOB"  # in the environment of every process of a job: how those left behind are found
# What a launcher around the test run itself (a Slurm job, another mpiexec) says to its processes is not meant for ours.
_LAUNCHERS = ("PMI_", "PMIX_", "PMI2_", "HYDI_", "HYDRA_", "MPI_LOCAL", "OMPI_", "PRTE_", "SLURM_", "TORCHELASTIC_")
_LAUNCHER_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}

# Each rank writes files of its own, whatever started it; exec, so that the rank keeps the process id.
_TO_FILES = (
    'out=$WORKBENCH_TEST_OUT/${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${RANK:-0}}}; exec "$@" >"$out.out" 2>"$out.err"'
)

_GONE_WITHIN_S = 5.0  # a launcher may return a moment before the last of its processes is gone


def eventually(what: Callable[[], object], limit_s: float = 45.0) -> bool:
    """Does it become true?"""
    until = time.monotonic() + limit_s
    while not what() and time.monotonic() < until:
        time.sleep(0.02)
    return bool(what())


@dataclass(frozen=True)
class Job:
    """What came out of processes that were started together.

    Args:
        code: the launcher's exit code, or the first one that is not 0; None if the job was stopped at its deadline.
        seconds: from start to end.
        ended: when that was, in seconds since 1970.
        folder: what the processes wrote: ``{rank}.out``, ``{rank}.err``, and the launcher's own words.
        left: command lines of processes that were still there after the end.
    """

    code: int | None
    seconds: float
    ended: float
    folder: Path
    left: tuple[str, ...]

    def out(self, rank: int) -> str:
        """The rank's standard output."""
        return self._read(f"{rank}.out")

    def err(self, rank: int) -> str:
        """The rank's standard error."""
        return self._read(f"{rank}.err")

    def report(self, most: int = 4000) -> str:
        """All that is known, for the message of a failing test; the end of each file."""
        ending = "was stopped at its deadline" if self.code is None else f"ended with exit code {self.code}"
        lines = [f"The job {ending} after {self.seconds:.1f} s.", *(f"left behind: {each}" for each in self.left)]
        for path in sorted(self.folder.iterdir()):
            if text := self._read(path.name).strip():
                lines += [f"----- {path.name}", text[-most:]]
        return "\n".join(lines)

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(errors="replace") if path.is_file() else ""


class Runner:
    """Starts jobs. Each way to start one takes the words after ``python``, a deadline and further variables."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._mark = folder, ""

    def mpiexec(self, n: int, *words: str, deadline_s: float, **env: str) -> Job:
        """Start n ranks with the mpiexec that belongs to this Python, as a user does who types it."""
        from workbench.launch.start.mpi import command, find_mpiexec

        return self._run([([*command(n, find_mpiexec()), *_rank(words)], {})], deadline_s, env)

    def torchrun(self, n: int, *words: str, deadline_s: float, **env: str) -> Job:
        """Start n ranks with torchrun, on a port that it finds itself."""
        agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}", "--no-python"]
        return self._run([([*agent, *_rank(words)], {})], deadline_s, env)

    def python(self, *words: str, deadline_s: float, **env: str) -> Job:
        """Start one plain process."""
        return self._run([(_rank(words), {})], deadline_s, env)

    def together(self, n: int, *words: str, deadline_s: float, each: Sequence[Mapping[str, str]], **env: str) -> Job:
        """Start n plain processes; ``each`` has one rank's own variables."""
        return self._run([(_rank(words), own) for own in each[:n]], deadline_s, env)

    def stop(self) -> list[str]:
        """End every process of the job; return their command lines."""
        found = self._processes()
        lines = [_command_line(process) for process in found]
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=_GONE_WITHIN_S)
        return lines

    def _run(
        self, commands: Sequence[tuple[list[str], Mapping[str, str]]], deadline_s: float, env: Mapping[str, str]
    ) -> Job:
        self._mark = uuid.uuid4().hex
        folder = self._folder / f"job-{self._mark[:8]}"
        folder.mkdir()
        common = environment() | {MARK: self._mark, "WORKBENCH_TEST_OUT": str(folder)} | dict(env)
        # A job has a deadline and shows its own stacks; those of the test that waits for it would only be noise.
        faulthandler.cancel_dump_traceback_later()
        started = time.monotonic()
        processes = []
        for i, (words, own) in enumerate(commands):
            with (folder / f"launcher{i}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        words,
                        env=common | dict(own),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # Ctrl-C at the test run is for the test run, which ends the job itself
                    )
                )
        try:
            in_time = _wait(processes, started + deadline_s)
            seconds, ended = time.monotonic() - started, time.time()
            if not in_time:
                self._dump_stacks()
        finally:
            left = self._leftovers(_GONE_WITHIN_S if all(process.poll() is not None for process in processes) else 0.0)
        codes = [process.wait() for process in processes]
        return Job(next(filter(None, codes), 0) if in_time else None, seconds, ended, folder, tuple(left))

    def _leftovers(self, patience_s: float) -> list[str]:
        """Command lines of what is still there after ``patience_s``; it is ended."""
        eventually(lambda: not self._processes(), patience_s)
        return self.stop()

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _dump_stacks(self) -> None:
        """Every Python process writes the stacks of its threads to its standard error, and ends."""
        for process in self._processes():
            with suppress(psutil.Error):
                if "python" in process.name():
                    process.send_signal(signal.SIGABRT)
        time.sleep(2.0)


def _rank(words: Sequence[str]) -> list[str]:
    return ["sh", "-c", _TO_FILES, "sh", sys.executable, *words]


def environment() -> dict[str, str]:
    """The environment of this process without what is said to it alone, and with this project's folder first."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith((*_LAUNCHERS, "WORKBENCH_", "HOROVOD_")) and name not in _LAUNCHER_NAMES
    }
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONPATH": path}


def _wait(processes: Sequence[subprocess.Popen[bytes]], until: float) -> bool:
    while any(process.poll() is None for process in processes):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _command_line(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    return str(process.pid)


def open_to_others(processes: Iterable[psutil.Process]) -> list[str]:
    """What another machine could reach: each port, TCP or UDP, that one of the processes holds beyond loopback."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            for each in process.net_connections(kind="inet"):
                waits = each.status == psutil.CONN_LISTEN or (each.type == socket.SOCK_DGRAM and not each.raddr)
                if waits and not ipaddress.ip_address(each.laddr.ip).is_loopback:
                    found.append(f"{process.name()} {process.pid}: {each.type.name} {each.laddr.ip}:{each.laddr.port}")
    return found
