"""What a call of torch.distributed returns: the end of some collectives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from workbench.core.handle import Handle

_NO_LIMIT = timedelta(0)


class Work(dist.Work):
    """See ``torch.distributed.Work``: done when all its collectives are.

    Args:
        handles: of the collectives.
        result: the tensors that they write.
        finish: called once when all have ended well, on the thread of the last; for what is still to be copied.
        limit: deadline of :meth:`wait` where its caller names none.
        source: of a message: the rank in the group that sends it.
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
        self.handles, self._result, self._finish, self._limit = list(handles), result, finish, limit
        self._source = source
        self._left, self._lock = len(self.handles), threading.Lock()
        self._future: torch.futures.Future[Any] | None = None
        self._error: BaseException | None = None
        self._done = threading.Event()
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
            self._done.set()
            future = self._future
        if future is not None:
            self._tell(future)

    def _tell(self, future: torch.futures.Future[Any]) -> None:
        if self._error is None:
            future.set_result(self._result)
        else:
            future.set_exception(self._error)

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        """Wait until all is done; Ctrl-C interrupts it.

        Raises:
            CollectiveError: as :meth:`workbench.core.handle.Handle.wait`.
            WaitTimeoutError: ``timeout``, or else the group's, has passed on this rank.
        """
        limit = timeout if timeout > _NO_LIMIT else self._limit
        until = time.monotonic() + limit.total_seconds() if limit > _NO_LIMIT else None
        for handle in self.handles:  # each wait is reported to rank 0, which looks for deadlocks
            handle.wait(None if until is None else max(0.0, until - time.monotonic()))
        self._done.wait()  # for what is copied at the end, on the engine's thread
        if self._error is not None:
            raise self._error.with_traceback(None)
        return True

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
            fresh = self._future is None
            if self._future is None:
                self._future = torch.futures.Future()
            future, done = self._future, self._done.is_set()
        if fresh and done:
            self._tell(future)
        return future


class FromAnySource(Work):
    """A message from whoever sends one first.

    Args:
        question: its result will be the sender's rank in the job.
        receive: begins to receive from there.
        limit: see :class:`Work`.
    """

    def __init__(self, question: Handle, receive: Callable[[int], Work], limit: timedelta) -> None:
        self._receive, self._question, self._known = receive, question, threading.Event()
        super().__init__([], None, limit=limit)
        self._done.clear()
        question.add_done_callback(self._answered)

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
        self._known.set()

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        limit = timeout if timeout > _NO_LIMIT else self._limit
        self._question.wait(limit.total_seconds() if limit > _NO_LIMIT else None)
        self._known.wait()
        return super().wait(timeout)
