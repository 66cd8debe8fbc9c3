"""``check`` in a notebook: a loop that never ends is announced; a cell with a SyntaxError is said to be one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_kernel import LiveKernel

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

NAME = "02.tree_broadcast"
RIGHT_BLANK = f"@exercise({NAME!r})\ndef tree_broadcast(comm, value, root):\n    return value"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveKernel]:
    """A notebook of the course."""
    kernel, path = LiveKernel(), tmp_path_factory.mktemp("progress") / "progress.json"
    kernel.run("import pathlib\nfrom workbench.course.exercise import BOARD, check, exercise")
    kernel.run(f"BOARD.path = pathlib.Path({str(path)!r})")
    kernel.run("from workbench.course.judging import judge\njudge.DEADLINE_S = 3.0")
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


def text(kernel: LiveKernel, code: str, asked: bool = True) -> str:
    """What a cell shows."""
    return "".join(each.text for each in kernel.run(code, asked=asked))


def test_a_loop_that_never_ends_is_announced(kernel: LiveKernel) -> None:
    """Before the verdict, and only where somebody waits: a compared output has no line that depends on time."""
    kernel.run(f"@exercise({NAME!r})\ndef tree_broadcast(comm, value, root):\n    while True:\n        pass")
    said = text(kernel, f"check({NAME!r})")
    assert said.index("still running") < said.index("did not end within")
    assert "still running" not in text(kernel, f"check({NAME!r})", asked=False)


def test_a_syntax_error_is_not_judged(kernel: LiveKernel) -> None:
    """The function before it would be judged; when the cell is right again, it is."""
    kernel.run(RIGHT_BLANK)
    kernel.run(RIGHT_BLANK.replace("return", "retrun = ="))
    said = text(kernel, f"check({NAME!r})")
    assert "SyntaxError: nothing is judged" in said
    assert not {"✓", "✗"} & set(said)
    kernel.run(RIGHT_BLANK)
    assert "SyntaxError" not in text(kernel, f"check({NAME!r})")
