"""Why is a number wrong? By a factor with a name, by what is in a sum, by how much samples count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.course.judging.ratio import CaseOutcome, named
from workbench.course.judging.task import CommTask
from workbench.course.provenance.case import Case
from workbench.course.provenance.explain import explanation
from workbench.course.provenance.weights import weights
from workbench.course.simulator import Run, simulate
from workbench.course.simulator.communicator import copied
from workbench.errors import DeadlineError

_MORE = 4  # cases beside the first wrong one
_DEADLINE_S = 1.0


def why(task: CommTask, function: Callable[..., Any], case: Case, run: Run) -> list[str]:
    """What is known of a wrong result, the most telling line first; empty if nothing is.

    Args:
        task: the exercise.
        function: the learner's.
        case: in which it was wrong.
        run: its run.
    """
    told = _factor(task, function, case, run)
    if not told and task.weighed is not None and _of_one_shape(task.expected(case), run.results):
        told = weights(function, case, task.weighed)
    found = [f"n = {case.n}: {told}"] if told else []
    if task.coded is not None and (cause := explanation(function, task.coded, case.n)):
        found.append(cause)
    return found


def _factor(task: CommTask, function: Callable[..., Any], case: Case, run: Run) -> str:
    """The factor that fits this case and some more, of other n."""
    outcomes = [_outcome(task, case, run.results)]
    if not named(outcomes):
        return ""
    others = [one for one in task.cases() if one.n > 1 and one.n != case.n]
    for other in others[:: max(1, len(others) // _MORE)][:_MORE]:
        inputs = [tuple(map(copied, one)) for one in other.inputs]
        try:
            results = _results(function, inputs)
        except DeadlineError:
            break
        except Exception:  # noqa: BLE001 - the learner's: that case says nothing
            continue
        outcome = _outcome(task, other, results)
        if named([*outcomes, outcome]):
            outcomes.append(outcome)
        elif any(_tells(one) for one in outcome.expected):
            return ""
    return named(outcomes, what="step" if task.start is not None else "number")


def _results(function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]]) -> list[Any]:
    return simulate(len(inputs), lambda comm: function(comm, *inputs[comm.rank]), deadline_s=_DEADLINE_S).results


def _outcome(task: CommTask, case: Case, results: Sequence[Any]) -> CaseOutcome:
    return CaseOutcome(case, results, task.expected(case), 0.0 if task.start is None else task.start(case))


def _of_one_shape(expected: Sequence[Any], results: Sequence[Any]) -> bool:
    """Have the results the shapes that they should have? Else that is what is wrong."""
    try:
        return [np.shape(one) for one in expected] == [np.shape(one) for one in results]
    except ValueError:  # a list of lists of different lengths
        return False


def _tells(value: Any) -> bool:
    """Is there a number in it that a factor would change?"""
    return bool(getattr(value, "size", 1))
