"""Large gradients that a framework lends: reduced where they lie, and left alone as soon as the call has returned."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import workbench as hvd
from workbench.core.handle import Handle
from workbench.training.gradient_list import GradientList

LARGE = (1 << 20) + 3  # floats: more than 4 MiB, and no whole number of cache lines
NAMES = ["kernel", "bias"]


def given(dtype: str = "float32") -> list[np.ndarray]:
    """This rank's gradients."""
    return [np.full(LARGE, hvd.rank() + 1).astype(dtype), np.full(3, hvd.rank() + 1).astype(dtype)]


@pytest.mark.parametrize("lending", [{0, 1}, {0}])
def test_a_large_gradient_is_reduced_where_it_lies(lending: set[int]) -> None:
    """On ranks that lend; the small ones, and those of ranks that do not, stay as they were. All get the same mean."""

    def step() -> list[bool]:
        mine, lends = given(), hvd.rank() in lending
        made = GradientList(NAMES, lent=lends)(mine) or []
        assert all((each == 1.5).all() for each in made)
        assert [each.shape for each in made] == [(LARGE,), (3,)]
        return [np.shares_memory(one, other) for one, other in zip(mine, made, strict=True)]

    assert hvd.run_threads(2, step) == [[rank in lending, False] for rank in range(2)]


def test_what_may_not_be_written_to_is_copied() -> None:
    """A read-only gradient, one of several passes, and one for Adasum keep their values."""

    def step() -> None:
        mine = given()
        mine[0].flags.writeable = False
        GradientList(NAMES, lent=True)(mine)
        for options in ({"passes": 2}, {"op": hvd.Adasum}):
            mine = given()
            GradientList(NAMES, lent=True, **options)(mine)
            assert (mine[0] == hvd.rank() + 1).all()

    hvd.run_threads(2, step)


def test_memory_is_left_alone_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank is interrupted while it waits: the others get its values later, and nobody writes to what it lent."""
    back, wait = threading.Event(), Handle.wait

    def waiting(handle: Handle, *timeout: Any) -> Any:
        if hvd.rank() == 0 and "gradients" in handle.name:
            raise KeyboardInterrupt
        return wait(handle, *timeout)

    monkeypatch.setattr(Handle, "wait", waiting)

    def step() -> None:
        mine = given()
        if hvd.rank() == 0:
            with pytest.raises(KeyboardInterrupt):
                GradientList(NAMES, lent=True)(mine)
            mine[0][:] = -1.0
            back.set()
            hvd.barrier()
            assert (mine[0] == -1.0).all()
        else:
            assert back.wait(30)
            assert all((each == 1.5).all() for each in GradientList(NAMES, lent=True)(mine) or [])
            hvd.barrier()

    hvd.run_threads(2, step)
