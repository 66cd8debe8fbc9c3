"""Which lines run for a gradient, when, and on which thread: what Python's own tracing says, and nobody's word.

Python traces a thread if it was told so on that thread, or before it began. So a follower is made before ``init()``,
which starts the engine's thread and the coordinator's.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from workbench.course.followed.places import PLACES, STEP, TracedFunction

_DEADLINE_S = 5.0
_THREADS = {"MainThread": "main", "workbench-engine": "engine", "workbench-coordinator": "coordinator"}


@dataclass(frozen=True)
class Passed:
    """A call for the gradient that was followed.

    Args:
        path: of the place.
        stop: of the way.
        thread: ``main``, ``engine`` or ``coordinator``.
        begin_ns: by ``perf_counter_ns()``, as the recorder's times.
        lines: numbers of the lines that ran, in the file.
    """

    path: str
    stop: str
    thread: str
    begin_ns: int
    lines: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.path.partition(":")[2]


@dataclass
class _TracedCall:
    place: TracedFunction
    thread: str
    begin_ns: int
    lines: set[int] = field(default_factory=set)
    mine: bool = False
    ended: bool = False


class Follower:
    """Follows what has certain names, in all threads that begin from now on and in this one.

    Args:
        places: to look at.

    Example:
        >>> from workbench.core.handle import Handle
        >>> place = TracedFunction("step", "workbench.core.handle:Handle.finish", lambda values: [values["self"].name])
        >>> follower = Follower([place])
        >>> with follower.following("w"):
        ...     Handle("b").finish(1), Handle("w").finish(2)
        (None, None)
        >>> follower.close()
        >>> [(call.name, call.thread, len(call.lines) > 1) for call in follower.passed]
        [('Handle.finish', 'main', True)]
    """

    def __init__(self, places: Sequence[TracedFunction] = PLACES) -> None:
        self._of: dict[CodeType, TracedFunction] = {place.function.__code__: place for place in places}
        self._names: frozenset[str] = frozenset()
        self._calls: dict[FrameType, _TracedCall] = {}
        self._ended: list[_TracedCall] = []
        threading.settrace(self._trace)

    def close(self) -> None:
        """Threads that begin from now on are not traced."""
        threading.settrace(None)

    @contextmanager
    def following(self, *names: str) -> Iterator[None]:
        """Within the block, follow what has one of these names, and the step; then :attr:`passed` tells.

        Args:
            names: of tensors, as the optimizer has them. In a request, the verb stands before it.
        """
        self._calls, self._ended = {}, []
        self._names = frozenset({*names, *(f"allreduce.{name}" for name in names), STEP})
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)
            self._names = frozenset()
            self._settle()

    @property
    def passed(self) -> list[Passed]:
        """The calls for the gradient, one of each place, in the order of the places."""
        calls = sorted((call for call in self._ended if call.mine), key=lambda call: call.begin_ns)
        found = []
        for place in self._of.values():
            if here := [call for call in calls if call.place is place]:
                one = here[0 if place.first else -1]
                found.append(Passed(place.path, place.stop, one.thread, one.begin_ns, tuple(sorted(one.lines))))
        return found

    def _settle(self) -> None:
        """Other threads end their calls, which have done their part already."""
        until = time.monotonic() + _DEADLINE_S
        while self._calls and time.monotonic() < until:
            time.sleep(0.001)

    # --- on any thread ------------------------------------------------------------------------------

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        place = self._of.get(frame.f_code) if self._names else None
        if place is None:
            return None
        name = threading.current_thread().name
        call = _TracedCall(place, _THREADS.get(name, name), time.perf_counter_ns())
        call.mine = place.about is None and self._is_callers(frame)
        self._calls[frame] = call
        return self._line(call, self._names)

    def _line(self, call: _TracedCall, names: frozenset[str]) -> Any:
        def local(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "line":
                call.lines.add(frame.f_lineno)
            if not call.mine and call.place.about is not None:
                call.mine = not names.isdisjoint(_about(call.place, frame))
            if event == "return":
                self._ended.append(call)
                self._calls.pop(frame, None)
            return local

        return local

    def _is_callers(self, frame: FrameType) -> bool:
        """Is a call for the gradient below it on the stack?"""
        below = frame.f_back
        while below is not None:
            call = self._calls.get(below)
            if call is not None and call.mine:
                return True
            below = below.f_back
        return False


def _about(place: TracedFunction, frame: FrameType) -> Iterable[str]:
    assert place.about is not None
    return place.about(frame.f_locals)
