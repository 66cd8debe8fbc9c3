"""Threads in a browser: a stack of WebAssembly for each, one of which runs until it waits.

Pyodide has no threads. :func:`install` puts stand-ins under what ``threading``, ``queue`` and ``time`` offer, so code
with threads runs as it is. It comes before whatever takes names out of these modules. The stand-ins differ thus:

1. A thread runs until it waits, sleeps or looks in vain; then comes the one that has been ready for longest. So a
   program does the same each time.
2. When all wait, the clock goes on to the end of the first wait, for nothing can happen before: no network, no other
   process. And it goes slowly while there are threads, as Python does here: a deadline that leaves time on a computer
   leaves time in a browser.
3. Threads that all wait for ever end: the main thread is told.
4. ``time.perf_counter_ns`` is never twice the same, so events have an order; a browser's own clock is coarse.

A browser that cannot switch stacks has no threads: to start one is a :class:`NoStacksError`.
"""

from __future__ import annotations

import _thread
import contextvars
import ctypes
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import CodeType, FrameType
from typing import Any

from pyodide.code import run_js
from pyodide.ffi import can_run_sync, create_proxy, run_sync

from workbench.errors import WorkbenchError

_SLOWER = 4.0  # Python in a browser
_LOOK_S = 5e-5  # what a look counts that finds nothing, while nobody else can go on
_JUMPS = 200  # of a loop to its begin, until others have their turn
_TOOL = 4  # of sys.monitoring: a number that no profiler has
# To wait, and to let another go on; in one call, for each from Python to JavaScript takes its time.
_GATES = """(() => {
  const gates = new Map();
  const open = other => { const end = gates.get(other); gates.delete(other); end?.(); };
  const wait = (me, other) => { const kept = new Promise(end => gates.set(me, end)); open(other); return kept; };
  const begin = run => { Promise.resolve().then(() => run.callPromising()).finally(() => run.destroy()); };
  return { open, wait, begin };
})()"""
_MONITORING: Any = vars(sys)["monitoring"]
_monotonic, _sleep, _excepthook = time.monotonic, time.sleep, threading.excepthook
_perf_counter_ns = time.perf_counter_ns


class _Fiber:
    """A thread.

    Attributes:
        begin: what it runs; None once it does.
        turn: counts its waits, so that a timer that is out of date is known.
        waits: and has not been made ready.
        woken: its last wait did not end by its time.
        frame: where it waits.
        sentinel: a lock that is released when it ends.
        halt: what is to be raised in it.
        jumps: how often a loop has begun anew, of :func:`loops_give_way`.
        locals: its part of each :class:`Local`.
    """

    def __init__(self, ident: int, begin: Callable[[], object] | None = None) -> None:
        self.ident, self.begin = ident, begin
        self.turn, self.waits, self.woken = 0, False, False
        self.frame: FrameType | None = None
        self.sentinel: Lock | None = None
        self.halt: type[BaseException] | None = None
        self.jumps = 0
        self.locals: dict[Local, dict[str, Any]] = {}


