"""Broadcast over a tree and the pairwise exchange: results, and how many messages each rank sends."""

from __future__ import annotations

from math import ceil, log2

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.collectives import Traffic, pairwise_alltoall, tree_broadcast
from workbench.transport.host.threads import ThreadLink, spawn

# A busy machine is no failure: no deadline per example.
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)


class Recording:
    """A Link around another that writes down to whom what is sent."""

    def __init__(self, link: ThreadLink) -> None:
        self.link, self.rank, self.size = link, link.rank, link.size
        self.sent: list[tuple[int, int]] = []

    def sendrecv(self, send: np.ndarray | None, dest: int, recv: np.ndarray | None, source: int) -> None:
        """Write down and pass on."""
        if send is not None:
            self.sent.append((dest, send.nbytes))
        self.link.sendrecv(send, dest, recv, source)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("length", [0, 1, 1000])
def test_broadcast_reaches_everybody(n: int, length: int) -> None:
    """For every root: all ranks get its bits, n - 1 messages go in all, and at most ceil(log2 n) from one rank."""
    data = np.random.default_rng(n).normal(size=length)

    def run(link: ThreadLink) -> list[tuple[np.ndarray, Recording, Traffic]]:
        results = []
        for root in range(n):
            recording, array = Recording(link), data.copy() if link.rank == root else np.zeros(length)
            results.append((array, recording, tree_broadcast(recording, array, root)))
        return results

    for one_root in zip(*spawn(n, run), strict=True):
        for array, recording, traffic in one_root:
            np.testing.assert_array_equal(array, data)
            assert traffic == Traffic(len(recording.sent), sum(nbytes for _, nbytes in recording.sent))
            assert traffic.bytes == traffic.messages * data.nbytes
            assert traffic.messages <= ceil(log2(n))
        assert sum(traffic.messages for *_, traffic in one_root) == n - 1


@st.composite
def splits(draw: st.DrawFn) -> np.ndarray:
    """How many elements each rank (row) has for each other (column)."""
    n = draw(st.integers(1, 4))
    return np.array(draw(st.lists(st.integers(0, 4), min_size=n * n, max_size=n * n))).reshape(n, n)


@PROPERTY
@given(splits())
def test_alltoall_transposes(splits: np.ndarray) -> None:
    """Rank r's piece i arrives at rank i's place r, whatever the lengths; n - 1 messages, one to each other rank."""
    n = len(splits)

    def run(link: ThreadLink) -> tuple[np.ndarray, Recording, Traffic]:
        me, recording = link.rank, Recording(link)
        # Element: sender, receiver, index.
        send = np.concatenate([100 * me + 10 * to + np.arange(splits[me, to]) for to in range(n)])
        recv = np.full(splits[:, me].sum(), -1, send.dtype)
        return recv, recording, pairwise_alltoall(recording, send, list(splits[me]), recv, list(splits[:, me]))

    for me, (recv, recording, traffic) in enumerate(spawn(n, run)):
        expected = [100 * source + 10 * me + i for source in range(n) for i in range(splits[source, me])]
        assert recv.tolist() == expected
        assert sorted(dest for dest, _ in recording.sent) == [rank for rank in range(n) if rank != me]
        assert traffic == Traffic(n - 1, int(splits[me].sum() - splits[me, me]) * recv.itemsize)
        assert traffic.bytes == sum(nbytes for _, nbytes in recording.sent)
