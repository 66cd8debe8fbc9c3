"""What a notebook says to an engine's debugger comes on two channels: with a cell, and when something changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.compilerop import CachingCompiler

from workbench.launch.ranks.debugger import Debugger

CODE = "x = 1\nx = 2\n"


def told(changed_ns: int, *lines: int) -> dict[str, Any]:
    """What a notebook wants from then on."""
    return {"place": ("a cell", 0), "changed_ns": changed_ns, "on": True, "breaks": {"a cell": lines}, "filters": []}


@pytest.mark.parametrize("cell_first", [True, False])
@pytest.mark.parametrize(("with_cell", "change", "stops"), [((2, 2), (1,), 1), ((1, 2), (2,), 0), ((1,), (2, 2), 1)])
def test_what_is_newer_holds(with_cell: tuple[int, ...], change: tuple[int, ...], stops: int, cell_first: bool) -> None:
    """A breakpoint is seen, or gone, also where the control channel is late, or where the cell has waited."""
    said: list[str] = []

    def publish(content: dict[str, Any]) -> None:
        said.append(content["event"])
        if content["event"] == "stopped":
            debugger.receive({"command": "continue"}, lambda answer: None)

    shell = SimpleNamespace(compile=CachingCompiler())  # all that is asked for
    debugger = Debugger(shell, publish)
    for is_cell in (cell_first, not cell_first):
        if is_cell:
            debugger.begins(CODE, told(*with_cell))
        else:
            debugger.receive({"command": "change", "arguments": told(*change)}, lambda answer: None)
    exec(compile(CODE, shell.compile.get_code_name(CODE, CODE, 0), "exec"), {})
    debugger.ends()
    assert said == ["stopped", "continued"] * stops
