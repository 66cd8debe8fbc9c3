"""The gradients of an optimizer's parameters: from ``.grad`` to an entry for the engine, and the result back.

In the first step each gradient is reduced under its own name (``by_name.py``). From the second step on they live
in buckets (:mod:`workbench.core.buckets`): every ``.grad`` is a view of a bucket in the backend's memory. Backward
adds to a ``.grad`` that is there, so it then writes to the bucket by itself. Where it was set to None, backward makes
a tensor of its own; its hook copies that one into the bucket while it is still in the cache. With ``Compression.fp16``
and ``bf16`` the views are of another array, in the parameters' dtype, which is cast to the bucket as a whole, and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from workbench.core.buckets import Piece, plan_by_place
from workbench.core.messages import Kind
from workbench.core.pending import Entry
from workbench.job import api
from workbench.job.api import Average, ReduceOp, Sum
from workbench.job.context import HOLDER
from workbench.job.process_sets import ProcessSet
from workbench.job.requests import OrderOfUse
from workbench.torch.compression import Compression
from workbench.torch.gradients.bucket import GradBucket
from workbench.torch.gradients.by_name import CHANGED, GradsByName
from workbench.torch.gradients.sparse import SparseGradients
from workbench.torch.tensors import dtype_name
from workbench.training.compression import Compressor
from workbench.training.step_count import StepCount

_WITH_BUCKETS = (Compression.none, Compression.fp16, Compression.bf16)


class BucketReduction(Protocol):
    """How a bucket of all ranks becomes one: by an allreduce, or in parts with ZeRO 1.

    Attributes:
        fixed: the buckets are not to be planned anew.
    """

    fixed: bool

    def entry(self, bucket: GradBucket) -> Entry:
        """What is submitted."""

    def give(self, bucket: GradBucket) -> None:
        """Its result is there: let the parameters have it."""

    def check(self) -> None:
        """The job is another one, where others begin without buckets. Raises if there is no way back."""


class Allreduce:
    """Every rank gets the whole bucket.

    Args:
        fields: of each request.
        order: tells the optimizer from others.
    """

    fixed = False

    def __init__(self, fields: Mapping[str, Any], order: OrderOfUse) -> None:
        self._fields = fields
        self._order = order

    def entry(self, bucket: GradBucket) -> Entry:
        array, name = bucket.array, bucket.layout.name
        about = {**bucket.about, **self._fields, **self._order.fields(name, self._fields["process_set"])}
        return api.entry(Kind.ALLREDUCE, array, name, target=array, **about)

    def give(self, bucket: GradBucket) -> None:
        bucket.give()

    def check(self) -> None:
        pass


class Grads:
    """The gradients of an optimizer's parameters, by name.

    Args:
        params: by name; may grow.
        compression: of dense gradients.
        op: how gradients become one; see DistributedOptimizer.
        predivide: likewise.
        sparse_as_dense: no gradient stays sparse.
        process_set: who takes part.
        groups: names that are submitted together; no bucket is made then.
        passes: backward passes per step; a gradient is submitted after the last.

    Attributes:
        predivided: is there a factor before the sum?
        buckets: for each name the bucket that it lives in, if it does.
        reduction: of a bucket.
        order: tells them from other optimizers'.
        steps: how many the optimizer has made.
        sparse: what is gathered.
        by_name: what has no bucket.
        planned_bytes: how large one was allowed to be when they were planned.
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
        passes: int = 1,
    ) -> None:
        self.params = params
        self.compression = compression
        self.op = op
        self.process_set = process_set
        self.passes = passes
        self._fields: dict[str, Any] = {"op": op, "process_set": process_set}
        self.predivided = predivide != 1.0
        if self.predivided:
            self._fields |= {"prescale": 1.0 / predivide, "postscale": predivide}
        self.order = OrderOfUse(names=params)
        self.sparse = SparseGradients(params, compression, op, sparse_as_dense, process_set, self.order)
        self.by_name = GradsByName(params, compression, sparse_as_dense, self._fields, self.order)
        self.groups = {name: tuple(group) for group in groups for name in group}
        self.buckets: dict[str, GradBucket] = {}
        self.planned_bytes = 0
        self.steps = StepCount()
        self._allreduce = Allreduce(self._fields, self.order)
        self.reduction: BucketReduction = self._allreduce
        # The job in whose memory the buckets lie. They may outlive it, for .grad are views of them; the first gradient
        # of the next job leaves them, as its other ranks begin without.
        self._planned_for: Any = None

    # --- from .grad to an entry -----------------------------------------------------------------------

    def prepare(self, name: str | None) -> None:
        """Leave the buckets of another job, where others begin without, and those of another dtype or device."""
        if not self.buckets:
            return
        if self._planned_for is not HOLDER.get().world:
            self.reduction.check()
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
        entry = self.reduction.entry(bucket)
        alone = len(names) > 1 or self.reduction.fixed
        return entry if alone else [entry]  # one gradient may still be packed with the next

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
            self.reduction.give(bucket)
        rest = {name: result for name, result in reduced.items() if name not in buckets}
        for name, result in self.by_name.completed(rest).items() if rest else ():
            self.by_name.store(name, result)

    # --- buckets --------------------------------------------------------------------------------------

    @property
    def may_have_buckets(self) -> bool:
        """May gradients share an array? While it is sharded, what comes later is updated as a whole on every rank."""
        suits = self.op in (Average, Sum) and self.compression in _WITH_BUCKETS and not self.groups
        return suits and not self.reduction.fixed

    def plan(self, names: Sequence[str], limit_bytes: int) -> None:
        """From the next step on these gradients live in buckets."""
        pieces = []
        for name in names:
            param = self.params[name]
            layout = "" if param.is_contiguous() else str(param.stride())
            pieces.append((param.device, param.element_size(), Piece(name, param.numel(), dtype_name(param), layout)))
        self.set_buckets(
            [GradBucket(each, self.params, self.compression) for each in plan_by_place(pieces, limit_bytes)]
        )
        self.planned_bytes = limit_bytes

    def set_buckets(self, buckets: Sequence[GradBucket]) -> None:
        """From now on, while nothing is in flight, these."""
        self.buckets = {name: bucket for bucket in buckets for name in bucket.layout.names}
        self._planned_for = HOLDER.get().world

    def restart(self) -> None:
        """By name once more: some ranks may not have come to where buckets are planned."""
        if self.buckets and not self.reduction.fixed:
            self.set_buckets([])
        self.by_name.restart()

    def leave_sharding(self) -> None:
        """No part is another rank's any more; gradients begin by name."""
        self.reduction = self._allreduce
        self.set_buckets([])
