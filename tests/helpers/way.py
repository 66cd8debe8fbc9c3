"""Which files and functions one training step runs: ``mpiexec -n 2 python tests/helpers/way.py``.

Python tells of every call, on every thread. Counted are the calls of all ranks from ``zero_grad()`` to the end of
``step()``: in the first step, and in the steady state. So are those of one ``allreduce`` of a numpy array, and those of
a step of ``examples/nano.py``. Rank 0 prints the figures; with ``--json`` the functions, too, by file, in the order of
their first calls. Of many steps that counts which ran the least: a busy machine adds waits. The reading order in
``docs/explanation/reading.md`` is held against them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
OURS = (f"{ROOT}/workbench/", f"{ROOT}/examples/")
STEPS = 30  # the least of them counts: in some a heartbeat is due, or a rank waits for so long that it says so

Called = dict[str, list[str]]
"""File → functions, each in the order of their first calls."""


class Calls:
    """Hears of all calls on threads that begin after it."""

    def __init__(self) -> None:
        self._on = False
        self._called: Called = {}
        threading.setprofile(self._hear)
        sys.setprofile(self._hear)

    def of(self, action: Callable[[], object]) -> Called:
        """What it calls, on all threads of this rank."""
        self._called = {}
        self._on = True
        action()
        self._on = False
        return self._called

    def _hear(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self._on and event == "call" and code.co_filename.startswith(OURS) and not code.co_name.startswith("<"):
            functions = self._called.setdefault(code.co_filename[len(str(ROOT)) + 1 :], [])
            name = f"{code.co_name}, line {code.co_firstlineno}"
            if name not in functions:
                functions.append(name)


def main() -> None:
    """On every rank."""
    calls = Calls()  # before init(), which starts the threads
    import workbench
    import workbench.torch as hvd

    sys.path.insert(0, str(ROOT / "examples"))
    import nano

    hvd.init()
    with tempfile.TemporaryDirectory() as folder:
        engine = nano.Engine(hvd.rank(), hvd.size(), hvd.broadcast_object(folder))
        hvd.barrier()
    ours, theirs = (stepping(optimizer) for optimizer in (hvd.DistributedOptimizer, _nano(nano, engine)))
    actions = {
        "first step": ours,
        "step": ours,
        "allreduce": lambda: workbench.allreduce(np.ones(100_000), name="x"),
        "nano": theirs,
    }
    found: dict[str, Called] = {}
    for name, action in actions.items():
        times = []
        for _ in range(1 if name == "first step" else STEPS):
            hvd.barrier()
            times.append(merged(hvd.allgather_object(calls.of(action))))
        found[name] = min(times, key=lambda files: sum(map(len, files.values())))
    engine.close()
    if hvd.rank() == 0:
        print(json.dumps(found) if "--json" in sys.argv else "\n".join(told(found)))
    hvd.shutdown()


def _nano(nano: Any, engine: Any) -> Callable[..., Any]:
    return lambda sgd, named: nano.DistributedOptimizer(engine, sgd, named)


def stepping(distributed: Callable[..., Any]) -> Callable[[], None]:
    """A step of a small network."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
    optimizer = distributed(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters())
    x, y = torch.randn(32, 100), torch.randint(0, 10, (32,))

    def step() -> None:
        optimizer.zero_grad()
        loss: Any = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def merged(ranks: list[Called]) -> Called:
    """All ranks' as one, rank 0's first."""
    found: Called = {}
    for called in ranks:
        for file, functions in called.items():
            found[file] = list(dict.fromkeys([*found.get(file, []), *functions]))
    return found


def told(found: dict[str, Called]) -> list[str]:
    """A line for each."""
    lines = []
    for name, files in found.items():
        lines.append(f"{name:12} {sum(map(len, files.values())):4} functions in {len(files):3} files")
    return lines


if __name__ == "__main__":
    main()
