"""The verdict on a training: the stages of ``check()``, and one more that no function can answer by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from workbench.course.grading.live.source import own_source
from workbench.course.judging import judge
from workbench.course.judging.judge import Stage
from workbench.course.judging.task import Task

TOGETHER = "The ranks train together"


def stages(
    task: Task,
    cells: Sequence[str],
    folder: str,
    sandbox: bool,
    limits: Mapping[str, int],
    limit_s: float,
    told: Callable[[str], None],
    flag: Callable[[str], None],
) -> Iterator[Stage]:
    """The judge's stages.

    Args:
        task: the exercise.
        cells: the notebook's.
        folder, sandbox, limits: of the processes that run the function.
        limit_s: for all of it.
        told: what the kernel does not bound for them.
        flag: what a teacher should look at.
    """
    try:
        found = own_source(cells, task.name)
    except RecursionError:
        found = None
    if found is None:
        yield Stage("defined", False, f'no cell has a function right below @exercise("{task.name}")')
        return
    from workbench.course.grading.live.training import JudgedTraining  # torch: most notebooks do without

    training = JudgedTraining(*found, folder, sandbox, limits)
    told(training.unbounded)
    timer = threading.Timer(limit_s, training.process.stop, [f"did not end within {limit_s:.3g} s"])
    timer.start()
    try:
        yield from _judged(task, training)
        for one in training.flags:
            flag(one)
    finally:
        timer.cancel()
        training.process.stop()


def _judged(task: Task, training: Any) -> Iterator[Stage]:
    passed = False
    for stage in judge.judge(task, training):
        ended = training.process.ended
        yield Stage("runs", False, ended) if stage.passed is False and ended else stage
        passed = stage.passed is True
    if passed:
        wrong = training.audit()
        yield Stage(TOGETHER, not wrong, wrong)
