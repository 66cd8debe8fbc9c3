"""What is said of a learner's run: which ranks are in a wrong sum, and the line that made it so."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from right_answers import right_answers
from wrong_answers import load

from workbench.course import exercise
from workbench.course.judging.task import CommTask
from workbench.course.provenance.coding import Coded
from workbench.course.provenance.explain import explanation, replay
from workbench.course.simulator import DeadlockError
from workbench.course.tasks import names, task

W02, W03 = load("w02"), load("w03")


def _coded(name: str) -> Coded:
    one = task(name)
    assert isinstance(one, CommTask)
    assert one.coded is not None
    return one.coded


CODED = [name for name in names() if isinstance(one := task(name), CommTask) and one.coded is not None]


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_nothing_is_wrong_with_a_right_run(name: str, n: int) -> None:
    """The solution, and right answers unlike it, have no mistake and no line is blamed."""
    for function in [task(name).reference, *(answer for other, answer in right_answers() if other == name)]:
        run = replay(function, _coded(name), n, 3 * n)
        assert (run.error, run.mistakes(), run.wrong) == (None, [], None)
        assert explanation(function, _coded(name), n) == ""


def second_time(comm: Any, x: Any) -> Any:
    """Adds in the second step of the second half."""
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = np.array_split(x.copy(), n)
    for step in range(n - 1):
        mine = (rank - step - 1) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(chunks[(rank - step) % n], dest=right, source=left)
    for step in range(n - 1):
        got = comm.sendrecv(chunks[(rank - step + 1) % n], dest=right, source=left)
        if step == 1:
            got = got + chunks[(rank - step) % n]
        chunks[(rank - step) % n] = got
    return np.concatenate(chunks)


def test_the_line_of_the_first_wrong_step_is_named() -> None:
    """The second half's second step adds on four ranks: that is step 5, and the line that stores it."""
    run = replay(second_time, _coded("03.ring_allreduce"), 4, 8)
    assert run.wrong is not None
    assert (run.wrong.step, run.wrong.change.text) == (5, "chunks[(rank - step) % n] = got")
    lines = second_time.__code__.co_firstlineno
    assert linecache.getline(__file__, lines + run.wrong.change.line - 1).strip() == run.wrong.change.text
    text = explanation(second_time, _coded("03.ring_allreduce"), 4)
    assert "rank 2 twice" in text
    assert (
        f"first wrong in step 5, on rank 0: ranks 0 and 3 are added a second time\n    in line {run.wrong.change.line}"
        in text
    )


@pytest.mark.parametrize(
    ("name", "function", "words"),
    [
        ("03.reduce_scatter", W03.forgets_to_add, "rank 0, chunk 1: your result = rank 1; ranks 0, 2 and 3 missing"),
        (
            "03.reduce_scatter",
            W03.one_step_short,
            "your result = rank 0; ranks 1, 2 and 3 missing\nno step brings what is missing",
        ),
        ("03.ring_allreduce", W03.adds_in_the_second_half_too, "rank 0 twice + rank 1"),
        ("02.tree_broadcast", W02.takes_rank_0_for_the_root, "the value of rank 0, expected that of rank 2"),
        ("02.shift_right", W02.the_other_way_round, "the value of rank 1, expected that of rank 3"),
    ],
)
def test_a_wrong_sum_is_taken_apart(name: str, function: Callable[..., Any], words: str) -> None:
    """On four ranks: who is missing, who is there twice, and whose value it is."""
    text = explanation(function, _coded(name), 4)
    assert words in text


def multiplies(comm: Any, x: Any) -> Any:
    """More than any digit holds."""
    return comm.allreduce(x) * 1e6


def test_a_sum_that_has_run_over_says_nothing() -> None:
    """More than a digit holds reads as other ranks; the second coding disagrees, and nothing is claimed."""
    assert explanation(multiplies, _coded("03.ring_allreduce"), 4) == ""


