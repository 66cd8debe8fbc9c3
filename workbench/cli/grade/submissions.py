"""What learners hand in, read before anything of it runs: the sources of the code cells, within limits."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_BYTES = 32 << 20
_MOST_SOURCE = 4 << 20  # all notebooks are read before the first one runs


@dataclass(frozen=True)
class Submission:
    """One notebook.

    Args:
        path: as it was given.
        cells: the sources of its code cells.
        problem: why it cannot be graded; "" if it can.
    """

    path: str
    cells: tuple[str, ...] = ()
    problem: str = ""


def read(path: str) -> Submission:
    """Read a notebook; a file that is none has a problem that says so."""
    file = Path(path)
    try:
        if file.is_symlink():
            return Submission(
                path, problem="it is a link, maybe to the file of another learner: hand in the file itself"
            )
        if file.is_dir():
            return Submission(path, problem="there is no notebook in this folder")
        if not file.is_file():  # a pipe or a device would never end
            os.stat(file)
            return Submission(path, problem="it is not a file")
        with open(path, "rb", opener=_not_waiting) as opened:
            text = opened.read(MOST_BYTES + 1)
        return Submission(path, tuple(code_cells(text)))
    except OSError as error:
        return Submission(path, problem=f"it cannot be read: {error.strerror}")
    except ValueError as error:
        return Submission(path, problem=str(error))


def _not_waiting(path: str, flags: int) -> int:
    """For a pipe that has just taken the file's place."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def read_all(paths: Sequence[str]) -> list[Submission]:
    """All of them, before the first one runs. A file that is there under two names is graded for nobody."""
    places: dict[tuple[int, int], list[str]] = {}
    for path in {os.path.abspath(path): path for path in reversed(paths)}.values():
        with suppress(OSError):
            about = os.lstat(path)
            places.setdefault((about.st_dev, about.st_ino), []).append(path)
    twice = {path: several for several in places.values() if len(several) > 1 for path in several}
    others = {path: " and ".join(sorted({*several} - {path})) for path, several in twice.items()}
    return [
        Submission(path, problem=f"it is one file with {others[path]}: whose is it?") if path in twice else read(path)
        for path in paths
    ]


def code_cells(text: bytes) -> list[str]:
    r"""The sources of a notebook's code cells.

    Raises:
        ValueError: that is no notebook, or too large a one.

    Example:
        >>> code_cells(b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": ["x = 1\\n", "x"]}]}')
        ['x = 1\nx']
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB: clear its outputs")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON, so not a notebook ({error})") from None
    cells = found.get("cells") if isinstance(found, dict) else None
    if not isinstance(cells, list):
        raise ValueError("it is JSON, but has no cells: not a notebook, or one of a format before 4")
    code = [cell for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    sources = [_source(cell.get("source")) for cell in code]
    if sum(map(len, sources)) > _MOST_SOURCE:
        raise ValueError(f"its cells have more than {_MOST_SOURCE >> 20} MiB of code")
    return sources


def _source(found: Any) -> str:
    return "".join(map(str, found)) if isinstance(found, list) else str(found or "")


def notebooks(words: Sequence[str]) -> list[str]:
    """The notebooks to grade; a folder stands for all notebooks in it and below, if there are any."""
    found: list[str] = []
    for word in words:
        below = sorted(one for one in Path(word).rglob("*.ipynb") if ".ipynb_checkpoints" not in one.parts)
        found += map(str, below) if Path(word).is_dir() and below else [word]
    return list(dict.fromkeys(found))
