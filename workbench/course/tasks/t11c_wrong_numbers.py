"""Lesson 11, find the bug: cards 8 to 10. Nothing hangs; samples, seconds and shares are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.common.text import count
from workbench.course.drawing import coverage, space_time
from workbench.course.judging.card import CommCard, PlainCard
from workbench.course.judging.task import Case, stated
from workbench.course.simulator import Run, simulate
from workbench.course.simulator.communicator import Array
from workbench.observe.figure import Figure

# --- 8 ------------------------------------------------------------------------------------------------


def shards(n: Any, epoch: Any, rank: Any, size: Any) -> Any:
    """Return this rank's samples of an epoch. Together the ranks have all n, each once; every epoch shuffles anew."""
    random = np.random.default_rng(epoch)
    order = random.permutation(n)
    return order[rank::size]


def _dealt(function: Callable[..., Any], n: int, epoch: int, size: int) -> list[list[int]]:
    return [[int(one) for one in function(n, epoch, rank, size)] for rank in range(size)]


def complete(function: Callable[..., Any]) -> str:
    """all samples, each once."""
    for n, size in ((4, 2), (9, 3), (10, 3), (145, 4)):
        for epoch in range(3):
            dealt = _dealt(function, n, epoch, size)
            counts = np.bincount([one for mine in dealt for one in mine], minlength=n)
            if len(counts) > n:
                return f"{n} samples, {size} ranks, epoch {epoch}: there is no sample {len(counts) - 1}"
            if any(counts != 1):
                missed, twice = np.flatnonzero(counts == 0), np.flatnonzero(counts > 1)
                found = [_some("no rank has", missed), _some("more than one rank has", twice)]
                return f"{n} samples, {size} ranks, epoch {epoch}: {'; '.join(text for text in found if text)}"
            if max(map(len, dealt)) - min(map(len, dealt)) > 1:
                return f"{n} samples, {size} ranks: the ranks have {', '.join(str(len(mine)) for mine in dealt)}"
    return ""


def _some(words: str, samples: Array) -> str:
    """Empty if there are none."""
    listed = ", ".join(str(one) for one in samples[:5]) + (" …" if len(samples) > 5 else "")
    return f"{words} {count(len(samples), 'sample')} ({listed})" if len(samples) else ""


def shuffled(function: Callable[..., Any]) -> str:
    """another order in every epoch."""
    seen = [{*_dealt(function, 100, epoch, 4)[0]} for epoch in range(4)]
    for epoch in range(1, 4):
        if seen[epoch] == seen[0]:
            return f"100 samples, 4 ranks: rank 0 has the same samples in epoch {epoch} as in epoch 0"
    return ""


def _drawn(function: Callable[..., Any]) -> Figure:
    return coverage([_dealt(function, 24, epoch, 4) for epoch in range(3)], 24, "24 samples on 4 ranks")


SHARDS = PlainCard(
    "11.shards",
    "no error, but more ranks learn less from the same data",
    shards,
    draw=_drawn,
    properties=[
        complete,
        shuffled,
        *stated(
            (
                "the same when asked again.",
                lambda f: "" if _dealt(f, 20, 1, 2) == _dealt(f, 20, 1, 2) else "20 samples, 2 ranks: another answer",
            )
        ),
    ],
)

# --- 9 ------------------------------------------------------------------------------------------------


def seconds(comm: Any, train: Any) -> Any:
    """Return on every rank how many seconds train(comm) takes until all ranks have done it.

    comm.now is the rank's clock, in seconds.
    """
    comm.barrier()
    begin = comm.now
    train(comm)
    return comm.allreduce(comm.now - begin, max)


def _timed(function: Callable[..., Any], late_s: Sequence[float], own_s: Sequence[float]) -> Run:
    """Each rank begins late, averages something with the others, and computes for some time."""

    def train(comm: Any) -> None:
        comm.allreduce(1.0)
        comm.compute(own_s[comm.rank], "train")

    def rank(comm: Any) -> Any:
        comm.compute(late_s[comm.rank], "load the data")
        return function(comm, train)

    return simulate(len(own_s), rank)