def test_a_function_without_lines_of_its_own_is_judged_by_its_results() -> None:
    """Such as one that stands for another process: the sums are taken apart, no line is named."""

    class Remote:
        def __call__(self, comm: Any, x: Any) -> Any:
            return second_time(comm, x)

    text = explanation(Remote(), _coded("03.ring_allreduce"), 4)
    assert "rank 2 twice" in text
    assert "line" not in text


def test_a_deadlock_is_followed_to_where_it_stands_still() -> None:
    """What the ranks held by then is there, with who waits; show() draws it."""
    run = replay(W02.sends_first, _coded("02.shift_right"), 4, 100_000)
    assert isinstance(run.error, DeadlockError)
    assert run.steps[0].held == {(rank, 0): {(rank, 0): 1} for rank in range(4)}
    assert run.results == []


def stops(comm: Any, x: Any) -> Any:
    """Raises after a step."""
    n, rank = comm.size, comm.rank
    chunks = np.array_split(x.copy(), n)
    mine = (rank - 1) % n
    chunks[mine] = chunks[mine] + comm.sendrecv(chunks[rank], dest=(rank + 1) % n, source=(rank - 1) % n)
    raise ZeroDivisionError("here")


def raises_at_once(comm: Any, x: Any) -> Any:
    """Before any step."""
    raise ZeroDivisionError("here")


@pytest.mark.parametrize(
    ("name", "function", "words"),
    [
        ("03.ring_allreduce", W03.adds_in_the_second_half_too, "first wrong in step 4, on rank 0"),
        ("03.ring_allreduce", W03.works_in_place, "24 messages in 6 steps"),
        ("03.ring_allreduce", stops, "then ZeroDivisionError"),
        ("03.ring_allreduce", raises_at_once, "0 messages in 0 steps, then ZeroDivisionError"),
        ("03.ring_allreduce", W03.returns_nothing, "in 4 steps"),
        ("02.shift_right", W02.sends_first, "then nobody can go on: ranks 0, 1, 2 and 3 wait"),
        ("02.tree_broadcast", W02.only_powers_of_two, "7 messages in 3 steps"),
    ],
)
def test_show_draws_whatever_was_written(
    name: str, function: Callable[..., Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong, unfinished, raising, hanging: each has a picture, the same bytes each time, and words for it."""
    monkeypatch.setattr(exercise, "BOARD", exercise.ProgressBoard())
    exercise.exercise(name)(function)
    first, again = exercise.show(name), exercise.show(name)
    assert words in first.alt
    assert first.svg == again.svg
    assert ("wbt-wrong-text" in first.svg.partition("</style>")[2].partition("</style>")[2]) is (
        "first wrong" in first.alt or "wait" in first.alt
    )


def test_a_wrong_ring_looks_unlike_a_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The right one has nothing red; the wrong one has its first wrong field and its line."""
    monkeypatch.setattr(exercise, "BOARD", exercise.ProgressBoard())
    pictures = []
    for function in (task("03.ring_allreduce").reference, W03.adds_in_the_second_half_too):
        exercise.exercise("03.ring_allreduce")(function)
        pictures.append(exercise.show("03.ring_allreduce"))
    right, wrong = pictures
    assert 'class="wbt-wrong"' not in right.svg
    assert 'class="wbt-wrong"' in wrong.svg
    assert "line 10 of your function: chunks[(rank - step) % n] += comm.sendrecv(" in wrong.svg
    assert exercise.show("03.ring_allreduce", times=True).svg.count("wbt-message") == 24


def test_show_draws_the_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lesson 05's function has no messages; its picture is who sees which sample in which epoch."""
    monkeypatch.setattr(exercise, "BOARD", exercise.ProgressBoard())
    exercise.exercise("05.shard")(task("05.shard").reference)
    assert exercise.show("05.shard").alt.startswith(
        "Your shards, 13 samples on 3 ranks: epoch 0: 13 of 13 samples seen"
    )
    exercise.exercise("05.shard")(load("w05").drops_the_end)
    assert "epoch 0: 12 of 13 samples seen, 0 more than once" in exercise.show("05.shard").alt
