"""The gradients of an optimizer's parameters: from ``.grad`` to an entry for the engine, and the result back.

In the first step each gradient is reduced under its own name (``grads_by_name.py``). From the second step on they live
in buckets (:mod:`workbench.core.buckets`): every ``.grad`` is a view of a bucket in the backend's memory. Backward
adds to a ``.grad`` that is there, so it then writes to the bucket by itself. Where it was set to None, backward makes
a tensor of its own; its hook copies that one into the bucket while it is still in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from workbench.core.buckets import Piece, plan_by_place
from workbench.core.messages import Kind
from workbench.core.pending import Entry
from workbench.job import api
from workbench.job.api import ReduceOp
from workbench.job.context import HOLDER
from workbench.job.process_sets import ProcessSet
from workbench.job.requests import OrderOfUse
from workbench.torch.grad_bucket import GradBucket
from workbench.torch.optimizer.grads_by_name import CHANGED, GradsByName
from workbench.torch.optimizer.sparse import SparseGradients
from workbench.torch.tensors import dtype_name
from workbench.training.compression import Compressor

if TYPE_CHECKING:
    from workbench.torch.sharded.stage1 import Shards


class Grads:
    """The gradients of a step; a :class:`~workbench.training.step_reducer.GradientSource`.

    Args:
        params: by name; may grow.
        compression: of dense gradients without a bucket.
        op, predivide: how gradients become one; see DistributedOptimizer.
        sparse_as_dense: no gradient stays sparse.
        process_set: who takes part.
        groups: names that are submitted together; no bucket is made then.

    Attributes:
        predivided: is there a factor before the sum?
        buckets: for each name the bucket that it lives in, if it does.
        shards: what each rank updates, if sharded.
        order: tells them from other optimizers'.
        sparse, by_name: what is gathered; what has no bucket.
    """

    def __init__(
        self,
        params: dict[str, torch.nn.Parameter],
        compression: Compressor,
        op: ReduceOp,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        groups: Sequence[Sequence[str]] = (),
    ) -> None:
        self.params, self.compression, self.op, self.process_set = params, compression, op, process_set
        self._fields: dict[str, Any] = {"op": op, "process_set": process_set}
        self.predivided = predivide != 1.0
        if self.predivided:
            self._fields |= {"prescale": 1.0 / predivide, "postscale": predivide}
        self.order = OrderOfUse(names=params)
        self.sparse = SparseGradients(params, compression, op, sparse_as_dense, process_set, self.order)
        self.by_name = GradsByName(params, compression, sparse_as_dense, self._fields, self.order)
        self.groups = {name: tuple(group) for group in groups for name in group}
        self.buckets: dict[str, GradBucket] = {}
        self._planned_for: Any = None
        self.shards: Shards | None = None

    # --- from .grad to an entry -----------------------------------------------------------------------

    def prepare(self, name: str | None) -> None:
        """Leave the buckets of another job, where others begin without, and those of another dtype or device."""
        self.by_name.prepare()
        if not self.buckets:
            return
        if self._planned_for is not HOLDER.get().world:
            if self.shards:
                self.shards.check()
            self.set_buckets([])
        elif name in self.buckets and not self.buckets[name].suits(name):
            self.set_buckets([])

    def group_of(self, name: str) -> Sequence[str]:
        """All of its bucket, or the group that the user made, or itself."""
        bucket = self.buckets.get(name)
        return bucket.layout.names if bucket is not None else self.groups.get(name, (name,))

    def take(self, name: str) -> bool:
        """Copy the gradient into its bucket, if it is not there already. A sparse one is for the step."""
        if self.sparse.dims is not None:
            self.sparse.note_form(name)
        bucket = self.buckets.get(name)
        if bucket is None:
            return self.by_name.dense(name) is not None
        bucket.take(name)
        return True

    def lend(self, name: str) -> torch.Tensor | None:
        """The gradient's place in its bucket, for backward to write there; None where there is none, or it is lent."""
        bucket = self.buckets.get(name)
        if bucket is None or name in bucket.lent or not bucket.suits(name):
            return None
        bucket.lent.add(name)
        return bucket.views[name]

    def entries(self, names: Sequence[str]) -> list[Entry] | Entry:
        """A bucket as one entry, or each dense gradient as it is now."""
        for name in names if self.sparse.dims is not None else ():
            self.sparse.note_form(name)
        bucket = self.buckets.get(names[0])
        if bucket is None:
            return self.by_name.entries(names)
        bucket.fill()
        if self.shards:
            return self.shards.entry(bucket, self.order)
        array, name = bucket.array, bucket.layout.name
        about = {**bucket.about, **self._fields, **self.order.fields(name, self.process_set)}
        entry = api.entry(Kind.ALLREDUCE, array, name, target=array, **about)
        return entry if len(names) > 1 else [entry]  # one gradient may still be packed with the next

    # --- from a result to .grad -----------------------------------------------------------------------

    def store(self, reduced: dict[str, Any], buckets: Mapping[str, GradBucket]) -> None:
        """Put results where the optimizer looks for them; None if no rank had a dense gradient: as in a serial run.

        Args:
            reduced: by name.
            buckets: in which some of them were reduced.

        Raises:
            RuntimeError: a gradient was changed in the meantime.
            MismatchError: this rank's gradient is sparse, and another rank's is dense.
        """
        for bucket in dict.fromkeys(buckets[name] for name in reduced if name in buckets):
            for name in bucket.changed():
                raise RuntimeError(CHANGED.format(name))
            if not self.shards:
                bucket.give()
        for name, result in self.by_name.completed({n: r for n, r in reduced.items() if n not in buckets}).items():
            self.by_name.store(name, result)

    # --- buckets --------------------------------------------------------------------------------------

    def plan(self, names: Sequence[str], limit_bytes: int) -> None:
        """From the next step on these gradients live in buckets."""
        pieces = []
        for name in names:
            param = self.params[name]
            layout = "" if param.is_contiguous() else str(param.stride())
            pieces.append((param.device, param.element_size(), Piece(name, param.numel(), dtype_name(param), layout)))
        self.set_buckets([GradBucket(each, self.params) for each in plan_by_place(pieces, limit_bytes)])

    def set_buckets(self, buckets: Sequence[GradBucket]) -> None:
        """From now on, while nothing is in flight, these."""
        self.buckets = {name: bucket for bucket in buckets for name in bucket.layout.names}
        self._planned_for = HOLDER.get().world


__all__ = ["Grads"]
