"""Lesson 15, a rank dies: how often to commit, and which rank takes the shards of a dead rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from workbench.course.judging.task import PlainTask
from workbench.course.simulator import Kill, simulate
from workbench.course.training.failing_job import best_interval, failing_job
from workbench.course.training.logical_shards import BATCH, SHARDS, STEPS, Held, deal, train

_ENOUGH = 1.03
_LLAMA_S = 54 * 86400 * 16384 / 419  # one GPU's mean time between failures, from the figures in the lesson


def commit_every(step_s: Any, commit_s: Any, restart_s: Any, mtbf_s: Any, ranks: Any) -> Any:
    """Return after how many steps to commit, so that the least time is lost.

    The result is a whole number, at least 1. All times are in seconds: of a step, of a
    commit, from a failure to the next step, and the mean time between failures of one
    rank. A failure of any of the ranks throws the job back to its last commit.
    """
    ### BEGIN SOLUTION
    interval_s = math.sqrt(2 * commit_s * mtbf_s / ranks)  # Young 1974; MTBF of the job: mtbf_s / ranks
    return max(1, round(interval_s / step_s))
    ### END SOLUTION


_BASE = {"step_s": 1.0, "commit_s": 16.0, "restart_s": 60.0, "mtbf_s": 8e6, "ranks": 16}
_GROWTH = [
    ("ranks", 4, 0.5, "n ranks fail n times as often as one, and the interval goes with the square root of the MTBF"),
    ("mtbf_s", 4, 2.0, "the interval goes with the square root of the MTBF"),
    ("commit_s", 4, 2.0, "the interval goes with the square root of what a commit costs"),
    ("step_s", 2, 0.5, "the interval in seconds stays, and is half as many steps. Is your result in seconds?"),
    ("restart_s", 4, 1.0, "a restart is paid once for each failure, however often you commit"),
]
_JOBS: list[dict[str, Any]] = [
    {"step_s": 1.0, "commit_s": 10.0, "restart_s": 60.0, "mtbf_s": 2.6e6, "ranks": 64},
    {"step_s": 0.2, "commit_s": 0.5, "restart_s": 20.0, "mtbf_s": 1e6, "ranks": 1000},
    {"step_s": 6.0, "commit_s": 60.0, "restart_s": 300.0, "mtbf_s": _LLAMA_S, "ranks": 16384},
    {"step_s": 30.0, "commit_s": 20.0, "restart_s": 60.0, "mtbf_s": 2e5, "ranks": 100},
]
_LONG_STEP = {"step_s": 60.0, "commit_s": 1.0, "restart_s": 10.0, "mtbf_s": 2.88e5, "ranks": 1000}


def _steps(function: Callable[..., Any], job: Mapping[str, Any]) -> int:
    """The learner's interval.

    Raises:
        TypeError: it is no whole number.
    """
    every = function(*(job[key] for key in _BASE))
    if every is None:
        raise TypeError(f"{_call(job)} is None. Is there a return?")
    if isinstance(every, bool) or not hasattr(every, "__index__"):
        raise TypeError(f"{_call(job)} is {every!r}, and no whole number: round it, or cut it off")
    return int(every)


def _call(job: Mapping[str, Any]) -> str:
    return f"commit_every({', '.join(f'{key}={job[key]:.6g}' for key in _BASE)})"


def _whole_steps(function: Callable[..., Any]) -> str:
    """It is a whole number of steps, at least 1."""
    for job in (*_JOBS, _LONG_STEP):
        every = _steps(function, job)
        if every < 1:
            return f"{_call(job)} is {every}: one step is the least. What if a step takes longer than the interval?"
    return ""


def _scales(function: Callable[..., Any]) -> str:
    """It changes as it should with ranks, MTBF, commits and steps."""
    for key, times, factor, why in _GROWTH:
        other = {**_BASE, key: times * _BASE[key]}
        few, many = _steps(function, _BASE), _steps(function, other)
        if abs(many - factor * few) > 0.05 * factor * few + 1:
            wanted = {0.5: "half as many", 1.0: "the same", 2.0: "twice as many"}[factor]
            return (
                f"with {key}={_BASE[key]:.6g} your result is {few:,}, with {key}={other[key]:.6g} it is {many:,}; "
                f"expected {wanted}: {why}"
            )
    return ""


@cache
def _best(number: int) -> tuple[int, float]:
    """Of a job in the list: the best interval in steps, and its waste."""
    every, spent = best_interval(**_JOBS[number])
    return every, spent.waste


def _hardly_worse(function: Callable[..., Any]) -> str:
    """In the simulator it wastes at most 3 % more than the best interval."""
    for number, job in enumerate(_JOBS):
        yours, (best, least) = _steps(function, job), _best(number)
        waste = failing_job(yours, **job).waste
        if waste > _ENOUGH * least:
            why = (
                "Too often. What does a failure undo: a whole interval, or less on average?"
                if yours < best
                else "Too seldom. What does a failure undo on average, and how often does the job fail?"
            )
            return (
                f"{_call(job)} is {yours:,}: per second of work {waste:.2%} go into commits and lost steps, where "
                f"committing every {best:,} steps loses {least:.2%}. {why}"
            )
    return ""


def reshard(held: Any, alive: Any) -> Any:
    """Return which rank holds which shards now: {rank: its shards in increasing order}.

    held: {rank: list of its shards} before, with the dead ranks.
    alive: the ranks that live, in any order.
    The result has all of them, and no other. Every shard has one holder. No rank has two
    shards more than another. A living rank keeps its shards. Each survivor calls this
    function for itself, and all must get the same result. held must not change.
    """
    ### BEGIN SOLUTION
    now = {rank: sorted(held[rank]) for rank in sorted(alive)}
    free = sorted(shard for rank in held if rank not in now for shard in held[rank])
    for shard in free:
        fewest = min(now, key=lambda rank: (len(now[rank]), rank))
        now[fewest] = sorted([*now[fewest], shard])
    return now
    ### END SOLUTION


def _deaths() -> Iterator[tuple[str, Held, list[int]]]:
    """(words, who held what, who lives), the smallest first."""
    for shards, ranks, dead in (
        (2, (0, 1), [1]),
        (3, (0, 1, 2), [0]),
        (4, (0, 1, 2), [2]),
        (6, (0, 2, 5), [2]),
        (2, (0, 1, 2, 3), [0]),
        (8, (0, 1, 2, 3), [1, 2]),
        (16, (1, 2, 4, 7, 8), [4]),
        (64, tuple(range(16)), [0, 5, 6, 15]),
    ):
        held = deal(ranks, shards)
        yield f"held = {held}, dead: {dead}", held, [rank for rank in ranks if rank not in dead]
    held = {0: [0, 4, 6], 2: [2, 5, 7], 3: [1, 3]}  # as it is after a first death
    yield f"held = {held}, dead: [0]", held, [2, 3]


def _answer(function: Callable[..., Any], held: Held, alive: Sequence[int]) -> Held:
    """The learner's, as plain lists.

    Raises:
        TypeError: it is not {rank: list of shards}.
    """
    found = function({rank: list(shards) for rank, shards in held.items()}, list(alive))
    if found is None:
        raise TypeError("reshard(…) is None. Is there a return?")
    if not isinstance(found, Mapping):
        raise TypeError(f"reshard(…) is a {type(found).__name__}, expected a dict {{rank: list of shards}}")
    return {int(rank): [int(shard) for shard in shards] for rank, shards in found.items()}


def _the_living(function: Callable[..., Any]) -> str:
    """It has an entry for each living rank, and for nobody else."""
    for words, held, alive in _deaths():
        if sorted(found := _answer(function, held, alive)) != sorted(alive):
            told = f"your result has the ranks {sorted(found)}, alive are {sorted(alive)}"
            return f"{words}: {told}{_who(found, held, alive)}"
    return ""


def _who(found: Held, held: Held, alive: Sequence[int]) -> str:
    """What was done with the ranks' numbers, as the end of a sentence."""
    if set(found) - set(alive) <= set(held) and set(alive) <= set(found):
        return ". A dead rank has no entry"
    if len(found) == len(alive):
        return ". The living ranks keep their old numbers: they are not counted anew from 0"
    return ". Each living rank has an entry, also one without shards"


