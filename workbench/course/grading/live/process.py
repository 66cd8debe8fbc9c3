"""The processes in which a training is judged: one for each rank, with the learner's function and no judge in it.

The first one imports torch, and makes a copy of itself for each rank when it is sent the rank's connection; it runs no
learner's code. A rank's process works in a folder of its own, is confined by itself, and gets from the judge the seeds
of its weights and of its images. It sends back what its hooks have seen, as arrays.
"""

from __future__ import annotations

import linecache
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from workbench.cli.grade.reaper import hide
from workbench.config import changed_environment
from workbench.course.grading.apart import confine
from workbench.course.grading.apart.values import NotDataError, Values, receive, send
from workbench.course.grading.cells import described
from workbench.course.grading.live.engine import JudgeConnection, RemoteEngine, context
from workbench.course.grading.live.start import Start
from workbench.course.training.trial import TRAININGS, one_rank

_FILE = "<the function>"
MOST_RANKS = 16


def no_object(value: Any, pack: Any) -> Any:
    """Nothing but data travels.

    Raises:
        NotDataError: always.
    """
    raise NotDataError(f"A {type(value).__name__} is no data.")


VALUES = Values(no_object, no_object)


def _function(source: str, name: str) -> Callable[..., Any]:
    """What the source defines.

    Raises:
        Exception: the source's own.
    """
    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, _FILE, "exec"), space)
    found: Callable[..., Any] = space[name]
    return found


def _plain(value: Any) -> Any:
    """What a function has returned, if it is a number; else what it looks like."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    try:
        return {"odd": repr(value)[:200]}
    except Exception:  # noqa: BLE001 - a learner's object
        return {"odd": type(value).__name__}


def _trained(wire: JudgeConnection, source: str, name: str) -> None:
    """Run a rank's part, and say what was seen."""
    from workbench.job.context import HOLDER

    _, asked = wire.receive()
    start = Start(**asked)
    part = TRAININGS[start.training](start.weights, start.digits(), first=start.rank == 0)
    engine = RemoteEngine(wire)
    HOLDER.set(context(start.rank, start.size, engine))
    engine.listen()
    try:
        function = _function(source, name)
        seen = one_rank(part, start.rank, start.size, function, lambda: wire.send("pass"))
        found = {one.name: getattr(seen, one.name) for one in fields(seen)} | {"reported": _plain(seen.reported)}
    except BaseException as error:  # noqa: BLE001 - SystemExit in a learner's function
        text, *place = described(error).split("\n")
        kind, _, words = text.partition(": ")
        wire.send("raise", kind=kind, text=words[:2000], place="\n".join(place)[:2000])
    else:
        wire.send("return", seen=found)


def _rank(sock: socket.socket, folder: Path, asked: dict[str, Any]) -> None:
    """One rank, from its confinement to its end."""
    owner = os.getpid()
    try:
        folder.mkdir()
        os.chdir(folder)
        confine.confine(folder, confine.ProcessLimits(**asked["limits"]))
        with changed_environment(HOME=str(folder), TMPDIR=str(folder), MPLCONFIGDIR=str(folder)):
            _trained(JudgeConnection(sock, VALUES), asked["source"], asked["function"])
    finally:
        if os.getpid() == owner:
            sock.close()
        os._exit(0)  # without what a learner has put into atexit, and not waiting for threads


def main() -> None:
    """``python -m workbench.course.grading.live.process DESCRIPTOR FOLDER``."""
    _warm_up()
    sock, folder = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    asked, _ = receive(sock)
    os.chdir(folder)
    hide()
    unbounded = confine.confine(folder, confine.ProcessLimits(**asked["limits"]))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    send(sock, {"unbounded": unbounded}, bytearray())
    number = 0
    while True:
        text, theirs, _, _ = socket.recv_fds(sock, 1, MOST_RANKS)
        if not text:
            os._exit(0)
        for each in theirs:
            number += 1
            if os.fork() == 0:
                for other in (*theirs, sock.fileno()):
                    if other != each:
                        os.close(other)
                _rank(socket.socket(fileno=each), folder / f"rank{number}", asked)
        for each in theirs:
            os.close(each)
        _bury()


def _warm_up() -> None:
    """Load all that a training needs, or each rank would load it again, in its own time."""
    import torch.nn.functional
    import torch.utils.data

    import workbench.torch  # noqa: F401
    from workbench.course.training.conversion import accuracy

    torch.set_num_threads(1)  # a pool of threads would not live on in a copy of this process
    digits = TRAININGS["job"].data()
    job = TRAININGS["job"](0, digits, first=True)
    accuracy(job.model, digits)


def _bury() -> None:
    """Ranks that have ended must not count as processes."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
