"""Run a function with coded inputs, and tell where it goes wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.course.provenance import words
from workbench.course.provenance.coding import Coded, Content
from workbench.course.provenance.steps import Step, Wrong, first_wrong, steps_of
from workbench.course.provenance.trace import Trace
from workbench.course.simulator import DeadlockError, Run, simulate

_OTHERS = (3, 4, 2)
_EACH = 2  # elements of a chunk
_DEADLINE_S = 2.0


@dataclass(frozen=True)
class Replay:
    """A run with coded inputs.

    Args:
        coded: how they are coded.
        n: ranks.
        steps: what happened.
        results: by rank, what each chunk that was returned has in it; None where that is no such sum.
        error: why it did not end.
        wrong: the first change that is wrong, if the results are, or there are none.
    """

    coded: Coded
    n: int
    steps: Sequence[Step]
    results: Sequence[Mapping[int, Content | None]] = field(default_factory=list)
    error: BaseException | None = None
    wrong: Wrong | None = None

    def mistakes(self) -> list[str]:
        """What is wrong with the results, rank by rank."""
        found = (
            words.returned(rank, chunk, content, self.coded, self.n)
            for rank, mine in enumerate(self.results)
            for chunk, content in mine.items()
            if content is not None
        )
        return [text for text in found if text]


def replay(
    function: Callable[..., Any],
    coded: Coded,
    n: int,
    length: int,
    backwards: bool = False,
    deadline_s: float = _DEADLINE_S,
) -> Replay:
    """Run a function on coded inputs, and follow it.

    Args:
        function: the learner's.
        coded: how the inputs are made.
        n: ranks.
        length: of each rank's array.
        backwards: the digits the other way round.
        deadline_s: in real seconds.
    """
    code = coded.code(n, backwards)
    inputs = coded.inputs([code.array(rank, length) for rank in range(n)])
    trace = Trace(function, code, length)
    run, error = Run(n), None
    try:
        run = simulate(n, lambda comm: trace.call(comm, *inputs[comm.rank]), deadline_s=deadline_s)
    except (Exception, SystemExit) as raised:  # noqa: BLE001 - the learner's
        run, error = getattr(raised, "run", run), raised
    steps = steps_of(trace.changes, run.messages)
    results: list[dict[int, Content | None]] = []
    if error is None:
        for rank, result in enumerate(run.results):
            results.append({chunk: code.read(each) for chunk, each in coded.returned(result, rank, n).items()})
    found = Replay(coded, n, steps, results, error)
    if error is None and not found.mistakes():
        return found
    return Replay(coded, n, steps, results, error, first_wrong(steps, coded, n))


def explanation(function: Callable[..., Any], coded: Coded, n: int) -> str:
    """Which ranks are in a wrong sum, and the line that made it so; empty if that cannot be told for sure.

    Args:
        function: the learner's, which gave a wrong result.
        coded: how its inputs are coded.
        n: ranks of the case that was wrong; others are tried if that is right with coded inputs.
    """
    until = time.monotonic() + _DEADLINE_S
    for ranks in dict.fromkeys((n, *_OTHERS)):
        left_s = until - time.monotonic()
        if left_s <= 0:
            break
        try:
            text = _explained(function, coded, ranks, left_s)
        except Exception:  # noqa: BLE001 - of the learner's own objects, or too many ranks: the numbers are told anyway
            continue
        if text:
            return text
    return ""


def _explained(function: Callable[..., Any], coded: Coded, n: int, deadline_s: float) -> str:
    length = _EACH * n if coded.chunked else _EACH
    one = replay(function, coded, n, length, deadline_s=deadline_s)
    if one.error is not None or not one.mistakes():
        return ""
    if one.results != replay(function, coded, n, length, backwards=True, deadline_s=deadline_s).results:
        return ""  # a digit has run over
    told = f"n = {n}: {one.mistakes()[0]}"
    if one.wrong is not None:
        return f"{told}\n{words.place(one.wrong)}"
    return f"{told}\nno step brings what is missing" if "missing" in told else told


__all__ = ["DeadlockError", "Replay", "explanation", "replay"]
