"""Start the ranks of one measurement, wait until the deadline, and leave none of them behind."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from workbench.launch.start import mpi

_GONE_WITHIN_S = 5.0
_TAIL = 3000  # characters


class ChildError(Exception):
    """The ranks failed, or were not done at the deadline.

    Attributes:
        err: what they wrote to standard error.
    """

    def __init__(self, text: str, err: str = "") -> None:
        super().__init__(text)
        self.err = err


@dataclass(frozen=True)
class Job:
    """Ranks that run.

    Args:
        process: mpiexec.
        out, err: what they write.
        name: for errors.
    """

    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]
    name: str

    def close(self) -> None:
        """End what still runs, and forget what was written."""
        end(self.process)
        self.out.close()
        self.err.close()


def run(ranks: int, script: Path, words: Sequence[str], deadline_s: float) -> str:
    """Run a script under the mpiexec beside this Python, one thread per rank.

    Returns:
        What the ranks wrote to standard output.

    Raises:
        ChildError: they failed, or the deadline has passed; every process is gone then.
        workbench.errors.LaunchError: there is no mpiexec that fits.
    """
    command = [*mpi.command(ranks), sys.executable, str(script), *words]
    return finish(start(command, mpi.environment(1), f"{script.name} with {ranks} ranks"), deadline_s)


def start(command: Sequence[str], env: Mapping[str, str], name: str) -> Job:
    """Start ranks; :func:`finish` or :meth:`Job.close` ends them."""
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - the job closes them
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,  # Ctrl-C is for this process, which ends the ranks itself
    )
    return Job(process, out, err, name)


def finish(job: Job, deadline_s: float) -> str:
    """Wait until the deadline for the ranks' end.

    Returns:
        What they wrote to standard output.

    Raises:
        ChildError: they failed, or the deadline has passed; every process is gone then.
    """
    try:
        code = job.process.wait(max(0.0, deadline_s))
    except subprocess.TimeoutExpired:
        code = None
    finally:
        end(job.process)
    texts = []
    for file in (job.out, job.err):
        file.seek(0)
        texts.append(file.read().decode(errors="replace"))
    job.close()
    killed = re.search(r"Return code = 0, (signaled with \w+)", texts[1])  # MPICH's gforker ends with 0 then
    if code != 0 or killed:
        how = f"ended with exit code {code}" if code is not None else "was not done in time"
        how += f" ({deadline_s:g} s)" if code is None and deadline_s > 0 else ""
        how += f": a rank was {killed[1]}" if killed else ""
        raise ChildError(f"{job.name} {how}:\n{(texts[0] + texts[1])[-_TAIL:]}", texts[1])
    return texts[0]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill mpiexec and all below it; the ranks are in process groups of their own, and found by their parents."""
    if process.poll() is not None:
        return
    found = []
    with suppress(psutil.Error):
        top = psutil.Process(process.pid)
        found = [top, *top.children(recursive=True)]
    for each in found:
        with suppress(psutil.Error):
            each.kill()
    psutil.wait_procs(found, timeout=_GONE_WITHIN_S)
    process.wait(_GONE_WITHIN_S)
