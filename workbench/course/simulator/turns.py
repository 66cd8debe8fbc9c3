"""Ranks take turns: one runs, until it has to wait for another.

The scheduler (``scheduler.py``) decides whose turn it is; what is here stops one rank and lets another go on. A rank
asks the scheduler, in steps; at the end of a step it is another's turn. There are two ways:

===============  =======================================================================================
:class:`Threads`  a rank is a thread, whose stack keeps its place; in a browser, a stack of WebAssembly
``replay.py``    where stacks cannot be switched: a rank is left, and later run again from its start
===============  =======================================================================================
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from workbench.course.simulator.deadline import LOOP, Halt, Patience, halt

T = TypeVar("T")
Steps = Generator[None, None, T]
"""What the scheduler does for a rank; at each ``yield`` it has given the turn to another one."""
Call = tuple[Any, ...]
"""What a rank asks for: in words, and all that makes it this call and no other."""


class Turns(ABC):
    """Who runs.

    Args:
        ranks: by rank, what it does: it ends with a call of :meth:`ask`.
    """

    def __init__(self, ranks: Sequence[Callable[[], None]]) -> None:
        self._ranks = ranks
        self._over = threading.Event()

    @abstractmethod
    def run(self, patience: Patience) -> bool:
        """Begin with rank 0, and wait for :meth:`end`; False if it takes too long. Then comes :meth:`stop`."""

    @abstractmethod
    def ask(self, rank: int, call: Call, steps: Steps[T]) -> T:
        """Called by a rank: take the steps, and wait between them for its turn.

        Raises:
            Halt: the run is over, or the rank is left.
        """

    @abstractmethod
    def give(self, rank: int) -> None:
        """It is this rank's turn: it goes on where it waits, or will not wait there."""

    @abstractmethod
    def end(self) -> None:
        """The run is over: whoever waits, or will wait, ends."""

    @abstractmethod
    def stop(self) -> None:
        """End also who does not wait."""

    def why_late(self) -> str:
        """What may be the cause if the deadline comes first."""
        return LOOP


class Threads(Turns):
    """A thread for each rank, and a semaphore that it waits for."""

    def __init__(self, ranks: Sequence[Callable[[], None]]) -> None:
        super().__init__(ranks)
        self._gates = [threading.Semaphore(0) for _ in ranks]
        self._halted: set[int] = set()
        self._threads: list[threading.Thread] = []

    def run(self, patience: Patience) -> bool:
        """See :class:`Turns`."""
        self._threads = [
            threading.Thread(target=self._one, args=(rank, function), daemon=True, name=f"rank {rank}")
            for rank, function in enumerate(self._ranks)
        ]
        for thread in self._threads:
            thread.start()
        self.give(0)
        in_time = patience.wait(self._over.wait)
        if in_time:
            self._join()
        return in_time

    def _one(self, rank: int, function: Callable[[], None]) -> None:
        try:
            self._wait(rank)
        except Halt:
            return
        function()

    def ask(self, rank: int, call: Call, steps: Steps[T]) -> T:
        """See :class:`Turns`."""
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                return ended.value  # type: ignore[no-any-return]
            self._wait(rank)

    def give(self, rank: int) -> None:
        """See :class:`Turns`."""
        self._gates[rank].release()

    def _wait(self, rank: int) -> None:
        self._gates[rank].acquire()
        if self._over.is_set():
            if rank in self._halted:  # a bare except has caught it: then this thread waits, and costs nothing
                threading.Event().wait()
            self._halted.add(rank)
            self._gates[rank].release()
            raise Halt

    def end(self) -> None:
        """See :class:`Turns`."""
        self._over.set()
        for gate in self._gates:
            gate.release()

    def stop(self) -> None:
        """See :class:`Turns`."""
        self.end()
        for thread in self._threads:
            if thread.is_alive():
                halt(thread.ident)
        self._join()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(1.0)


def stacks() -> bool:
    """Can a thread wait here for another one? In some browsers it cannot."""
    ffi = sys.modules.get("pyodide.ffi")
    return ffi is None or bool(ffi.can_run_sync())


__all__ = ["Call", "Steps", "Threads", "Turns", "stacks"]
