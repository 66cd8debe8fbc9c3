"""Which threads wait for others of this process? Told by their stacks, for Python keeps no record of it.

A thread that waits for one that waits for a tensor does not go on before that one does: the main thread in
``pool.submit(step).result()`` or ``thread.join()``. What waits with a timeout goes on by itself.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future, _base, thread
from types import FrameType
from typing import Any

_THREADING, _FUTURES, _POOL = threading.__file__, _base.__file__, thread.__file__


def held_up(waiting: Iterable[int]) -> set[int]:
    """The threads that go on only when some of ``waiting`` do, these included; all as ``Thread.ident``.

    A pool's worker without work goes on when it gets some: from the main thread, if that goes on.

    Example:
        >>> go = threading.Event()
        >>> first = threading.Thread(target=go.wait, daemon=True)
        >>> second = threading.Thread(target=first.join, daemon=True)
        >>> first.start(), second.start()
        (None, None)
        >>> while held_up([first.ident]) != {first.ident, second.ident}: pass
        >>> go.set()
    """
    frames, found = sys._current_frames(), set(waiting)
    runs = {future: ident for ident, frame in frames.items() if (future := _runs(frame)) is not None}
    awaits = {ident: things for ident, frame in frames.items() if (things := _awaits(frame))}
    while more := {
        ident
        for ident, things in awaits.items()
        if ident not in found and all(_thread(thing, runs) in found for thing in things)
    }:
        found |= more
    if threading.main_thread().ident in found:
        found |= {ident for ident, frame in frames.items() if _is_idle_worker(frame)}
    return found


def _awaits(frame: FrameType | None) -> list[Any]:
    """The threads and futures, all of them unfinished, for which the thread of this frame waits without a timeout."""
    while frame is not None and frame.f_code.co_filename in (_THREADING, _FUTURES):
        place = frame.f_code.co_filename, frame.f_code.co_name
        if place in ((_THREADING, "join"), (_FUTURES, "result"), (_FUTURES, "exception")):
            things = [frame.f_locals["self"]]
        elif place in ((_FUTURES, "wait"), (_FUTURES, "as_completed")):
            given = frame.f_locals["fs"]
            if not isinstance(given, set):  # as the caller gave it, perhaps a generator: not for us to run
                return []
            things = [future for future in given if not future.done()]
        else:
            frame = frame.f_back
            continue
        return things if frame.f_locals["timeout"] is None else []
    return []


def _thread(thing: Any, runs: dict[Future[Any], int]) -> int | None:
    return thing.ident if isinstance(thing, threading.Thread) else runs.get(thing)


def _runs(frame: FrameType | None) -> Future[Any] | None:
    """The future whose function the thread of this frame runs."""
    while frame is not None and (frame.f_code.co_filename, frame.f_code.co_name) != (_POOL, "run"):
        frame = frame.f_back
    return None if frame is None else frame.f_locals["self"].future


def _is_idle_worker(frame: FrameType) -> bool:
    return (frame.f_code.co_filename, frame.f_code.co_name) == (_POOL, "_worker")
