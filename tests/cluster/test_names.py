"""Completion and Shift+Tab in a ``%%px`` cell know what lives on the engines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from live_kernel import LiveKernel, live_kernel

from workbench.cluster.names import for_engines

pytestmark = [pytest.mark.integration, pytest.mark.parallel]


@pytest.fixture(scope="module")
def kernel() -> Iterator[LiveKernel]:
    """A notebook with two ranks, which have an array; rank 1 has a name of its own."""
    with live_kernel(2) as kernel:
        kernel.run(
            "%%px\nweights = np.ones((3, 4))\nmine = 'text' if hvd.rank() else 7\nif hvd.rank():\n    only_on_one = 1"
        )
        yield kernel


def complete(kernel: LiveKernel, code: str) -> tuple[list[str], str]:
    """The matches, and the text that they replace."""
    found: dict[str, Any] = kernel.client.complete(code, reply=True, timeout=20)["content"]
    return found["matches"], code[found["cursor_start"] : found["cursor_end"]]


def inspect(kernel: LiveKernel, code: str) -> str:
    """What Shift+Tab shows."""
    found: dict[str, Any] = kernel.client.inspect(code, reply=True, timeout=20)["content"]
    return str(found["data"]["text/plain"]) if found["found"] else ""


@pytest.mark.parametrize(
    ("code", "match", "replaced"),
    [
        ("%%px\nwei", "weights", "wei"),
        ("%%px --targets 1\nx = 1\nweights.resh", "reshape", "resh"),
        ("%%rank 1\nonly_on", "only_on_one", "only_on"),
        ("a = 1\n%px wei", "weights", "wei"),
    ],
)
def test_names_of_engines_are_completed(kernel: LiveKernel, code: str, match: str, replaced: str) -> None:
    """From a cell or a line for engines; a name that one rank has is there, too.

    An engine that does not answer within a moment is not waited for: on a busy machine it takes more than one try.
    """
    until = time.monotonic() + 10
    while not (found := complete(kernel, code))[0] and time.monotonic() < until:
        pass
    assert found == ([match], replaced)


def test_the_notebook_completes_its_own(kernel: LiveKernel) -> None:
    """Other cells, and the first line of a cell for engines, are the kernel's."""
    assert complete(kernel, "c.resc")[0] == ["rescue"]
    assert "weights" not in complete(kernel, "wei")[0]


def test_what_an_object_is(kernel: LiveKernel) -> None:
    """Equal objects are described once; where ranks differ, each is; a name that is nowhere is not found."""
    text = inspect(kernel, "%%px\nweights")
    assert text.count("String form") == 1
    assert "rank" not in text.partition("Docstring")[0]
    text = inspect(kernel, "%%px\nmine")
    assert text.index("rank 0:") < text.index("int(") < text.index("rank 1:") < text.index("str(")
    assert inspect(kernel, "%%px\nnowhere") == ""


def test_a_busy_engine_answers(kernel: LiveKernel) -> None:
    """While a rank computes in Python, completions come all the same."""
    kernel.run("%%px --noblock\nbusy = True\nwhile busy:\n    pass")
    try:
        assert complete(kernel, "%%px\nwei")[0] == ["weights"]
    finally:
        kernel.run("c.client.send_signal('SIGINT', block=True)\nc.view.apply_sync(int)")


def test_question_mark(kernel: LiveKernel) -> None:
    """``x?`` in a cell shows the text with the cell's output."""
    assert "ndarray" in kernel.run("%%rank 0\nweights?")[-1].text


@pytest.mark.parametrize(
    ("code", "position", "begin"),
    [
        ("%%px", 4, None),
        ("%%px\n", 5, 5),
        ("%%px\nx", 3, None),
        ("x\n%px y", 4, None),
        ("x\n%px y", 6, 6),
        ("x", 1, None),
    ],
)
def test_where_the_code_of_engines_begins(code: str, position: int, begin: int | None) -> None:
    """Behind the first line of a cell, and behind the magic of a line."""
    assert for_engines(code, position) == begin
