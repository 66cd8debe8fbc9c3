"""Ranks take turns: each has a stack of its own, which keeps its place while others run.

The scheduler (``scheduler.py``) decides whose turn it is; what is here stops one rank and lets another go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from workbench.course.simulator.deadline import Halt, halt


class Turns:
    """A thread for each rank, and a semaphore that it waits for.

    :meth:`run` and :meth:`stop` are called by who waits for the ranks, the others by the ranks themselves.

    Args:
        ranks: how many.
    """

    def __init__(self, ranks: int) -> None:
        self._gates = [threading.Semaphore(0) for _ in range(ranks)]
        self._over = threading.Event()
        self._halted: set[int] = set()
        self._threads: list[threading.Thread] = []

    def run(self, ranks: Sequence[Callable[[], None]], deadline_s: float) -> bool:
        """Begin with rank 0, and wait for :meth:`end`; False if the deadline came first. Then comes :meth:`stop`."""
        self._threads = [
            threading.Thread(target=self._one, args=(rank, function), daemon=True, name=f"rank {rank}")
            for rank, function in enumerate(ranks)
        ]
        for thread in self._threads:
            thread.start()
        self.give(0)
        in_time = self._over.wait(deadline_s)
        if in_time:
            self._join()
        return in_time

    def _one(self, rank: int, function: Callable[[], None]) -> None:
        try:
            self.wait(rank)
        except Halt:
            return
        function()

    def give(self, rank: int) -> None:
        """It is this rank's turn: it goes on where it waits, or will not wait there."""
        self._gates[rank].release()

    def wait(self, rank: int) -> None:
        """Until it is this rank's turn.

        Raises:
            Halt: the run is over.
        """
        self._gates[rank].acquire()
        if self._over.is_set():
            if rank in self._halted:  # a bare except has caught it: then this thread waits, and costs nothing
                threading.Event().wait()
            self._halted.add(rank)
            self._gates[rank].release()
            raise Halt

    def end(self) -> None:
        """The run is over: whoever waits, or will wait, ends."""
        self._over.set()
        for gate in self._gates:
            gate.release()

    def stop(self) -> None:
        """End also who does not wait."""
        self.end()
        for thread in self._threads:
            if thread.is_alive():
                halt(thread.ident)
        self._join()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(1.0)


__all__ = ["Turns"]
