"""A rank says that it is blocked when all its threads that submit wait, and where the user's code stands."""

from __future__ import annotations

import threading

from workbench.runtime.handle import Handle
from workbench.runtime.messages import Blocked
from workbench.runtime.waits import Waits, users_line


def test_a_wait_is_told_with_the_users_line_and_its_end() -> None:
    """What it waits for, where, and that it goes on."""
    told: list[Blocked] = []
    waits = Waits(3, told.append)
    waits.submits()
    with waits.blocked(0, "allreduce.x"):
        pass
    ((process_set, name, where),) = told[0].waits
    assert (told[0].rank, process_set, name) == (3, 0, "allreduce.x")
    assert where.startswith("in test_waits.py, line ")
    assert where.endswith('with waits.blocked(0, "allreduce.x")')
    assert told[1:] == [Blocked(3, ())]


def test_a_rank_is_not_blocked_while_another_thread_may_submit() -> None:
    """Only when the last of its threads waits, too; a thread that has ended does not count."""
    told: list[Blocked] = []
    waits, go, submitted = Waits(0, told.append), threading.Event(), threading.Event()

    def other() -> None:
        waits.submits()
        submitted.set()
        go.wait(10)
        with waits.blocked(0, "b"):
            pass

    thread = threading.Thread(target=other)
    thread.start()
    assert submitted.wait(10)
    waits.submits()
    with waits.blocked(0, "a"):
        assert told == []
        assert waits.others()
        go.set()
        thread.join()
    assert [[name for _, name, _ in event.waits] for event in told] == [["a", "b"], [], []]
    assert not waits.others()


def test_a_short_wait_says_nothing() -> None:
    """A handle tells of its wait only after a moment, and of nothing when it is done already."""
    told: list[Blocked] = []
    waits, handle = Waits(0, told.append), Handle("x")
    handle.blocked = lambda: waits.blocked(0, "x")
    threading.Timer(0.02, handle.finish, (1,)).start()
    assert handle.wait() == 1
    assert told == []
    late = Handle("y")
    late.blocked = lambda: waits.blocked(0, "y")
    threading.Timer(0.4, late.finish, (2,)).start()
    assert late.wait(10) == 2
    assert [bool(event.waits) for event in told] == [True, False]


def test_the_users_line_skips_the_libraries() -> None:
    """The innermost line that is neither this package's nor the standard library's."""
    where = list(map(lambda _: users_line(), [0]))[0]  # noqa: C417, RUF015 - called from a lambda, on this line
    assert where.startswith("in test_waits.py, line ")
    assert "users_line(), [0]" in where
