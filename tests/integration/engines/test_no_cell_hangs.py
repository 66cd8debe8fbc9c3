"""No cell ever hangs: what goes wrong in a cell ends on all engines with a reason, and the next cell works.

Three real MPI engines behind ipyparallel, as a notebook has them. Each mistake is one that learners make.
"""

from __future__ import annotations

import os
import re
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cells import BEGUN, CELL_S, START, begin, collect, run, send, works
from thorough import once_more, quick

from workbench import cluster
from workbench.cluster import recovery

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(180)]

N = 3
Send = Callable[[cluster.Cluster, str], list[Any]]


@pytest.fixture(scope="module")
def engines(running: cluster.Cluster) -> cluster.Cluster:
    """Three engines that have called init()."""
    assert run(running, START) == {}
    return running


@pytest.fixture(autouse=True)
def whole(engines: cluster.Cluster) -> Iterator[None]:
    """Whatever happens in a test, the next one finds engines that work; and each test ends with such engines."""
    yield
    works(engines)


# --- known at once ------------------------------------------------------------------------------------

# A cell; the ranks that get an error; its kind, and what each error says.
KNOWN = [
    (
        "y = 1\nif rank in (1, 2):\n    hvd.allreduce(x, name='lonely')",
        {1, 2},
        "MissingRanksError",
        [r"^Rank 0 is idle", "lonely", r"waiting in the cell, line 3: hvd.allreduce\(x", "if rank == 0"],
    ),
    (
        "hvd.allreduce(x[:rank], name='sizes')",
        {0, 1, 2},
        "MismatchError",
        [rf"rank {rank}: \[{rank}\]" for rank in range(N)],
    ),
]


def test_what_is_known_at_once(engines: cluster.Cluster) -> None:
    """The ranks that wait are told who does not come, or what differs, with the line of their own cell."""
    for cell, ranks, kind, words in KNOWN:
        errors = run(engines, cell)
        assert set(errors) == ranks, cell
        for found, text in errors.values():
            assert found == kind, cell
            assert all(re.search(word, text) for word in words), (cell, text)


def test_an_asynchronous_tensor_may_wait_for_the_next_cell(engines: cluster.Cluster) -> None:
    """Submitted here by some and there by the rest: nobody waits, so nothing is wrong."""
    assert run(engines, "handle = hvd.allreduce_async(x, name='later') if rank else None") == {}
    time.sleep(0.8)  # so long after a cell's end its ranks count as idle
    assert run(engines, "total = (handle or hvd.allreduce_async(x, name='later')).wait().tolist()") == {}
    assert engines.client[:].pull("total", block=True) == [[(N - 1) / 2] * 3] * N


SLOW = """
from workbench.job.context import HOLDER
control = HOLDER.get().engine._control
def later(*waits, receive=control.receive):
    decisions = receive(*waits)
    if any(item.kind.value == 'renumber' for decision in decisions for item in decision.items if hasattr(item, 'kind')):
        time.sleep(1.0)
    return decisions
if rank == 0:
    control.receive = later
"""


def test_a_rank_that_hears_of_a_failure_late_numbers_as_the_rest(engines: cluster.Cluster) -> None:
    """The notebook tells it with the next cell: each engine knows by itself only when it has read rank 0's word."""
    assert run(engines, SLOW) == {}
    try:
        assert run(engines, "1 / 0")
        works(engines)
    finally:
        run(engines, "if rank == 0:\n    del control.receive")


def test_a_cell_sent_before_a_collective_failed_gets_no_numbers(engines: cluster.Cluster) -> None:
    """What waits in the queue has been sent when nobody knew of it: it could pair one step's tensor with another's."""
    step = "handles = [hvd.allreduce_async(x + i) for i in range(3 - (rank == 1) * uneven)]\n"
    end = "time.sleep(0.3)\nif rank == 1:\n    raise KeyError('lr')\n[handle.wait() for handle in handles]"
    first = send(engines, f"uneven = 1\n{step}{end}")
    second = send(engines, f"uneven = 0\n{step}[handle.wait() for handle in handles]")
    assert set(collect(first)) == set(range(N))
    errors = collect(second)
    assert set(errors) == set(range(N))
    assert all("sent before the notebook knew of it" in errors[rank][1] for rank in (0, 2))


def test_a_cell_behind_a_failed_one_runs(engines: cluster.Cluster) -> None:
    """It was sent while the first one ran, as behind ``%%px --noblock``: it runs on all ranks, interrupted or not."""
    first = send(engines, "print('begun', flush=True)\nif rank == 1:\n    time.sleep(1000)")
    second = send(engines, "behind = rank")
    while not first[1].stdout:
        time.sleep(0.01)
    engines.client.send_signal(signal.SIGINT, targets=1, block=True)
    assert set(collect(first)) == {1}
    assert collect(second) == {}
    assert engines.client[:].pull("behind", block=True) == list(range(N))


