"""Lesson 20, second half: the 1F1B schedule, and a pipeline that trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from workbench.common import text
from workbench.course.judging.task import Bound, Case, CommTask, PlainTask
from workbench.course.pipelines.picture import pipeline_picture
from workbench.course.pipelines.played import BACKWARD_S, FORWARD_S, PlayedSchedule, mistake, play
from workbench.course.simulator import Run
from workbench.observe.figure import Figure

Array = np.ndarray[Any, Any]
_SHOWN = 4, 8  # stages, micro-batches


def one_f_one_b(stage: Any, stages: Any, microbatches: Any) -> Any:
    """Return the operations of a stage in their order: ("F", i) and ("B", i) for each micro-batch i.

    First as many forwards as there are stages after this one (fewer if there are fewer micro-batches). Then one
    forward, one backward, in turns, while there are forwards. Then the backwards that are left.
    """
    ### BEGIN SOLUTION
    ahead = min(stages - stage - 1, microbatches)
    ops = [("F", i) for i in range(ahead)]
    for i in range(microbatches - ahead):
        ops += [("F", ahead + i), ("B", i)]
    return ops + [("B", i) for i in range(microbatches - ahead, microbatches)]
    ### END SOLUTION


def _sizes() -> Iterator[tuple[int, int]]:
    """(stages, micro-batches), the most telling first; fewer micro-batches than stages, too."""
    return ((stages, count) for count in (1, 3, 2, 5, 8) for stages in (2, 3, 4, 1))


def _about(stages: int, microbatches: int) -> str:
    return f"{text.count(stages, 'stage')}, {text.count(microbatches, 'micro-batch')}"


def _each_once(function: Callable[..., Any]) -> str:
    """Every stage does each micro-batch once forward and once backward."""
    for stages, count in _sizes():
        for stage in range(stages):
            plan = function(stage, stages, count)
            if not isinstance(plan, (list, tuple)):
                return (
                    f"your result is of type {type(plan).__name__}, expected a list of operations. Is there a return?"
                )
            if wrong := mistake(plan, count):
                return f"{_about(stages, count)}, stage {stage}: {wrong}"
    return ""


def _no_deadlock(function: Callable[..., Any]) -> str:
    """No stage waits for ever."""
    for stages, count, played in _played(function):
        if played.stuck:
            return f"{_about(stages, count)}: deadlock. {played.stuck[0].upper()}{played.stuck[1:]}"
    return ""


def _bubble(function: Callable[..., Any]) -> str:
    """The bubble is (p - 1) / (m + p - 1) of the step."""
    for stages, count, played in _played(function):
        least = (count + stages - 1) * (FORWARD_S + BACKWARD_S)
        if played.step_s > least + 1e-9:
            yours, bubble = 100 * played.bubble, 100 * (stages - 1) / (count + stages - 1)
            return (
                f"{_about(stages, count)}: the step takes {played.step_s:g}, and the stages are idle for {yours:.1f} % "
                f"of it; the best schedule takes {least:g} and is idle for {bubble:.1f} %"
            )
    return ""


def _peaks(function: Callable[..., Any]) -> str:
    """Stage s keeps the activations of min(p - s, m) micro-batches at most."""
    for stages, count, played in _played(function):
        for stage, peak in enumerate(played.peaks):
            most = min(stages - stage, count)
            if peak > most:
                like = ": all of them, as in GPipe" if set(played.peaks) == {count} else ""
                return (
                    f"{_about(stages, count)}: stage {stage} keeps the activations of {peak} micro-batches at one "
                    f"time{like}; min({stages} - {stage}, {count}) = {most} are enough"
                )
    return ""


def _played(function: Callable[..., Any]) -> Iterator[tuple[int, int, PlayedSchedule]]:
    return ((stages, count, play(function, stages, count)) for stages, count in _sizes())


def _drawn(function: Callable[..., Any]) -> Figure:
    """The step of four stages and eight micro-batches; of a schedule that deadlocks, until nobody can go on."""
    return pipeline_picture(play(function, *_SHOWN), "Your schedule")


def pipeline(comm: Any, w: Any, xs: Any, ts: Any) -> Any:
    """Return the gradient of this stage's weight w, summed over the micro-batches.

    Rank s is stage s; it computes h = np.tanh(x @ w), and its h is the x of the next one. The loss of micro-batch i is
    ((h - ts[i]) ** 2).sum() / 2 on the last stage. xs: the micro-batches on rank 0, else None. ts: likewise, the
    targets on the last rank. Backward: dz = dh * (1 - h ** 2); w's gradient is x.T @ dz, and that of x is dz @ w.T.
    """
    ### BEGIN SOLUTION
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    count = comm.bcast(len(xs) if first else None)
    kept = []
    for i in range(count):
        x = xs[i] if first else comm.recv(source=comm.rank - 1)
        kept.append((x, np.tanh(x @ w)))
        if not last:
            comm.send(kept[i][1], dest=comm.rank + 1)
    total = np.zeros_like(w)
    for i, (x, h) in enumerate(kept):
        dh = h - ts[i] if last else comm.recv(source=comm.rank + 1)
        dz = dh * (1 - h**2)
        total = total + x.T @ dz
        if not first:
            comm.send(dz @ w.T, dest=comm.rank - 1)
    return total
    ### END SOLUTION


def _stages(n: int, count: int, rows: int = 2, width: int = 3) -> Case:
    random = np.random.default_rng([n, count, rows])
    xs, ts = ([random.normal(size=(rows, width)) for _ in range(count)] for _ in range(2))
    weights = [random.normal(size=(width, width)) / width**0.5 for _ in range(n)]
    inputs = [(w, xs if rank == 0 else None, ts if rank == n - 1 else None) for rank, w in enumerate(weights)]
    return Case(n, text.count(count, "micro-batch"), inputs)


def _forward(case: Case) -> list[list[Array]]:
    """By micro-batch, the input and what each stage makes of it."""
    found = []
    for x in case.inputs[0][1]:
        hs = [x]
        for w, _, _ in case.inputs:
            hs.append(np.tanh(hs[-1] @ w))
        found.append(hs)
    return found


def _serial(case: Case) -> list[Any]:
    """All stages in one process."""
    kept, totals = _forward(case), []
    dhs = [hs[-1] - t for hs, t in zip(kept, case.inputs[-1][2], strict=True)]
    for stage in reversed(range(case.n)):
        dzs = [dh * (1 - hs[stage + 1] ** 2) for dh, hs in zip(dhs, kept, strict=True)]
        totals.append(sum(hs[stage].T @ dz for hs, dz in zip(kept, dzs, strict=True)))
        dhs = [dz @ case.inputs[stage][0].T for dz in dzs]
    return totals[::-1]


def _neighbours(case: Case, run: Run) -> Sequence[Bound]:
    """One activation and one gradient for each micro-batch between neighbours; one number for all may be sent, too."""
    xs = case.inputs[0][1]
    return [
        Bound.busiest(
            run,
            2 * sum(x.nbytes for x in xs),
            2.2 * sum(x.nbytes for x in xs),
            "A stage sends to its two neighbours only",
        )
    ]


TASKS = [
    PlainTask(
        "20.one_f_one_b",
        "one forward, one backward: GPipe's bubble with less memory",
        one_f_one_b,
        probes=lambda: [(s, p, m) for p, m in ((3, 1), (4, 8), (2, 5), (3, 2)) for s in sorted({0, p // 2, p - 1})],
        draw=_drawn,
        properties=[_each_once, _no_deadlock, _bubble, _peaks],
        points=2,
    ),
    CommTask(
        "20.pipeline",
        "a pipeline that trains, by send and recv",
        pipeline,
        cases=lambda: [_stages(n, count) for count in (1, 2, 5) for n in (1, 2, 3, 4)],
        expected=_serial,
        bounds=_neighbours,
        scored=_stages(4, 6, 64, 32),
        shown=_stages(4, 6, 64, 32),
        points=3,
    ),
]
