"""Lesson 17, the last exercise: what a lost rank costs, elastic or started again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.course.judging.task import PlainTask, as_solution


def recovery(n: Any, failed_at: Any, engine: Any, commit_every: Any, checkpoint_every: Any) -> Any:
    """One of n ranks is lost during step failed_at (0 is the first). Return (processes started, steps done again).

    engine "elastic": the survivors keep their processes and go on from the last commit, which all have in memory.
    engine "restart": all ranks are started again and go on from the last checkpoint on disk, or from step 0 where
    checkpoint_every is 0. This also holds for an elastic job of one rank, because no rank survives.
    A commit is made after each commit_every steps, a checkpoint likewise. Step failed_at itself is done again, too.
    """
    ### BEGIN SOLUTION
    survive = engine == "elastic" and n > 1
    every = commit_every if survive else checkpoint_every
    last = failed_at // every * every if every else 0
    return (1 if survive else n), failed_at - last + 1
    ### END SOLUTION


def _by_steps(
    n: int, failed_at: int, engine: str, commit_every: int, checkpoint_every: int, steps: int = 200
) -> tuple[int, int]:
    """The obvious way: run the steps, and keep count."""
    done, commit, disk, failed, run = 0, 0, 0, False, list[int]()
    while done < steps:
        run.append(done)
        if done == failed_at and not failed:
            failed = True
            done = commit if engine == "elastic" and n > 1 else disk
            continue
        done += 1
        commit = done if done % commit_every == 0 else commit
        disk = done if checkpoint_every and done % checkpoint_every == 0 else disk
    return (1 if engine == "elastic" and n > 1 else n), len(run) - steps


def _many() -> Iterator[tuple[int, int, str, int, int]]:
    for failed_at in (0, 1, 9, 10, 11, 100):
        for n in (1, 2, 3):
            for engine in ("elastic", "restart"):
                yield n, failed_at, engine, 3, 10


_PROBES = [
    (4, 17, "elastic", 1, 0),
    (4, 17, "elastic", 5, 10),
    (2, 20, "elastic", 5, 0),
    (3, 9, "restart", 3, 10),
    (8, 37, "restart", 5, 10),
    (4, 17, "restart", 1, 0),
    (1, 17, "elastic", 1, 10),
    (2, 30, "restart", 3, 10),
]

TASKS = [
    PlainTask(
        "17.recovery",
        "what a lost rank costs",
        recovery,
        probes=lambda: _PROBES,
        properties=as_solution(
            _by_steps,
            (
                "An elastic job of several ranks.",
                [(4, 17, "elastic", 1, 0), (4, 17, "elastic", 5, 10), (2, 20, "elastic", 5, 0)],
            ),
            (
                "A job that is started again, with and without checkpoints.",
                [(4, 17, "restart", 1, 0), (4, 17, "restart", 1, 10), (8, 30, "restart", 5, 10)],
            ),
            ("An elastic job of one rank.", [(1, 17, "elastic", 1, 10), (1, 17, "elastic", 1, 0)]),
            ("36 jobs, each counted step by step.", list(_many())),
        ),
    )
]
