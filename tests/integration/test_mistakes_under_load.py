"""Random mistakes on engines of a busy machine: no cell stands, no rank that is right is blamed, no value is wrong.

``WORKBENCH_TEST_MISTAKES`` is their number, ``WORKBENCH_TEST_SEED`` draws them.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import pytest
from cells import CELL_S, START, N, collect, send, works

from workbench import cluster

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.thorough, pytest.mark.timeout(5400)]

MISTAKES = int(os.environ.get("WORKBENCH_TEST_MISTAKES", "200"))
SEED = int(os.environ.get("WORKBENCH_TEST_SEED", "7"))
LOAD = 10  # busy loops beside
LONGEST_S = 10.0  # of a cell that is not busy itself

Errors = dict[int, tuple[str, str]]
_BLAMED = re.compile(r"[Rr]anks? ((?:\d+(?:, )?)+) (?:is|are|raised|has left|was lost)")


@dataclass(frozen=True)
class Mistake:
    """A cell that goes wrong.

    Args:
        code: what runs; ``{who}`` is the rank that differs from the rest.
        others: are the rest the ones that do not come?
        blame: may an error name a culprit at all? Else the ranks disagree, or nothing is wrong.
        fails: must some rank get an error?
        after: a second cell, as a learner would run it next.
        repair: what brings the engines back: nothing, ``rescue``, or a cell.
    """

    code: str
    others: bool = False
    blame: bool = True
    fails: bool = True
    after: str = ""
    repair: str = ""

    def culprits(self, who: int) -> Set[int]:
        """The ranks that an error may name."""
        return set() if not self.blame else set(range(N)) - {who} if self.others else {who}


DELETE = (
    "import sys\nif rank == {who}:\n    for name in [m for m in sys.modules if m.partition('.')[0] == 'workbench']:\n"
)
AGAIN = "import workbench as hvd\nhvd.init()\nhvd.allreduce(x)"
DEEP = (
    "def down(n):\n    return along(n)\ndef along(n):\n    return down(n + 1)\n"  # which IPython does not fold
    "if rank == {who}:\n    down(0)\n"
)
THREADS = "hvd.shutdown()\nimport threading\nall4 = [threading.Thread(target=hvd.init) for _ in range(4)]\n"
CATALOGUE = (
    Mistake("if rank == {who}:\n    hvd.allreduce(x)", others=True),
    Mistake("if rank != {who}:\n    hvd.allreduce(x, name='t')"),
    Mistake("if rank == {who}:\n    1 / 0\nhvd.allreduce(x)"),
    Mistake("hvd.allreduce(x)\nif rank == {who}:\n    1 / 0\nhvd.broadcast(x, 0)"),
    Mistake("for i in range(3 + (rank == {who})):\n    hvd.allreduce(x, name=f's{{i}}')", others=True),
    Mistake("for i in range(3 - (rank == {who})):\n    hvd.allreduce(x)"),
    Mistake("hvd.allreduce(x, name='odd' if rank == {who} else 'even')", blame=False),
    Mistake("hvd.allreduce(x[:2] if rank == {who} else x, name='shape')", blame=False),
    Mistake("(hvd.allgather if rank == {who} else hvd.allreduce)(x, name='verb')", blame=False),
    Mistake("hvd.broadcast(x, int(rank == {who}), name='root')", blame=False),
    Mistake("hvd.barrier() if rank == {who} else hvd.allreduce(x)", blame=False),
    Mistake("if rank == {who}:\n    1 / 0\nhvd.join()"),
    Mistake("if rank != {who}:\n    hvd.join()"),
    Mistake("if rank == {who}:\n    raise SystemExit('enough')\nhvd.allreduce(x)"),
    Mistake("if rank == {who}:\n    time.sleep(1.5)\n    raise ValueError('late')\nhvd.allreduce(x)"),
    Mistake("if rank == {who}:\n    time.sleep(1.5)\nhvd.allreduce(x)", fails=False),
    Mistake("if rank == {who}:\n    import torch\n    torch.ones(2) @ torch.ones(3)\nhvd.allreduce(x)"),
    Mistake(DEEP + "hvd.allreduce(x)"),
    Mistake("hvd.allreduce_async(x, name='left') if rank == {who} else None\n1 / (rank - {who})"),
    Mistake("if rank == {who}:\n    hvd.shutdown()", fails=False, after=AGAIN, repair="rescue"),
    Mistake("hvd.shutdown()\nif rank == {who}:\n    hvd.init()", others=True, repair="hvd.init()"),
    Mistake("hvd.shutdown()\nif rank != {who}:\n    hvd.init()", repair="hvd.init()"),
    Mistake(DELETE + "        del sys.modules[name]", fails=False, after=AGAIN, repair="rescue"),
    Mistake(THREADS + "[t.start() for t in all4]\n[t.join() for t in all4]\nhvd.allreduce(x)", fails=False),
    Mistake("if rank == {who}:\n    os.kill(os.getpid(), 9)\nhvd.allreduce(x)", repair="rescue"),
    Mistake("if rank == {who}:\n    os._exit(3)\nhvd.allreduce(x)", repair="rescue"),
)


def stopped_before(up: cluster.Cluster, who: int, seconds: float) -> Callable[[], None]:
    """Stop a rank; what lets it go on, after so long."""
    pid = up.pids()[who]
    os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    return go_on


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Processes that compute for ever."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


class Run:
    """Cells, how long the longest took, and what was wrong with them."""

    def __init__(self, up: cluster.Cluster) -> None:
        self.up, self.seconds, self.wrong = up, list[tuple[float, str]](), list[str]()

    def cell(self, code: str, late: Callable[[], None] = lambda: None, own_s: float = 0.0) -> Errors:
        """Run it on all engines."""
        begun = time.monotonic()
        results: list[Any] = send(self.up, code)
        late()
        found = collect(results)
        took = time.monotonic() - begun - own_s
        self.seconds.append((took, code))
        if took > LONGEST_S:
            self.wrong.append(f"{took:.1f} s: {code}\n{found}")
        return found

    def judge(self, mistake: Mistake, who: int, found: Errors) -> None:
        """Is somebody blamed who is right?"""
        for rank, (kind, text) in found.items():
            first = text.splitlines()[0] if text else ""
            blamed = {int(each) for match in _BLAMED.findall(first) for each in match.split(",") if each.strip()}
            if blamed - mistake.culprits(who):
                self.wrong.append(
                    f"rank {rank} blames {sorted(blamed)} for rank {who}'s {mistake.code!r}: {kind}: {first}"
                )

    def start(self) -> None:
        """Cells that are busy themselves: they import."""
        for code in (START, "import torch"):
            results = send(self.up, code)
            self.up.client.wait(results, timeout=10 * CELL_S)
            assert collect(results) == {}

    def repair(self, how: str) -> None:
        """The engines are as before."""
        if how == "rescue":
            self.up.rescue(timeout_s=120.0, quiet=True)
            self.start()
        elif how and (errors := self.cell(how)):
            self.wrong.append(f"{how!r} after a mistake: {errors}")


def test_random_mistakes_under_load() -> None:
    """Each with the values of 100 collectives afterwards; now and then an engine is stopped before a good cell."""
    dice = random.Random(SEED)
    with cluster.up(N, quiet=True, timeout_s=120.0) as up, busy(LOAD):
        run = Run(up)
        run.start()
        for number in range(1, MISTAKES + 1):
            mistake, who = dice.choice(CATALOGUE), dice.randrange(N)
            if dice.random() < 0.2:
                seconds = dice.choice([1.0, 1.5, 3.0])
                late = stopped_before(up, dice.randrange(N), seconds)
                if found := run.cell("total = hvd.allreduce(x, op=hvd.Sum)", late, seconds):
                    run.wrong.append(f"all were right, one of them late: {found}")
            found = run.cell(mistake.code.format(who=who))
            if bool(found) != mistake.fails:
                run.wrong.append(f"{mistake.code!r} on rank {who} came to {found}")
            run.judge(mistake, who, found)
            if mistake.after:
                run.judge(mistake, who, {r: e for r, e in run.cell(mistake.after).items() if r != who})
            run.repair(mistake.repair)
            try:
                works(up)
            except AssertionError as error:
                run.wrong.append(f"after {mistake.code!r} on rank {who}: {error}")
                run.repair("rescue")
            took = sorted(seconds for seconds, _ in run.seconds)
            cells = f"{len(took)} cells: median {took[len(took) // 2]:.1f} s, longest {took[-1]:.1f} s"
            print(f"{number} mistakes, {cells}; wrong: {len(run.wrong)}", flush=True)
    assert not run.wrong, "\n\n".join(run.wrong)
