"""A thread that waits for its tensor runs the engine itself, instead of waking a thread and being woken by it.

It does so for collectives that it waits for at once, one after the other; the engine's thread rests meanwhile. Between
two tries to read an answer it does not sleep for the first moment, where each rank has a core: to wake a sleeping
process takes ten times as long as the message. ``caller_runs`` 0 turns it off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

import numpy as np

from workbench.common.turn import Turn
from workbench.common.waiting import OwnThread
from workbench.runtime.faults.sigint_later import SigintLater


class CallerRuns(OwnThread):
    """See :class:`workbench.common.waiting.OwnThread`.

    Args:
        wake: ends the engine's wait for messages.
        spin_s: how long to ask for an answer before sleeping.
    """

    def __init__(self, wake: Callable[[], None], spin_s: float) -> None:
        super().__init__(wake)
        self._spin_s, self._turn, self._sigint = spin_s, Turn(), SigintLater(wake)
        self._caller: int | None = None
        self._failed: BaseException | None = None

    def go_on(self) -> None:
        """One round; then the callers' turn, if they want it."""
        super().go_on()
        self._turn.park(self.engine.settled)
        if self._failed is not None:
            raise self._failed

    def wake(self) -> None:
        """Something is to be told: whoever runs the rounds does it now."""
        self._wake()
        self._turn.notify()

    def will_wait(self) -> None:
        """As :meth:`wake`; but while the engine's thread rests, the caller is about to do it."""
        self._turn.request()
        if not self._turn.resting:
            self._wake()

    def runs_here(self) -> bool:
        return get_ident() in (self.engine.ident, self._caller)

    def awaited(self, handle: Any, limit_s: float) -> None:
        """Run rounds on this thread until the handle is done, ``limit_s`` at most, if that is possible."""
        flushed = self.engine.flush()
        if not (self._turn.resting and self._runs(handle, limit_s)) and flushed:
            self.wake()

    def _runs(self, handle: Any, limit_s: float) -> bool:
        if not self._sigint.begin():
            return False
        try:
            if not self._turn.take():
                return False
            try:
                self._caller = get_ident()
                self._rounds(handle, limit_s)
            except BaseException as error:  # noqa: BLE001 - the engine's thread raises it
                self._failed = error
            finally:
                # The turn before the bell, or the engine's thread would wake only to wait for it. Both before SIGINT,
                # which may raise.
                self._caller = None
                self._turn.give()
                if self._failed is not None or not self.engine.settled():
                    self._turn.notify()
        finally:
            self._sigint.end()
        return True

    def _rounds(self, handle: Any, limit_s: float) -> None:
        until, left = time.monotonic() + limit_s, limit_s
        with np.errstate(over="ignore", invalid="ignore"):  # an inf is a result
            # After a failure nobody runs another round: this rank is no longer where the others are.
            while self._failed is None and not handle.poll() and left > 0 and self._sigint.came is None:
                self.engine.one_round(left, self._spin_s)
                left = until - time.monotonic()
