"""What stands in a function's variables after each of its lines: Python tells, line by line.

Only the learner's own function is followed; what it calls belongs to the line that calls it. A function that has no
lines, such as one that stands for another process, runs as it is.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import numpy as np

from workbench.course.provenance.coding import Code, Content, pieces

State = dict[int, Content]


@dataclass(frozen=True)
class Change:
    """A line has changed a chunk of a rank.

    Args:
        rank, chunk: where.
        at_s: on the rank's clock.
        line: the line's number, counted from the function's first one, its decorator's if there is one.
        text: the line.
        before, after: what was in it, and is now; None before where nothing was known.
    """

    rank: int
    chunk: int
    at_s: float
    line: int
    text: str
    before: Content | None
    after: Content


@dataclass
class Trace:
    """Follows a function on all ranks.

    Args:
        function: the learner's.
        code: of its inputs.
        length: of each rank's whole array.
    """

    function: Callable[..., Any]
    code: Code
    length: int
    changes: list[Change] = field(default_factory=list)

    def call(self, comm: Any, *args: Any) -> Any:
        code = getattr(self.function, "__code__", None)
        if code is None:
            return self.function(comm, *args)
        before = sys.gettrace()
        sys.settrace(_Follower(self, comm, code).begin)
        try:
            return self.function(comm, *args)
        finally:
            sys.settrace(before)

    def state(self, variables: Mapping[str, Any], known: dict[str, State]) -> State:
        """What a rank has in each chunk, by its variables; of several that may be it, by the one that changed last.

        Args:
            variables: of the function.
            known: by name, what they held before; is brought up to date.
        """
        newest: State = {}
        for name, value in variables.items():
            held = self._read(value)
            if held and held != known.get(name):
                known[name] = newest = held
        return newest

    def _read(self, value: Any) -> State:
        if isinstance(value, (list, tuple)) and len(value) == self.code.chunks > 1:
            found = dict(enumerate(value))
        elif isinstance(value, np.ndarray) and value.shape == (self.length,):
            found = dict(pieces(value, self.code.chunks))
        else:
            return {}
        contents = {chunk: self.code.read(each) for chunk, each in found.items()}
        return {chunk: content for chunk, content in contents.items() if content is not None}


class _Follower:
    """Of one call on one rank."""

    def __init__(self, trace: Trace, comm: Any, code: CodeType) -> None:
        self.trace, self.comm, self.code = trace, comm, code
        self.known: dict[str, State] = {}
        self.state: State = {}
        self.line = 0

    def begin(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not self.code:
            return None
        self.line = frame.f_lineno
        self._look(frame)
        return self._next

    def _next(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event in ("line", "return"):
            self._look(frame)
            self.line = frame.f_lineno
        return self._next

    def _look(self, frame: FrameType) -> None:
        for chunk, content in self.trace.state(frame.f_locals, self.known).items():
            before = self.state.get(chunk)
            if content != before:
                self.state[chunk] = content
                text = linecache.getline(self.code.co_filename, self.line).strip()
                number = self.line - self.code.co_firstlineno + 1
                rank, now = self.comm.rank, self.comm.now
                self.trace.changes.append(Change(rank, chunk, now, number, text, before, content))
