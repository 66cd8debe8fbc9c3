"""Ranks take turns: one runs, until it has to wait for another.

A rank is a thread, which waits at a semaphore of its own. The scheduler (``scheduler.py``) decides whose turn it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from workbench.course.simulator.deadline import Halt, Patience, halt


class Turns:
    """Who runs.

    Args:
        ranks: by rank, what it does.
    """

    def __init__(self, ranks: Sequence[Callable[[], None]]) -> None:
        self._over = threading.Event()
        self._gates = [threading.Semaphore(0) for _ in ranks]
        self._halted: set[int] = set()
        self._threads = [
            threading.Thread(target=self._one, args=(rank, function), daemon=True, name=f"rank {rank}")
            for rank, function in enumerate(ranks)
        ]

    def run(self, patience: Patience) -> bool:
        """Begin with rank 0, and wait for :meth:`end`; False if it takes too long. Then comes :meth:`stop`."""
        for thread in self._threads:
            thread.start()
        self.give(0)
        in_time = patience.wait(self._over.wait)
        if in_time:
            self._join()
        return in_time

    def _one(self, rank: int, function: Callable[[], None]) -> None:
        with suppress(Halt):
            self.wait(rank)
            function()

    def give(self, rank: int) -> None:
        """It is this rank's turn: it goes on where it waits, or will not wait there."""
        self._gates[rank].release()

    def wait(self, rank: int) -> None:
        """Called by a rank: wait for its turn.

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
