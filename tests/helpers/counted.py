"""Counts what a job's data plane really sends, message by message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from workbench.job.api import barrier
from workbench.job.context import HOLDER


@dataclass
class Sent:
    """What this rank has sent: messages, and their bytes."""

    messages: int = 0
    bytes: int = 0


@contextmanager
def counted() -> Iterator[Sent]:
    """Within it, everything that leaves this rank by its Link to all others is counted.

    The Link is that of the job's backend, which ``WORKBENCH_BACKEND=mpi`` or ``gloo`` chooses. In shared memory nothing
    is sent.
    """
    link: Any = HOLDER.get().sets.everybody.link
    sent, inside = Sent(), [False]  # one of the two may be made of the other
    before = {name: getattr(link, name) for name in ("sendrecv", "start") if hasattr(link, name)}

    def counting(inner: Any) -> Any:
        def move(send: Any, dest: int, recv: Any, source: int) -> Any:
            if send is not None and not inside[0]:
                sent.messages += 1
                sent.bytes += send.nbytes
            outer, inside[0] = inside[0], True
            try:
                return inner(send, dest, recv, source)
            finally:
                inside[0] = outer

        return move

    for name, inner in before.items():
        setattr(link, name, counting(inner))
    try:
        yield sent
    finally:
        for name in before:
            delattr(link, name)


def bytes_sent(make_step: Callable[[], None]) -> int:
    """Of all collectives of a step, from the recorder."""
    barrier()
    recorder = HOLDER.get().timeline.recorder
    before = recorder.snapshot(1)["collectives"][-1]["index"]
    make_step()
    barrier()
    return sum(one["bytes"] for one in recorder.snapshot(200)["collectives"] if one["index"] > before)
