"""The table between the threads that submit and the engine."""

from __future__ import annotations

import threading

import pytest
from interrupted import interrupts

from workbench.core.handle import Handle
from workbench.core.messages import Kind, Request
from workbench.core.pending import Entry, PendingTable
from workbench.errors import CollectiveError, DuplicateNameError, PeerLostError, ShutDownError
from workbench.runtime.events import Began, Ended
from workbench.runtime.steady.batching import Window


def entry(name: str, process_set: int = 0, convert: object = None) -> Entry:
    """An entry without memory."""
    return Entry(Request(name, Kind.BARRIER, process_set=process_set), None, None, Handle(name), convert)


def in_flight(table: PendingTable) -> list[str]:
    """The names that are."""
    return [name for _, name in table._entries]


def test_entries_are_drained_once_in_order() -> None:
    """The engine gets every new entry once, in the order of submission; the names stay in flight."""
    table, entries = PendingTable(), [entry(name) for name in "cab"]
    table.add(entries[:1])
    table.add(entries[1:])
    assert table.drain() == entries
    assert table.drain() == []
    assert in_flight(table) == ["c", "a", "b"]
    assert table.find(0, "a") is entries[1]
    assert table.find(0, "z") is None


def test_events_keep_their_place_among_entries() -> None:
    """Rank 0 hears that a cell began before what the cell submits, and of its end after it."""
    table, one, other = PendingTable(), entry("a"), entry("b")
    table.report(Ended(1))
    table.report(Began(1))
    table.add([one])
    table.report(Ended(1))
    table.add([other])
    assert table.drain_events() == [Ended(1), Began(1)]
    assert table.drain_events() == []
    assert table.drain() == [one, Ended(1), other]


@pytest.mark.parametrize("names", [["new", "x"], ["new", "new"]], ids=["in flight", "twice in one call"])
def test_a_duplicate_takes_nothing_in(names: list[str]) -> None:
    """One duplicate refuses the whole call, with an error that is a ValueError too; nothing of it is left behind."""
    table, first = PendingTable(), entry("x")
    table.add([first])
    with pytest.raises(DuplicateNameError, match=repr(names[-1])) as caught:
        table.add([entry(name) for name in names])
    assert isinstance(caught.value, ValueError)
    assert in_flight(table) == ["x"]
    assert table.find(0, "new") is None
    assert table.find(0, "x") is first
    assert table.drain() == [first]
    table.add([entry("new")])


def test_a_name_is_free_after_its_removal() -> None:
    """The same name can be submitted again, and removing twice does no harm."""
    table, first, second = PendingTable(), entry("x"), entry("x")
    table.add([first])
    table.remove([first])
    table.remove([first])
    table.add([second])
    assert table.find(0, "x") is second


def test_process_sets_have_names_of_their_own() -> None:
    """One name may be in flight once in each process set."""
    table, one, other = PendingTable(), entry("x", 0), entry("x", 1)
    table.add([one, other])
    table.remove([one])
    assert table.find(0, "x") is None
    assert table.find(1, "x") is other


def test_a_closed_table_refuses_with_its_first_reason() -> None:
    """Closing returns what was in flight, once; whatever is added later gets the first reason, as a new exception."""
    table, entries, reason = PendingTable(), [entry("x"), entry("y")], PeerLostError("rank 1 was lost")
    table.add(entries)
    assert table.close(reason) == entries
    assert table.close(ShutDownError("left")) == []
    assert (table.drain(), in_flight(table)) == ([], [])
    for _ in range(2):
        with pytest.raises(PeerLostError, match="rank 1 was lost") as caught:
            table.add([entry("z")])
        assert caught.value is not reason
    assert in_flight(table) == []


def test_threads_do_not_lose_entries() -> None:
    """What several threads add while another drains comes out once, each thread's in its own order."""
    table, drained, done = PendingTable(), [], threading.Event()

    def add(me: int) -> None:
        for i in range(200):
            table.add([entry(f"{me}.{i}")])

    def drain() -> None:
        while not done.is_set():
            drained.extend(table.drain())

    engine, threads = threading.Thread(target=drain), [threading.Thread(target=add, args=(me,)) for me in range(4)]
    for thread in [engine, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    engine.join()
    drained.extend(table.drain())
    names = [each.request.name for each in drained]
    assert len(names) == 800
    for me in range(4):
        assert [name for name in names if name.startswith(f"{me}.")] == [f"{me}.{i}" for i in range(200)]


@pytest.mark.parametrize("result", [7, 0])
def test_a_result_is_converted(result: int) -> None:
    """What the caller gets is made by the entry's conversion."""
    it = entry("x", convert=lambda value: [value])
    it.deliver(result)
    assert it.handle.wait(0) == [result]


def test_nothing_is_not_converted() -> None:
    """Where no rank had data there is nothing to convert."""
    it = entry("x", convert=lambda value: 1 / 0)
    it.deliver(None)
    assert it.handle.wait(0) is None


def test_a_failed_conversion_is_the_handles_error() -> None:
    """An exception in the conversion reaches the caller, not the engine."""
    it = entry("x", convert=lambda value: 1 / 0)
    it.deliver(7)
    with pytest.raises(ZeroDivisionError):
        it.handle.wait(0)


def test_an_error_is_not_converted() -> None:
    """A failed collective ends the handle with its own error."""
    it = entry("x", convert=lambda value: 1 / 0)
    it.deliver(None, CollectiveError("failed"))
    with pytest.raises(CollectiveError, match="failed"):
        it.handle.wait(0)


def test_an_interrupt_leaves_all_or_nothing_behind() -> None:
    """Wherever Ctrl-C hits a submission, its entries are in flight and will be announced, or none of them is."""
    table = PendingTable()
    for at in interrupts(lambda: table.add([entry("a"), entry("b")])):
        names, drained = in_flight(table), table.drain()
        assert [each.request.name for each in drained] == names, at
        assert names in ([], ["a", "b"])
        for each in drained:
            table.remove([each])


def test_what_has_failed_before_it_was_announced_is_not_announced() -> None:
    """It stands for nothing any more: rank 0 would add the next tensor of that name to nobody's."""
    window, one, other = Window(1.0), entry("x"), entry("y")
    window.add([one, Ended(1), other], 0.0)
    one.handle.finish(error=CollectiveError("x failed"))
    assert window.take() == [Ended(1), [other]]
    assert window.take() == []
