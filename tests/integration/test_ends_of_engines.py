"""However an engine ends, the running cell and the next one say which it was, and no cell waits for it."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import pytest
from cells import START

from workbench import cluster
from workbench.errors import PeerLostError

pytestmark = [
    pytest.mark.usefixtures("forked_engines"),
    pytest.mark.integration,
    pytest.mark.parallel,
    pytest.mark.timeout(120),
]

# What ends an engine amid its cell. A thread's os._exit stands for C code that ends the process.
WAYS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",  # the OOM killer's
    "SIGHUP": "if signal.getsignal(signal.SIGHUP):\n    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # of nohup\n"
    "os.kill(os.getpid(), signal.SIGHUP)",
    "_exit": "os._exit(0)",
    "_exit in a thread": "import threading; threading.Thread(target=os._exit, args=(0,)).start()",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "restart": "get_ipython().kernel.do_shutdown(True)",
}
AT_THE_CELLS_END = ("restart",)


def test_every_way_to_end_is_seen_alike() -> None:
    """SIGTERM amid a collective, by name on all other ranks; then each other way to end, without a job."""
    n = len(WAYS) + 1
    with cluster.up(n, quiet=True, timeout_s=120) as up:
        up.view.execute(START, block=True)
        cell = "print('in the cell', flush=True)\nfor step in range(1_000_000):\n    hvd.allreduce(x, name='forever')"
        cells = [up.client[rank].execute(cell, silent=False, block=False) for rank in range(n)]
        while not all("in the cell" in each.stdout for each in cells):
            time.sleep(0.02)
        os.kill(up.pids()[-1], signal.SIGTERM)
        errors = [each.exception(timeout=60) for each in cells]
        assert f"engine {n - 1} is gone: call engines.rescue()" in str(errors[-1])
        for error in errors[:-1]:
            assert error.ename == "PeerLostError"
            assert f"Rank {n - 1} was lost" in error.evalue
        with pytest.raises(PeerLostError, match=rf"engine {n - 1} is gone: call engines.rescue\(\)"):
            up.view.execute("1", block=True)

        cells = []
        for rank, (name, end) in enumerate(WAYS.items()):
            wait = "" if name in AT_THE_CELLS_END else "\nwhile True:\n    time.sleep(0.1)"
            cells.append(up.client[rank].execute(f"import os, signal, time\n{end}{wait}", silent=False, block=False))
        for rank, name in enumerate(WAYS):
            cells[rank].wait(60)
            assert cells[rank].ready(), name
            while rank in up.client.ids:  # what ends with its cell may have answered
                time.sleep(0.02)
            assert name in AT_THE_CELLS_END or re.search(rf"\b{rank}\b.* gone: call", str(cells[rank].exception()))
        with pytest.raises(PeerLostError, match=r"engines 0, 1, .* are gone: call engines.rescue\(\)"):
            up.view.execute("1", block=True)
        assert up._engines.gone() == list(range(n))


@pytest.mark.parametrize("first", ["the agent", "the hub", "the hub, while the cell is sent"])
def test_who_reports_a_loss_first_does_not_matter(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell amid which a host is lost, a task there and the next cell name host, reason and cure in the same words."""
    with cluster.up(2, quiet=True) as up:
        told = [1] if first == "the agent" else []
        monkeypatch.setattr("workbench.cluster.cells._WHY_S", 60.0)
        monkeypatch.setattr(up._engines, "knows", told.__contains__)
        monkeypatch.setattr(up._engines, "host_lost", lambda ranks: "with host b (its power is cut)" if told else "")
        task = up.client.load_balanced_view([1]).apply_async(time.sleep, 600)

        make = up.client.session.msg

        def kill(kind: str = "", *words: Any, **options: Any) -> Any:
            if 1 in up.client.ids and (not kind or (kind == "execute_request" and first.endswith("sent"))):
                os.kill(up.pids()[1], signal.SIGKILL)
                while 1 in up.client.ids:
                    time.sleep(0.02)
            return kind and make(kind, *words, **options)

        monkeypatch.setattr(up.client.session, "msg", kill)
        cell = up.client[1].execute("import time\ntime.sleep(600)")
        kill()
        told.append(1)
        said = "engine 1 is gone with host b (its power is cut): call engines.rescue() in a cell without %%px."
        assert [each.exception(60).evalue for each in (cell, task)] == 2 * [said]
        with pytest.raises(PeerLostError) as error:
            up.view.execute("1", block=True)
        assert str(error.value) == said
