"""Ranks are threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .world import World


def run_ranks(world: World, count: int, work: Callable[[int], Any], timeout_s: float = 20.0) -> list[Any]:
    """Calls `work(rank)` in a thread for each rank, on the device of that number, and gives what they return.

    A rank that fails releases the others: their next `synchronize` raises.

    Raises:
        Exception: what the first failing rank raised.
        TimeoutError: ranks that have not returned; the message says what their streams wait for.
    """
    results: list[Any] = [None] * count
    failures: list[tuple[int, BaseException]] = []

    def rank_thread(rank: int) -> None:
        world.set_device(rank % len(world.defaults))
        try:
            results[rank] = work(rank)
        except BaseException as problem:  # noqa: BLE001 — raised again below, in the test's own thread
            failures.append((rank, problem))
            with world.lock:
                world.errors.append(f"rank {rank} failed: {problem!r}")
                world.lock.notify_all()

    threads = [
        threading.Thread(target=rank_thread, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    if failures:
        raise failures[0][1]
    late = [thread.name for thread in threads if thread.is_alive()]
    if late:
        raise TimeoutError(f"{', '.join(late)} did not return in {timeout_s} s.\n{world.describe()}")
    return results
