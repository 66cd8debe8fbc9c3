"""Recorded schedules: they are what the algorithms send on real ranks, and their times are those of the formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench.collectives.ring import naive_allreduce, ring_allreduce
from workbench.collectives.tree import tree_broadcast
from workbench.simulate import schedule
from workbench.simulate.machines import Machines, Wire
from workbench.simulate.schedule import NOBODY, finish_times, record
from workbench.transport.host.threads import ThreadLink, spawn

GIGABIT = Wire(latency_s=5e-5, per_byte_s=8e-9, overhead_s=3e-6)


def broadcast(link: Any, array: Any, combine: Any = None) -> Any:
    """From rank 0."""
    return tree_broadcast(link, array)


def alone(hosts: int, wire: Wire = GIGABIT, combine_s: float = 0.0) -> Machines:
    """One rank on each host."""
    return Machines(hosts, 1, Wire(0, 0), wire, combine_s)


class Listening:
    """A link of a real rank that notes what passes."""

    def __init__(self, link: ThreadLink) -> None:
        self._link, self.rank, self.size, self.steps = link, link.rank, link.size, list[tuple[int, int, int, int]]()

    def sendrecv(self, send: Any, dest: int, recv: Any, source: int) -> None:
        one = (NOBODY, 0) if send is None else (dest, len(send))
        other = (NOBODY, 0) if recv is None else (source, len(recv))
        self.steps.append((one[0], other[0], one[1], other[1]))
        self._link.sendrecv(send, dest, recv, source)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("algorithm", [ring_allreduce, naive_allreduce, broadcast])
def test_it_is_what_real_ranks_send(algorithm: Callable[..., Any], n: int) -> None:
    """The same messages in the same order, each of the same part of the array."""

    def run(link: ThreadLink) -> list[tuple[int, int, int, int]]:
        listening = Listening(link)
        algorithm(listening, np.ones(n), np.add)
        return listening.steps

    found = record(algorithm, n)
    for rank, steps in enumerate(spawn(n, run)):
        amounts = [np.rint(each[: len(steps), rank] * n) for each in (found.sent, found.received)]
        columns = [found.dest[: len(steps), rank], found.source[: len(steps), rank], *amounts]
        assert np.stack(columns, axis=1).tolist() == [list(map(float, step)) for step in steps] if steps else True
        assert np.all(found.dest[len(steps) :, rank] == NOBODY)


@pytest.mark.parametrize("n", [2, 3, 8, 31])
def test_a_ring_takes_what_the_formula_says(n: int) -> None:
    """2(n - 1) messages of K/n bytes, one after the other, and n - 1 sums."""
    nbytes, adds_s = 10**7, 1e-10
    message_s = GIGABIT.latency_s + 2 * GIGABIT.overhead_s + nbytes / n * GIGABIT.per_byte_s
    wanted = 2 * (n - 1) * message_s + (n - 1) * nbytes / n * adds_s
    found = finish_times(record(ring_allreduce, n), nbytes, alone(n, combine_s=adds_s))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize(("n", "rounds"), [(2, 1), (4, 2), (5, 3), (8, 3)])
def test_a_tree_takes_as_many_rounds_as_it_has(n: int, rounds: int) -> None:
    """The last rank has it after log2(n) messages of all bytes."""
    message_s = GIGABIT.latency_s + 2 * GIGABIT.overhead_s + 1e6 * GIGABIT.per_byte_s
    found = finish_times(record(broadcast, n), 1e6, alone(n)).max()
    assert found == pytest.approx(rounds * message_s, abs=rounds * GIGABIT.latency_s + 1e-4)


def test_rank_0_of_the_naive_way_is_busy_for_all() -> None:
    """It receives from each and sends to each; the others' messages come while it adds."""
    n, nbytes = 6, 1e8
    found = finish_times(record(naive_allreduce, n), nbytes, alone(n))
    assert found[0] >= (n - 1) * nbytes * GIGABIT.per_byte_s
    assert found.argmax() == n - 1


@pytest.mark.parametrize("n", [2, 5, 16])
def test_both_ways_to_time_a_schedule_agree(n: int) -> None:
    """All ranks at once, or one by one, with ranks that begin at different times."""
    start = np.random.default_rng(n).uniform(0, 1e-2, n)
    steps = record(ring_allreduce, n)
    at_once = schedule._in_lockstep(steps, 1e6, alone(n, combine_s=1e-10), start)
    one_by_one = schedule._one_by_one(steps, 1e6, alone(n, combine_s=1e-10), start)
    np.testing.assert_allclose(at_once, one_by_one, rtol=1e-12)


def test_many_ranks_are_recorded_by_a_few() -> None:
    """What is turned from rank 0's is what each rank would have recorded; where ranks differ, all are recorded."""
    few = record.__wrapped__(ring_allreduce, 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "_ALL_UP_TO", 200)
        each = record.__wrapped__(ring_allreduce, 100)
    for name in ("dest", "source", "sent", "received", "combined"):
        np.testing.assert_array_equal(getattr(few, name), getattr(each, name))
    naive = record(naive_allreduce, 70)
    assert np.sum(naive.dest[:, 0] != NOBODY) == 69
    assert not naive.lockstep


