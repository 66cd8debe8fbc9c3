"""Judge and function in two processes come to the verdict that one process comes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged import ALWAYS
from right_answers import right_answers
from submissions import imports
from thorough import once_more
from wrong_answers import as_a_cell, wrong_answers

from workbench.course.grading.apart.process import NotebookProcess
from workbench.course.grading.apart.values import NotDataError, Values
from workbench.course.grading.apart.worker import LearnersFunction
from workbench.course.grading.sheet import first_red
from workbench.course.judging import judge
from workbench.course.tasks import names, task

pytestmark = pytest.mark.timeout(300)  # on a busy machine, too

WRONG = [one for one in wrong_answers() if not task(one[0]).live]
LESSONS = sorted({name[:2] for name, *_ in WRONG})


def no_object(value: Any, pack: Any) -> Any:
    """Nothing but data."""
    raise NotDataError(type(value).__name__)


VALUES = Values(no_object, no_object)


@pytest.mark.parametrize(
    "value",
    [
        (None, True, -3, 2**80, 0.1, float("inf"), "ä\ud800"[:1], b"\x00\xff", 1j),
        [[], (), {}, set(), frozenset({1}), {(1, 2): [3]}, range(1, 9, 2)],
        [np.arange(6.0).reshape(2, 3), np.zeros((0, 3), np.int8), np.array(5), np.float32(0.5), np.bool_(True)],
    ],
)
def test_values_come_back_as_they_were(value: Any) -> None:
    """Data travels with its types and its bits."""
    blobs = bytearray()
    packed = VALUES.pack(value, blobs)
    again = VALUES.unpack(packed, memoryview(blobs))
    assert repr(again) == repr(value)
    assert [type(one) for one in again] == [type(one) for one in value]


def test_a_fraction_travels_as_a_float() -> None:
    """Who computes exactly gets no worse a mark than who does not."""
    assert VALUES.pack([Fraction(1, 2), Decimal("0.25")], bytearray()) == [0.5, 0.25]


@pytest.mark.parametrize("value", [object(), np.array([object()]), lambda: 0])
def test_what_is_no_data_does_not_travel(value: Any) -> None:
    """An object is never pickled."""
    with pytest.raises(NotDataError):
        VALUES.pack(value, bytearray())


@contextmanager
def notebook(folder: Path, *cells: str) -> Iterator[NotebookProcess]:
    """A process that has run these cells."""
    process = NotebookProcess(str(folder / "work"), sandbox=False, limits={})
    try:
        process.begin(cells, {})
        while (event := process.event(30.0)) is not None and event[0] not in ("ready", "gone"):
            assert event[0] != "raised", event
        assert event is not None
        assert event[0] == "ready", process.last_words()
        yield process
    finally:
        process.stop()


def function(process: NotebookProcess, name: str) -> LearnersFunction:
    """What was handed in for an exercise."""
    return process.function(process.functions[name])


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lesson", LESSONS)
def test_wrong_answers_fail_as_they_do_in_one_process(lesson: str, tmp_path: Path) -> None:
    """For every wrong answer of the suite the first red line is of the same stage."""
    wrong = [one for one in WRONG if one[0].startswith(lesson)]
    source = as_a_cell("wrong", lesson)
    anchor = 'from workbench.course.exercise import exercise\n@exercise("02.shift_right")\ndef anchor(): pass'
    unlike = []
    with notebook(tmp_path, source, anchor) as process:
        known = function(process, "02.shift_right").__globals__
        for name, answer, *_ in wrong:
            try:
                theirs = known[answer.__name__]
            except KeyError:
                continue  # made by another function
            apart, beside = (first_red(judge.judge(task(name), one)) for one in (theirs, answer))
            if (apart[0], apart[1].partition(":")[0]) != (beside[0], beside[1].partition(":")[0]):
                unlike.append((name, answer.__name__, apart, beside))
            assert process.answers(2.0)
    assert unlike == []


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lesson", LESSONS)
def test_right_answers_pass_as_they_do_in_one_process(lesson: str, tmp_path: Path) -> None:
    """Also those that are unlike the official solution: what they take and return travels between the processes."""
    left_out = LONG | {"05.shard"}  # thousands of calls for each answer
    right = [(name, one) for name, one in right_answers() if name.startswith(lesson) and name not in left_out]
    right = [(name, one) for name, one in right if not task(name).live]
    source = as_a_cell("right", lesson)
    anchor = 'from workbench.course.exercise import exercise\n@exercise("02.shift_right")\ndef anchor(): pass'
    with notebook(tmp_path, source, anchor) as process:
        known = function(process, "02.shift_right").__globals__
        there = [(name, known[one.__name__]) for name, one in right if one.__name__ in known]
        found = [(name, one.__name__, *first_red(judge.judge(task(name), one))) for name, one in there]
    assert [one for one in found if one[2] != "passed"] == []


LONG = {"07.best_threshold", "16.schedule"}  # several seconds each; test_wrong_answers has these lessons, too


@pytest.mark.slow
@pytest.mark.parametrize("every", [False, once_more(True)])
def test_every_task_says_whether_it_is_live(every: bool, tmp_path: Path) -> None:
    """Every solution passes from another process, but for those that say that they need the judge's own objects.

    In a run that is not thorough some of every kind.
    """
    wanted = [name for name in names() if not task(name).live and name not in LONG]
    if not every:
        wanted = [name for name in wanted if name in ALWAYS]
    cells = [cell for name in wanted for cell in (imports(name), task(name).cell(solved=True))]
    with notebook(tmp_path, "from workbench.course.exercise import exercise", *cells) as process:
        found = {name: first_red(judge.judge(task(name), function(process, name))) for name in wanted}
    assert {name: told for name, told in found.items() if told[0] != "passed"} == {}, "does it need live=True?"


BUFFERS = """
import numpy as np
from workbench.course.exercise import exercise

