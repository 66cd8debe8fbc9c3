"""Ranks in a browser: a stack of WebAssembly for each, between which the browser's engine switches.

The switch is JavaScript Promise Integration: Python that waits for a promise leaves its stack, and comes back to it
when the promise is kept. Nothing here can be imported outside of Pyodide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pyodide.code import run_js
from pyodide.ffi import can_run_sync, run_sync

from workbench.course.simulator.deadline import Halt
from workbench.errors import WorkbenchError

# Kept by the browser as soon as its end is called: asyncio's futures take a turn of the event loop more.
_promise = run_js("() => { let end; const promise = new Promise(done => { end = done }); return [promise, end] }")


def stack_turns(ranks: int) -> StackTurns:
    """The turns of so many ranks.

    Raises:
        WorkbenchError: this browser cannot switch stacks.
    """
    if not can_run_sync():
        raise WorkbenchError(
            "Simulated ranks need a browser that can switch stacks (JavaScript Promise Integration): Chrome or Edge, "
            "version 137 or newer. Or run the lesson on your computer."
        )
    return StackTurns(ranks)


class StackTurns:
    """A task of the browser's event loop for each rank, with a stack of its own; one that waits has a promise.

    A rank that never waits keeps the page's worker to itself, past any deadline: the page ends the worker then.
    """

    def __init__(self, ranks: int) -> None:
        self._gates = [_Gate() for _ in range(ranks)]
        self._done = _Gate()
        self._over = False
        self._halted: set[int] = set()

    def run(self, ranks: Sequence[Callable[[], None]], deadline_s: float) -> bool:
        """See :class:`Turns`."""
        tasks = [asyncio.ensure_future(self._one(rank, function)) for rank, function in enumerate(ranks)]
        alarm = asyncio.get_event_loop().call_later(deadline_s, self._done.open)
        self.give(0)
        self._done.wait()
        alarm.cancel()
        del tasks
        return self._over

    async def _one(self, rank: int, function: Callable[[], None]) -> None:
        try:
            self.wait(rank)
        except Halt:
            return
        function()

    def give(self, rank: int) -> None:
        """See :class:`Turns`."""
        self._gates[rank].open()

    def wait(self, rank: int) -> None:
        """See :class:`Turns`."""
        self._gates[rank].wait()
        if self._over:
            if rank in self._halted:
                _Gate().wait()  # for ever: a bare except has caught the first one
            self._halted.add(rank)
            self._gates[rank].open()
            raise Halt

    def end(self) -> None:
        """See :class:`Turns`."""
        self._over = True
        self._done.open()
        for gate in self._gates:
            gate.open()

    def stop(self) -> None:
        """See :class:`Turns`."""
        self.end()


class _Gate:
    """A semaphore whose waiters keep their stacks."""

    def __init__(self) -> None:
        self._passes, self._resolve = 0, None

    def open(self) -> None:
        """Let one pass, who waits or who will come."""
        self._passes += 1
        if self._resolve is not None:
            resolve, self._resolve = self._resolve, None
            resolve()

    def wait(self) -> None:
        """Until it is open for one."""
        while not self._passes:
            promise, self._resolve = _promise()
            run_sync(promise)
        self._passes -= 1


__all__ = ["StackTurns", "stack_turns"]
