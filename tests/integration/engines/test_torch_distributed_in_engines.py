"""torch.distributed in cells: what goes wrong is told with each rank's line, and the next cell works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from ipyparallel import CompositeError

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(180)]
BEGIN = """
import torch
import torch.distributed as dist
import workbench.torch

dist.init_process_group("workbench")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
"""
SUM = "tensor = torch.ones(2)\ndist.all_reduce(tensor)\nassert tensor.tolist() == [3.0, 3.0], tensor"


@pytest.fixture
def cell(running: Any) -> Iterator[Any]:
    """Runs a cell on three engines, which are in a group."""

    def run(code: str) -> None:
        running.view.execute(code, silent=False, block=True)

    run(BEGIN)
    yield run
    run("dist.destroy_process_group()\nassert not workbench.is_initialized()")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("if dist.get_rank():\n    dist.all_reduce(torch.ones(2))", "Rank 0 is idle"),
        ("dist.all_reduce(torch.ones(2 + dist.get_rank()))", "Mismatched allreduce tensor shapes"),
        ("if dist.get_rank() == 2:\n    dist.send(torch.ones(2), 0)", "so 'send.0."),
        ("assert dist.get_rank(), 'mine'\ndist.barrier()", "Rank 0 raised an exception"),
        ("for _ in range(bool(dist.get_rank())):\n    model(torch.ones(2, 3)).sum().backward()", "Rank 0 is idle"),
    ],
)
def test_the_next_cell_works(cell: Any, wrong: str, told: str) -> None:
    """Whatever was wrong in the last one, in the group that is there."""
    cell(SUM)
    with pytest.raises(CompositeError) as caught:
        cell(wrong)
    text = "\n".join(str(each[1]) for each in caught.value.elist)
    assert told in text
    assert "in the cell, line" in text or "Mismatched" in text
    cell(SUM)


def test_what_a_cell_has_left_is_given_up(cell: Any) -> None:
    """A call of one rank that the others' cells have not made is not met by their next one of that number."""
    cell("left = dist.all_reduce(torch.ones(2), async_op=True) if dist.get_rank() == 0 else None")
    with suppress(CompositeError):  # "Run this cell again", if it was sent before rank 0 has heard of the failure
        cell(SUM)
    cell(SUM)
    with pytest.raises(CompositeError, match="in a cell that has ended"):
        cell("left and left.wait()")
    cell(SUM)