def shift(link: Any, array: Any, combine: Any = None) -> None:
    """By half of the ranks."""
    link.sendrecv(array, (link.rank + link.size // 2) % link.size, array, (link.rank - link.size // 2) % link.size)


def test_ranks_of_a_host_share_its_wire() -> None:
    """A ring crosses each host's border once in each direction; shifted by a host, all of its ranks cross at once."""
    machines = Machines(2, 4, Wire(0, 0), Wire(0, 1e-9))
    assert finish_times(record(shift, 8), 1e9, machines).max() == pytest.approx(4.0)
    ring = finish_times(record(ring_allreduce, 8), 1e9, machines).max()
    assert ring == pytest.approx(2 * 7 / 8)


@pytest.mark.parametrize("words", [{"latency_s": -1}, {"per_byte_s": float("nan")}, {"overhead_s": float("inf")}])
def test_a_wire_of_nonsense(words: dict[str, float]) -> None:
    """The constant and its value are named."""
    ((name, value),) = words.items()
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        Wire(**({"latency_s": 0.0, "per_byte_s": 0.0} | words))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"between": None}, r"between is None: a Wire\(latency_s, per_byte_s\) is needed"),
        ({"hosts_per_rack": -1}, "hosts_per_rack is -1"),
        ({"oversubscription": 0.0}, "oversubscription is 0.0"),
        ({"combine_s": float("inf")}, "combine_s is inf"),
        ({"combine_s": -1}, "combine_s is -1"),
        ({"hosts": 0, "per_host": 4}, "0 hosts with 4 ranks each"),
    ],
)
def test_a_topology_of_nonsense(words: dict[str, Any], text: str) -> None:
    """A missing or senseless constant is named, and so are no ranks."""
    with pytest.raises(ValueError, match=text):
        Machines(**{"hosts": 2, "per_host": 2, "inside": GIGABIT, "between": GIGABIT} | words)


def test_more_ranks_than_the_topology_has() -> None:
    """Eight do not fit where four are; a negative size is none."""
    with pytest.raises(ValueError, match=r"8 ranks do not fit: 4 hosts with 1 ranks each have 4\. Give Machines more"):
        finish_times(record(ring_allreduce, 8), 1e6, alone(4))
    with pytest.raises(ValueError, match="nbytes is -1"):
        finish_times(record(ring_allreduce, 4), -1, alone(4))
    with pytest.raises(ValueError, match="0 ranks"):
        record(ring_allreduce, 0)


def racks(oversubscription: float, per_host: int = 4, hosts_per_rack: int = 2) -> Machines:
    """Two racks."""
    wire = Wire(0, 1e-9)
    return Machines(4, per_host, Wire(0, 0), wire, hosts_per_rack=hosts_per_rack, oversubscription=oversubscription)


@pytest.mark.parametrize(("oversubscription", "slower"), [(0.5, 1), (1, 1), (2, 1), (4, 2), (8, 4)])
def test_one_stream_leaves_a_rack_in_a_ring(oversubscription: float, slower: float) -> None:
    """A rack of h hosts may be h times oversubscribed before the ring is slower: 2(n - 1)/n · K · G · max(1, o/h)."""
    found = finish_times(record(ring_allreduce, 16), 1e9, racks(oversubscription)).max()
    assert found == pytest.approx(2 * 15 / 16 * slower)


@pytest.mark.parametrize("oversubscription", [1, 2, 8])
def test_all_streams_leave_a_rack(oversubscription: float) -> None:
    """Each rank sends K to the other rack: per_host · K · G through its host, ``oversubscription`` times that above."""
    assert finish_times(record(shift, 16), 1e9, racks(oversubscription)).max() == pytest.approx(4 * oversubscription)


def test_inside_a_rack_nobody_meets_the_uplink() -> None:
    """A shift to the other host of the same rack takes what it takes on one switch."""

    def swap(link: Any, array: Any, combine: Any = None) -> None:
        link.sendrecv(array, link.rank ^ 4, array, link.rank ^ 4)

    assert finish_times(record(swap, 16), 1e9, racks(100.0)).max() == pytest.approx(4.0)


@pytest.mark.parametrize(("gpu_byte_s", "slowest"), [(0.0, 4e-9), (2e-9, 4e-9), (8e-9, 8e-9)])
def test_the_slowest_part_of_the_way_counts(gpu_byte_s: float, slowest: float) -> None:
    """GPU to host, host to switch, shared by four: the maximum for each byte, the sum of latencies."""
    machines = Machines(2, 4, Wire(0, 0), Wire(1e-3, 1e-9), gpu=Wire(1e-4, gpu_byte_s))
    found = finish_times(record(shift, 8), 1e9, machines).max()
    assert found == pytest.approx(1e-3 + 2e-4 + 1e9 * slowest)
