"""Is a learner's function right? One stage after the other, up to the first that is red."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np

from workbench.course.figures import number
from workbench.course.judging.cause import honest, is_ours
from workbench.course.judging.compare import about, compared, described, difference, unlike
from workbench.course.judging.plain import PlainResults
from workbench.course.judging.recognise import of_ranks, recognised, spread
from workbench.course.judging.task import Bound, Case, CommTask, PlainTask, Task, is_blank
from workbench.course.judging.why import why
from workbench.course.provenance.explain import explanation
from workbench.course.simulator import DeadlockError, Run, simulate
from workbench.course.simulator.communicator import copied
from workbench.course.simulator.deadline import Patience, within
from workbench.course.simulator.deadlock import in_short
from workbench.errors import DeadlineError

DEADLINE_S = 8.0


@dataclass(frozen=True)
class Stage:
    """One line of the verdict.

    Args:
        name: ``right``.
        passed: None where it was left out.
        text: what was seen, or what is wrong.
        error: a deadlock, to be drawn.
    """

    name: str
    passed: bool | None
    text: str = ""
    error: DeadlockError | None = None


def judge(task: Task, function: Callable[..., Any], ranks: Any = None) -> Iterator[Stage]:
    """The stages, up to the first red one.

    Args:
        task: the exercise.
        function: the learner's.
        ranks: runs a function on real ranks (see ``real_ranks.py``); None if there are none.
    """
    if is_blank(function):
        yield Stage("not done yet", None, "replace the line “your code here”, run the cell, and check again")
        return
    found = _comm_stages(task, function, ranks) if isinstance(task, CommTask) else _plain_stages(task, function)
    for stage in found:
        yield stage
        if stage.passed is False:
            return


def _plain_stages(task: Task, function: Callable[..., Any]) -> Iterator[Stage]:
    assert isinstance(task, PlainTask)
    if not (task.live or task.of_ranks or task.asks_cause):
        function = PlainResults(function)
    for holds in task.properties:
        name = (holds.__doc__ or holds.__name__).strip().splitlines()[0].rstrip(".")
        ours = False
        try:
            wrong = within(task.deadline_s, holds, function)
        except NotImplementedError:
            yield Stage("not done yet", None, "a part of it still says “your code here”")
            return
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the learner's
            wrong, ours = task.in_words(described(error)), is_ours(error)
        yield Stage(name, not wrong, _with_cause(task, function, wrong, holds, ours) if wrong else "")


def _with_cause(
    task: PlainTask, function: Callable[..., Any], wrong: str, holds: Callable[[Any], str], ours: bool
) -> str:
    """What is wrong, behind the known mistake that gives the same results; without one it must say why by itself."""
    known = recognised(task.known, task.reference, function, list(task.probes()), task.outcome)
    if known:
        return f"{known.cause}\n{wrong}"
    if narrow := getattr(function, "narrow", ""):
        too_short = (
            f"your result has dtype {narrow}, which keeps too few digits: compute with Python's floats, or float64"
        )
        return f"{too_short}\n{wrong}"
    return honest(wrong, ours)


def _comm_stages(task: CommTask, function: Callable[..., Any], ranks: Any) -> Iterator[Stage]:
    cases = list(task.cases())
    patience, ran = Patience(DEADLINE_S), False
    for case in cases:
        inputs = [copied(one) for one in case.inputs]
        try:
            run = _run(function, inputs, max(0.5, patience.left()))
        except DeadlockError as error:
            if ran:
                yield Stage("runs", True)
            cause = _known(task, function, case)
            yield Stage("no deadlock", False, f"{cause}{about(case)}: {in_short(error.waits)}\n{error}", error)
            return
        except NotImplementedError:
            yield Stage("not done yet", None, "a part of it still says “your code here”")
            return
        except DeadlineError as error:
            yield Stage("runs", False, f"{about(case)}: {error}")
            return
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the learner's
            where = f", rank {error.rank}" if hasattr(error, "rank") else ""
            # Chunks of one length may be added though they do not belong together; of others numpy complains.
            cause = explanation(function, task.coded, case.n) if task.coded is not None else ""
            known = _known(task, function, case)
            raised = task.in_words(described(error))
            said = f"{about(case)}{where}: {raised if known or cause else honest(raised, is_ours(error))}"
            told = f"{known}{cause}\n{said}" if cause else f"{known}{said}"
            yield Stage("right" if cause else "runs", False, told)
            return
        if changed := _changed(function, case, inputs):
            yield Stage("runs", True)
            yield Stage("right", False, f"{about(case)}: {changed}")
            return
        if wrong := _wrong(task, case, run):
            yield Stage("runs", True)
            yield Stage("right", False, _why_wrong(task, function, case, run, wrong))
            return
        ran = True
    yield Stage("runs", True)
    sizes = sorted({case.n for case in cases})
    yield Stage("right", True, f"{len(cases)} cases, n = {', '.join(map(str, sizes))}")
    score = _score(task, function) if task.bounds is not None and task.scored is not None else None
    if score is not None and score.error is not None:
        yield replace(score, name="no deadlock")
        return
    yield Stage("no deadlock", True)
    if score is not None:
        yield score
    yield _on_real_ranks(task, function, ranks)


def _known(task: CommTask, function: Callable[..., Any], case: Case) -> str:
    """The known mistake that gives the same results, as a line of its own; else nothing."""
    inputs = list(spread(task.cases(), case))
    known = recognised(task.known, task.reference, function, inputs, of_ranks)
    return f"{known.cause}\n" if known else ""


def _why_wrong(task: CommTask, function: Callable[..., Any], case: Case, run: Run, wrong: str) -> str:
    """What is wrong, with all that is known of why; if that is nothing, it says so."""
    known = _known(task, function, case)
    found = why(task, function, case, run)
    if known and not task.coded:
        found = []  # the same once more, by its factor or by its weights
    if not known and not found:
        wrong += _what_is_right(task, run.results, task.expected(case))
    text = f"{about(case)}: {wrong}"
    return known + "\n".join([*found, text if known or found else honest(text)])


def _what_is_right(task: CommTask, results: Sequence[Any], expected: Sequence[Any]) -> str:
    """Where a result has several parts, and only some of them are wrong: which, as the end of a sentence."""
    parts = len(task.names)
    if parts < 2 or not all(isinstance(one, (list, tuple)) and len(one) == parts for one in (*results, *expected)):
        return ""
    yours, wanted = (list(zip(*each, strict=True)) for each in (results, expected))
    wrong = {name for i, name in enumerate(task.names) if compared(yours[i], wanted[i])}
    right = [name for name in task.names if name not in wrong]
    are = "are" if len(right) > 1 else "is"
    return f". Look at what makes {' and '.join(sorted(wrong))}; {' and '.join(right)} {are} right" if right else ""


def _wrong(task: CommTask, case: Case, run: Run) -> str:
    return compared(run.results, task.expected(case), task.names) or _left_over(run)


def _left_over(run: Run) -> str:
    if run.unwaited:
        rank, peer, verb = run.unwaited[0]
        return (
            f"rank {rank} never waited for its {verb}() with rank {peer}: call wait() on what it returned. Before that "
            "the message may still be on its way, and its array must be neither read nor changed"
        )
    if not run.unreceived:
        return ""
    source, dest, verb = run.unreceived[0]
    return f"rank {source} sent something to rank {dest} by {verb}() that nobody received"


def _score(task: CommTask, function: Callable[..., Any]) -> Stage:
    assert task.bounds is not None
    assert task.scored is not None
    try:
        run = run_case(function, task.scored, DEADLINE_S, eager_bytes=0)
    except DeadlockError as error:
        where = f"{about(task.scored)}, where no message leaves before its receiver is there"
        return Stage("score", False, f"{where}: {in_short(error.waits)}\n{error}", error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the learner's
        return Stage("score", False, f"{about(task.scored)}: {honest(task.in_words(described(error)), is_ours(error))}")
    if wrong := _wrong(task, task.scored, run):
        wrong = f"the smaller cases were right, this one is wrong. What is done only with long arrays? {wrong}"
        return Stage("score", False, _why_wrong(task, function, task.scored, run, wrong))
    bounds = task.bounds(task.scored, run)
    over = [bound for bound in bounds if bound.yours > bound.limit]
    if over:
        return Stage("score", False, "; ".join(map(_too_much, over)))
    return Stage("score", True, "; ".join(f"{_counted(b)} (best {number(b.best)})" for b in bounds))


def _on_real_ranks(task: CommTask, function: Callable[..., Any], ranks: Any) -> Stage:
    if not task.real:
        return Stage("real ranks", None, "made for the simulator")
    if ranks is None:
        return Stage("real ranks", None, "no engines: cluster.up(n=4) starts some, then check() runs it there, too")
    case = next((case for case in reversed(list(task.cases())) if case.n == ranks.n), None)
    if case is None:
        return Stage("real ranks", None, f"no case for {ranks.n} ranks; try cluster.up(n=4)")
    try:
        results = ranks.run(function, case.inputs)
    except Exception as error:  # noqa: BLE001 - whatever real ranks do is for the learner to read
        return Stage("real ranks", False, described(error))
    wrong = compared(results, task.expected(case), task.names)
    if wrong:
        return Stage("real ranks", False, f"on {ranks.name}: {wrong}")
    return Stage("real ranks", True, f"the same result on {ranks.name}")


def run_case(function: Callable[..., Any], case: Case, deadline_s: float = DEADLINE_S, **options: Any) -> Run:
    """Simulate one case; every rank gets copies of its own."""
    return _run(function, [copied(one) for one in case.inputs], deadline_s, **options)


def _run(function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], deadline_s: float, **options: Any) -> Run:
    return simulate(len(inputs), lambda comm: function(comm, *inputs[comm.rank]), deadline_s=deadline_s, **options)


def _changed(function: Callable[..., Any], case: Case, inputs: Sequence[tuple[Any, ...]]) -> str:
    """Has a rank changed what it was given? On real ranks that is the caller's own array."""
    for rank, (before, after) in enumerate(zip(case.inputs, inputs, strict=True)):
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            if not _equal(old, new):
                names = list(signature(function).parameters)[1:]
                name = names[place] if place < len(names) else f"argument {place + 1}"
                return (
                    f"rank {rank} changes its own {name}, which belongs to the caller. {name} += … and {name}[…] = … "
                    f"do that; {name} = {name} + … makes a new one, and so does a copy"
                )
    return ""


def _equal(old: Any, new: Any) -> bool:
    """To the bit; what is neither an array, a number nor a list of them counts as equal."""
    if isinstance(old, np.ndarray):
        return bool(np.array_equal(old, new, equal_nan=old.dtype.kind == "f"))
    if isinstance(old, (list, tuple)):
        return len(old) == len(new) and all(map(_equal, old, new))
    return not isinstance(old, (bool, int, float, str)) or bool(old == new)


def _too_much(bound: Bound) -> str:
    if bound.sentence:
        return bound.sentence
    limit, best = map(number, (bound.limit, bound.best))
    described = "there must be none" if not bound.limit else f"the limit is {limit}, the best possible {best}"
    return f"{_counted(bound)}; {described}{f'. {bound.cause}' if bound.cause else ''}"


def _counted(bound: Bound) -> str:
    """The number and its noun, which agree: ``1 round``, ``2 bytes per rank``."""
    yours, (noun, space, rest) = number(bound.yours), bound.what.partition(" ")
    return f"{yours} {noun.removesuffix('s') if yours == '1' and noun != 'ms' else noun}{space}{rest}"


__all__ = ["Stage", "about", "compared", "described", "difference", "judge", "run_case", "unlike"]