class Scheduler:
    """Whose turn it is. There is one, :data:`THREADS`."""

    def __init__(self) -> None:
        self.main = self.current = _Fiber(threading.get_ident())
        self.fibers = {self.main.ident: self.main}
        self._idents, self._numbers = count(self.main.ident + 1), count()
        self._ready: deque[_Fiber] = deque()
        self._timers: list[tuple[float, int, _Fiber, int]] = []
        self._gates = run_js(_GATES)
        self._base = self._anchor = _monotonic()
        self._rate = 1.0
        self._last_ns = 0

    def now(self) -> float:
        """In place of ``time.monotonic``."""
        return self._base + (_monotonic() - self._anchor) * self._rate

    def _pace(self, rate: float, skip_s: float = 0.0) -> None:
        self._base, self._anchor, self._rate = self.now() + skip_s, _monotonic(), rate

    def later_ns(self) -> int:
        """In place of ``time.perf_counter_ns``."""
        self._last_ns = max(self._last_ns + 1, _perf_counter_ns())
        return self._last_ns

    def ident(self) -> int:
        """In place of ``threading.get_ident``."""
        return self.current.ident

    def frames(self) -> dict[int, FrameType]:
        """In place of ``sys._current_frames``."""
        found = {ident: fiber.frame for ident, fiber in self.fibers.items() if fiber.frame}
        return found | {self.current.ident: sys._getframe(1)}

    def start(
        self, function: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> int:
        """In place of ``_thread.start_new_thread``."""
        if not can_run_sync():
            raise NoStacksError
        if len(self.fibers) == 1:
            self._pace(1 / _SLOWER)
            _MONITORING.restart_events()
        begin = lambda: function(*args, **(kwargs or {}))  # noqa: E731
        fiber = _Fiber(next(self._idents), begin)
        self.fibers[fiber.ident] = fiber
        self._ready.append(fiber)
        return fiber.ident

    def _run(self, fiber: _Fiber, begin: Callable[[], object]) -> None:
        self.current = fiber
        try:
            begin()
        except SystemExit:
            pass
        finally:
            del self.fibers[fiber.ident]
            if fiber.sentinel is not None and fiber.sentinel.locked():
                fiber.sentinel.release()
            if len(self.fibers) == 1:
                self._pace(1.0)
        self._open(self._next())

    def wait(self, timeout_s: float | None = None) -> bool:
        """This thread waits until :meth:`wake`; False if its time has come first."""
        me = self.current
        me.turn += 1
        me.waits, me.woken = True, False
        if timeout_s is not None and timeout_s < threading.TIMEOUT_MAX:
            heappush(self._timers, (self.now() + timeout_s, next(self._numbers), me, me.turn))
        self._switch(me)
        return me.woken

    def wake(self, fiber: _Fiber) -> None:
        """One that waits goes on, when it is its turn."""
        fiber.woken = True
        if fiber.waits:  # else its time has come a moment ago
            fiber.waits = False
            self._ready.append(fiber)

    def give_way(self) -> None:
        """Others have their turn, if they can go on; this thread looks for something, in vain so far."""
        self._expire(self.now())
        if self._ready and can_run_sync():
            self._ready.append(self.current)
            self._switch(self.current)
        elif self._timers:
            self._pace(self._rate, _LOOK_S)

    def sleep(self, seconds: float) -> None:
        """In place of ``time.sleep``."""
        if len(self.fibers) == 1:
            _sleep(seconds)
        elif seconds > 0:
            self.wait(seconds)
        else:
            self.give_way()
        self.check()

    def check(self) -> None:
        """Raise what is to be raised in this thread."""
        if self.current.halt is not None:
            error, self.current.halt = self.current.halt, None
            raise error

    def jumped(self, code: CodeType, here: int, to: int) -> object:
        """Called by Python when a loop begins anew, in code of :func:`loops_give_way`."""
        if len(self.fibers) == 1:
            return _MONITORING.DISABLE
        self.current.jumps += 1
        if self.current.halt is not None or self.current.jumps % _JUMPS == 0:
            signal.raise_signal(signal.SIGUSR1)  # not here: Python calls no other thread's while this one is in it
        return None

    def interrupted(self, number: int, frame: FrameType | None) -> None:
        """A while later, in the loop."""
        self.give_way()
        self.check()

    def stopped(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-C ends the main thread's cell, and all other threads: none could be ended later."""
        for fiber in self.fibers.values():
            fiber.halt = KeyboardInterrupt
        if self.current is not self.main:
            self.wake(self.main)
        self.check()

    def _expire(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, _, fiber, turn = heappop(self._timers)
            if fiber.waits and fiber.turn == turn:
                fiber.waits = False
                self._ready.append(fiber)

    def _next(self) -> _Fiber:
        self._expire(now := self.now())
        while not self._ready and self._timers:
            _, _, fiber, turn = self._timers[0]
            if fiber.waits and fiber.turn == turn and (skip_s := self._timers[0][0] - now) > 0:
                self._pace(self._rate, skip_s)
                now += skip_s
            self._expire(max(now, self._timers[0][0]))
        if self._ready:
            return self._ready.popleft()
        self.main.waits, self.main.halt = False, AllWaitError
        return self.main

    def _switch(self, me: _Fiber) -> None:
        other = self._next()
        if other is not me:
            me.frame = sys._getframe(2)
            run_sync(self._gates.wait(me.ident, self._begun(other)))
            self.current, me.frame = me, None
        if me is self.main:
            self.check()

    def _open(self, other: _Fiber) -> None:
        self._gates.open(self._begun(other))

    def _begun(self, fiber: _Fiber) -> int:
        if fiber.begin is not None:
            begin, fiber.begin = fiber.begin, None
            self._gates.begin(create_proxy(partial(contextvars.Context().run, self._run, fiber, begin)))
        return fiber.ident


class NoStacksError(WorkbenchError):
    """This browser cannot switch stacks."""

    def __init__(self) -> None:
        super().__init__(
            "Ranks need a browser that can switch stacks (JavaScript Promise Integration): Chrome or Edge 137, "
            "Firefox 153, or newer. Or run the lesson on your computer."
        )


class AllWaitError(Exception):
    """No thread can go on."""

    def __init__(self) -> None:
        super().__init__("All threads wait for each other, without a deadline: nothing more can happen.")


THREADS = Scheduler()


class Semaphore:
    """In place of ``threading.Semaphore``: a pass goes to who has waited for longest."""

    def __init__(self, value: int = 1) -> None:
        self._passes = value
        self._waiting: deque[_Fiber] = deque()

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> bool:
        """See ``threading.Semaphore``; its timeout is None where a lock's is -1."""
        if not self._passes and (not blocking or timeout == 0):
            THREADS.give_way()
            blocking = False
        if self._passes:
            self._passes -= 1
            return True
        if not blocking or timeout == 0:
            return False
        me = THREADS.current
        self._waiting.append(me)
        try:
            return THREADS.wait(None if timeout is None or timeout < 0 else timeout)
        finally:
            if me in self._waiting:
                self._waiting.remove(me)

    def release(self, n: int = 1) -> None:
        for _ in range(n):
            if self._waiting:
                THREADS.wake(self._waiting.popleft())
            else:
                self._passes += 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()


class Lock(Semaphore):
    """In place of ``threading.Lock``."""

    def __init__(self) -> None:
        super().__init__(1)

    def release(self, n: int = 1) -> None:
        if self._passes:
            raise RuntimeError("release unlocked lock")
        super().release()

    def locked(self) -> bool:
        return not self._passes

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


class Local:
    """In place of ``threading.local``; what ``__init__`` sets is the thread's that makes it."""

    def __getattribute__(self, name: str) -> Any:
        mine = THREADS.current.locals.get(self)
        if mine is not None and name in mine:
            return mine[name]
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        THREADS.current.locals.setdefault(self, {})[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del THREADS.current.locals.get(self, {})[name]
        except KeyError:
            raise AttributeError(name) from None


def _sentinel() -> Lock:
    """In place of ``threading._set_sentinel``: a lock that is held until this thread has ended."""
    THREADS.current.sentinel = Lock()
    return THREADS.current.sentinel


def _halt(ident: ctypes.c_ulong, error: ctypes.py_object[type[BaseException]]) -> None:
    """In place of ``PyThreadState_SetAsyncExc``: where a thread sleeps, or a loop begins anew."""
    fiber = THREADS.fibers.get(ident.value)
    if fiber is not None:
        fiber.halt = error.value


def _raised(args: Any) -> None:
    """In place of ``threading.excepthook``: of these the main thread is told, too."""
    if args.exc_type is not KeyboardInterrupt:
        _excepthook(args)


def loops_give_way(code: CodeType) -> None:
    """Let others have their turn while a loop of this code runs, even if it never waits."""
    _MONITORING.set_local_events(_TOOL, code, _MONITORING.events.JUMP)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            loops_give_way(each)


def install() -> None:
    """Put the stand-ins in their places."""
    _MONITORING.use_tool_id(_TOOL, "workbench")
    _MONITORING.register_callback(_TOOL, _MONITORING.events.JUMP, THREADS.jumped)
    signal.signal(signal.SIGUSR1, THREADS.interrupted)
    signal.signal(signal.SIGINT, THREADS.stopped)
    for module in (_thread, threading):
        for name, stand_in in (
            *(("allocate_lock", Lock), ("_allocate_lock", Lock), ("Lock", Lock), ("LockType", Lock)),
            *(("start_new_thread", THREADS.start), ("_start_new_thread", THREADS.start), ("get_ident", THREADS.ident)),
            ("Semaphore", Semaphore),
            *(("_set_sentinel", _sentinel), ("_CRLock", None), ("local", Local), ("_time", THREADS.now)),
        ):
            if hasattr(module, name):
                setattr(module, name, stand_in)
    queue.SimpleQueue = queue._PySimpleQueue  # type: ignore[attr-defined, misc]
    queue.time = THREADS.now  # type: ignore[attr-defined]
    time.monotonic, time.sleep = THREADS.now, THREADS.sleep  # type: ignore[assignment]
    time.perf_counter_ns = THREADS.later_ns
    threading.excepthook = _raised
    ctypes.pythonapi.PyThreadState_SetAsyncExc = _halt  # type: ignore[attr-defined]
    sys._current_frames = THREADS.frames
