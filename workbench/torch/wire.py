"""How one gradient travels: as an entry for the engine, and its result back into ``.grad``.

A dense gradient is reduced. One that is to stay sparse is gathered, and that takes three acts, for a rank whose batch
did not touch an embedding cannot know that the gradient of the others is sparse:

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

from workbench import api
from workbench.api import ReduceOp, Sum
from workbench.errors import MismatchError
from workbench.process_sets import ProcessSet
from workbench.runtime.messages import Kind
from workbench.runtime.pending import Entry
from workbench.torch.flat import FlatBucket
from workbench.torch.ops import sparse_allreduce_async
from workbench.torch.sharded import Shards
from workbench.torch.tensors import about, in_place, tensor_of
from workbench.torch.topk import TopKCompression
from workbench.training.compression import Compressor
from workbench.training.gradients import group_fields

Wait = Callable[[], torch.Tensor]

_CHANGED = (
    "The gradient of {!r} was changed while it was on its way to the other ranks. Call optimizer.synchronize() after "
    "backward(), change the gradients then, and call step() within optimizer.skip_synchronize()."
)


class Wire:
    """The ways of an optimizer's gradients.

    Args:
        params: by name; may grow.
        compression: what travels of a dense gradient.
        op, predivide: how gradients become one; see DistributedOptimizer.
        sparse_as_dense: no gradient stays sparse.
        process_set: who takes part.

    Attributes:
        flat: for each name the bucket that it lives in, if it does.
        shards: what each rank updates, if sharded.
    """

    def __init__(
        self,
        params: dict[str, torch.nn.Parameter],
        compression: Compressor,
        op: ReduceOp,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.params, self.compression, self.process_set = params, compression, process_set
        self.topk = compression if isinstance(compression, TopKCompression) else None
        self._op, self._sparse_as_dense = op, sparse_as_dense
        self._fields: dict[str, Any] = {"op": op, "process_set": process_set}
        if predivide != 1.0:
            self._fields |= {"prescale": 1.0 / predivide, "postscale": predivide}
        # What was compressed, its context, and the gradient's version, which torch counts up at every change.
        self._travelling: dict[str, tuple[torch.Tensor, Any, int]] = {}
        self.flat: dict[str, FlatBucket] = {}
        self.shards: Shards | None = None

    def dense(self, name: str) -> torch.Tensor | None:
        """The gradient, made dense where it is to be; None without one, or with one that stays sparse."""
        grad = self.params[name].grad
        if grad is None or (grad.is_sparse and not self._sparse_as_dense):
            return None
        if grad.layout is not torch.strided:
            self.params[name].grad = grad = grad.to_dense()
        return grad

    def entries(self, names: Sequence[str]) -> list[Entry]:
        """A bucket as one entry, or each dense gradient as it is now."""
        bucket = self.flat.get(names[0])
        if bucket is None:
            return [self._entry(name, group_fields(names)) for name in names]
        bucket.fill()
        if self.shards:
            return [self.shards.entry(bucket)]
        array, name = bucket.array, bucket.bucket.name
        return [api.entry(Kind.ALLREDUCE, array, name, target=array, **about(bucket.flat), **self._fields)]

    def _entry(self, name: str, group: dict[str, Any]) -> Entry:
        """Without a gradient this rank contributes zeros, or nothing if no rank has one."""
        param, grad = self.params[name], self.dense(name)
        fields = self._fields | group
        if grad is None:
            zeros = param.new_zeros(()).expand(param.shape)  # takes no memory, however large the parameter
            small, ctx = self.compression.compress(zeros)
            self._travelling[name] = param.new_empty(0, dtype=small.dtype), ctx, 0
            shape = tuple(small.shape)
            return api.entry(Kind.ALLREDUCE, None, name, shape=shape, absent=True, **about(small), **fields)
        small, ctx = self.compression.compress(grad.detach())
        small = small.contiguous()
        self._travelling[name] = small, ctx, grad._version
        array, convert = in_place(small)
        return api.entry(Kind.ALLREDUCE, array, name, target=array, convert=convert, **about(small), **fields)

    def store(self, reduced: dict[str, Any], buckets: Mapping[str, FlatBucket]) -> None:
        """Put results where the optimizer looks for them; None if no rank had a dense gradient: as in a serial run.

        Args:
            reduced: by name.
            buckets: where some of them travelled.

        Raises:
            RuntimeError: a gradient was changed in the meantime.
            MismatchError: this rank's gradient is sparse, and another rank's is dense.
        """
        for bucket in dict.fromkeys(buckets[name] for name in reduced if name in buckets):
            for name in bucket.changed():
                raise RuntimeError(_CHANGED.format(name))
            if not self.shards:
                bucket.give()
        for name, result in reduced.items():
            if name not in buckets:
                self._store(name, result)

    def _store(self, name: str, reduced: Any) -> None:
        param, (small, ctx, version) = self.params[name], self._travelling.pop(name)
        if reduced is None:
            return
        if small.numel() and param.grad is not None and param.grad._version != version:
            raise RuntimeError(_CHANGED.format(name))
        if param.grad is not None and param.grad.is_sparse:
            raise MismatchError(
                f"The gradient of {name!r} is sparse on rank {api.rank()}, but dense on another rank. "
                "Give DistributedOptimizer sparse_as_dense=True on every rank."
            )
        if not isinstance(reduced, torch.Tensor):
            reduced = tensor_of(reduced, small)
        whole = self.compression.decompress(reduced, ctx)
        if param.grad is None:
            param.grad = whole
        elif whole.data_ptr() != param.grad.data_ptr():
            param.grad.copy_(whole)

    def gather_sparse(self, names: Sequence[str]) -> dict[str, Wait]:
        """Begin to gather what is sparse somewhere.

        Args:
            names: of which no rank has a dense gradient; the same on every rank.
        """
        if not names or self._sparse_as_dense:
            return {}
        grads = [self.params[name].grad for name in names]
        # For each name: how many ranks have it, and the sum of their numbers of sparse dimensions.
        found = np.array([[0, 0] if grad is None else [1, grad.sparse_dim()] for grad in grads], np.int32)
        none = not found.any()
        ask: dict[str, Any] = {"op": Sum, "absent": none, "process_set": self.process_set}
        source = None if none else found
        entry = api.entry(
            Kind.ALLREDUCE, source, "sparse gradients", dtype="int32", shape=found.shape, target=found, **ask
        )
        if api.submit([entry])[0].wait() is None:
            return {}
        counted = zip(names, found.tolist(), strict=True)
        return {name: self.gather(name, dims // ranks) for name, (ranks, dims) in counted if ranks}

    def gather(self, name: str, sparse_dim: int = 1) -> Wait:
        """Begin to gather one gradient, sparse or made so by top-k; the function waits for the result."""
        param, grad = self.params[name], self.params[name].grad
        if self.topk:
            dense = torch.zeros_like(param) if grad is None else grad.to_dense()
            return self.topk.reduce(dense, name, self._op, self.process_set)
        if grad is None:
            grad = torch.sparse_coo_tensor(
                torch.empty(sparse_dim, 0, dtype=torch.int64, device=param.device),
                torch.empty(0, *param.shape[sparse_dim:], dtype=param.dtype, device=param.device),
                param.shape,
                check_invariants=True,
            )
        return sparse_allreduce_async(grad, name, self._op, self.process_set)


__all__ = ["Wait", "Wire"]
