"""Simulated nodes: links of two kinds, bytes that leave a node, pinning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.collectives.ring import ring_allreduce
from workbench.course.simulator import ALPHA_S, BETA_S, DeadlockError, simulate
from workbench.course.simulator.topology import BETWEEN, INSIDE, Topology, pinned, ring_among
from workbench.course.tasks.t12_gpus_and_nodes import hierarchical, local_ranks
from workbench.job.context import place


def ping(comm: Any, dest: int) -> None:
    """One message of 8,000 bytes from rank 0."""
    if comm.rank == 0:
        comm.send(np.ones(1000), dest=dest)
    elif comm.rank == dest:
        comm.recv(source=0)


def flat(comm: Any, length: int) -> Any:
    """The ring over all ranks."""
    array = np.full(length, float(comm.rank))
    ring_allreduce(comm, array)
    return array


def test_a_message_takes_as_long_as_its_link() -> None:
    """Inside a node and between nodes each message has its own α and β; without a topology all are alike."""
    nodes = Topology(["a", "a", "b"])
    for dest, (alpha_s, beta_s) in ((1, INSIDE), (2, BETWEEN)):
        message = simulate(3, ping, dest, link=nodes).messages[0]
        assert message.end - message.begin == pytest.approx(alpha_s + beta_s * 8000)
    assert simulate(3, ping, 2).time_s == pytest.approx(ALPHA_S + BETA_S * 8000)


def test_bytes_out_of_a_node() -> None:
    """A flat ring sends 2(n - 1)/n · K out of a node for each of its ranks whose neighbour is elsewhere."""
    for nodes, factor in [("aabb", 1.5), ("abab", 3.0), ("aaaa", 0.0)]:
        topology = Topology(list(nodes))
        run = simulate(4, flat, 1000, link=topology)
        assert topology.left(run) == dict.fromkeys(nodes, factor * 8000)
        assert topology.rounds(run) == (6 if factor else 0)


def test_two_levels() -> None:
    """The sum is that of the flat ring; 2(m - 1)/m · K bytes leave each of m nodes, wherever the ranks are."""
    for nodes in ["a", "ab", "aab", "bacbac", "aaabbbccc"]:
        topology, m = Topology(list(nodes)), len(set(nodes))
        run = simulate(
            len(nodes), lambda comm, nodes=nodes: hierarchical(comm, list(nodes), np.full(600, 1.0 + comm.rank))
        )
        total = float(sum(range(1, len(nodes) + 1)))
        assert all((result == total).all() for result in run.results)
        assert max(topology.left(run).values()) == 2 * (m - 1) / m * 4800


def test_a_ring_of_some_ranks() -> None:
    """Its members get their sum; nobody else is needed, and nobody's array is changed."""
    for length in [0, 1, 10]:
        for members in [[0], [2, 0], [1, 2, 4], [4, 3, 2, 1, 0]]:

            def run(comm: Any, members: Any = members, length: int = length) -> Any:
                if comm.rank not in members:
                    return None
                x = np.full(length, float(comm.rank))
                total = ring_among(comm, members, x)
                assert (x == comm.rank).all()
                return total

            results = simulate(5, run).results
            for rank in members:
                assert results[rank].tolist() == [sum(members)] * length


def test_a_ring_is_for_its_members() -> None:
    """Another rank that calls it is told so; a member that does not come is waited for."""
    with pytest.raises(ValueError, match="Rank 1 is not among"):
        simulate(2, lambda comm: ring_among(comm, [0], np.ones(2)))
    with pytest.raises(DeadlockError):
        simulate(2, lambda comm: ring_among(comm, [0, 1], np.ones(2)) if comm.rank == 0 else None)


def test_local_ranks_are_those_of_init() -> None:
    """The exercise's solution says what the runtime says."""
    for nodes in ["a", "aab", "abab", "babbca"]:
        worlds = [place(list(nodes), rank) for rank in range(len(nodes))]
        assert local_ranks(list(nodes)) == [(w.local_rank, w.local_size, w.cross_rank, w.cross_size) for w in worlds]


def test_pinning() -> None:
    """By local rank each has a GPU of its own; by rank the second node asks for what it has not."""
    nodes = ["a", "b", "a", "b"]
    assert len(set(pinned(nodes, lambda me: me.local_rank))) == 4
    assert pinned(nodes, lambda me: me.rank).count("invalid device ordinal") == 2
    assert len(set(pinned(nodes, lambda me: 0))) == 2
