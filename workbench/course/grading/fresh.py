"""What has passed is called once more: ranks in two processes, and numbers that nobody can have known.

The first time all ranks are threads of one notebook's process, so one may leave its numbers in a global for the others;
the second time they know of each other what was sent. The cases of an exercise are in the package, so a function may
know its result, or another rank's share, without having been told; these have other numbers. Lengths, roots and
everything that is no fraction stay.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.course.judging import judge
from workbench.course.judging.compare import compared
from workbench.course.judging.task import CommTask, Task
from workbench.course.provenance.case import Case

_SHARED = (
    "its ranks are right in one process alone, where they have variables in common. Real ranks have none: what one "
    "needs of another has to be sent. In two processes:"
)
_KNOWN = "it is right with the exercise's own numbers, and wrong with others:"
_CASES = 3  # besides the one that is scored
_LEAST, _MOST = 0.75, 1.25


def stages(task: Task, function: Callable[..., Any], in_two: Callable[[], Callable[..., Any]]) -> Iterator[judge.Stage]:
    """The judge's stages; once all are green, of an exercise for ranks a red one if it is not right once more.

    Args:
        task: the exercise.
        function: the learner's.
        in_two: gives the same function with the ranks in two processes.
    """
    passed = True
    for stage in judge.judge(task, function):
        yield stage
        passed = passed and stage.passed is not False and stage.name != "not done yet"
    if not passed or not task.of_ranks:
        return
    other = (varied(task) if isinstance(task, CommTask) else None) or task
    if wrong := _first_red(other, in_two()):
        shared = not _first_red(other, function)
        yield judge.Stage("once more", False, f"{_SHARED if shared else _KNOWN} {wrong}")


def _first_red(task: Task, function: Callable[..., Any]) -> str:
    return next((f"{stage.name}: {stage.text}" for stage in judge.judge(task, function) if stage.passed is False), "")


def varied(task: CommTask) -> CommTask | None:
    """The same exercise with numbers of its own; None if it has none, or is about just these."""
    secret = secrets.token_bytes(16)
    several = [case for case in task.cases() if case.n > 1]
    chosen = several[:: max(1, len(several) // _CASES)][-_CASES:]
    cases = [case for case in (_varied(task, one, secret) for one in chosen) if case is not None]
    scored = _varied(task, task.scored, secret) if task.scored is not None else None
    if not cases:
        return None
    return replace(task, cases=lambda: cases, scored=scored, coded=None)


def _varied(task: CommTask, case: Case, secret: bytes) -> Case | None:
    """A case with other numbers; None if the reference is not right with them."""
    other = replace(case, inputs=[tuple(_other(value, secret) for value in one) for one in case.inputs])
    if all(map(_same, case.inputs, other.inputs)):
        return None
    right = judge.run_case(task.reference, other).results
    return other if not compared(right, task.expected(other)) else None


def _other(value: Any, secret: bytes) -> Any:
    """Other numbers of the same size, the same for what was the same: weights that all ranks have stay equal."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.any():  # all 0: a rank without samples
        key = hashlib.sha256(secret + value.dtype.str.encode() + np.ascontiguousarray(value).tobytes()).digest()
        factors = np.random.default_rng(list(key)).uniform(_LEAST, _MOST, value.shape)
        return (value * factors + (factors - 1)).astype(value.dtype)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_other(one, secret) for one in value)
    if type(value) is dict:
        return {key: _other(one, secret) for key, one in value.items()}
    return value


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return not compared([others], [some])
