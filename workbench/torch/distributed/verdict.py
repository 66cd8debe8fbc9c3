"""Why a watched job cannot go on: its calls, what rank 0 is told of them and when, and what becomes of its answer."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch

from workbench import config
from workbench.common.user_line import own_stack, place_of
from workbench.common.waiting import Owner
from workbench.core.handle import Handle
from workbench.core.messages import Request
from workbench.core.pending import Entry
from workbench.errors import CollectiveError, WaitTimeoutError
from workbench.job import api, report
from workbench.job.context import HOLDER
from workbench.runtime.faults.stall import main_stack
from workbench.torch.distributed.works import WaitsOfTorch, Work

_MOMENT_S = 0.05
_KEPT = 20  # calls of a rank, for the page
_TOGETHER = 32  # calls that rank 0 is told of at once: half of the names that a training has
_LOOK_S = 0.3  # seldom, for to wake a thread costs a step more than all else here
_VERDICT_S = 2.0  # after an error of torch's: until rank 0 has said what is behind it
_UNHEARD_S = 1.0  # then the process ends, for its main thread waits where no exception comes
_NO_LIMIT = timedelta(0)


class Call:
    """One call of a group, of which rank 0 is told ``requests``, as ``entries``.

    ``end`` is done when somebody has waited for torch's ``work`` in Python, or with an error; before it, ``then`` is
    called.
    """

    def __init__(self, watch: Watch, group: str, requests: Sequence[Request]) -> None:
        self.watch, self._group, self._requests, self.began, self._took = watch, group, requests, time.time(), 0.0
        self.stack = own_stack(sys._getframe(1))
        self.work: Callable[[], Any] = lambda: None
        self.entries: Sequence[Entry] = ()
        self.then: Callable[[], None] | None = None
        self.end = Handle(requests[0].name)
        self.end.owner, self.end.request = watch, requests[0]
        self._listens = self._settled = False

    def announced(self) -> Sequence[Entry]:
        self.entries = [Entry(each, None, None, Handle(each.name)) for each in self._requests]
        for entry in self.entries:
            entry.handle.add_done_callback(self._answered)
        return self.entries

    def _answered(self, handle: Handle) -> None:
        if handle.error and not self._settled:
            self.watch.failed(self, handle.error)

    def is_completed(self) -> bool:
        if not (over := self.end.poll() or (work := self.work()) is None or bool(work.is_completed())):
            return False
        self.work = lambda: None  # it keeps tensors
        return over

    def wait_elsewhere(self) -> None:
        self.listen()
        self.end.wait()

    def ended(self, wait: Callable[[], object] = lambda: None) -> None:
        """torch's call has, unless ``wait`` raises an error, which names no rank."""
        try:
            wait()
        except Exception as error:  # noqa: BLE001 - it is raised where the call is waited for
            return threading.Thread(target=self.watch.explain, args=(self, error), daemon=True).start()
        if self.then:
            self._settled = True  # rank 0 need not answer
            self.then()
        self._took = time.time() - self.began
        self.end.finish()

    def listen(self) -> None:
        """Let another thread tell when torch's call is over; and rank 0 hear of what it has not heard yet."""
        if self._listens:
            return
        self._listens = True
        self.watch.announce()
        if (work := self.work()) is None:
            return self.end.finish()
        try:
            future = work.get_future()
        except RuntimeError:  # Gloo's messages have none
            threading.Thread(target=self.ended, args=[work.wait], daemon=True).start()
        else:
            future.add_done_callback(lambda done: self.ended(done.value))

    def as_data(self) -> dict[str, Any]:
        error = self.end.error
        return {
            "call": self.end.name,
            "group": self._group,
            "tensors": ", ".join(f"{each.dtype} {list(each.shape)}" for each in self._requests if each.dtype),
            "line": place_of(self.stack),
            "began": self.began,
            "took": self._took,
            "state": type(error).__name__ if error else "done" if self.is_completed() else "waits",
        }


