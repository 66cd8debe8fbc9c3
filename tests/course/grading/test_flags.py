"""What a teacher is told to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.course import build
from workbench.course.grading.flags import flags
from workbench.course.tasks import names, task

KNOWN = {name: task(name) for name in names()}
FUNCTION = '@exercise("03.ring_allreduce")\ndef f(comm, x):\n    return {}'


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("from workbench.course.tasks.algorithms.t03_ring_allreduce import ring_allreduce as g", "ring_allreduce"),
        (
            "from workbench.course.tasks.algorithms import t03_ring_allreduce as t\ng = t.ring_allreduce",
            "ring_allreduce",
        ),
        ("import workbench.course.tasks.algorithms.t03_ring_allreduce as t\ng = t.TASKS[1].reference", "reference"),
        ("from workbench.course.tasks import task\ng = task('03.ring_allreduce').reference", "reference"),
        ("from workbench.course.tasks import task\nprint(task('03.ring_allreduce').solution())", "solution"),
        (f"from workbench.collectives.ring import ring_allreduce as g\n{FUNCTION.format('g(comm, x)')}", "collectives"),
        (f"import workbench as hvd\n{FUNCTION.format('hvd.allreduce(x)')}", "workbench.allreduce"),
        (FUNCTION.format("comm.allreduce(x)"), "comm.allreduce"),
        (f"def g(comm, x): return comm.allreduce(x)\n{FUNCTION.format('g(comm, x)')}", "comm.allreduce"),
        (f"import gc\n{FUNCTION.format('gc.get_objects()')}", "gc"),
        (f"import sys\n{FUNCTION.format('sys.modules[str(x)]')}", "sys.modules"),
        (FUNCTION.format("__import__('workbench')"), "__import__"),
    ],
)
def test_what_was_taken_ready_made_is_named(cell: str, words: str) -> None:
    """The solution's import, the collective that was asked for, a door to what is not one's own."""
    found = flags([cell], {"03.ring_allreduce": task("03.ring_allreduce")}, KNOWN)
    assert any(words in flag for flag in found["03.ring_allreduce"]), found


def test_a_cell_that_python_cannot_read_is_no_obstacle() -> None:
    """The others are read."""
    cells = ["x = (", "%%px\nhvd.init()", "!ls", FUNCTION.format("comm.allreduce(x)")]
    assert flags(cells, {"03.ring_allreduce": task("03.ring_allreduce")}, KNOWN)


@pytest.mark.parametrize("path", sorted((build.ROOT / "lessons").glob("[0-9]*.py")), ids=lambda path: path.name[:2])
def test_honest_notebooks_have_no_flags(path: Path) -> None:
    """No lesson as it is handed out, nor with its solutions, is suspicious."""
    for notebook in filter(None, (build.read(path, kind) for kind in ("exercises", "solutions"))):
        cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        here = {name: task(name) for name in names() if name.startswith(path.name[:2])}
        assert flags(cells, here, KNOWN) == {}