def _once(function: Callable[..., Any]) -> str:
    """Every shard is held by one rank."""
    for words, held, alive in _deaths():
        found = _answer(function, held, alive)
        for shard in sorted(shard for shards in held.values() for shard in shards):
            by = [rank for rank in sorted(found) for one in found[rank] if one == shard]
            if not by:
                return f"{words}: shard {shard} is held by nobody: its samples would not be seen again"
            if len(by) > 1:
                return f"{words}: shard {shard} is held by ranks {by}: its samples would count {len(by)} times"
    return ""


def _balanced(function: Callable[..., Any]) -> str:
    """No rank holds two shards more than another."""
    for words, held, alive in _deaths():
        found = _answer(function, held, alive)
        most, fewest = (choose(found, key=lambda rank: len(found[rank])) for choose in (max, min))
        if len(found[most]) - len(found[fewest]) > 1:
            return (
                f"{words}: rank {most} holds {len(found[most])} shards, rank {fewest} {len(found[fewest])}: every step "
                f"would wait for rank {most}"
            )
    return ""


def _kept(function: Callable[..., Any]) -> str:
    """A living rank keeps its shards."""
    for words, held, alive in _deaths():
        found = _answer(function, held, alive)
        for rank in sorted(alive):
            if gone := sorted(set(held[rank]) - set(found[rank])):
                return (
                    f"{words}: rank {rank} lives and held shard {gone[0]}; your function moves it and its state "
                    "without need"
                )
    return ""


