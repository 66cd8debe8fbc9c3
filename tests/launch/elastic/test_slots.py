"""Slots on hosts that come, go and rest."""

from __future__ import annotations

from workbench.launch.elastic.slots import MOST_FALSE_STARTS, Slots


def filled(hosts: dict[str, int], **options: int) -> Slots:
    """All slots taken, by workers 0, 1 and so on."""
    slots = Slots(**options)  # type: ignore[arg-type]
    slots.found(hosts)
    for worker, (host, slot) in enumerate(slots.free(0.0)):
        slots.take(worker, host, slot)
    return slots


def test_the_rest_doubles_and_ends() -> None:
    """1, 2, 4 … seconds, at most the longest; a failure long ago counts no more."""
    slots, now, rests = filled({"a": 1}), 0.0, []
    for worker in range(8):
        slots.failed(worker, belonged=True, now=now)
        until = slots.hosts["a"].resting_until
        assert slots.free(until - 0.001) == []
        assert slots.free(until) == [("a", 0)]
        rests.append(until - now)
        now = until
        slots.take(worker + 1, "a", 0)
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60]
    slots.failed(8, belonged=True, now=now + 1000)
    assert slots.hosts["a"].resting_until == now + 1001


def test_a_host_whose_workers_never_belong_is_given_up() -> None:
    """After some in a row; one that belonged begins the count anew."""
    slots = filled({"a": 1, "b": 1})
    for worker in range(10, 10 + MOST_FALSE_STARTS):
        slots.failed(0 if worker == 10 else worker - 1, belonged=False, now=0.0)
        assert slots.hosts["a"].given_up == (worker == 9 + MOST_FALSE_STARTS)
        slots.take(worker, "a", 0)
    assert slots.may_start()
    slots.found({"a": 1})
    assert not slots.may_start()


def test_hosts_come_and_go() -> None:
    """Who sits on a slot that went is to leave; a host that comes back is free again."""
    slots = filled({"a": 2, "b": 1})
    assert slots.found({"a": 1}) == [1, 2]
    slots.left(1)
    slots.left(2)
    assert slots.free(0.0) == []
    assert slots.found({"a": 1, "b": 1}) == []
    assert slots.free(0.0) == [("b", 0)]


def test_no_more_than_the_most() -> None:
    """Whatever the hosts take."""
    slots = filled({"a": 4, "b": 4}, most=5)
    assert slots.free(0.0) == []
    slots.left(0)
    assert slots.free(0.0) == [("a", 0)]


def test_a_worker_leaves_once() -> None:
    """A worker that was told to leave, whose host is lost before it has, leaves once. After a failure a host rests."""
    slots = filled({"a": 2, "b": 1})
    assert slots.found({"a": 1, "b": 1}) == [1]
    slots.left(1)
    slots.left(1)
    assert slots.failed(1, belonged=True, now=0.0) == ""
    assert slots.failed(0, belonged=True, now=0.0) == "a"
    assert slots.free(now=0.5) == []
