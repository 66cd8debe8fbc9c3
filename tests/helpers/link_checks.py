"""What every Link must do, as plain functions that run in any kind of rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workbench.collectives.pipeline import begin
from workbench.core.backend.base import Backend, Channel, Link
from workbench.errors import CollectiveError
from workbench.transport.links import SubLink

DTYPES = [*["bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]]


@dataclass(frozen=True)
class Rank:
    """What a rank of some world offers to the checks."""

    link: Channel
    backend: Backend
    impatient: Callable[[float], Link]
    """Makes another link with a deadline in seconds; all ranks call it."""
    late_s: float = 2.0
    """A deadline in which a link of this world can be made."""


Check = Callable[[Rank], None]


def ranks_are_numbered(rank: Rank) -> None:
    """Ranks are 0 … size - 1, and a message to a number reaches the rank that has it."""
    link = rank.link
    seen = [link.rank]
    for step in range(1, link.size):
        got = np.empty(1, np.int64)
        left = (link.rank - step) % link.size
        link.sendrecv(np.array([link.rank]), (link.rank + step) % link.size, got, left)
        assert got[0] == left
        seen.append(int(got[0]))
    assert sorted(seen) == list(range(link.size))


def every_dtype_travels(rank: Rank) -> None:
    """Arrays of every dtype and length, empty ones too, arrive bit by bit at the right neighbour."""
    link = rank.link
    for dtype in (np.dtype(name) for name in DTYPES if name != "bfloat16"):
        for length in (0, 1, 1000):
            data = [
                np.random.default_rng(r).integers(0, 2, length * dtype.itemsize).astype(np.uint8)
                for r in range(link.size)
            ]
            got = np.zeros(length, dtype)
            link.sendrecv(data[link.rank].view(dtype), right(link), got, left(link))
            assert got.tobytes() == data[left(link)].tobytes()


def a_half_can_be_left_out(rank: Rank) -> None:
    """Between every two ranks a message goes one way, while all others do something else."""
    link = rank.link
    for source in range(link.size):
        for dest in range(link.size):
            if source == dest:
                continue
            if link.rank == source:
                link.sendrecv(np.arange(5) + 100 * source, dest, None, dest)
            elif link.rank == dest:
                got = np.zeros(5, np.int64)
                link.sendrecv(None, source, got, source)
                assert got.tolist() == [100 * source + i for i in range(5)]


def messages_keep_their_order(rank: Rank) -> None:
    """Between two ranks messages arrive in the order in which they were sent, long and short and empty ones."""
    link = rank.link
    sizes = [1, 5000, 0, 3, 100_000, 2]
    if link.size == 1:
        return
    if link.rank == 0:
        for i, size in enumerate(sizes):
            link.sendrecv(np.full(size, i, np.int32), 1, None, 1)
    elif link.rank == 1:
        for i, size in enumerate(sizes):
            got = np.full(size, -1, np.int32)
            link.sendrecv(None, 0, got, 0)
            assert (got == i).all()


def messages_that_were_begun_keep_their_order(rank: Rank) -> None:
    """Several messages to the right are under way at once, and one by ``sendrecv`` comes behind them."""
    link, lengths = rank.link, [3, 100_000, 0, 1]
    sent = [np.full(length, 10.0 * link.rank + i) for i, length in enumerate(lengths)]
    got = [np.full(length, -1.0) for length in lengths]
    waits = [begin(link, *each) for each in zip(sent, [right(link)] * 4, got, [left(link)] * 4, strict=True)]
    for wait in waits:
        wait()
    last = np.zeros(1)
    link.sendrecv(np.array([7.0 + link.rank]), right(link), last, left(link))
    for i, array in enumerate(got):
        np.testing.assert_array_equal(array, np.full(lengths[i], 10.0 * left(link) + i))
    assert last[0] == 7.0 + left(link)


def a_long_message_goes_in_pieces(rank: Rank) -> None:
    """Where a library takes so many bytes at once: a longer message, and one of another length back, arrive whole."""
    link = rank.link
    if not hasattr(link, "piece_bytes"):
        return
    usual, link.piece_bytes = link.piece_bytes, 1001  # no whole number of elements
    try:
        for lengths in ((1000, 1000, 1000), (1, 3000, 250), (0, 126, 125)):
            sent = [np.arange(length) * (r + 1) for r, length in enumerate((*lengths, 7)[: link.size])]
            got = np.full(len(sent[left(link)]), -1)
            link.sendrecv(sent[link.rank], right(link), got, left(link))
            np.testing.assert_array_equal(got, sent[left(link)])
    finally:
        link.piece_bytes = usual


def what_was_sent_may_be_changed(rank: Rank) -> None:
    """Once ``sendrecv`` has returned, the sender's memory is its own again: what arrives is what it held before."""
    link = rank.link
    if link.size == 1:
        return
    data = np.empty(100_000, np.int32)
    for i in range(5):
        if link.rank == 0:
            data[:] = i
            link.sendrecv(data, 1, None, 1)
            data[:] = -1
        elif link.rank == 1:
            time.sleep(0.01)  # not waiting yet: the message has to be kept somewhere
            link.sendrecv(None, 0, data, 0)
            assert (data == i).all()


