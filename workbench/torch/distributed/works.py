"""What a call of torch.distributed returns: the end of some collectives."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from workbench.common.user_line import own_stack, place_of
from workbench.core.handle import LONG_WAIT_S, Handle
from workbench.errors import WaitTimeoutError, WorkbenchError
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.runtime.events import Overdue
from workbench.runtime.faults.blocked_threads import called_at
from workbench.training.graph_calls import GraphCalls

_NO_LIMIT = timedelta(0)
_TORCH = str(Path(torch.__file__).parent)
_IDLE_LOOKS = 20
_AT_WORK = 0.05  # of the time on one processor: less on a rank that waits, more on one that computes beside many others


class Work(dist.Work):
    """See ``torch.distributed.Work``: done when all its collectives are.

    Args:
        handles: of the collectives.
        result: the tensors that they write.
        finish: called once when all have ended well, on the thread of the last; for what is still to be copied.
        limit: deadline of :meth:`wait` where its caller names none.
        source: of a message: the rank in the group that sends it.

    Attributes:
        followed: may a callback of the future wait for further collectives? The engine's thread must not.
    """

    def __init__(
        self,
        handles: Sequence[Handle],
        result: Any,
        finish: Callable[[], None] | None = None,
        limit: timedelta = _NO_LIMIT,
        source: int = -1,
    ) -> None:
        super().__init__()
        self.handles, self._result, self._finish, self.limit = list(handles), result, finish, limit
        self._source, self.followed = source, True
        self._left, self._lock = len(self.handles), threading.Lock()
        self._end: torch.futures.Future[Any] | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._before_end: Callable[[], object] | None = None
        for handle in self.handles:
            handle.add_done_callback(self._ended)
        if not self.handles:
            self._complete()

    def _ended(self, handle: Handle) -> None:
        with self._lock:
            self._left -= 1
            self._error = self._error or handle.error
            last = not self._left
        if last:
            self._complete()

    def _complete(self) -> None:
        if self._finish and not self._error:
            try:
                self._finish()
            except Exception as error:  # noqa: BLE001 - it is raised by wait()
                self._error = error
        with self._lock:
            if self._before_end:
                self._before_end()
            self._done.set()
            end = self._end
        if end is not None and not self.followed:
            end.set_result(None)
        elif end is not None:
            threading.Thread(target=end.set_result, args=(None,), name="workbench-torch-then", daemon=True).start()

    def before_end(self, function: Callable[[], object]) -> None:
        """Have a function called just before this is complete; at once if it is."""
        with self._lock:
            self._before_end = function
            if self._done.is_set():
                function()

    def _deliver(self, _: Any) -> Any:
        if self._error is not None:
            if context := HOLDER.find():
                context.part(GraphCalls).error = self._error
            raise self._error.with_traceback(None)
        return self._result

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Wait until all is done; Ctrl-C interrupts it.

        Raises:
            CollectiveError: as :meth:`workbench.core.handle.Handle.wait`.
            DeadlineError: the group's limit has passed; on all ranks that wait.
            WaitTimeoutError: ``timeout`` has passed, on this rank alone. The collective goes on.
        """
        self.wait_for(self.handles, timeout)
        self._done.wait()  # for what is copied at the end, on the engine's thread
        if self._error is not None:
            raise self._error.with_traceback(None)
        return True

    def wait_for(self, handles: Sequence[Handle], timeout: timedelta = _NO_LIMIT) -> None:
        """Wait for collectives; when the group's limit has passed, what waits for a rank fails on every rank.

        What all ranks have announced does not: its bytes are on their way, with a deadline of their own.
        """
        try:
            _wait_for(handles, timeout if timeout > _NO_LIMIT else self.limit)
        except WaitTimeoutError:
            if timeout > _NO_LIMIT:
                raise
            for handle in handles:
                if not handle.poll():
                    event = Overdue(api.rank(), handle.request.process_set, handle.name, self.limit.total_seconds())
                    HOLDER.get().engine.report(event)
            _wait_for(handles, timedelta(seconds=HOLDER.get().settings.data_timeout_s))

    def wait_elsewhere(self) -> None:
        """In another thread, on behalf of that in which torch's C++ waits."""
        self.wait_for(self.handles)

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        with self._lock:
            if self._future is not None:
                return self._future
            end = torch.futures.Future[Any]()
            # What a callback raises is an error to torch's C++, too. What set_exception() is given is not: DDP would
            # take the exception for its tensors.
            self._future = end.then(self._deliver)
            self._end, done = end, self._done.is_set()
        if done:
            end.set_result(None)
        else:
            HOLDER.get().part(WaitsOfTorch).add(self, own_stack(sys._getframe(1)))
        return self._future


