"""One rank of a host prepares or downloads a data set, and all ranks of the host map the same memory.

1. The rank that has the lock prepares; the others wait, with a deadline. The operating system frees the lock of a
   process that dies, and the next rank prepares.
2. It writes under another name, which is changed in one step: what has the target's name is complete.
3. If it fails, it says so in a file before it frees the lock: those that waited fail, too, instead of trying it again,
   one after the other.

No ``init()`` is needed. Several hosts that share a folder are one host here, if its file system has locks.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from workbench import config
from workbench.common.backoff import Backoff
from workbench.common.notice import Notice
from workbench.errors import DataNotFoundError

PAUSE_S = 0.05  # between two looks at a lock that another process holds


def mapped(
    folder: str | Path, make: Callable[[], Mapping[str, NDArray[Any]]], *, timeout_s: float = 600.0
) -> dict[str, NDArray[Any]]:
    """Arrays that are in the memory of a host once, however many ranks it has.

    One rank of the host makes the arrays and saves them as ``.npy`` files. All map these files: the pages that they
    read are the operating system's cache, which is shared. What a rank writes into an array stays its own.

    Args:
        folder: where the files are, or will be. Delete it when ``make`` changes, for an old folder is taken as it is.
            A folder in /dev/shm is memory, too, and stays until it is deleted.
        make: the arrays by name; called by one rank, and only if the folder is not there.
        timeout_s: how long to wait for the rank that makes them.

    Returns:
        The arrays by name. ``torch.from_numpy`` takes them without a copy.

    Raises:
        DataNotFoundError: the rank that made them has failed.
        TimeoutError: it is not done after ``timeout_s``.
        ValueError: a file is damaged, a name is none for a file, or an array holds objects, which would have to be
            pickled.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     arrays = mapped(f"{folder}/squares", lambda: {"x": np.arange(4) ** 2})
        ...     arrays["x"].tolist()
        [0, 1, 4, 9]
    """

    def save(part: Path) -> None:
        part.mkdir()
        for name, array in make().items():
            if not name or Path(name).name != name:
                raise ValueError(f"An array's name is its file's, and {name!r} is none: take one without a slash.")
            np.save(part / f"{name}.npy", array, allow_pickle=False)

    files = sorted(prepared(folder, save, timeout_s=timeout_s).glob("*.npy"))
    return {each.stem: _map(each) for each in files}


def _map(path: Path) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is damaged: {error}. Delete its folder, to have it made anew.") from error
    return found


def prepared(target: str | Path, prepare: Callable[[Path], object], *, timeout_s: float = 600.0) -> Path:
    """A file or folder that one rank of this host prepares, while the others wait.

    Args:
        target: its path; nothing is done if it exists.
        prepare: writes the file or folder, to the path that it is given.
        timeout_s: how long to wait for the rank that prepares.

    Returns:
        ``target``.

    Raises:
        DataNotFoundError: the rank that prepared it has failed; the text has its error. On that rank the error itself
            is raised.
        TimeoutError: another rank still prepares after ``timeout_s``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     prepared(f"{folder}/words.txt", lambda part: part.write_text("a b")).read_text()
        'a b'
    """
    target = Path(target)
    return by_one_rank(target, prepare, timeout_s, lambda seconds: f"preparing {target.name}: {seconds:.0f} s")


def by_one_rank(
    target: Path, prepare: Callable[[Path], object], timeout_s: float, sign: Callable[[float], str]
) -> Path:
    """As :func:`prepared`; after so many seconds the user is told what ``sign`` says."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    failure = target.with_name(f".{target.name}.failed")
    before = _text(failure)
    deadline = time.monotonic() + timeout_s
    lock = target.with_name(f".{target.name}.lock")
    with Notice(config.stream()).of(sign), _locked(lock, deadline, f"prepares {target}"):
        if not target.exists():
            if (said := _text(failure)) != before:
                raise DataNotFoundError(f"{target} was not prepared: {said.partition(' ')[2]}")
            _prepare(target, prepare, failure)
    return target


def _prepare(target: Path, prepare: Callable[[Path], object], failure: Path) -> None:
    import psutil  # here alone: a browser that computes lessons has none

    here = f".part-{socket.gethostname()}-"
    for each in target.parent.glob(f"{here}*-{target.name}"):
        pid = each.name[len(here) :].partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):  # it was killed
            _remove(each)
    part = target.with_name(f"{here}{os.getpid()}-{target.name}")
    try:
        prepare(part)
        if not part.exists():
            raise FileNotFoundError(f"{target} was not prepared: the function wrote nothing to the path it was given.")
        try:
            part.replace(target)
        except OSError:
            if not target.is_dir():  # else a rank that the file system could not keep waiting was faster
                raise
    except BaseException as error:
        who = f"rank {config.launch().rank} (process {os.getpid()}) failed"
        failure.write_text(f"{secrets.token_hex(8)} {who}: {type(error).__name__}: {error}")
        raise
    finally:
        _remove(part)
    failure.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _text(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    return ""


@contextlib.contextmanager
def _locked(path: Path, deadline: float, doing: str) -> Iterator[None]:
    """Hold the lock file, for which others may have to be waited until the deadline; they are ``doing`` something."""
    with path.open("a+") as file:  # closing it frees the lock
        backoff = Backoff(deadline - time.monotonic(), longest_s=PAUSE_S)
        while not _try_lock(file):
            if not backoff.pause():
                raise TimeoutError(
                    f"waited for another process ({path.read_text() or 'unknown'}) that {doing}, until the deadline. "
                    "Look for a stopped one, or allow more time."
                )
        file.truncate(0)
        file.write(f"rank {config.launch().rank}, process {os.getpid()}")
        file.flush()
        yield


def _try_lock(file: IO[str]) -> bool:
    """True if this process may go on: it has the lock, or there are no locks here."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
