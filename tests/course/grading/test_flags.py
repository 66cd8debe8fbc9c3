"""What a teacher is told to look at."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import textwrap

import pytest
from right_answers import right_answers

from workbench.course import exercise
from workbench.course.grading.flags import flags, used
from workbench.course.tasks import names, task

SOLUTION = "is the course's own solution, as solution() inserts it"
KNOWN = {name: task(name) for name in names()}
FUNCTION = '@exercise("03.ring_allreduce")\ndef f(comm, x):\n    return {}'


def test_what_was_taken_ready_made_is_named() -> None:
    """The solution's import, the collective that was asked for, a door to what is not one's own."""
    for cell, words in [
        ("from workbench.course.tasks.t03_ring_allreduce import ring_allreduce as g", "ring_allreduce"),
        ("from workbench.course.tasks import t03_ring_allreduce as t\ng = t.ring_allreduce", "ring_allreduce"),
        ("import workbench.course.tasks.t03_ring_allreduce as t\ng = t.TASKS[1].reference", "reference"),
        ("from workbench.course.tasks import task\ng = task('03.ring_allreduce').reference", "reference"),
        ("from workbench.course.tasks import task\nprint(task('03.ring_allreduce').solution())", "solution"),
        (f"from workbench.collectives.ring import ring_allreduce as g\n{FUNCTION.format('g(comm, x)')}", "collectives"),
        (f"import workbench as hvd\n{FUNCTION.format('hvd.allreduce(x)')}", "workbench.allreduce"),
        (FUNCTION.format("comm.allreduce(x)"), "comm.allreduce"),
        (f"def g(comm, x): return comm.allreduce(x)\n{FUNCTION.format('g(comm, x)')}", "comm.allreduce"),
        (f"import gc\n{FUNCTION.format('gc.get_objects()')}", "gc"),
        (f"import sys\n{FUNCTION.format('sys.modules[str(x)]')}", "sys.modules"),
        (FUNCTION.format("__import__('workbench')"), "__import__"),
    ]:
        found = flags([cell], {"03.ring_allreduce": task("03.ring_allreduce")}, KNOWN)
        assert any(words in flag for flag in found["03.ring_allreduce"]), found


def test_a_cell_that_python_cannot_read_is_no_obstacle() -> None:
    """The others are read."""
    cells = ["x = (", "%%px\nhvd.init()", "!ls", FUNCTION.format("comm.allreduce(x)")]
    assert flags(cells, {"03.ring_allreduce": task("03.ring_allreduce")}, KNOWN)


def test_honest_notebooks_have_no_flags() -> None:
    """No lesson as it is handed out is suspicious; one with its solutions has no flag but that they are these."""
    from workbench.course import build

    lessons = build.lessons([])
    for path, kind, notebook in ((path, kind, build.read(path, kind)) for path in lessons for kind in build.KINDS[1:]):
        if notebook is None:
            continue
        cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        here = {name: task(name) for name in names() if name.startswith(path.name[:2])}
        found = [flag for several in flags(cells, here, KNOWN).values() for flag in several]
        assert set(found) <= ({SOLUTION} if kind == "solutions" else set()), path


@pytest.mark.parametrize(
    "name", ["03.ring_allreduce", "04.average_gradients", "08.ring_time", "11.clip", "13.capstone"]
)
def test_the_cell_that_solution_inserts_is_flagged(name: str) -> None:
    """Whatever its length: it says in its first line where it is from."""
    exercise.BOARD.entry(name).attempts = 1
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exercise.solution(name)
    assert SOLUTION in flags([printed.getvalue()], {name: task(name)}, KNOWN)[name]


def test_a_long_solution_is_known_without_its_comments_and_by_other_names() -> None:
    """The first line taken away, a comment added, a variable renamed: it is the same program; half of it is not."""
    name = "03.ring_allreduce"
    cell = task(name).cell(solved=True)
    here = {name: task(name)}
    for changed in (cell, re.sub(r"\bchunks\b", "parts", cell).replace("    return", "    # my own\n    return")):
        assert SOLUTION in flags([changed], here, KNOWN)[name]
    assert flags([cell.replace("return", "comm.barrier()\n    return")], here, KNOWN) == {}


def test_right_answers_are_nobody_s_solution() -> None:
    """Answers that others have written are not taken for the course's own."""
    for name, answer in right_answers():
        lines = textwrap.dedent(inspect.getsource(answer))
        found = flags([f'@exercise("{name}")\n{lines}'], {name: task(name)}, KNOWN).get(name, [])
        assert task(name).live or SOLUTION not in found, answer.__name__


def test_ranks_that_say_nothing_are_flagged() -> None:
    """With hvd as with comm: who asks for no more than its number has told the others nothing."""
    for name, own, sent in (
        ("03.ring_allreduce", {"comm.now"}, {"comm.sendrecv"}),
        ("11.validate", {"hvd.rank", "hvd.size"}, {"hvd.rank", "hvd.allreduce"}),
    ):
        assert any("no message" in flag for flag in used(task(name), own, passed=True))
        assert used(task(name), sent, passed=True) == []
