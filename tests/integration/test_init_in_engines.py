"""``init()`` in a notebook's engines, where one rank never comes: the cell ends, and the next one works."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ipyparallel import interactive

from workbench import cluster

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(180)]
N = 3
LATEST_S = 60.0  # init()'s own deadline is twice as long


@pytest.fixture
def engines() -> Iterator[Any]:
    """Three engines."""
    yield cluster.up(N, quiet=True)
    cluster.down()


@interactive
def begin() -> tuple[str, str]:
    """What ``init()`` raises on an engine, and its text."""
    import workbench as hvd

    try:
        hvd.init()
    except BaseException as error:  # noqa: BLE001 - the test looks at it
        return type(error).__name__, str(error)
    return "", str(hvd.rank())


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

    time.sleep(3.0)
    os.kill(os.getpid(), 9)


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
        answer = engines.client[0].apply_async(begin)
        time.sleep(1.0)
        os.kill(pids[0], signal.SIGINT)
        assert answer.get(LATEST_S)[0] == "KeyboardInterrupt"
        assert all_begin(engines) == [("", str(rank)) for rank in range(N)]
        assert engines.view.apply_async(os.getpid).get(LATEST_S) == pids
        engines.view.apply_async(end).get(LATEST_S)
