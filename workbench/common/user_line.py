"""Which line of a stack is the user's own, and not this package's or a library's."""

from __future__ import annotations

import linecache
import site
import threading
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).resolve().parents[1])  # the package
_BEGIN = threading.Thread._bootstrap.__code__  # type: ignore[attr-defined]
_LIBRARIES = (*site.getsitepackages(), str(Path(threading.__file__).parent))


def place_of(stack: Iterable[tuple[str, int]]) -> str:
    """The first place in a stack, of files and line numbers from within outwards, that is the user's own."""
    found = None
    for path, line in stack:
        if not path.startswith((_OURS, "<frozen")) and path != threading.__file__ and "contextlib" not in path:
            found = found or (path, line)
            if users_own(path):
                found = path, line
                break
    if found is None:
        return ""
    path, line = found
    place = "the cell" if "ipykernel_" in path or path.startswith("<ipython") else Path(path).name
    return f"in {place}, line {line}: {linecache.getline(path, line).strip()}".rstrip(": ")


def stack_of(frame: FrameType | None) -> list[tuple[str, int]]:
    """A frame and those of its thread that called it, from within outwards: files and line numbers."""
    found = []
    while frame is not None and frame.f_code is not _BEGIN:  # in a page a thread may run on top of another one
        found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return found


def own_stack(frame: FrameType | None) -> list[tuple[str, int]]:
    """What :func:`place_of` needs of a stack: the innermost frame of the user's own, or all where none is."""
    own = frame
    while own is not None and not users_own(own.f_code.co_filename):
        own = own.f_back
    return stack_of(frame) if own is None else [(own.f_code.co_filename, own.f_lineno)]


@lru_cache(4096)
def users_own(path: str) -> bool:
    """Is a file neither this package's nor a library's?"""
    return not path.startswith((_OURS, "<frozen", *_LIBRARIES))
