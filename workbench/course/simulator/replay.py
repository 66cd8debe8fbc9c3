"""Ranks where stacks cannot be switched: one that has to wait is left, and later run again from its start.

Until it comes to where it was left, a rank gets the answers that it got before. What it was given, and what it changes
outside of itself, is each time as it was (``shared.py``), and what it has printed is not printed again. So it does the
same again, and then goes on. If it calls something else, or has other numbers in its variables, that is an error.

A rank that has waited w times for c calls costs about w·c/2 calls. A ring of 16 ranks takes 0.2 s where threads take
0.05 s, one of 64 ranks 10 s: more is too large. So are some hundred messages of each rank.
"""

from __future__ import annotations

import io
import itertools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import numpy as np

from workbench.common.user_line import users_own
from workbench.course.simulator.communicator import Pending, copied
from workbench.course.simulator.deadline import MOST_TIMES, Halt, Patience, TimedThread, halt, scheduled
from workbench.course.simulator.shared import Kept, Shared
from workbench.course.simulator.turns import Call, Steps, T, Turns
from workbench.errors import WorkbenchError

_MANY = 100  # calls of a rank
_ELSEWHERE = (
    "This browser cannot switch stacks, so a rank that has waited is run again from its start. Chrome and Edge 137, "
    "Firefox 153 and what is newer can; so can your computer."
)
_HERE = str(Path(__file__).parent)


class Left(Halt):
    """Ends a rank for this time."""


class ReplayError(WorkbenchError):
    """A rank has done something else when its function was run again."""


@dataclass
class _Answer:
    """What a rank got.

    Args:
        call: for what.
        value: or an exception.
        raised: is it one?
        before, after: what was outside of the rank when it asked, and when it got this.
    """

    call: Call
    value: Any
    raised: bool
    before: Kept
    after: Kept


@dataclass
class _Rank:
    """A rank.

    Attributes:
        begin: what was outside when it began.
        answers: that it has got so far.
        place: how many of them it has got this time.
        call, steps: what it has been left in.
        before: what was outside of it then.
        variables: what was in its own.
        left: this time it does nothing more that counts.
        again: it has not come yet to where it was left.
    """

    begin: Kept | None = None
    answers: list[_Answer] = field(default_factory=list)
    place: int = 0
    call: Call = ()
    steps: Steps[Any] | None = None
    before: Kept = field(default_factory=Kept)
    variables: dict[tuple[int, str], Any] = field(default_factory=dict)
    left: bool = False
    again: bool = False


class Replay(Turns):
    """One thread, which begins a rank whose turn it is.

    Args:
        ranks: see :class:`Turns`.
        roots: a rank's function, and what it is given.
    """

    def __init__(self, ranks: Sequence[Callable[[], None]], roots: Sequence[Any]) -> None:
        super().__init__(ranks)
        self._all = [_Rank() for _ in ranks]
        self._shared = Shared(roots)
        self._now = self._shared.keep()
        self._following = self._running = 0
        self._until, self._late = 0.0, False
        self._diverged: ReplayError | None = None
        self._thread: threading.Thread | None = None

    def run(self, patience: Patience) -> bool:
        """See :class:`Turns`.

        Raises:
            ReplayError: a function did something else when it was run again.
        """
        with redirect_stdout(_Once(sys.stdout, self._mute)), redirect_stderr(_Once(sys.stderr, self._mute)):
            self._thread = TimedThread(self._run, patience.seconds, "ranks")
            # Where nobody counts the time of threads, as in a browser, nobody else may look meanwhile either.
            self._until = time.monotonic() + patience.seconds * (MOST_TIMES if scheduled() else 1)
            self._thread.start()
            in_time = patience.wait(self._over.wait)
            if in_time:
                self._thread.join(1.0)
        if self._diverged is not None:
            raise self._diverged
        return in_time and not self._late

    def _run(self) -> None:
        with suppress(Halt):
            while not self._over.is_set():
                self._running = self._following
                self._go(self._running)
                self._look()
        self._look()
        self.end()

    def _look(self) -> None:
        if time.monotonic() > self._until and not self._over.is_set():
            self._late = True
            self.end()

    def _go(self, rank: int) -> None:
        mine = self._all[rank]
        mine.place, mine.left, mine.again = 0, False, mine.steps is not None
        if mine.begin is None:
            mine.begin = self._now
        elif mine.begin is not self._now:
            self._shared.restore(mine.begin)
        trace = sys.gettrace()
        self._ranks[rank]()
        sys.settrace(trace)
        if mine.left:
            self._shared.restore(self._now)
        else:
            self._now = self._shared.keep()

    def ask(self, rank: int, call: Call, steps: Steps[T]) -> T:
        """See :class:`Turns`."""
        mine = self._all[rank]
        self._look()
        if mine.left or self._over.is_set():
            if mine.left:
                _leave_at_next_line(sys._getframe(1))
            mine.left = True
            raise Left
        if mine.place < len(mine.answers):
            return self._once_more(rank, mine, call)  # type: ignore[no-any-return]
        return self._first(rank, mine, call, steps)

    def _once_more(self, rank: int, mine: _Rank, call: Call) -> Any:
        answer = mine.answers[mine.place]
        self._compare(rank, answer.call, call)
        mine.place += 1
        if answer.after is not answer.before:
            self._shared.restore(answer.after, mine.begin, answer.before)
        if answer.raised:
            raise answer.value.with_traceback(None)
        return _fresh(answer.value)

    def _first(self, rank: int, mine: _Rank, call: Call, steps: Steps[T]) -> T:
        if mine.steps is None:
            mine.call, mine.steps = tuple(map(_fresh, call)), steps
            mine.before = self._now = self._shared.keep()
        else:
            self._compare(rank, mine.call, call)
            for (depth, name), value in _variables(sys._getframe(2)).items():
                before = mine.variables.get((depth, name), value)
                if not alike(before, value):
                    self._compare(rank, (f"{name} = {before}", before), (f"{name} = {value}", value))
        value = None
        raised = False
        try:
            next(mine.steps)
        except StopIteration as ended:
            value = ended.value
        except BaseException as error:  # noqa: BLE001 - raised below, and each time that this rank is run again
            value, raised = error, True
        else:
            mine.left, mine.variables = True, _variables(sys._getframe(2))
            raise Left
        mine.answers.append(_Answer(mine.call, _fresh(value), raised, mine.before, self._now))
        if mine.again:
            self._shared.restore(self._now, mine.begin, mine.before)
        mine.place, mine.steps, mine.again = mine.place + 1, None, False
        if raised:
            raise value
        return value  # type: ignore[no-any-return]

    def _compare(self, rank: int, before: Call, now: Call) -> None:
        if not alike(before, now):
            what = (
                f"{now[0]}, and before that to {before[0]}" if now[0] != before[0] else f"{now[0]} with another value"
            )
            self._diverged = ReplayError(
                f"Rank {rank} cannot be run here: when its function was run again from its start, it came to {what}. "
                f"It must not depend on what changes outside, such as the time, a file or an iterator. {_ELSEWHERE}"
            )
            self._all[rank].left = True
            self.end()
            raise Left

    def _mute(self) -> bool:
        mine = self._all[self._running]
        return mine.left or mine.again

    def give(self, rank: int) -> None:
        """See :class:`Turns`."""
        self._following = rank

    def end(self) -> None:
        """See :class:`Turns`."""
        self._over.set()

    def stop(self) -> None:
        """See :class:`Turns`."""
        self.end()
        if self._thread is not None and self._thread.is_alive():
            halt(self._thread.ident)
            self._thread.join(1.0)

    def why_late(self) -> str:
        """See :class:`Turns`."""
        if max(len(mine.answers) for mine in self._all) < _MANY:
            return super().why_late()
        return f"It has many messages, and they take long here. {_ELSEWHERE}"


