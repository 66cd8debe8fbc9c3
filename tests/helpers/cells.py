"""Cells on four MPI engines behind ipyparallel, as ``%px`` sends them, and what they came to."""

from __future__ import annotations

import time
from typing import Any

from workbench import cluster

N = 4
CELL_S = 60.0  # a cell that has not come back by then hangs, on a busy machine, too

START = """
import os, signal, time
import numpy as np
import workbench as hvd
hvd.init()
rank = hvd.rank()
x = np.full(3, float(rank))
"""
# Forty collectives, one by one and many at a time, small and large, with names and without: which values differ?
WORKS = """
base = np.arange(5.0) + rank
large = np.full(50_000, 1.0 + rank, np.float32)
right = [hvd.size() * np.arange(5.0) + sum(range(hvd.size())), np.full(50_000, sum(range(hvd.size() + 1)), np.float32)]
wrong = []
def look(found, expected, what):
    if not np.array_equal(found, expected):
        wrong.append((what, np.asarray(found).ravel()[:5].tolist()))
for i in range(8):
    look(hvd.allreduce(base + i, op=hvd.Sum), right[0] + hvd.size() * i, f"unnamed {i}")
    look(hvd.allreduce(base * i, name=f"named{i % 3}", op=hvd.Sum), right[0] * i, f"named {i}")
    look(hvd.broadcast(base + i, i % hvd.size()), np.arange(5.0) + i % hvd.size() + i, f"broadcast {i}")
handles = [hvd.allreduce_async((base, large)[i % 2] * i, op=hvd.Sum) for i in range(16)]
for i, handle in enumerate(handles):
    look(handle.wait(), right[i % 2] * i, f"asynchronous {i}")
"""


def send(up: cluster.Cluster, code: str) -> list[Any]:
    """Start a cell on every engine, as ``%px`` does; one result each."""
    return [up.client[engine].execute(code, silent=False, block=False) for engine in up.view.targets]


BEGUN = "print('begun', flush=True)\n"


def begin(up: cluster.Cluster, code: str) -> list[Any]:
    """Start a cell that says BEGUN, on every engine, and wait until each has said so."""
    results = send(up, code if BEGUN in code else BEGUN + code)
    deadline = time.monotonic() + CELL_S
    while missing := [rank for rank, result in enumerate(results) if "begun" not in result.stdout]:
        assert time.monotonic() < deadline, f"the cell has not begun on ranks {missing}"
        time.sleep(0.01)
    return results


def collect(results: list[Any], limit_s: float = CELL_S) -> dict[int, tuple[str, str]]:
    """Wait for a cell; (class, text) of the exception by rank. Red if an engine does not come back."""
    deadline = time.monotonic() + limit_s
    errors = {}
    for rank, result in enumerate(results):
        result.wait(max(0.1, deadline - time.monotonic()))
        assert result.ready(), f"the cell hangs on rank {rank}"
        error = result.exception()
        if error is not None:
            errors[rank] = (getattr(error, "ename", type(error).__name__), getattr(error, "evalue", str(error)))
    return errors


def run(up: cluster.Cluster, code: str) -> dict[int, tuple[str, str]]:
    """Run a cell on every engine; its exceptions by rank."""
    return collect(send(up, code))


def works(up: cluster.Cluster) -> None:
    """The next cell gives the right values, with and without names."""
    errors = run(up, WORKS)
    assert not errors, "\n".join(f"rank {rank}: {kind}: {text}" for rank, (kind, text) in errors.items())
    assert up.client[:].pull("wrong", block=True) == [[]] * len(up.view.targets)
