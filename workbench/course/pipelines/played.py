"""A pipeline's schedule, played by simulated ranks: how long a step takes, who idles, what each stage keeps.

Each rank is one stage. Its schedule is a list of operations, ``("F", i)`` for the forward of micro-batch i and
``("B", i)`` for its backward, in the order in which the stage does them. Everything else follows from the messages::

    F i   needs F i of the stage before it; the first stage has the input
    B i   needs B i of the stage after it; the last stage begins it from the loss

What a stage sends leaves at once, and the stage goes on: sending takes none of its time, and several messages do not
slow each other down. So a schedule can only deadlock by its order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.common.text import count
from workbench.course.simulator import Comm, DeadlockError, Run, simulate

Op = tuple[str, int]
"""``("F", i)`` or ``("B", i)``"""
Schedule = Callable[[int, int, int], Sequence[Op]]
"""(stage, stages, microbatches) → the stage's operations in their order"""

FORWARD_S, BACKWARD_S = 1.0, 2.0
"""Backward computes two products for each of forward's: the gradients of the input and of the weight."""


@dataclass(frozen=True)
class PlayedSchedule:
    """What came of a schedule.

    Args:
        run: of the simulator, a rank for each stage; its clock begins with the step.
        microbatches: into how many parts the batch was cut.
        peaks: by stage, of how many micro-batches it kept the activations at the same time, at most.
        stuck: why nobody could go on; "" if the step ended.
    """

    run: Run
    microbatches: int
    peaks: tuple[int, ...]
    stuck: str = ""

    @property
    def stages(self) -> int:
        return self.run.size

    @property
    def step_s(self) -> float:
        """Until the last stage is done."""
        return self.run.time_s

    @property
    def bubble(self) -> float:
        """The part of the stages' time in which they compute nothing."""
        busy_s = sum(one.end - one.begin for one in self.run.computed)
        return 1.0 - busy_s / (self.stages * self.step_s)


def gpipe(stage: int, stages: int, microbatches: int) -> list[Op]:
    """GPipe's schedule (Huang and others, 2019): all forwards, then all backwards.

    Example:
        >>> gpipe(0, 4, 2)
        [('F', 0), ('F', 1), ('B', 0), ('B', 1)]
    """
    return [(what, i) for what in "FB" for i in range(microbatches)]


def play(schedule: Schedule, stages: int, microbatches: int, message_s: float = 0.0) -> PlayedSchedule:
    """Play one step.

    Args:
        schedule: what each stage does.
        stages, microbatches: at least 1 of each.
        message_s: how long an activation or a gradient travels from a stage to the next one.

    Raises:
        ValueError: a stage's list is no schedule.

    Example:
        >>> played = play(gpipe, stages=4, microbatches=4)
        >>> played.step_s, round(played.bubble, 3), played.peaks
        (21.0, 0.429, (4, 4, 4, 4))
    """
    plans = [list(schedule(stage, stages, microbatches)) for stage in range(stages)]
    for stage, plan in enumerate(plans):
        if wrong := mistake(plan, microbatches):
            raise ValueError(f"stage {stage} of {stages}: {wrong}")
    notes = [_PipelineStage(plan) for plan in plans]
    try:
        run = simulate(stages, lambda comm: notes[comm.rank].step(comm), alpha_s=message_s, beta_s=0.0)
    except DeadlockError as error:
        stuck = "; ".join(note.stands(stage) for stage, note in enumerate(notes) if note.at < len(note.plan))
        return PlayedSchedule(error.run, microbatches, tuple(note.peak for note in notes), stuck)
    return PlayedSchedule(run, microbatches, tuple(note.peak for note in notes))


def mistake(plan: Sequence[Any], microbatches: int) -> str:
    """Why a list is not the schedule of a stage; "" if it is.

    Example:
        >>> mistake([("F", 0), ("B", 0)], 1), mistake([("B", 0), ("F", 0)], 1)
        ('', 'B 0 stands before F 0, but backward needs what forward has kept')
    """
    done: list[Op] = []
    for op in plan:
        if not (isinstance(op, (tuple, list)) and len(op) == 2 and op[0] in ("F", "B")):
            return f'{op!r} is no operation: ("F", i) or ("B", i) is'
        what, i = op
        if type(i) is not int or not 0 <= i < microbatches:
            return f"there is no micro-batch {i!r}: they are numbered 0 to {microbatches - 1}"
        if (what, i) in done:
            return f"{what} {i} stands there twice"
        if what == "B" and ("F", i) not in done:
            return f"B {i} stands before F {i}, but backward needs what forward has kept"
        done.append((what, i))
    missing = [f"{what} {i}" for what in "FB" for i in range(microbatches) if (what, i) not in done]
    return (
        f"{missing[0]} is missing: each stage does all of the {count(microbatches, 'micro-batch')}" if missing else ""
    )


@dataclass
class _PipelineStage:
    """One stage while it is played: how far it is, and what it keeps."""

    plan: Sequence[Op]
    at: int = 0
    kept: int = 0
    peak: int = 0
    awaits: int = field(default=-1)

    def step(self, comm: Comm) -> None:
        """All operations, on the rank of this stage."""
        sent = []
        for self.at, (what, i) in enumerate(self.plan):  # noqa: B020 - seen from outside when nobody can go on
            forward = what == "F"
            came_from, goes_to = (comm.rank - 1, comm.rank + 1) if forward else (comm.rank + 1, comm.rank - 1)
            if 0 <= came_from < comm.size:
                self.awaits = came_from
                comm.recv(source=came_from, tag=i)
            self.kept += forward
            self.peak = max(self.peak, self.kept)
            comm.compute(FORWARD_S if forward else BACKWARD_S, f"{what} {i}")
            self.kept -= not forward
            if 0 <= goes_to < comm.size:
                sent.append(comm.isend(i, dest=goes_to, tag=i))
        self.at = len(self.plan)
        for message in sent:
            message.wait()

    def stands(self, stage: int) -> str:
        """Where a stage waits that cannot go on."""
        op = " ".join(map(str, self.plan[self.at]))
        return f"stage {stage} waits in its {_nth(self.at + 1)} operation, {op}, for {op} of stage {self.awaits}"


def _nth(number: int) -> str:
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else last}"
