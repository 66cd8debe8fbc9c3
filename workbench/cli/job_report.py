"""``workbench run --report`` and ``--watch``: where ranks write their parts, and what makes a page of them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import LaunchError, WorkbenchError
from workbench.launch.as_command import words
from workbench.launch.ranks.output import log


@dataclass
class ReportedJob:
    """A job whose ranks write parts of its report.

    Args:
        variables: of its ranks.
        code: its exit code, once it has ended.
    """

    variables: dict[str, str]
    code: int = 0


@contextmanager
def reported(
    path: str,
    command: Sequence[str],
    measured: str = "",
    maker: str = "workbench.observe.report",
    variable: str = "WORKBENCH_REPORT",
) -> Iterator[ReportedJob]:
    """A job's variables, with which ranks write their parts while the block runs; after it the page is written.

    Where the page cannot be written, the parts stay, and the exit code is 1 at least. If the block raises, no job has
    run: an earlier page stays.

    Args:
        path: of the page.
        command: what each rank runs.
        measured: a file from which the step's time is predicted.
        maker: the module that makes the page.
        variable: tells the ranks where their parts go.

    Raises:
        LaunchError: the page cannot be written, or there is no such file, or it is no measurement.
    """
    page = Path(path).absolute()
    parts = page.with_name(f"{page.name}.ranks")
    if page.is_dir() or not page.parent.is_dir():
        raise LaunchError(f"--report {path}: give a file in an existing folder, such as report.html.")
    if measured:
        _check(measured)
    try:
        parts.mkdir(mode=0o700)  # whatever the umask: what stands there becomes part of a page
    except FileExistsError:
        raise LaunchError(
            f"--report {path}: another job writes this report, or did not end well. If none runs, delete {parts}."
        ) from None
    except OSError as error:
        raise LaunchError(f"--report {path}: the folder {page.parent} cannot be written: {error.strerror}.") from None
    job = ReportedJob({variable: str(parts)})
    try:
        yield job
    except BaseException:
        shutil.rmtree(parts, ignore_errors=True)
        raise
    make = words(maker, "make", str(parts), str(page), measured, *command)
    if subprocess.run(make, check=False).returncode:
        job.code = job.code or 1
        log(f"--report {path} was not written. What the ranks have said of the job is in {parts}.")
    else:
        shutil.rmtree(parts, ignore_errors=True)


def _check(measured: str) -> None:
    """Before the job, for it may take days."""
    from workbench.simulate.measured.prediction import Measured

    if not Path(measured).is_file():
        raise LaunchError(f"--measured {measured}: no such file. workbench.measure(model, batch).save(…) writes it.")
    try:
        Measured.load(measured)
    except WorkbenchError as error:
        raise LaunchError(f"--measured: {error}") from None