@exercise("02.shift_right")
def shift_right(comm, x):
    got = np.empty_like(x)
    if comm.rank % 2:
        pending = comm.Irecv(got, source=(comm.rank - 1) % comm.size), comm.Isend(x, dest=(comm.rank + 1) % comm.size)
        for one in pending: one.wait()
    else:
        comm.Sendrecv(x, dest=(comm.rank + 1) % comm.size, recvbuf=got, source=(comm.rank - 1) % comm.size)
    return got

@exercise("03.ring_allreduce")
def early(comm, x):
    got = np.empty_like(x)
    pending = comm.Irecv(got, source=(comm.rank - 1) % comm.size)
    mine = x.copy()
    sent = comm.Isend(mine, dest=(comm.rank + 1) % comm.size)
    mine[:] = 7.0
    sent.wait()
    pending.wait()
    return got

@exercise("04.sgd_step")
def changes(comm, w, x, y, lr):
    total, count = comm.allreduce(x.T @ (x @ w - y)), comm.allreduce(len(y))
    w -= lr * total / count
    return w.copy()

@exercise("04.average_gradients")
def largest(comm, total, count):
    return comm.allreduce(total, op=lambda a, b: a + b) / comm.allreduce(count, op=np.add)
"""


def test_buffers_and_arguments_are_the_caller_s_own(tmp_path: Path) -> None:
    """Arrays that messages fill are filled; one that is overwritten too early, or an argument changed, is noticed."""
    with notebook(tmp_path, BUFFERS) as process:
        told = {name: first_red(judge.judge(task(name), function(process, name))) for name in process.functions}
    assert told["02.shift_right"] == ("passed", "")
    assert "was changed before wait()" in told["03.ring_allreduce"][1]
    assert "changes its own w" in told["04.sgd_step"][1]
    assert told["04.average_gradients"] == ("passed", "")