def long_messages_go_both_ways(rank: Rank) -> None:
    """All ranks send 4 MB at the same time and nobody waits for ever."""
    link = rank.link
    got = np.empty(1 << 19)
    link.sendrecv(np.full(1 << 19, float(link.rank)), right(link), got, left(link))
    assert (got == left(link)).all()


def parts_of_arrays_travel(rank: Rank) -> None:
    """A piece of a larger array is sent, and received into a piece; what lies beside it is not touched."""
    link = rank.link
    data, got = np.arange(100) + 1000 * link.rank, np.full(100, -1)
    link.sendrecv(data[30:70], right(link), got[20:60], left(link))
    assert got.tolist() == [-1] * 20 + [1000 * left(link) + i for i in range(30, 70)] + [-1] * 40


def what_is_sent_is_only_read(rank: Rank) -> None:
    """An array that cannot be written to can be sent, without a warning."""
    link = rank.link
    data, got = np.arange(10), np.empty(10, np.int64)
    data.setflags(write=False)
    link.sendrecv(data, right(link), got, left(link))
    assert got.tolist() == data.tolist()


def who_never_sends_is_not_waited_for(rank: Rank) -> None:
    """A wait for a message that does not come ends at the link's deadline with a CollectiveError."""
    ranks_are_numbered(rank)  # all ranks are here, so that none is late where it must not be
    link, go_on = rank.impatient(rank.late_s), np.empty(1)
    if link.size == 1:
        return
    if link.rank == 0:
        started = time.monotonic()
        try:
            link.sendrecv(None, 1, np.empty(1), 1)
        except CollectiveError:
            assert 0.5 * rank.late_s < time.monotonic() - started < 10 * rank.late_s + 5
        else:
            raise AssertionError("nothing was sent, but something was received")
        finally:
            rank.link.sendrecv(go_on, 1, None, 1)
    elif link.rank == 1:
        rank.link.sendrecv(None, 0, go_on, 0)


def a_wait_ticks(rank: Rank) -> None:
    """A link calls its ``tick`` several times a second while it waits, so that the rank is seen to live."""
    link = rank.link
    # A SubLink waits in the Link of all ranks; the Link of examples/nano.py, which is no backend's, has no ``tick``.
    if link.size == 1 or isinstance(link, SubLink) or not hasattr(link, "tick"):
        return
    if link.rank == 0:
        ticks: list[float] = []
        before, link.tick = link.tick, lambda: ticks.append(time.monotonic())
        got = np.empty(1)
        link.sendrecv(None, 1, got, 1)
        link.tick = before
        assert got[0] == 7
        assert len(ticks) >= 2, f"{len(ticks)} ticks in 0.6 s"
    elif link.rank == 1:
        time.sleep(0.6)
        link.sendrecv(np.array([7.0]), 0, None, 0)


def right(link: Link) -> int:
    """The right neighbour."""
    return (link.rank + 1) % link.size


def left(link: Link) -> int:
    """The left neighbour."""
    return (link.rank - 1) % link.size


LINK_CHECKS = [
    ranks_are_numbered,
    every_dtype_travels,
    a_half_can_be_left_out,
    messages_keep_their_order,
    messages_that_were_begun_keep_their_order,
    a_long_message_goes_in_pieces,
    what_was_sent_may_be_changed,
    long_messages_go_both_ways,
    parts_of_arrays_travel,
    a_wait_ticks,
    who_never_sends_is_not_waited_for,
    what_is_sent_is_only_read,
]
