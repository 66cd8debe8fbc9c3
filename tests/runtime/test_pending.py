"""The table between the threads that submit and the engine."""

from __future__ import annotations

import threading

import pytest

from workbench.errors import CollectiveError, DuplicateNameError, PeerLostError, ShutDownError
from workbench.runtime.handle import Handle
from workbench.runtime.messages import Kind, Request
from workbench.runtime.pending import Entry, PendingTable


def entry(name: str, process_set: int = 0, convert: object = None) -> Entry:
    """An entry without memory."""
    return Entry(Request(name, Kind.BARRIER, process_set=process_set), None, None, Handle(name), convert)


def test_entries_are_drained_once_in_order() -> None:
    """The engine gets every new entry once, in the order of submission; the names stay in flight."""
    table, entries = PendingTable(), [entry(name) for name in "cab"]
    table.add(entries[:1])
    table.add(entries[1:])
    assert table.drain() == entries
    assert table.drain() == []
    assert table.names() == ["c", "a", "b"]
    assert table.find(0, "a") is entries[1]
    assert table.find(0, "z") is None


@pytest.mark.parametrize("names", [["new", "x"], ["new", "new"]], ids=["in flight", "twice in one call"])
def test_a_duplicate_takes_nothing_in(names: list[str]) -> None:
    """One duplicate refuses the whole call, with an error that is a ValueError too; nothing of it is left behind."""
    table, first = PendingTable(), entry("x")
    table.add([first])
    with pytest.raises(DuplicateNameError, match=repr(names[-1])) as caught:
        table.add([entry(name) for name in names])
    assert isinstance(caught.value, ValueError)
    assert table.names() == ["x"]
    assert table.find(0, "new") is None
    assert table.find(0, "x") is first
    assert table.drain() == [first]
    table.add([entry("new")])


def test_a_name_is_free_after_its_removal() -> None:
    """The same name can be submitted again, and removing twice does no harm."""
    table, first, second = PendingTable(), entry("x"), entry("x")
    table.add([first])
    table.remove(first)
    table.remove(first)
    table.add([second])
    assert table.find(0, "x") is second


def test_process_sets_have_names_of_their_own() -> None:
    """One name may be in flight once in each process set."""
    table, one, other = PendingTable(), entry("x", 0), entry("x", 1)
    table.add([one, other])
    table.remove(one)
    assert table.find(0, "x") is None
    assert table.find(1, "x") is other


def test_a_closed_table_refuses_with_its_first_reason() -> None:
    """Closing returns what was in flight, once; whatever is added later gets the first reason, as a new exception."""
    table, entries, reason = PendingTable(), [entry("x"), entry("y")], PeerLostError("rank 1 was lost")
    table.add(entries)
    assert table.close(reason) == entries
    assert table.close(ShutDownError("left")) == []
    assert (table.drain(), table.names()) == ([], [])
    for _ in range(2):
        with pytest.raises(PeerLostError, match="rank 1 was lost") as caught:
            table.add([entry("z")])
        assert caught.value is not reason
    assert table.names() == []


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
