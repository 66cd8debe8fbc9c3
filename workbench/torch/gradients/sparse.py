"""Gradients that stay sparse, or become so by top-k: they are gathered, in ``step()``.

That takes three acts, for a rank whose batch did not touch an embedding cannot know that the gradient of the others is
sparse:

1. A rank without a dense gradient says *absent* under its name, whether it has a sparse one or none at all. If all
   ranks say so nothing moves, and each knows that all did.
2. For these names one small sum says how many ranks have a sparse gradient. If none has any, nothing moves again.
3. Those that are sparse somewhere are gathered; a rank that has none adds zero rows.

So a model pays only for parameters that have a dense gradient on no rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from workbench.core.messages import Kind
from workbench.job import api
from workbench.job.api import Max, ReduceOp, Sum
from workbench.job.process_sets import ProcessSet
from workbench.job.requests import OrderOfUse
from workbench.torch.low_communication.topk import TopKCompression
from workbench.torch.ops import gather_sparse
from workbench.training.compression import Compressor

Wait = Callable[[], torch.Tensor]


class SparseGradients:
    """What is gathered, and the form of what is made dense for the reduction.

    Args:
        params: by name; may grow.
        compression: top-k makes all gradients sparse.
        op: Average or Sum.
        as_dense: no gradient stays sparse.
        process_set: who takes part.
        order: tells the optimizer from others.

    Attributes:
        topk: the compression, if it is top-k.
        dims: how many sparse dimensions each has had, after :meth:`keep_forms`; else None.
    """

    def __init__(
        self,
        params: Mapping[str, torch.nn.Parameter],
        compression: Compressor,
        op: ReduceOp,
        as_dense: bool,
        process_set: ProcessSet,
        order: OrderOfUse,
    ) -> None:
        self._order = order
        self._params = params
        self._op = op
        self.as_dense = as_dense
        self._set = process_set
        self.topk = compression if isinstance(compression, TopKCompression) else None
        self.dims: dict[str, int] | None = None
        self._left_out: dict[str, torch.Tensor] = {}  # by top-k, and of this optimizer alone

    def keep_forms(self) -> None:
        """The optimizer takes sparse gradients only: what is made dense for the reduction becomes sparse again."""
        if self.as_dense:
            self.dims = {}

    def note_form(self, name: str) -> None:
        """Remember the form of a sparse gradient that is about to become dense."""
        grad = self._params[name].grad
        if self.dims is not None and grad is not None and grad.is_sparse:
            self.dims[name] = grad.sparse_dim()

    def give_form_back(self, names: Sequence[str]) -> None:
        """What was made dense for the reduction becomes sparse again.

        Args:
            names: of dense results; the same on every rank. One that has had no gradient yet learns the form here.
        """
        if self.dims is None or not names:
            return
        mine = np.array([self.dims.get(name, 0) for name in names], np.int32)
        dims = api.allreduce(mine, name="sparse dimensions", op=Max, process_set=self._set)
        for name, dim in zip(names, dims.tolist(), strict=True):
            grad = self._params[name].grad
            if dim and grad is not None and not grad.is_sparse:
                self._params[name].grad = grad.to_sparse(dim)

    def reduce(self, names: Sequence[str]) -> None:
        """Gather what is sparse somewhere, and put it into ``.grad``.

        Args:
            names: of which no rank has a dense gradient; the same on every rank.
        """
        for name, wait in self.gather_all(names).items():
            self._params[name].grad = wait()

    def gather_all(self, names: Sequence[str]) -> dict[str, Wait]:
        """Begin to gather what is sparse somewhere; with top-k, what some rank has.

        Args:
            names: of which no rank has a dense gradient, or all with top-k; the same on every rank.
        """
        if not names or (self.as_dense and not self.topk):
            return {}
        # For each name: how many ranks have it, and the sum of their numbers of sparse dimensions.
        found = np.array([self._described(name) for name in names], np.int32)
        none = not found.any()
        ask: dict[str, Any] = {"op": Sum, "absent": none, "process_set": self._set}
        source = None if none else found
        entry = api.entry(
            Kind.ALLREDUCE, source, "sparse gradients", dtype="int32", shape=found.shape, target=found, **ask
        )
        if api.submit_when_free([entry])[0].wait() is None:
            return {}
        counted = zip(names, found.tolist(), strict=True)
        return {name: self.gather(name, dims // ranks) for name, (ranks, dims) in counted if ranks}

    def _described(self, name: str) -> tuple[int, int]:
        grad = self._params[name].grad
        if self.topk:
            return int(grad is not None or (name in self._left_out and bool(self._left_out[name].any()))), 0
        return (0, 0) if grad is None else (1, grad.sparse_dim())

    def gather(self, name: str, sparse_dim: int = 1) -> Wait:
        """Begin to gather one gradient, sparse or made so by top-k; the function waits for the result."""
        param, grad = self._params[name], self._params[name].grad
        if self.topk:
            dense = torch.zeros_like(param) if grad is None else grad.to_dense()
            return self.topk.reduce(
                dense, name, self._op, self._set, self._order.about(name, self._set), self._left_out
            )
        if grad is None:
            grad = torch.sparse_coo_tensor(
                torch.empty(sparse_dim, 0, dtype=torch.int64, device=param.device),
                torch.empty(0, *param.shape[sparse_dim:], dtype=param.dtype, device=param.device),
                param.shape,
                check_invariants=True,
            )
        return gather_sparse(grad, name, self._op, self._set, self._order.about(name, self._set))
