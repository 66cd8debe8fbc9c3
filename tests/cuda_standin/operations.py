"""What a stream holds: operations that wait for their turn, in the order in which they were issued."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


def words(text: str) -> list[str]:
    """The words of a long list of names."""
    return text.split()


class CUDARuntimeError(RuntimeError):
    """As cupy's: what the driver refuses, and what went wrong on the device."""


class Op:
    """One operation of a stream. At the head of its queue it takes turns, until a turn ends it.

    `work` holds the bytes that it reads and writes, and no array: memory that nobody else holds is freed under it, as
    on a GPU.
    """

    def __init__(self, label: str, work: Callable[[], object] | None = None) -> None:
        self.label = label
        self.work = work
        self.queue: Queue | None = None
        self.number = -1
        self.done = False

    def waits_for(self) -> str:
        """Why it cannot take a turn now; empty where it can."""
        return ""

    def turn(self) -> bool:
        """Takes one turn; true if that ended it."""
        if self.work is not None:
            self.work()
        return True

    def at_head(self) -> bool:
        """Nothing of its stream is left before it, and the default stream lets it pass."""
        return self.queue is not None and self.queue.head() is self and not self.queue.held_up()


class WaitFor(Op):
    """Lets its stream go on when the operation that an event stood for is done."""

    def __init__(self, label: str, point: Op | None) -> None:
        super().__init__(label)
        self.point = point

    def waits_for(self) -> str:
        if self.point is None or self.point.done:
            return ""
        return f"{self.point.label} on {self.point.queue}"


class Poison(Op):
    """Overwrites memory that was freed, or is new. Nobody has issued it, so nobody waits for it."""


class Delay(Op):
    """Takes as many turns as it is told to."""

    def __init__(self, turns: int) -> None:
        super().__init__(f"delay of {turns} turns")
        self.left = turns

    def turn(self) -> bool:
        self.left -= 1
        return self.left <= 0


class Queue:
    """A stream's pending operations.

    The default stream of a device and its *blocking* streams keep order among one another: what was issued first runs
    first. A non-blocking stream is bound by events alone.
    """

    def __init__(self, number: int, device: int, ptr: int, default: Queue | None, speed: int = 1) -> None:
        self.number = number
        self.device = device
        self.ptr = ptr
        self.default = default
        self.speed = speed
        self.blocking: list[Queue] = []
        self.pending: deque[Op] = deque()
        self.destroyed = False
        if default is not None:
            default.blocking.append(self)

    def __str__(self) -> str:
        return f"stream {self.number} of device {self.device}"

    def head(self) -> Op | None:
        """The operation whose turn it is."""
        return self.pending[0] if self.pending else None

    def busy(self) -> bool:
        """Something that was issued is pending."""
        return any(not isinstance(op, Poison) for op in self.pending)

    def held_up(self) -> str:
        """The stream whose older work the head must let pass first; empty where there is none."""
        ahead = self.blocking if self.default is None else [self.default]
        if not ahead:
            return ""
        mine = self.pending[0].number
        older = [each for each in ahead if each.pending and each.pending[0].number < mine]
        return f"the older work on {older[0]} (default stream's rule)" if older else ""

    def waits_for(self) -> str:
        """Why the head cannot take a turn now; empty where it can."""
        return self.held_up() or self.pending[0].waits_for()
