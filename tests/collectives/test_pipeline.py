"""Segments that follow one another round a ring: numpy's sums, whatever the lengths, and few bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from workbench.collectives import Link, Traffic
from workbench.collectives.pipeline import Half, RingSegment, Starter, begin
from workbench.collectives.traffic import Array
from workbench.transport.host.threads import ThreadLink, spawn


def allreduce(link: Link, array: Array, segment_length: int) -> Traffic:
    """In segments, one of which sets out in each tick."""
    steps, segments = RingSegment.steps(link.size), list[RingSegment]()
    pieces = [array[low : low + segment_length] for low in range(0, len(array), segment_length)]
    for tick in range(len(pieces) + steps):
        if tick < len(pieces):
            segments.append(RingSegment(link, pieces[tick], np.add, lambda chunk: None))
        for segment in segments[max(0, tick - steps + 1) : tick + 1]:
            segment.advance()
    return sum((segment.traffic for segment in segments), Traffic())


class Overlapping:
    """A Link over threads which does nothing before a wait, and then all that was begun until then, in order."""

    def __init__(self, link: ThreadLink) -> None:
        self.link, self.rank, self.size = link, link.rank, link.size
        self.begun: list[tuple[Array | None, int, Array | None, int]] = []
        self.most = 0

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """At once."""
        self.start(send, dest, recv, source)()

    def start(self, send: Array | None, dest: int, recv: Array | None, source: int) -> Callable[[], None]:
        """Send now, receive later."""
        self.link.sendrecv(send, dest, None, source)
        self.begun.append((None, dest, recv, source))
        self.most, mine = max(self.most, len(self.begun)), self.begun[-1]

        def wait() -> None:
            while any(each is mine for each in self.begun):
                self.link.sendrecv(*self.begun.pop(0))

        return wait


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [0, 1, 5, 64])
@pytest.mark.parametrize("segment", [1, 3, 100])
def test_the_sum_is_numpys(n: int, length: int, segment: int) -> None:
    """Over a Link that can begin messages and over one that cannot; both send the bytes that a ring sends."""
    data = np.random.default_rng(n).integers(-9, 9, (n, length)).astype(np.float64)

    def reduce(link: ThreadLink) -> list[tuple[Array, Traffic]]:
        arrays = [data[link.rank].copy(), data[link.rank].copy()]
        links = [link, Overlapping(link)]
        return [(array, allreduce(each, array, segment)) for array, each in zip(arrays, links, strict=True)]

    found = [each for pair in spawn(n, reduce) for each in pair]
    for array, _ in found:
        np.testing.assert_array_equal(array, data.sum(0))
    segments = -(-length // segment)
    assert {traffic.messages for _, traffic in found} == {2 * (n - 1) * segments}
    assert sum(traffic.bytes for _, traffic in found) == 2 * 2 * (n - 1) * length * 8


def test_many_messages_are_under_way() -> None:
    """2(n - 1) of them, one of each segment."""

    def most(thread: ThreadLink) -> int:
        link = Overlapping(thread)
        assert isinstance(link, Starter)
        assert not isinstance(thread, Starter)
        allreduce(link, np.ones(100), 5)
        return link.most

    assert spawn(3, most) == [4, 4, 4]


@pytest.mark.parametrize(("wire", "digits"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_half_precision_on_the_wire(wire: str, digits: float) -> None:
    """Half the bytes, nearly the sum, and the same bits on every rank, also where a chunk is nobody's but its own."""
    data = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)

    def reduce(link: ThreadLink) -> tuple[Array, int]:
        array = data[link.rank].copy()
        ring = RingSegment(link, array, np.add, lambda chunk: np.divide(chunk, 3, out=chunk), Half(wire))
        for _ in range(RingSegment.steps(3)):
            ring.advance()
        return array, ring.traffic.bytes

    found = spawn(3, reduce)
    assert len({array.tobytes() for array, _ in found}) == 1
    np.testing.assert_allclose(found[0][0], data.mean(0), atol=digits)
    assert sum(sent for _, sent in found) == 2 * 2 * 1000 * 2


def test_what_is_too_large_for_float16_is_infinite() -> None:
    """On all ranks, and not some wrong number."""

    def reduce(link: ThreadLink) -> Array:
        array = np.full(4, 60_000, np.float32)
        ring = RingSegment(link, array, np.add, lambda chunk: None, Half("float16"))
        for _ in range(RingSegment.steps(2)):
            ring.advance()
        return array

    assert [array.tolist() for array in spawn(2, reduce)] == [[np.inf] * 4] * 2


def test_a_link_that_cannot_begin() -> None:
    """Does it all when it is waited for."""

    def swap(link: ThreadLink) -> float:
        got = np.zeros(1)
        wait = begin(link, np.array([float(link.rank)]), 1 - link.rank, got, 1 - link.rank)
        assert got[0] == 0
        wait()
        return float(got[0])

    assert spawn(2, swap) == [1.0, 0.0]
