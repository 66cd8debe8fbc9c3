"""A rank that another user attacks while it meets the others: ``meets.py FOLDER [again]``; see ``stranger.py``."""

import sys
import time
from pathlib import Path

import numpy as np

import workbench as hvd
from workbench import config

FOLDER = Path(sys.argv[1])


def wait_for(name: str, timeout_s: float = 30.0) -> None:
    """Until the stranger has said so."""
    until = time.monotonic() + timeout_s
    while not (FOLDER / name).exists() and time.monotonic() < until:
        time.sleep(0.01)


def right() -> bool:
    """Do the ranks know each other's values?"""
    rank = hvd.rank()
    total = hvd.allreduce(np.full(100_000, rank + 1.0), op=hvd.Sum)
    swapped = hvd.alltoall(np.arange(2.0) + 10 * rank)[0]
    return bool((total == 3.0).all()) and swapped.tolist() == [rank, rank + 10]


wait_for("ready")
if sys.argv[2:] == ["again"]:
    hvd.init()
    assert right()
    hvd.shutdown()
    (FOLDER / "again").touch()
if config.launch().rank == 1:
    wait_for("done")
hvd.init()
print("right" if right() else "WRONG", flush=True)
hvd.shutdown()