def test_a_pool_of_processes_ends(engines: cluster.Cluster) -> None:
    """Its workers are forked from an engine, and end by the SIGTERM that the pool sends them."""
    assert (
        run(
            engines,
            "import multiprocessing\nfor _ in range(3):\n    multiprocessing.Pool(2).__exit__(None, None, None)",
        )
        == {}
    )


def test_view_apply_counts_as_a_cell(engines: cluster.Cluster) -> None:
    """``view.apply`` fires none of IPython's events; still, slow ranks are waited for, and missing ones are named."""

    def collective(seconds: float) -> list[float]:
        import time

        import numpy as np

        import workbench as hvd

        time.sleep(seconds * hvd.rank())
        return hvd.allreduce(np.ones(2), name="applied", op=hvd.Sum).tolist()

    collective.__module__ = "__main__"  # as in a notebook: the engines need no file of the tests
    assert engines.client[:].apply_async(collective, 0.8).get(CELL_S) == [[N] * 2] * N
    result = engines.client[0].apply_async(collective, 0.0)
    result.wait(CELL_S)
    assert "MissingRanksError" in str(result.exception())


# --- late, and not idle -------------------------------------------------------------------------------


def send_one_by_one(up: cluster.Cluster, code: str) -> list[Any]:
    """Start a cell by a call for each engine."""
    return [up.client[i].execute(code, silent=False, block=False) for i in range(N)]


