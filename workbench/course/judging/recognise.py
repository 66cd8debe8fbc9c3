"""Known wrong versions of a solution: who returns what one of them returns, on several inputs, has made its mistake."""

from __future__ import annotations

import inspect
import re
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from workbench.course.judging.mistake import Mistake
from workbench.course.judging.plain import from_torch, plain
from workbench.course.provenance.case import Case
from workbench.course.simulator import DeadlockError, simulate
from workbench.course.simulator.communicator import copied
from workbench.course.simulator.deadline import within
from workbench.errors import DeadlineError

_ENOUGH = 12
_CALL_S, _ALL_S = 3.0, 6.0
_SLOW_S = 1.5  # more than the solution. Who takes so long is not run again: a grader's deadline goes on meanwhile
_CLOSE = 1e-9
_ENDLESS = ("never ends",)
_WHERE = re.compile(r" \(in .*, line .*")  # the learner's line
Function = Callable[..., Any]
Outcome = Callable[[Function, Any], Any]
"""What comes of a function, of an input"""


@cache
def version(reference: Function, mistake: Mistake) -> Function:
    """The wrong version of a solution."""
    return mistake.version_of(textwrap.dedent(inspect.getsource(reference)), reference.__globals__)


def recognised(
    known: Sequence[Mistake], reference: Function, function: Function, inputs: Sequence[Any], outcome: Outcome
) -> Mistake | None:
    """The mistake whose results a function has, on all inputs; None if there is none.

    Args:
        known: mistakes with edits.
        reference: the solution.
        function: the learner's, which gave a wrong result.
        inputs: cases of ranks, or arguments; some on which it was wrong.
        outcome: :func:`of_call`, :func:`of_ranks`, or :func:`of_threads` of something.
    """
    if not known:
        return None
    found = _outcomes(function, reference, inputs, outcome)
    fits = (one for one in known if _fits(version(reference, one), found, outcome))
    return next(fits, None) if found else None


def _outcomes(
    function: Function, reference: Function, inputs: Sequence[Any], outcome: Outcome
) -> list[tuple[Any, Any]]:
    """(input, what comes of it); nothing if all of it is right."""
    until, found, wrong = time.monotonic() + _ALL_S, list[tuple[Any, Any]](), False
    for one in inputs[:_ENOUGH]:
        if (began := time.monotonic()) > until:
            break
        right = outcome(reference, one)
        between = time.monotonic()
        found.append((one, outcome(function, one)))
        solutions_s, learners_s = between - began, time.monotonic() - between
        if found[-1][1] == _ENDLESS or learners_s > _SLOW_S + 2 * solutions_s:  # the machine may be busy
            return []
        wrong = wrong or not same(found[-1][1], right)
    # Who returns None for all arguments may have made any mistake, and not that of a version which finds no result.
    nothing = outcome is of_call and all(come[:2] == ("returns", None) for _, come in found)
    return found if wrong and not nothing else []


def _fits(other: Function, found: Sequence[tuple[Any, Any]], outcome: Outcome) -> bool:
    return all(same(come, outcome(other, one)) for one, come in found)


def of_call(function: Function, args: Sequence[Any]) -> Any:
    """What it returns, or raises; and whether it changes what it was given."""
    given = tuple(map(_copy, args))
    try:
        return "returns", plain(within(_CALL_S, function, *given)), same(plain(given), plain(args))
    except DeadlineError:
        return _ENDLESS
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the learner's
        return "raises", type(error).__name__, str(error)


def _copy(value: Any) -> Any:
    """A copy; what cannot be copied, such as a function, as it is."""
    try:
        return copied(value)
    except Exception:  # noqa: BLE001 - pickle raises many
        return value


def of_threads(run: Callable[..., list[Any]]) -> Outcome:
    """What comes of ranks that are threads; ``run``: on_ranks, or on_torch_ranks."""

    def outcome(function: Function, case: Case) -> Any:
        try:
            return "returns", plain(run(function, case.inputs))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the learner's
            return "raises", type(error).__name__, _WHERE.sub("", str(error))

    return outcome


def of_ranks(function: Function, case: Case) -> Any:
    """What comes of simulated ranks."""
    inputs = [tuple(map(copied, one)) for one in case.inputs]
    try:
        run = simulate(case.n, lambda comm: function(comm, *inputs[comm.rank]), deadline_s=_CALL_S)
    except DeadlockError as error:
        return "deadlock", sorted((wait.rank, wait.verb, wait.peer) for wait in error.waits)
    except DeadlineError:
        return _ENDLESS
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the learner's
        return "raises", type(error).__name__, _WHERE.sub("", str(error))
    return "returns", [from_torch(one) for one in run.results], bool(run.unreceived), bool(run.unwaited)


def same(a: Any, b: Any) -> bool:
    """Equal up to rounding, all through lists and dicts; nan is like nan. What cannot be compared is not equal."""
    try:
        return _same(a, b)
    except Exception:  # noqa: BLE001 - of the learner's own objects, or of numbers that no float holds
        return False


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        one, two = np.asarray(a, float), np.asarray(b, float)
        return one.shape == two.shape and bool(np.allclose(one, two, rtol=_CLOSE, atol=1e-12, equal_nan=True))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (int, float, np.number)) and isinstance(b, (int, float, np.number)):
        return bool(a == b or np.isclose(a, b, rtol=_CLOSE, atol=1e-12, equal_nan=True))
    return type(a) is type(b) and bool(a == b)


def spread(cases: Sequence[Case], first: Case | None = None) -> Iterator[Case]:
    """Some cases of several ranks, from the small to the large ones; the one that was wrong comes first."""
    if first is not None:
        yield first
    others = [case for case in cases if case.n > 1 and case is not first]
    yield from others[:: max(1, -(-len(others) // (_ENOUGH - 1)))]
