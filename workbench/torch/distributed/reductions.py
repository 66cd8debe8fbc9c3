"""torch's ways to combine values, in the workbench's words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist

from workbench.core.messages import ReduceOp


@dataclass(frozen=True)
class Reduction:
    """How values of different ranks are combined.

    Args:
        op: the workbench's; None for what it has not: then all values are gathered, and each rank folds them.
        factor: before that, each rank's are multiplied by its own.
        fold: of two tensors one.
        name: what ranks must agree in beside ``op``; "" for nothing.
    """

    op: ReduceOp | None
    factor: Any = None
    fold: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    name: str = ""

    def of_rows(self, rows: torch.Tensor) -> torch.Tensor:
        assert self.fold
        return reduce(self.fold, rows.unbind())


_SAME = (
    (dist.ReduceOp.SUM, Reduction(ReduceOp.SUM)),
    (dist.ReduceOp.AVG, Reduction(ReduceOp.AVERAGE)),
    (dist.ReduceOp.MIN, Reduction(ReduceOp.MIN)),
    (dist.ReduceOp.MAX, Reduction(ReduceOp.MAX)),
    (dist.ReduceOp.PRODUCT, Reduction(ReduceOp.PRODUCT)),
)
_BITS = (
    (dist.ReduceOp.BAND, torch.bitwise_and),
    (dist.ReduceOp.BOR, torch.bitwise_or),
    (dist.ReduceOp.BXOR, torch.bitwise_xor),
)


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """What torch's ``op`` means. ReduceOps compare by ``==`` and have no hash, so no table finds them.

    Raises:
        ValueError: there is no such op, or not for this dtype.
    """
    for theirs, same in _SAME:
        if op == theirs:
            if dtype.is_complex and same.op in (ReduceOp.MIN, ReduceOp.MAX):
                raise ValueError(
                    f"reduce: {same.op.value} of complex numbers is not defined. Reduce their absolute values."
                )
            if dtype.is_complex and same.op is ReduceOp.PRODUCT:
                return Reduction(None, fold=torch.mul, name=".product")
            return same
    for theirs, fold in _BITS:
        if op == theirs:
            return Reduction(None, fold=fold, name=f".{fold.__name__}")
    if op == dist.ReduceOp.PREMUL_SUM:
        return Reduction(ReduceOp.SUM, op.__getstate__()[1], name=".premul")
    raise ValueError(
        f"The backend workbench has no {op}. Use SUM, AVG, MIN, MAX, PRODUCT, PREMUL_SUM, BAND, BOR or BXOR."
    )
