"""Cells on ranks that are threads of this process, numbered and sent as a notebook sends them to its engines.

The notebook's side is the product's (:class:`workbench.cluster.sent_cells.SentCells`), and so is that of an engine
(:func:`workbench.job.cells.as_cell`, :class:`workbench.common.cell_numbers.CellNumbers`). What is left out is IPython,
ipyparallel and its messages, processes and their signals.
"""

from __future__ import annotations

import asyncio
import itertools
import linecache
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from cells import CELL_S

import workbench as hvd
from workbench.cluster.sent_cells import SentCells
from workbench.common.cell_numbers import KEY, CellNumbers
from workbench.job.cells import as_cell
from workbench.job.context import HOLDER

_number = itertools.count()


class Client:
    """What :class:`SentCells` asks of ipyparallel's client, for queues in the place of sockets."""

    closed = False

    def __init__(self, numbers: Sequence[CellNumbers]) -> None:
        self._numbers = numbers
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.find: Callable[[Sequence[int]], Any] = lambda ranks: None
        self.number: Callable[..., Future[None]] = lambda send, request: Future()
        self.look: Callable[[Any], None] = lambda answer: None

    def around_targets(self, wrap: Any) -> None:
        self.find = partial(wrap, lambda ranks: ([], list(ranks)))

    def around_requests(self, number: Any) -> None:
        self.number = number

    def before_replies(self, look: Any) -> None:
        self.look = look

    def named(self) -> list[tuple[int, str]]:
        return [(each.engine, str(each.engine)) for each in self._numbers]

    def answer_of(self, future: Any, engine: int) -> Any:
        return future

    def soon(self, do: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(do)

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, do)

    def tell(self, engine: int, kind: str, state: Any) -> None:
        self._numbers[engine].receive(state)

    def close(self) -> None:
        self.closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class Notebook:
    """n engines, whose cells find ``hvd``, ``np``, ``time``, ``rank`` and a tensor ``x``.

    Args:
        n: how many.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._queues: list[queue.Queue[Any]] = [queue.Queue() for _ in range(n)]
        self._numbers = [CellNumbers(rank) for rank in range(n)]
        self._spaces: list[dict[str, Any]] = [{} for _ in range(n)]
        self._client = Client(self._numbers)
        SentCells(cast("Any", self._client))
        self._job = threading.Thread(target=hvd.run_threads, args=(n, self._engine, 1000.0), daemon=True)
        self._job.start()

    def send(self, code: str, ranks: Sequence[int] | None = None) -> dict[int, Future[None]]:
        """Send a cell by one call, to all ranks or to some."""
        chosen = list(range(self.n)) if ranks is None else list(ranks)
        self._client.find(chosen)
        return {rank: self._sent(rank, code) for rank in chosen}

    def collect(self, sent: dict[int, Future[None]]) -> dict[int, tuple[str, str]]:
        """Wait for a cell: by rank, the class and the text of what it raised."""
        until, raised = time.monotonic() + CELL_S, {}
        for rank, each in sent.items():
            if error := each.exception(max(0.1, until - time.monotonic())):
                raised[rank] = (type(error).__name__, str(error))
        return raised

    def run(self, code: str, ranks: Sequence[int] | None = None) -> dict[int, tuple[str, str]]:
        """Send a cell, and wait for it."""
        return self.collect(self.send(code, ranks))

    def values(self, expression: str) -> list[Any]:
        """Of an expression, by rank."""
        assert not self.run(f"value = {expression}")
        return [space["value"] for space in self._spaces]

    def close(self) -> None:
        """End the engines."""
        for each in self._queues:
            each.put(None)
        self._job.join(30)
        self._client.close()

    def _sent(self, rank: int, code: str) -> Future[None]:
        def put(metadata: Any) -> Future[None]:
            answer: Future[None] = Future()
            self._queues[rank].put((code, metadata[KEY], answer))
            return answer

        return self._client.number(put, SimpleNamespace(engines=[rank], possible=[], metadata={}))

    def _engine(self) -> None:
        """One rank, until the end."""
        job, rank = HOLDER.get(), hvd.rank()
        numbers = self._numbers[rank]
        numbers.changed, numbers.drifted = lambda: job.cells_sent(numbers), job.drifted
        space = self._spaces[rank]
        space |= {"hvd": hvd, "np": np, "time": time, "rank": rank, "x": np.full(3, float(rank))}
        while asked := self._queues[rank].get():
            code, carried, answer = asked
            raised = self._cell(code, carried, numbers, space)
            numbers.changed()
            self._client.soon(partial(self._answer, answer, raised, numbers.drifted()))

    def _cell(self, code: str, carried: Any, numbers: CellNumbers, space: dict[str, Any]) -> Exception | None:
        name = f"<ipython-input-{next(_number)}>"
        linecache.cache[name] = len(code), None, code.splitlines(keepends=True), name
        try:
            with as_cell(numbers, carried):
                exec(compile(code, name, "exec"), space)
        except Exception as error:  # noqa: BLE001 - the notebook shows it
            return error
        return None

    def _answer(self, answer: Future[None], raised: Exception | None, drifted: bool) -> None:
        """On the client's thread, which looks at what an engine says before anybody knows that its cell is over."""
        self._client.look({"metadata": {KEY: {"drifted": drifted}}})
        if raised is not None:
            answer.set_exception(raised)
        else:
            answer.set_result(None)
