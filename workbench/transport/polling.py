"""Wait for what can only be asked for, without burning a core."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_SHORTEST_S, _LONGEST_S, _TICK_S = 10e-6, 1e-3, 0.05

# Between two looks the core is offered to other processes: without that, on a busy machine, the spinning rank keeps
# the other one from sending what it waits for (1.1 ms instead of 0.35 for 4 KiB over MPI).
offer_core: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))


def poll(done: Callable[[], bool], tick: Callable[[float], None], spins: int = 0) -> None:
    """Look again and again, then sleep ever longer between looks (at most 1 ms), until ``done()``.

    Args:
        done: is it there?
        tick: called some twenty times a second with the seconds waited so far; it may raise to end the wait.
        spins: looks before the first sleep.
    """
    for _ in range(spins):
        if done():
            return
        offer_core()
    pause, started = _SHORTEST_S, time.monotonic()
    tick_at = started + _TICK_S
    while not done():
        time.sleep(pause)
        pause, now = min(2 * pause, _LONGEST_S), time.monotonic()
        if now >= tick_at:
            tick_at = now + _TICK_S
            tick(now - started)
