"""Ranks of ``examples/nano.py`` that fail, each in a process of its own: ``python nano_ranks.py`` prints how all end.

The ranks are forked before torch has done anything, so that it is imported once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import nano

DEADLINE_S = 5.0
SIZE = 3
NUMBERS = np.ones(2_000_000)


def never_comes(engine: Any) -> None:
    """Rank 1 is not started, see :func:`rank`."""


def killed(engine: Any) -> None:
    """Rank 1 is killed while the others wait for it."""
    if engine.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    engine.submit("sum", NUMBERS.copy(), "x").result()


def killed_amid_a_transfer(engine: Any) -> None:
    """Rank 1 has sent its first chunk."""
    if engine.rank == 1:
        real, sent = engine._link.sendrecv, []
        engine._link.sendrecv = lambda *args: os.kill(os.getpid(), signal.SIGKILL) if sent else sent.append(real(*args))
    engine.submit("sum", NUMBERS.copy(), "x").result()


def rank_0_killed(engine: Any) -> None:
    """Rank 0 is where the coordinator is."""
    if engine.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    engine.submit("sum", NUMBERS.copy(), "x").result()


def stopped_amid_a_transfer(engine: Any) -> None:
    """Rank 1 has not ended, and does nothing."""
    if engine.rank == 1:
        engine._link.sendrecv = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
    engine.submit("sum", NUMBERS.copy(), "x").result()


def raises(engine: Any) -> None:
    """A mistake in rank 1's code."""
    if engine.rank == 1:
        raise ZeroDivisionError("in the script")
    engine.submit("sum", NUMBERS.copy(), "x").result()


def withholds(engine: Any) -> None:
    """Rank 1 submits x and z, but not y; what it submits afterwards gets the same error."""
    futures = [engine.submit("sum", np.ones(3), name) for name in "xyz" if (engine.rank, name) != (1, "y")]
    for future in futures:
        future.result()
    while not engine._failure:
        time.sleep(0.05)
    engine.submit("sum", np.ones(3), "later")


SCENES: dict[str, Callable[[Any], None]] = {
    scene.__name__: scene
    for scene in (
        never_comes,
        killed,
        killed_amid_a_transfer,
        rank_0_killed,
        stopped_amid_a_transfer,
        raises,
        withholds,
    )
}


def rank(scene: str, number: int, folder: str, gate: Any) -> None:
    """One rank writes with which error it has ended. It begins when all are there, so none is late by chance."""
    gate.wait()
    try:
        SCENES[scene](nano.Engine(number, SIZE, folder, DEADLINE_S))
        said = "no error"
    except Exception as error:  # noqa: BLE001 - it is written down
        said = f"{type(error).__name__}: {error}"
    Path(folder, f"said by {number}").write_text(said)
    os._exit(0)


def main() -> None:
    """All scenes at once, for they mostly wait; scene → rank → error."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [(scene, number) for scene in SCENES for number in range(SIZE) if (scene, number) != ("never_comes", 1)]
        gate = fork.Barrier(len(ranks))
        for scene in SCENES:
            Path(folder, scene).mkdir()
        started = [fork.Process(target=rank, args=(*each, f"{folder}/{each[0]}", gate)) for each in ranks]
        for process in started:
            process.start()
        until = time.monotonic() + 8 * DEADLINE_S
        while sum(process.is_alive() for process in started) > 1 and time.monotonic() < until:
            time.sleep(0.05)
        for process in started:
            process.kill()  # the one that is stopped
            process.join()
        files = {scene: sorted(Path(folder, scene).glob("said by *")) for scene in SCENES}
        print(json.dumps({scene: {file.name[-1]: file.read_text() for file in files[scene]} for scene in SCENES}))


if __name__ == "__main__":
    main()
