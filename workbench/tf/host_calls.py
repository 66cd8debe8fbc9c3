"""Calls from a graph to the host that take long, for they wait for other ranks, and hold none of TensorFlow's threads.

One call is three ops. The first and the last are short ``tf.numpy_function`` s; the one between them waits without a
thread (:mod:`workbench.tf.waiting_op`), while the function runs on a thread of its own::

    tensors ──► begin ──ticket──► wait ──ticket──► take ──► results
                  └─► function(arrays), on its own thread ─┘

So as many calls as there are in a graph can wait side by side, whatever the size of TensorFlow's pool, and each rank's
executor may begin them in an order of its own. ``tf.function`` would run stateful ops as the program has them; these
are marked as independent, as far as no data flows from one to another, unless they are asked to keep that order.

An op that waits ends when its call does, and not before: ``RunOptions(timeout_in_ms=…)`` and ``session.close()`` do not
end it. What ends it is the collective itself, with a result, or with the error of a rank that left or ran out of time.
"""

from __future__ import annotations

import _thread
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import tensorflow as tf

from workbench.tf.errors import status_of
from workbench.tf.waiting_op import WaitingOp

_UNTAKEN = 16


class HostCalls:
    """The calls that graphs have begun, by number, until their results are taken."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._begun: dict[int, Future[Any]] = {}
        self._op: WaitingOp | None = None

    def call(
        self, function: Callable[..., Any], tensors: Sequence[Any], dtypes: Sequence[Any], in_order: bool = False
    ) -> list[Any]:
        """Put a call into the graph: ``function`` of arrays gives a list of arrays; its results as tensors."""
        if self._op is None:
            self._op = WaitingOp(self._begun.__getitem__, status_of)
        mine: deque[int] = deque()

        def begin(*arrays: Any) -> Any:
            # A step that fails after the wait never takes its results, so the oldest are let go.
            while len(mine) > _UNTAKEN:
                self._begun.pop(mine.popleft(), None)
            ticket, future = next(self._numbers), Future[Any]()
            self._begun[ticket] = future
            mine.append(ticket)
            _thread.start_new_thread(_run, (future, function, arrays))
            return np.int64(ticket)

        def take(ticket: Any) -> Any:
            return self._begun.pop(int(ticket)).result()

        ticket = tf.numpy_function(begin, list(tensors), tf.int64, stateful=True)
        ticket.set_shape(())
        done = self._op(ticket)
        made = tf.numpy_function(take, [done], list(dtypes), stateful=True)
        if not in_order:
            _let_independent(ticket.op, done.op, made[0].op)
        return list(made)


def _run(future: Future[Any], function: Callable[..., Any], arrays: Sequence[Any]) -> None:
    """On the call's own thread: not one of Python's, so that nothing waits for it when the script ends."""
    try:
        result = function(*arrays)
    except BaseException as error:  # noqa: BLE001 - it becomes TensorFlow's
        future.set_exception(error)
    else:
        future.set_result(result)


def _let_independent(*ops: Any) -> None:
    """Within ``tf.function``: these run before it returns, but in no order with others."""
    manager = getattr(ops[0].graph, "experimental_acd_manager", None)
    for op in ops:
        if manager is not None:
            manager.run_independently(op)


HOST_CALLS = HostCalls()
