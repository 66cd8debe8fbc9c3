"""A ring for *segments*: while one segment is reduced, others are on the network, so that it hardly ever waits.

An array is cut into segments, which set out one after the other. In every *tick* each of them goes one step further,
the oldest first: its last message has come, is reduced, and its next one begins. So up to 2(n - 1) messages are under
way at any time, or more where a step is given several ticks. All ranks do the same ticks in the same order, hence the
messages between two ranks need no names.

=====  =========================  =========================
tick   segment 0                  segment 1
=====  =========================  =========================
0      begin step 0
1      reduce, begin step 1       begin step 0
2      reduce, begin step 2       reduce, begin step 1
=====  =========================  =========================

With n = 2 ranks the ring of ``ring.py`` sends half of the array, waits while it is reduced, and sends the other half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from workbench.collectives.half import copied_by_torch
from workbench.collectives.reduction import narrow, widen
from workbench.collectives.ring import Combine, chunk_lengths, cut
from workbench.collectives.traffic import Array, Link, Traffic

SEGMENT_BYTES = 512 << 10  # so large that a message's fixed cost is small, so small that several stay in the cache


@runtime_checkable
class Starter(Link, Protocol):
    """A Link whose messages go on while the caller does something else."""

    def start(self, send: Array | None, dest: int, recv: Array | None, source: int) -> Callable[[], None]:
        """As ``sendrecv``, which it only begins; to call the result is to wait for the end.

        Until then the arrays are the Link's. What was begun first is waited for first.
        """


def begin(link: Link, send: Array | None, dest: int, recv: Array | None, source: int) -> Callable[[], None]:
    """:meth:`Starter.start`; with a Link that cannot, the whole transfer happens when it is waited for."""
    if isinstance(link, Starter):
        return link.start(send, dest, recv, source)
    return lambda: link.sendrecv(send, dest, recv, source)


class WireFormat:
    """How numbers travel: here as they are."""

    def pack(self, array: Array) -> Array:
        """What is sent for it; the array itself where nothing is changed."""
        return array

    def room(self, array: Array) -> Array:
        """Memory for as many numbers as they come in; the array itself where nothing is changed."""
        return array

    def unpack(self, came: Array, out: Array) -> None:
        """What has come, as numbers again; where nothing is changed, it is in its place already."""


class Half(WireFormat):
    """float32 and float64 in 16 bits: half the bytes, three digits. Reduced in full precision at every step.

    Args:
        dtype: float16 or bfloat16.

    Example:
        >>> wire, x = Half("float16"), np.float32([1, 1 / 3])
        >>> wire.unpack(wire.pack(x), x); x
        array([1.        , 0.33325195], dtype=float32)
    """

    def __init__(self, dtype: str) -> None:
        self._bfloat16 = dtype == "bfloat16"

    def pack(self, array: Array) -> Array:
        """Rounded to nearest even; what is too large for float16 becomes infinite."""
        if self._bfloat16:
            return narrow(array.astype(np.float32, copy=False))
        found = np.empty(array.shape, np.float16)
        if not copied_by_torch(array, found, "float16"):
            with np.errstate(over="ignore"):
                found[...] = array
        return found

    def room(self, array: Array) -> Array:
        return np.empty(len(array), np.uint16 if self._bfloat16 else np.float16)

    def unpack(self, came: Array, out: Array) -> None:
        """Lossless."""
        if not copied_by_torch(came, out, "bfloat16" if self._bfloat16 else "float16"):
            out[...] = widen(came) if self._bfloat16 else came


PLAIN = WireFormat()


class RingSegment:
    """One segment of an allreduce, which goes round the ring a step at a time: n - 1 to reduce it, n - 1 to gather it.

    Args:
        link: the way to the other ranks.
        segment: reduced in place.
        combine: see :func:`workbench.collectives.ring.ring_allreduce`.
        finish: what is done to the reduced values, in place, chunk by chunk.
        wire: how they travel; after a rounding on the way all ranks still end with the same bits.

    Attributes:
        traffic: what this rank has sent: 2(n - 1) messages when the segment is complete.

    Example:
        >>> from workbench.transport.host.threads import spawn
        >>> def mean_of_ranks(link):
        ...     array = np.full(3, float(link.rank))
        ...     ring = RingSegment(link, array, np.add, lambda chunk: np.divide(chunk, link.size, out=chunk))
        ...     for _ in range(RingSegment.steps(link.size)):
        ...         ring.advance()
        ...     return array.tolist(), ring.traffic.messages
        >>> spawn(3, mean_of_ranks)[0]
        ([1.0, 1.0, 1.0], 4)
    """

    def __init__(
        self, link: Link, segment: Array, combine: Combine, finish: Callable[[Array], None], wire: WireFormat = PLAIN
    ) -> None:
        self._link, self._combine, self._finish, self._wire = link, combine, finish, wire
        self._chunks = cut(segment, chunk_lengths(len(segment), link.size))
        self._arrived = np.empty(max(map(len, self._chunks)), segment.dtype)
        self._came = self._arrived[:0]
        self._wait: Callable[[], None] = lambda: None
        self._step, self.traffic = 0, Traffic()

    @staticmethod
    def steps(n: int) -> int:
        """How often :meth:`advance` is to be called before the segment is complete."""
        return 2 * (n - 1) + 1

    @property
    def complete(self) -> bool:
        """Has it been advanced so often?"""
        return self._step == self.steps(self._link.size)

    def advance(self) -> None:
        """Wait for the message under way, use it, and begin the next one."""
        n, step = self._link.size, self._step
        self._wait()
        if 0 < step < n:
            self._reduce(self._chunk(-step))
        elif step >= n:
            self._wire.unpack(self._came, self._chunk(n - step))
        if step == n - 1:
            self._complete(self._chunk(1))
        if step < n - 1:
            self._exchange(self._chunk(-step), self._arrived[: len(self._chunk(-step - 1))])
        elif step < 2 * (n - 1):
            self._exchange(self._chunk(n - step), self._chunk(n - 1 - step))
        self._step += 1

    def _chunk(self, i: int) -> Array:
        return self._chunks[(self._link.rank + i) % self._link.size]

    def _reduce(self, mine: Array) -> None:
        arrived = self._arrived[: len(mine)]
        self._wire.unpack(self._came, arrived)
        self._combine(mine, arrived, out=mine)

    def _complete(self, mine: Array) -> None:
        self._finish(mine)
        self._wire.unpack(self._wire.pack(mine), mine)  # the bits that the others get

    def _exchange(self, send: Array, into: Array) -> None:
        rank, n = self._link.rank, self._link.size
        packed, self._came = self._wire.pack(send), self._wire.room(into)
        self._wait = begin(self._link, packed, (rank + 1) % n, self._came, (rank - 1) % n)
        self.traffic.sent(packed)