class Watch(Owner):
    """What is known of this rank's last ``calls``, whose handles torch finishes; the ``verdict`` ends the job."""

    def __init__(self) -> None:
        self.calls = deque[Call](maxlen=_KEPT)
        self._untold, self._telling = deque[Call](), threading.Lock()
        self.verdict: CollectiveError | None = None
        self._heard, self._lock, self._context = threading.Event(), threading.Lock(), HOLDER.get()
        self._writing = threading.Lock()  # the main thread may end meanwhile, and write its part
        self._context.unfinished.add(self._write)
        self._context.part(WaitsOfTorch).look_s = _LOOK_S
        atexit.register(self._at_exit)

    def long_wait(self, handle: Any, waiter: threading.Lock, timeout_s: float) -> bool:
        return self._context.engine.waits.long_wait(handle.request, waiter, timeout_s)

    def check(self) -> None:
        if self.verdict:
            self._heard.set()
            raise self.verdict

    def begins(self, call: Call, known: bool) -> None:
        """A call begins. Of what a training repeats, which is ``known``, rank 0 hears later, of many at once.

        So a step costs the engines nothing. Nobody misses what rank 0 has not heard of: whoever waits for longer than a
        moment tells it, and a rank that does not wait is the one that the others miss.
        """
        self.check()
        self.calls.append(call)
        self._untold.append(call)
        if not known or len(self._untold) >= _TOGETHER:
            self.announce()

    def announce(self) -> None:
        """Tell rank 0 of all calls of which it has not heard, in their order."""
        with self._telling:
            calls = [self._untold.popleft() for _ in range(len(self._untold))]
            if calls:
                api.submit_when_free([entry for call in calls for entry in call.announced()])

    def agree(self, call: Call, limit_s: float | None = _MOMENT_S) -> None:
        """Wait a moment for the others, or without limit, before torch begins a call unlike those of the steps before.

        Where ranks differ, Gloo adds numbers of unlike tensors, or ends the process without a word. The last rank to
        come has the answer at once; torch keeps the others waiting anyhow, when their moment is over.
        """
        for entry in call.entries:
            try:
                entry.handle.wait(limit_s)
            except WaitTimeoutError:
                pass
            except CollectiveError as error:
                self.failed(call, error)
            self.check()

    def failed(self, call: Call, error: BaseException) -> None:
        """The call ends with an error. The first of the engine's ends all: after it no transport is in order."""
        with self._lock:
            if first := self.verdict is None and isinstance(error, CollectiveError):
                waits = next((each for each in reversed(self.calls) if not each.is_completed()), call)
                here, page = (
                    f"Rank {api.rank()}: {place_of(waits.stack)}.",
                    config.watch_folder().removesuffix(".ranks"),
                )
                self.verdict = type(error)(f"{error}\n{here}\nThe last calls of all ranks are in {page}.")
        for each in (call, *self.calls) if self.verdict else (call,):
            each.end.finish(error=None if each.is_completed() else self.verdict or error)
        if first:
            threading.Thread(target=self._end_unheard, name="workbench-watch", daemon=True).start()
            self._write()

    def explain(self, call: Call, error: BaseException) -> None:
        """torch's call has failed, and names no rank: a moment later the engine does."""
        until = time.monotonic() + _VERDICT_S
        while not (ours := next(filter(None, (entry.handle.error for entry in call.entries)), None)):
            try:
                self.announce()
                api.submit([])
            except CollectiveError as closed:
                ours = closed
            if ours or time.monotonic() > until:
                break
            time.sleep(_MOMENT_S)
        self.failed(call, ours or error)

    def _write(self) -> None:
        found = {"calls": [each.as_data() for each in list(self.calls)], "stack": main_stack()}
        found |= {"error": str(self.verdict)} if self.verdict else {}
        with self._writing:
            report.write(self._context, False, config.watch_folder(), found | {"environment": config.shown_variables()})

    def _end_unheard(self) -> None:
        if not self._heard.wait(_UNHEARD_S):
            self._say(f"It ends rank {self._context.rank}, whose main thread waits in C++:\n{main_stack()}")
            self._context.script_raised(str(self.verdict))
            api.shutdown()
            os._exit(1)

    def _at_exit(self) -> None:
        """Leave the job, and end where a call has failed: torch's threads would wait for it for ever."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, RuntimeError) and self.calls and not (self.verdict or self.calls[-1].end.poll()):
            self.explain(self.calls[-1], error)  # torch's own, raised where only torch waited
        self._say()
        with suppress(CollectiveError):
            self.announce()
        api.shutdown()
        self._say()
        if self.verdict:
            sys.stdout.flush()
            os._exit(1)

    def _say(self, more: str = "") -> None:
        if self.verdict and not self._heard.is_set():
            self._heard.set()
            print(f"{more}\n{type(self.verdict).__name__}: {self.verdict}".lstrip(), file=sys.stderr, flush=True)


class WatchedWork(Work):
    """Waits in torch for a moment, and then in Python, where the engine's error ends it."""

    def __init__(self, inner: Any, call: Call, result: Any, source: int) -> None:
        super().__init__([call.end], result, source=source)
        self._inner, self._call = inner, call

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        if not self._call._listens:
            try:
                self._inner.wait(min(timeout or timedelta.max, timedelta(seconds=_MOMENT_S)))
                self._call.ended()
            except RuntimeError:  # not yet, or it has failed
                self._call.listen()
        try:
            return super().wait(timeout)
        finally:
            self._call.watch.check()

    def is_completed(self) -> bool:
        return super().is_completed() or (not self._call._listens and self._inner.is_completed())

    def get_future(self) -> torch.futures.Future[Any]:
        """torch's own, for one of Python's would cost DDP more than all else here."""
        HOLDER.get().part(WaitsOfTorch).add(self._call, self._call.stack)
        future: torch.futures.Future[Any] = self._inner.get_future()
        return future