def slowest(function: Callable[..., Any]) -> str:
    """the slowest rank's time, on every rank."""
    none = (0.0,) * 4
    for late_s, own_s in ((none[:2], (0.02, 0.02)), (none[:3], (0.01, 0.03, 0.02)), (none, (0.04, 0.01, 0.02, 0.02))):
        if wrong := _off(function, late_s, own_s):
            return wrong
    return ""


def _off(function: Callable[..., Any], late_s: Sequence[float], own_s: Sequence[float]) -> str:
    """Is any rank's answer off by more than 2 %, which is ten times what an allreduce takes?"""
    took = max(own_s)
    for rank, mine in enumerate(_timed(function, late_s, own_s).results):
        if mine is None or not math.isclose(float(mine), took, rel_tol=0.02):
            yours = "None" if mine is None else f"{1e3 * float(mine):.1f} ms"
            ranks = " and ".join(f"{1e3 * one:g}" for one in own_s)
            late = " after waiting for a late rank" if any(late_s) else ""
            told = f"ranks that train for {ranks} ms{late}: rank {rank} says {yours}, expected {1e3 * took:.1f} ms"
            return told + _why_off(mine, late_s, own_s)
    return ""


def _why_off(mine: Any, late_s: Sequence[float], own_s: Sequence[float]) -> str:
    """Whose time it is, as the end of a sentence. That of rank 0 is the card's cause, and is not told."""
    if mine is None:
        return ". Every rank is to know it: which verb gives its result to all?"
    for seconds, whose in (
        (max(late_s) + max(own_s), "the wait for the late ranks is in it: begin when all are there"),
        (sum(own_s) / len(own_s), "that is the ranks' mean: the job has ended when its slowest rank has"),
        (min(own_s), "that is the fastest rank's time: the job has ended when its slowest rank has"),
        (sum(own_s), "the ranks' times were added up, and they run at the same time"),
        (max(late_s) + own_s[0], "the wait for the late ranks is in it: begin when all are there"),
    ):
        if math.isclose(float(mine), seconds, rel_tol=0.02) and seconds != own_s[0]:
            return f". Look again: {whose}"
    return ""


SECONDS = PlainCard(
    "11.seconds",
    "too fast: the report says 10 ms, the clock on the wall says 30 ms",
    seconds,
    probes=lambda: [((0.0, 0.0, 0.0), (0.01, 0.03, 0.02))],
    outcome=lambda function, given: ("returns", _timed(function, *given).results),
    draw=lambda function: space_time(_timed(function, (0.0, 0.0, 0.0), (0.01, 0.03, 0.02)), "11.seconds on 3 ranks"),
    properties=[
        slowest,
        *stated(
            ("not the time before, in which ranks come late.", lambda f: _off(f, (0.0, 0.5, 0.1), (0.03, 0.01, 0.02)))
        ),
    ],
)

# --- 10 -----------------------------------------------------------------------------------------------


def accuracy(comm: Any, right: Any) -> Any:
    """Return the share of right answers among all ranks' samples, on every rank.

    right: one True or False for each of this rank's samples; ranks have different numbers of them.
    """
    share = comm.allreduce(np.sum(right)) / comm.allreduce(len(right))
    return share


def _shares(counts: Sequence[tuple[int, int]]) -> Case:
    label = " and ".join(f"{good} of {count}" for good, count in counts) + " right"
    return Case(len(counts), label, [(np.arange(count) < good,) for good, count in counts])


ACCURACY = CommCard(
    "11.accuracy",
    "no error, but the accuracy changes with the number of ranks",
    accuracy,
    cases=lambda: [
        _shares(counts)
        for counts in (((1, 2), (2, 2)), ((0, 1), (3, 3)), ((1, 4), (2, 3), (2, 2)), ((0, 0), (2, 3), (0, 5), (1, 1)))
    ],
    expected=lambda case: [float(np.mean(np.concatenate([right for (right,) in case.inputs])))] * case.n,
    names=("the share of right answers",),
    shown=_shares(((1, 4), (2, 3), (2, 2))),
)

TASKS = [SHARDS, SECONDS, ACCURACY]