def _wait_for(handles: Sequence[Handle], limit: timedelta) -> None:
    until = time.monotonic() + limit.total_seconds() if limit > _NO_LIMIT else None
    for handle in handles:  # each wait is reported to rank 0, which looks for deadlocks
        handle.wait(None if until is None else max(0.0, until - time.monotonic()))


class Computing:
    """Has this process computed since it was last asked? One that waits uses no processor."""

    def __init__(self) -> None:
        self._seen = time.monotonic(), time.process_time()

    def __call__(self) -> bool:
        (at, used), self._seen = self._seen, (time.monotonic(), time.process_time())
        return self._seen[1] - used > _AT_WORK * (self._seen[0] - at)


class WaitsOfTorch:
    """Works for whose futures torch's C++ may wait, as DDP does in ``backward()``, of which rank 0 would not hear.

    A thread waits in Python for what has not ended soon, on behalf of the thread in which torch runs. It ends when
    there has been nothing for some seconds. What is in flight at two looks, ``look_s`` apart, has not ended soon.
    """

    look_s = LONG_WAIT_S

    def __init__(self) -> None:
        self._works: deque[tuple[Any, list[tuple[str, int]]]] = deque()
        self._computing = Computing()
        self._lock, self._thread = threading.Lock(), threading.Thread()

    def add(self, work: Any, stack: list[tuple[str, int]]) -> None:
        """It was begun there, on this thread."""
        self._works.append((work, stack))
        if not self._thread.is_alive():
            with self._lock:
                if not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._run, name="workbench-torch-waits", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        looks = seen = 0
        while looks < _IDLE_LOOKS or self._works:
            time.sleep(self.look_s)
            looks = 0 if self._works else looks + 1
            for _ in range(seen):  # the others have only begun
                work, stack = self._works.popleft()
                if not work.is_completed():
                    self._wait(work, stack)
            seen = len(self._works)

    def _wait(self, work: Any, stack: list[tuple[str, int]]) -> None:
        # While backward() computes, it may begin other collectives.
        with called_at(place_of(stack), _TORCH, self._computing), suppress(WorkbenchError):
            work.wait_elsewhere()


class FromAnySource(Work):
    """A message from whoever sends one first, or one that is received after such a message.

    Args:
        question: its result will be the first sender's rank in the job.
        receive: begins to receive from there.
        limit: see :class:`Work`.
        before: the message from any rank that this one comes after.
    """

    def __init__(
        self, question: Handle, receive: Callable[[int], Work], limit: timedelta, before: FromAnySource | None = None
    ) -> None:
        self.question, self._receive, self._known = question, receive, threading.Event()
        self._behind: list[Callable[[Handle], None]] = []
        super().__init__([], None, limit=limit)
        self._done.clear()
        (before.when_known if before else question.add_done_callback)(self._answered)

    def when_known(self, function: Callable[[Handle], None]) -> None:
        """Have a function called with the answer, after this message has taken its place among the sender's."""
        with self._lock:
            if not self._known.is_set():
                return self._behind.append(function)
        function(self.question)

    def _answered(self, question: Handle) -> None:
        self._error = question.error
        if self._error is None:
            message = self._receive(question.result)
            self._source, self._result, self.handles = message.source_rank(), message.result(), message.handles
            self._left, self._finish = len(self.handles), message._finish
            for handle in self.handles:
                handle.add_done_callback(self._ended)
        else:
            self._complete()
        with self._lock:
            self._known.set()
        for function in self._behind:
            function(question)

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        self.wait_for([self.question], timeout)
        self._known.wait()
        return super().wait(timeout)


class OwnMessage(Work):
    """One half of a message from this rank to itself, as of a pipeline whose next stage is here; ends with the other.

    ``halves`` are those with its tag that have no other half yet.
    """

    def __init__(self, tensor: torch.Tensor, rank: int, sends: bool, halves: deque[OwnMessage]) -> None:
        super().__init__([], [tensor], source=rank)
        self._tensor, self._sends, self._halves = tensor.detach(), sends, halves
        if halves and halves[0]._sends != sends:
            other = halves.popleft()
            source, dest = (self._tensor, other._tensor) if sends else (other._tensor, self._tensor)
            dest.copy_(source.reshape(dest.shape))
            other._complete()
        else:
            self._done.clear()
            halves.append(self)

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        if not self.is_completed():
            self._halves.remove(self)
            told, missing = ("sends", "irecv") if self._sends else ("expects", "isend")
            raise ValueError(
                f"Rank {self._source} {told} a message to itself and waits, so its own {missing}() can never come. "
                "Begin both before you wait."
            )
        return super().wait(timeout)
