"""A step that one rank's exception breaks off, as a notebook's cell does; then all go on together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from all_ranks import wait_for_all

import workbench.torch as hvd
from workbench.errors import CollectiveError
from workbench.job.context import HOLDER


def fail(*_: Any) -> None:
    """A hook that raises."""
    raise ArithmeticError("on purpose")


def broken_off(step: Callable[[], Any], hooks: Sequence[Any]) -> None:
    """Run a step, which this rank ends with :func:`fail` if it has set hooks; the others hear of it.

    Args:
        step: of all ranks.
        hooks: are removed afterwards; none where another rank raises.
    """
    cell = HOLDER.get()
    cell.cell_begins()
    with pytest.raises(ArithmeticError if hooks else CollectiveError) as caught:
        step()
    for hook in hooks:
        hook.remove()
    if hooks:
        cell.cell_raised(f"ArithmeticError: {caught.value}")
    else:
        assert "ArithmeticError: on purpose" in str(caught.value)
    wait_for_all()
    cell.cell_begins()
    hvd.barrier()
