"""Start the ranks of one measurement, wait until the deadline, and leave none of them behind."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from workbench.launch.start import mpi

_GONE_WITHIN_S = 5.0
_TAIL = 3000  # characters


class ChildError(Exception):
    """The ranks failed, or were not done at the deadline."""


def run(ranks: int, script: Path, words: Sequence[str], deadline_s: float) -> str:
    """Run a script under the mpiexec beside this Python, one thread per rank.

    Returns:
        What the ranks wrote to standard output.

    Raises:
        ChildError: they failed, or the deadline has passed; every process is gone then.
        workbench.errors.LaunchError: there is no mpiexec that fits.
    """
    command = [*mpi.command(ranks), sys.executable, str(script), *words]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command,
            env=mpi.environment(1),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,  # Ctrl-C is for this process, which ends the ranks itself
        )
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    if code != 0:
        how = f"ended with exit code {code}" if code is not None else f"was not done after {deadline_s:g} s"
        raise ChildError(f"{script.name} with {ranks} ranks {how}:\n{(texts[0] + texts[1])[-_TAIL:]}")
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