def _same_everywhere(function: Callable[..., Any]) -> str:
    """All ranks get the same result, for any order of held and alive."""
    for words, held, alive in _deaths():
        mine = {rank: list(shards) for rank, shards in held.items()}
        found = {rank: list(shards) for rank, shards in function(mine, list(alive)).items()}
        if mine != held:
            return f"{words}: your function changes held: copy the lists before you change them"
        for rank in sorted(found):
            if found[rank] != sorted(found[rank]):
                return f"{words}: rank {rank} holds {found[rank]}, not in increasing order"
        turned = {rank: list(reversed(held[rank])) for rank in reversed(held)}
        for other in (_answer(function, turned, alive[::-1]), _answer(function, held, [*alive[1:], alive[0]])):
            if other != found:
                one = next(rank for rank in sorted(found) if found[rank] != other[rank])
                return (
                    f"{words}: one rank finds that rank {one} holds {found[one]}, another rank {other[one]}. Their "
                    "held or alive is in a different order; sort it first"
                )
    return ""


_KILLS = [
    (3, [Kill(1, message=2)]),
    (4, [Kill(2, at_s=0.006)]),
    (4, [Kill(0, message=3)]),
    (4, [Kill(3, message=1), Kill(1, at_s=0.012)]),
    (5, [Kill(4, at_s=0.004), Kill(2, at_s=0.0045)]),
]


def _same_bits(function: Callable[..., Any]) -> str:
    """A training whose ranks die goes on, with every sample once, and ends with the bits of an undisturbed one."""
    weights, used = simulate(1, train, reshard).results[0]
    assert len(set(used)) == len(used) == STEPS * BATCH
    for n, kills in _KILLS:
        run = simulate(n, train, function, kills=kills)
        told = ", then ".join(f"rank {rank} dies at {at_s * 1e3:.1f} ms" for rank, at_s in run.died.items())
        for rank, result in enumerate(run.results):
            if rank in run.died:
                continue
            if sorted(result[1]) != sorted(used):
                return f"{n} ranks, {SHARDS} shards, {told}: rank {rank} did not use every sample once"
            if result[0].tobytes() != weights.tobytes():
                return f"{n} ranks, {SHARDS} shards, {told}: rank {rank} ends with other bits than an undisturbed run"
    return ""


TASKS = [
    PlainTask(
        "15.commit_every",
        "how often to commit, from the failure rate",
        commit_every,
        properties=[_whole_steps, _scales, _hardly_worse],
        points=2,
    ),
    PlainTask(
        "15.reshard",
        "which rank takes the shards of a dead rank",
        reshard,
        properties=[_the_living, _once, _balanced, _kept, _same_everywhere, _same_bits],
        points=3,
    ),
]
