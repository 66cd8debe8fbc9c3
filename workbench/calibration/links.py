"""How long reductions take on the ranks that run, and the constants of the ways between them.

An array of each size is reduced in place in memory that the ranks share, as the gradients are. The time of a repetition
is that of the slowest rank. First the ranks of each host, all hosts at once; then all ranks, in two levels (see
:mod:`workbench.transport.hierarchical`): what the first level takes is subtracted, and the rest is the link's.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from workbench.collectives.reduction import wire_dtype
from workbench.core.handle import Handle
from workbench.core.messages import Kind
from workbench.errors import WorkbenchError
from workbench.job import api
from workbench.job.api import Array
from workbench.job.entries import entry, submit
from workbench.job.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from workbench.simulate.machines import Machines, Wire
from workbench.simulate.measured.fit import DOUBT, Fit, fit
from workbench.simulate.measured.links import Links, reduction
from workbench.training.memory import zeros

SIZES = tuple(1 << shift for shift in range(16, 25, 2))  # bytes: 64 KiB to 16 MiB, a bucket's
_FEWEST, _MOST = 5, 100  # repetitions
_SMALL = 1e-5  # as gradients are
_REPETITION_S = 0.01
_FEWEST_SIZES = 3


def measure_links(seconds: float = 4.0, doubt: float = DOUBT, wire: str = "float32") -> Links:
    """Measure; all ranks call it, and all get the same.

    Args:
        seconds: how long, about.
        doubt: how much of it is allowed, see :class:`~workbench.simulate.measured.fit.Fit`.
        wire: dtype of what is reduced: float32, float16 or bfloat16.

    Raises:
        ValueError: another dtype.
        WorkbenchError: there is one rank only, or the hosts have different numbers of ranks.
        NoisyError: the times differ too much.
    """
    if wire not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"wire is {wire!r}: float32, float16 or bfloat16 is needed.")
    hosts, per_host = api.cross_size(), api.local_size()
    if api.size() == 1 or not api.is_homogeneous():
        have = "there is one rank" if api.size() == 1 else "the hosts have different numbers of ranks"
        raise WorkbenchError(f"workbench.measure() needs at least 2 ranks, and the same number on each host; {have}.")
    budget = seconds / ((hosts > 1) + (per_host > 1) + 0.2)
    announce_s = min(float(np.median(_times(4, global_process_set, budget / 15))) for _ in range(3))
    inside = _inside(hosts, per_host, budget, announce_s, doubt, wire) if per_host > 1 else None
    if hosts == 1:
        return Links(hosts, per_host, inside, None, announce_s, wire)
    sizes, times = _sizes(global_process_set, budget, wire)
    host = Links(1, per_host, inside, None, announce_s)
    first = [reduction(host.machines(per_host))(size) for size in sizes] if inside else [0.0] * len(sizes)
    besides = [announce_s + level for level in first]
    between = _fitted("between hosts", Machines(hosts, per_host, Wire(0, 0), Wire(1, 0)), sizes, times, besides, doubt)
    return Links(hosts, per_host, inside, between, announce_s, wire)


def _inside(hosts: int, per_host: int, budget: float, announce_s: float, doubt: float, wire: str) -> Fit:
    """Of the slowest host."""
    mine, own = global_process_set, api.cross_rank()
    sets = [add_process_set(_ranks(host)) for host in range(hosts)] if hosts > 1 else []
    try:
        mine = sets[own] if sets else mine
        sizes, times = _sizes(mine, budget, wire)
    finally:
        for each in sets:
            remove_process_set(each)
    besides = [announce_s] * len(sizes)
    return _fitted("in a host", Machines(1, per_host, Wire(1, 0), Wire(0, 0)), sizes, times, besides, doubt)


def _ranks(host: int) -> list[int]:
    """Those of a host, by what each says about itself."""
    where = api.allgather(np.array([api.cross_rank()]), "workbench.measure.hosts")
    return [rank for rank, its in enumerate(where.tolist()) if its == host]


def _fitted(
    what: str, latencies: Machines, sizes: list[int], times: list[list[float]], besides: list[float], doubt: float
) -> Fit:
    """Fit the one wire whose latency is 1 s in ``latencies``; what bytes it carries, the same schedule says."""
    both = (latencies.inside, latencies.between)
    inside, between = (Wire(0, wire.latency_s) for wire in both)
    bytes_only = Machines(latencies.hosts, latencies.per_host, inside, between)
    steps = [reduction(latencies)(size) for size in sizes]
    sent = [reduction(bytes_only)(size) for size in sizes]
    return fit(what, steps, sent, times, besides, doubt)


def _sizes(process_set: ProcessSet, budget: float, wire: str) -> tuple[list[int], list[list[float]]]:
    """Sizes, as long as there is time, and their times."""
    sizes, times = list[int](), list[list[float]]()
    for size in SIZES:
        if len(sizes) >= _FEWEST_SIZES and _FEWEST * 4 * min(times[-1]) > budget / 3:
            break  # the next size takes four times as long
        sizes.append(size)
        times.append(_times(size, process_set, budget / len(SIZES), wire))
    return sizes, times


def _times(nbytes: int, process_set: ProcessSet, budget: float, wire: str = "float32") -> list[float]:
    """Of each repetition the slowest rank's time for one reduction; the same on all ranks, all of which call it.

    A repetition is as many reductions, one after the other, as take some 10 ms: links may let a few packets pass faster
    than many. The first ones say how many.
    """
    name, array = f"workbench.measure.{wire}.{nbytes}", gradients(nbytes, wire)

    def once(reductions: int) -> float:
        api.barrier(process_set)
        begin = time.perf_counter()
        for _ in range(reductions):
            begin_average(name, array, wire, process_set).wait()
        return (time.perf_counter() - begin) / reductions

    warm = np.array([min(once(1) for _ in range(3))])
    longest = float(api.allreduce(warm, f"{name}.warm", op=api.Max)[0])  # of all hosts
    reductions = max(1, round(_REPETITION_S / longest))
    repetitions = int(np.clip(budget / (longest * reductions), _FEWEST, _MOST))
    times = np.array([once(reductions) for _ in range(repetitions)])
    return [float(each) for each in api.allreduce(times, f"{name}.times", op=api.Max)]


def gradients(nbytes: int, wire: str) -> Array:
    """So many bytes as they travel, in a bucket."""
    dtype = str(wire_dtype(wire))
    array = zeros(nbytes // np.dtype(dtype).itemsize, dtype)
    if wire == "float16":  # arithmetic takes longer with values as small as gradients, and not with zeros
        array[...] = _SMALL * np.random.default_rng(0).standard_normal(len(array), np.float32)
    return array


def begin_average(name: str, array: Array, wire: str, process_set: ProcessSet = global_process_set) -> Handle:
    """Reduce in place."""
    fields: dict[str, Any] = {"dtype": wire, "op": api.Average, "process_set": process_set}
    return submit([entry(Kind.ALLREDUCE, array, name, target=array, **fields)], at_once=True)[0]
