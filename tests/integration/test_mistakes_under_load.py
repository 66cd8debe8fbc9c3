"""Random mistakes on engines of a busy machine: no cell stands, no error names a wrong rank or line, no value is wrong.

``WORKBENCH_TEST_MISTAKES`` is their number, ``WORKBENCH_TEST_SEED`` draws them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cells import CELL_S, START, N, collect, send, works
from mistakes import CATALOGUE, MISTAKES, Mistake, false_words

from workbench import cluster

SEED = int(os.environ.get("WORKBENCH_TEST_SEED", "7"))
LOAD = 10  # busy loops beside
LONGEST_S = 10.0  # of a cell that is not busy itself

Errors = dict[int, tuple[str, str]]


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
        """Does an error name a rank or a line that is not the planted one?"""
        for rank, (kind, text) in found.items():
            for false in false_words(mistake, who, rank, text):
                self.wrong.append(f"{false}: on rank {rank}, of rank {who}'s {mistake.code!r}: {kind}: {text}")

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


@pytest.mark.integration
@pytest.mark.parallel
@pytest.mark.thorough
@pytest.mark.timeout(5400)
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
                errors = run.cell(mistake.after.code)
                run.judge(mistake.after, who, {rank: error for rank, error in errors.items() if rank != who})
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
