"""``workbench run --report``: where ranks write their parts, and what makes a page of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from workbench.errors import LaunchError

MAKER = (sys.executable, "-m", "workbench.observe.report")


@contextmanager
def reported(path: str, command: Sequence[str], measured: str = "") -> Iterator[dict[str, str]]:
    """Variables with which ranks write their parts while the block runs; after it the page is written.

    Args:
        path: of the page.
        command: what each rank runs.
        measured: a file from which the step's time is predicted.

    Raises:
        LaunchError: the page cannot be written, or there is no such file.
    """
    page = Path(path).absolute()
    parts = page.with_name(f"{page.name}.ranks")
    if page.is_dir() or not page.parent.is_dir():
        raise LaunchError(f"--report {path}: give a file in an existing folder, such as report.html.")
    if measured and not Path(measured).is_file():
        raise LaunchError(f"--measured {measured}: no such file. workbench.measure(model, batch).save(…) writes it.")
    try:
        parts.mkdir()
    except FileExistsError:
        raise LaunchError(
            f"--report {path}: another job writes this report, or did not end well. If none runs, delete {parts}."
        ) from None
    except OSError as error:
        raise LaunchError(f"--report {path}: the folder {page.parent} cannot be written: {error.strerror}.") from None
    try:
        yield {"WORKBENCH_REPORT": str(parts)}
    finally:
        subprocess.run([*MAKER, "make", str(parts), str(page), measured, *command], check=False)
        shutil.rmtree(parts, ignore_errors=True)


__all__ = ["MAKER", "reported"]
