"""``init()`` in a notebook's engines, where one rank never comes: the cell ends, and the next one works."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ipyparallel import interactive

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(180)]
N = 3
LATEST_S = 60.0  # init()'s own deadline is twice as long


@pytest.fixture
def engines(running: Any) -> Iterator[Any]:
    """Three engines that are in no job."""
    yield running
    running.rescue(quiet=True)
    running.view.apply_async(end).get(LATEST_S)


@interactive
def begin(late_s: float = 0.0, only: str = "") -> tuple[str, str]:
    """What ``init()`` raises on an engine, and its text; on rank 1 so much later, and on no other than ``only``."""
    import os
    import time

    import workbench as hvd

    rank = os.environ.get("PMI_RANK", "")
    if only not in ("", rank):
        return "", ""
    try:
        time.sleep(late_s if rank == "1" else 0.0)
        hvd.init()
    except BaseException as error:  # noqa: BLE001 - the test looks at it
        return type(error).__name__, str(error)
    return "", str(hvd.rank())


@interactive
def on_threads(n: int) -> list[tuple[str, str]]:
    """``init()`` on n threads at the same time, then ``shutdown()``; what the first raised on each, and the rank."""
    import threading

    import workbench as hvd

    found, together = [], threading.Barrier(n)

    def run() -> None:
        together.wait()
        try:
            hvd.init()
            rank = hvd.rank()
            together.wait()
            hvd.shutdown()
            found.append(("", str(rank)))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            found.append((type(error).__name__, str(error)))

    threads = [threading.Thread(target=run) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@interactive
def end() -> None:
    """Leave the job."""
    import workbench as hvd

    hvd.shutdown()


@interactive
def die_later() -> None:
    """Be killed while the others are in ``init()``."""
    import os
    import time

    time.sleep(1.0)
    os.kill(os.getpid(), 9)


@interactive
def do_something_else() -> str:
    """Never call init()."""
    import time

    try:
        time.sleep(100)
    except KeyboardInterrupt:
        return "interrupted"
    return ""


def all_begin(engines: Any) -> list[tuple[str, str]]:
    """On every engine."""
    found: list[tuple[str, str]] = engines.view.apply_async(begin).get(LATEST_S)
    return found


def test_a_rank_is_killed_while_the_others_are_in_init(engines: Any) -> None:
    """Each of them gets PeerLostError, which names it; ``rescue()`` helps."""
    answers = [engines.client[rank].apply_async(die_later if rank == 1 else begin) for rank in range(N)]
    for rank in (0, 2):
        name, text = answers[rank].get(LATEST_S)
        assert name == "PeerLostError", text
        assert "rank 1 was lost" in text
        assert "engines.rescue()" in text
    engines.rescue(quiet=True)
    assert all_begin(engines) == [("", str(rank)) for rank in range(N)]


def test_ctrl_c_ends_an_init_that_the_others_do_not_call(engines: Any) -> None:
    """At once, in the first cell and in a later one; then ``init()`` on all ranks works, in the same processes."""
    for _ in range(2):
        pids = engines.view.apply_async(os.getpid).get(LATEST_S)
        answers = [engines.client[rank].apply_async(do_something_else if rank else begin) for rank in range(N)]
        time.sleep(1.0)
        assert not any(answer.ready() for answer in answers)
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        assert answers[0].get(LATEST_S)[0] == "KeyboardInterrupt"
        assert [answer.get(LATEST_S) for answer in answers[1:]] == ["interrupted"] * (N - 1)
        assert all_begin(engines) == [("", str(rank)) for rank in range(N)]
        assert engines.view.apply_async(os.getpid).get(LATEST_S) == pids
        engines.view.apply_async(end).get(LATEST_S)


def test_a_rank_calls_init_alone(engines: Any) -> None:
    """The cell of the others has ended without it: they are named at once, in each way to send; then all can begin."""
    one, all_of_them = engines.client[1].apply_async(begin), engines.view.apply_async(begin, only="1")
    for name, text in (one.get(LATEST_S), all_of_them.get(LATEST_S)[1]):
        assert name == "LaunchError"
        assert "init(): ranks 0, 2 are idle: their cells have ended" in text
    assert all_begin(engines) == [("", str(rank)) for rank in range(N)]


def test_who_runs_another_cell_is_named(engines: Any) -> None:
    """By the ranks that wait in init(), or in shutdown(); when that cell ends without it, so does their wait."""
    view = engines.client[[0, 2]]
    for waits, function in ((begin, "init()"), (end, "shutdown()")):
        other = engines.client[1].apply_async(do_something_else)
        answer = view.apply_async(waits)
        line = f"workbench: {function} waits until every rank calls it. Rank 1 runs another cell, which was sent"
        while not all(line in each for each in said(answer)):
            assert not answer.ready()
            time.sleep(0.05)
        os.kill(engines.pids()[1], signal.SIGINT)
        assert other.get(LATEST_S) == "interrupted"
        if waits is begin:
            assert ["rank 1 is idle" in text for _, text in answer.get(LATEST_S)] == [True, True]
            assert all_begin(engines) == [("", str(rank)) for rank in range(N)]
        else:
            answer.get(LATEST_S)


def said(answer: Any) -> list[str]:
    """What the engines have written to stderr, while they run."""
    found: list[str] = answer.stderr
    return found


def test_init_by_a_broadcast_view(engines: Any) -> None:
    """Nobody is idle by what was said before, in another cell."""
    engines.client[0].apply_async(time.sleep, 1.5).get(LATEST_S)
    found = engines.client.broadcast_view().apply_async(begin, late_s=1.0).get(LATEST_S)
    assert found == [("", str(rank)) for rank in range(N)]


def test_init_on_four_threads_at_once(engines: Any) -> None:
    """One of them joins the job, and so has the rank; shutdown() likewise."""
    assert engines.view.apply_async(on_threads, 4).get(LATEST_S) == [[("", str(rank))] * 4 for rank in range(N)]
