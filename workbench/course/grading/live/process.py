"""The process in which one function is judged beside the judge: nothing else of the notebook comes here.

The verdict goes out with a key that the grader sends only when the last property has been looked at.
"""

from __future__ import annotations

import linecache
import os
import socket
import sys
from pathlib import Path
from typing import Any

from workbench.course.grading.apart import confine
from workbench.course.grading.apart.values import receive, send
from workbench.course.grading.live.untouched import Snapshot

_FILE = "<the function>"


def _function(source: str, name: str) -> Any:
    """What the source defines.

    Raises:
        Exception: the source's own.
    """
    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, _FILE, "exec"), space)
    return space[name]


def _judged(asked: dict[str, Any]) -> list[list[Any]]:
    """The stages, each as name, verdict and text."""
    from workbench.course.judging import judge
    from workbench.course.tasks import task

    todo = task(asked["name"])
    for name in asked["imports"]:
        __import__(name)  # or their names would come while the function runs
    before, told = Snapshot(todo), judge.told
    look = before.changed
    found: list[list[Any]] = []

    def row(name: str, passed: bool | None, text: str) -> bool:
        changed = look()
        if changed:
            text = f"{changed} is not what it was before: a function must not change what judges it"
            found.append(["the judge was changed", False, text])
        else:
            found.append([name, passed, text])
        return not changed

    try:
        function = _function(asked["source"], asked["function"])
        for stage in judge.judge(todo, function):
            if not row(stage.name, stage.passed, stage.text):
                break
    except BaseException as error:  # noqa: BLE001 - SystemExit in a learner's function
        row("runs", False, told(error))
    return found


def main() -> None:
    """``python -m workbench.course.grading.live.process DESCRIPTOR FOLDER``."""
    from workbench.course.tasks import names

    names()
    sock = socket.socket(fileno=int(sys.argv[1]))
    asked, _ = receive(sock)
    os.chdir(sys.argv[2])
    confine.confine(Path(sys.argv[2]), confine.Limits(**asked["limits"]))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    owner = os.getpid()
    stages = _judged(asked)
    if os.getpid() != owner:
        os._exit(0)
    send(sock, {"judged": True}, bytearray())
    key, _ = receive(sock)
    send(sock, {"key": key["key"], "stages": [[name, ok, text[:2000]] for name, ok, text in stages]}, bytearray())
    os._exit(0)


if __name__ == "__main__":
    main()