def _variables(frame: FrameType | None) -> dict[tuple[int, str], Any]:
    """By place in the stack and name: numbers and texts in the functions of user's code. An array may be np.empty()."""
    found: dict[tuple[int, str], Any] = {}
    for depth in itertools.count():
        if frame is None or frame.f_code is Replay._go.__code__:
            return found
        if users_own(frame.f_code.co_filename):
            for name, value in frame.f_locals.items():
                if isinstance(value, (int, float, complex, str, bytes)):
                    found[depth, name] = value
        frame = frame.f_back
    return found


def _leave_at_next_line(frame: FrameType | None) -> None:
    """A bare except has caught that the rank is left: it is left at the next line, whatever that is."""

    def leave(frame: FrameType, event: str, arg: Any) -> None:
        if event == "line":
            raise Left

    while frame is not None:
        if not frame.f_code.co_filename.startswith(_HERE):
            frame.f_trace = leave
        frame = frame.f_back
    sys.settrace(lambda frame, event, arg: None)


def _fresh(value: Any) -> Any:
    return value if isinstance(value, (Pending, BaseException)) else copied(value)


def alike(a: Any, b: Any) -> bool:
    """Is it the same value, as far as this can be known? Objects that cannot be compared are, if they are of one kind.

    Example:
        >>> alike((1, [np.ones(2)], float("nan")), (1, [np.ones(2)], float("nan"))), alike(1, 2), alike(1, [1])
        (True, False, False)
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (str, float, int)):
        return bool(a == b or a != a)
    if isinstance(a, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return a.dtype == object or bool(a.tobytes() == b.tobytes())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(one is other or alike(one, other) for one, other in zip(a, b, strict=True))
    if isinstance(a, dict):
        return alike(list(a), list(b)) and alike(list(a.values()), list(b.values()))
    if isinstance(a, Pending):
        return False
    compared = any("__eq__" in vars(each) for each in type(a).__mro__[:-1])
    try:
        return not compared or bool(a == b or a != a)
    except Exception:  # noqa: BLE001 - of the learner's own classes
        return True


class _Once(io.TextIOBase):
    """A stream, but for what is printed once more.

    Args:
        stream: where it goes.
        mute: was it printed before?
    """

    def __init__(self, stream: TextIO, mute: Callable[[], bool]) -> None:
        self._stream, self._mute = stream, mute

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """See ``io.TextIOBase``."""
        return len(text) if self._mute() else self._stream.write(text)

    def flush(self) -> None:
        """See ``io.TextIOBase``."""
        self._stream.flush()


__all__ = ["Replay", "ReplayError", "alike"]
