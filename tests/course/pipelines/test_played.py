"""Pipelines on the virtual clock: the bubble, what is kept, who waits for whom, and their picture."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workbench.course.pipelines.picture import pipeline_picture
from workbench.course.pipelines.played import Op, Schedule, gpipe, mistake, play
from workbench.course.pipelines.split_layers import split_layers
from workbench.course.tasks import task

ONE_F_ONE_B: Schedule = task("20.one_f_one_b").reference
GRID = [(p, m) for p in (1, 2, 3, 5) for m in (1, 2, 4, 7)]


@pytest.mark.parametrize("schedule", [gpipe, ONE_F_ONE_B], ids=["gpipe", "1f1b"])
def test_the_bubble_is_the_formula_s(schedule: Schedule) -> None:
    """Both schedules idle (p - 1)/(m + p - 1) of the step, also with fewer micro-batches than stages."""
    for p, m in GRID:
        assert play(schedule, p, m).bubble == pytest.approx((p - 1) / (m + p - 1))


def test_what_each_stage_keeps() -> None:
    """GPipe keeps all m micro-batches on each stage, 1F1B min(p - s, m) on stage s."""
    for p, m in GRID:
        assert play(gpipe, p, m).peaks == (m,) * p
        assert play(ONE_F_ONE_B, p, m).peaks == tuple(min(p - s, m) for s in range(p))


def test_messages_take_time() -> None:
    """With a latency, the step grows by that of the way there and back: GPipe hides all others."""
    assert play(gpipe, 4, 8, message_s=0.1).step_s == pytest.approx(33 + 6 * 0.1)


def waits_crosswise(stage: int, stages: int, microbatches: int) -> list[Op]:
    """The first stage wants its gradient before the second has what it wants."""
    turns = [(what, i) for i in range(microbatches) for what in "FB"]
    return turns if stage == 0 else gpipe(stage, stages, microbatches)


def test_a_deadlock_names_who_waits_for_what() -> None:
    """The stages that wait, the operation that each stands at, and what has not come."""
    played = play(waits_crosswise, 2, 2)
    assert played.stuck == (
        "stage 0 waits in its 2nd operation, B 0, for B 0 of stage 1; "
        "stage 1 waits in its 2nd operation, F 1, for F 1 of stage 0"
    )
    assert "deadlock: stage 0 waits" in pipeline_picture(played, "Crosswise").alt


def test_what_is_no_schedule() -> None:
    """Each micro-batch once forward and then once backward, and nothing else."""
    for plan, words in [
        ([("F", 0), ("B", 0), ("F", 1), ("B", 1)], ""),
        ([("F", 0), ("B", 0), ("F", 0), ("B", 1)], "F 0 stands there twice"),
        ([("F", 0), ("B", 1), ("F", 1), ("B", 0)], "B 1 stands before F 1"),
        ([("F", 0), ("F", 1), ("B", 0)], "B 1 is missing"),
        ([("F", 0), ("F", 2)], "there is no micro-batch 2"),
        ([("F", True)], "there is no micro-batch True"),
        (["F0"], "'F0' is no operation"),
        ([("W", 0)], "('W', 0) is no operation"),
    ]:
        found = mistake(plan, 2)
        assert words in found
        assert bool(found) == bool(words)


@pytest.mark.parametrize("draw", [lambda: pipeline_picture(play(gpipe, 3, 4), "GPipe"), lambda: split_layers(3)])
def test_pictures_are_the_same_each_time(draw: Callable[[], object]) -> None:
    """The same bytes for the same run; each box says what it is."""
    first, second = draw(), draw()
    assert first.svg == second.svg  # type: ignore[attr-defined]
    assert first.svg.count("<title>") >= 8  # type: ignore[attr-defined]