@pytest.mark.parametrize(("late", "sends"), [(2, send), once_more(1, send_one_by_one), once_more(0, send)])
def test_an_engine_that_begins_late_is_waited_for(
    engines: cluster.Cluster, late: int, sends: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped, and gets its cell seconds after the others: it is named, and nobody is told that it is idle.

    It raised in its last cell: that error is not the next cell's.
    """
    assert set(run(engines, f"if rank == {late}:\n    1 / 0")) == {late}
    said: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: said.append(" ".join(map(str, words))))
    pid = engines.pids()[late]
    os.kill(pid, signal.SIGSTOP)
    try:
        results = sends(engines, "totals = hvd.allreduce(x, op=hvd.Sum).tolist()")
        while not any(f"engine {late} does not run: its process {pid} is stopped" in line for line in said):
            assert not any(each.ready() for each in results)
            time.sleep(0.05)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert collect(results) == {}
    assert engines.client[:].pull("totals", block=True) == [[3.0] * 3] * N


# --- Ctrl-C -------------------------------------------------------------------------------------------

STUCK = {
    "a sleep": "if rank == 2:\n    time.sleep(1000)\nhvd.allreduce(x, name='sleeper')",
    "a busy loop": "while rank == 0:\n    pass\nhvd.allreduce(x)",
    "a join": "hvd.join() if rank == 1 else [time.sleep(0.01) or hvd.allreduce(x) for _ in range(10**6)]",
}


@pytest.mark.parametrize("how", quick(STUCK, "a busy loop"))
def test_ctrl_c_ends_a_cell(engines: cluster.Cluster, how: str) -> None:
    """While the rest waits for a rank that is busy for ever, Ctrl-C ends the cell on all, and the next one works."""
    results = begin(engines, STUCK[how])
    time.sleep(0.5)  # most of them wait by then; who has not come so far is interrupted before
    assert not any(result.ready() for result in results)
    engines.client.send_signal(signal.SIGINT, block=True)
    errors = collect(results)
    assert set(errors) == set(range(N))
    assert {kind for kind, _ in errors.values()} <= {"KeyboardInterrupt", "RankFailedError", "MissingRanksError"}
    assert any(kind == "KeyboardInterrupt" for kind, _ in errors.values())


# --- death --------------------------------------------------------------------------------------------

DEATHS = {
    "before": "if rank == {who}:\n    os.kill(os.getpid(), signal.SIGKILL)\nhvd.allreduce(x)",
    "during": "if rank == {who}:\n    import threading\n    threading.Timer(0.3, os._exit, (9,)).start()\n"
    "for step in range(10**6):\n    hvd.allreduce(np.ones(1 << 20), name='large')",
}


@pytest.mark.parametrize(("when", "who"), [("during", 2), once_more("before", 1), once_more("during", 0)])
def test_a_killed_rank(engines: cluster.Cluster, when: str, who: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The cell ends on all, the survivors name the dead one, and rescue() gives as many healthy engines again."""
    begun = time.monotonic()
    errors = run(engines, DEATHS[when].format(who=who))
    assert set(errors) == set(range(N))
    assert time.monotonic() - begun < CELL_S / 2
    for rank in set(range(N)) - {who}:
        kind, text = errors[rank]
        assert kind == "PeerLostError", errors
        assert f"Rank {who} was lost" in text
    view = engines.view
    engines.rescue()
    said = capsys.readouterr().out
    assert f"rank {who} is gone" in said
    assert f"{N} engines started anew" in said
    assert engines.view is not view
    assert engines.client.ids == list(range(N))
    assert run(engines, START) == {}


@pytest.mark.thorough
def test_rescue_at_the_very_moment_of_death(engines: cluster.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The process has been killed, but nobody has noticed yet, perhaps not even the operating system."""
    os.kill(engines.pids()[2], signal.SIGKILL)
    engines.rescue()
    assert "engines started anew" in capsys.readouterr().out
    assert run(engines, START) == {}


def test_rescue_interrupts_who_is_busy(engines: cluster.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started anew, and no variable is lost, where Ctrl-C is enough."""
    results = begin(engines, f"kept = rank\n{BEGUN}while rank == 1:\n    time.sleep(0.1)")
    engines.rescue()
    assert "rank 1 is interrupted" in capsys.readouterr().out
    assert collect(results)[1][0] == "KeyboardInterrupt"
    assert engines.client[:].pull("kept", block=True) == list(range(N))
    engines.rescue()
    assert "nothing to rescue" in capsys.readouterr().out


def test_rescue_lets_a_slow_engine_end(engines: cluster.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """It is late, as every engine is on a busy machine, but it comes: only the other one is interrupted."""
    results = begin(engines, "time.sleep(0.8 * (rank == 2))\nwhile rank == 1:\n    time.sleep(0.1)")
    engines.rescue()
    assert capsys.readouterr().out == f"rank 1 is interrupted; all {N} engines answer\n"
    assert set(collect(results)) == {1}


def test_rescue_replaces_who_does_not_listen(
    engines: cluster.Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that Ctrl-C does not end is started anew, with all the others."""
    monkeypatch.setattr(recovery, "_ANSWER_S", 1.0)
    deaf = "if rank == 2:\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    results = begin(engines, f"{deaf}{BEGUN}if rank == 2:\n    time.sleep(1000)")
    engines.rescue()
    assert "rank 2 is not even ended by Ctrl-C" in capsys.readouterr().out
    assert results[2].exception() is not None
    assert run(engines, START) == {}


# --- mixtures -----------------------------------------------------------------------------------------


def test_await_outside_of_a_function(engines: cluster.Cluster) -> None:
    """Such a cell is answered, what it raises is shown, and Ctrl-C ends it."""
    both = "import asyncio\nboth = await asyncio.gather(asyncio.sleep(0.01, 1), asyncio.sleep(0, 2))"
    assert not run(engines, both)
    assert engines.view["both"] == [[1, 2]] * N
    assert {kind for kind, _ in run(engines, "await asyncio.sleep(0)\n1 / 0").values()} == {"ZeroDivisionError"}
    results = begin(engines, "await asyncio.sleep(60)")
    engines.client.send_signal(signal.SIGINT, targets=list(range(N)), block=True)
    assert {kind for kind, _ in collect(results).values()} == {"KeyboardInterrupt"}
    assert not run(engines, both)


@pytest.mark.parametrize("when", ["init_metadata", once_more("finish_metadata")], ids=["before the cell", "after it"])
def test_ctrl_c_beside_a_cell(engines: cluster.Cluster, when: str, tmp_path: Path) -> None:
    """It comes while a kernel has not begun its cell, or has ended it and writes the answer: the answer comes.

    The moment is short, so the method of the kernel's that is called in it is made slow.
    """
    slow = f"""
        kernel, whole = get_ipython().kernel, get_ipython().kernel.{when}
        def slowly(*args, **kwargs):
            open("{tmp_path}/" + str(rank), "w").close()
            time.sleep(1.5)
            return whole(*args, **kwargs)
        kernel.{when} = slowly
    """
    assert not run(engines, textwrap.dedent(slow))
    for path in tmp_path.iterdir():
        path.unlink()
    results = send(engines, "three = 1 + 2")
    while len(list(tmp_path.iterdir())) < N:
        time.sleep(0.01)
    engines.client.send_signal(signal.SIGINT, targets=list(range(N)), block=True)
    assert not collect(results)
    assert not run(engines, f"del kernel.{when}")
    assert engines.view["three"] == [3] * N
    works(engines)
