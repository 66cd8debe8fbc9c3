"""All gradients of a step at once: for frameworks that hand them over together, after backward has finished them.

The gradients are copied into buckets in the backend's memory (:mod:`workbench.core.buckets`), side by side. Each
bucket is submitted before the next one is filled, is reduced in place, and what is handed back are views of it::

    gradients ──copy──► bucket 1 ──► reduced ────────────────► views of it
              ──copy──► bucket 2 ──────► reduced ────────────► views of it

There is one copy in and none out. Buckets are planned by name, so it does not matter in which order a rank's model has
its layers. A large gradient has a bucket of its own; where the framework lends its memory, that *is* the bucket, and
nothing is copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from workbench.core.backend.base import Array
from workbench.core.buckets import Piece, plan_by_place
from workbench.core.handle import Handle
from workbench.core.messages import Kind
from workbench.job import api
from workbench.job.api import Adasum, Average, ReduceOp, Sum
from workbench.job.arrays import on_gpu, scaled
from workbench.job.calls import Call
from workbench.job.context import HOLDER
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.job.requests import OrderOfUse
from workbench.training.memory import ALONE_BYTES, BucketLimit, BucketMemory
from workbench.training.step_count import StepCount

Rows = tuple[Array, Array]
"""A sparse gradient: values, shape (k, …), and the rows that they belong to, shape (k,)."""


class GradientList:
    """Reduces the gradients of a step, given as arrays on the host or on this rank's GPU.

    Args:
        names: one per gradient, all different; the same names on every rank, in any order.
        op: Average, Sum, or Adasum, which is applied to each gradient by itself.
        predivide: divide by it before the sum and multiply after; keeps half precision in range.
        passes: add up so many calls before anything is sent.
        mean: divide by ``passes``, too.
        process_set: who takes part; a rank outside of it gets its own gradients back.
        order: tells apart objects that use the same names, if they are used in unlike order.
        lent: large arrays may be reduced where they lie, if they are writeable; after the call nobody looks at them.
        alone: each rank keeps its own: passes are added up, and nothing is sent.
        steps: how many there were, for the ranks to compare after a cell that failed; needs an ``order``.

    Raises:
        ValueError: a name twice, another op, or no pass at all.

    Example:
        >>> def step():
        ...     reduce = GradientList(["w", "b"])
        ...     return [gradient.tolist() for gradient in reduce([np.ones(2) * api.rank(), np.ones(1)])]
        >>> api.run_threads(2, step)
        [[[0.5, 0.5], [1.0]], [[0.5, 0.5], [1.0]]]
    """

    def __init__(
        self,
        names: Sequence[str],
        op: ReduceOp = Average,
        predivide: float = 1.0,
        passes: int = 1,
        mean: bool = False,
        process_set: ProcessSet = global_process_set,
        order: OrderOfUse | None = None,
        lent: bool = False,
        alone: bool = False,
        steps: StepCount | None = None,
    ) -> None:
        if len(set(names)) < len(names):
            raise ValueError(f"Gradients need different names, not {', '.join(names)}.")
        if op not in (Average, Sum, Adasum):
            raise ValueError(f"Gradients can be reduced with Average, Sum or Adasum, not {op.value}.")
        if predivide != 1.0 and op is not Average:
            raise ValueError("gradient_predivide_factor works only with op=Average.")
        if passes < 1:
            raise ValueError(f"backward_passes_per_step={passes}: must be ≥ 1.")
        self._names, self._op, self._set, self._passes = list(names), op, process_set, passes
        self._alone = alone
        scale = 1.0 / passes if mean else 1.0
        self._fields = {"op": op, "prescale": scale / predivide, "postscale": predivide, "process_set": process_set}
        self._scale, self._order, self._steps = scale, order, steps
        self._lent = lent and passes == 1 and op is not Adasum
        self._plan: tuple[Any, _Buckets] = (None, _Buckets([], {}, None))
        self._rows: dict[str, list[Rows]] = {}
        self._left = passes
        self._limit = BucketLimit()

    def __call__(self, gradients: Sequence[Array | Rows]) -> list[Any] | None:
        """Reduce, or only add up.

        Args:
            gradients: one per name; a sparse one as (values, rows).

        Returns:
            One per gradient, in the same form; None where more passes are to come. The arrays are nobody else's.

        Raises:
            CollectiveError: a reduction failed.
        """
        dense = {name: each for name, each in zip(self._names, gradients, strict=True) if not isinstance(each, tuple)}
        sparse = {name: each for name, each in zip(self._names, gradients, strict=True) if isinstance(each, tuple)}
        arrays = self._arrays(dense)
        arrays.gradients, arrays.first = dense, self._left == self._passes
        self._left -= 1
        for name, rows in sparse.items():
            self._rows.setdefault(name, []).append(rows)
        if self._left > 0:
            arrays.take_all()
            return None
        try:
            return self._reduce(arrays)
        except BaseException:
            arrays.give_back()
            raise
        finally:
            self._left, self._rows = self._passes, {}
            arrays.let_go()

    @property
    def passed(self) -> int:
        """How many passes of the present step have been added up."""
        return self._passes - self._left

    def _reduce(self, arrays: _Buckets) -> list[Any]:
        if self._alone or not self._set.included():
            arrays.take_all()
            mine = {name: _merged(rows) for name, rows in self._rows.items()} | arrays.parts()
            return [_scaled(mine[name], self._scale) for name in self._names]
        with self._steps.comparing(self._order) if self._steps and self._order else nullcontext():
            handles = arrays.send()
            gathered = {name: self._gather(name, _merged(rows)) for name, rows in sorted(self._rows.items())}
            for handle in handles:
                handle.wait()
        if self._op is not Adasum:
            self._limit.update_from(handles)
        reduced = gathered | arrays.parts()
        return [reduced[name] for name in self._names]

    def _gather(self, name: str, rows: Rows) -> Rows:
        """Every rank's rows, one below the other: who adds them up has the sum."""
        if self._op is Adasum:
            raise NotImplementedError(
                f"{name!r} is sparse, and Adasum is not defined for it: give sparse_as_dense=True."
            )
        values, places = rows
        about = self._order.about(f"sparse.{name}", self._set) if self._order else {}
        (values,) = Call(Kind.ALLGATHER, f"sparse.{name}.values", process_set=self._set, about=about)([values])
        share = self._scale / (self._set.size() or 1) if self._op is Average else self._scale
        (places,) = Call(Kind.ALLGATHER, f"sparse.{name}.rows", process_set=self._set, about=about)([places])
        return scaled(values, share), places

    def _arrays(self, dense: dict[str, Array]) -> _Buckets:
        """The same memory as in the step before, where the gradients are alike."""
        where = {name: on_gpu(each) for name, each in dense.items()}
        job = weakref.ref(HOLDER.get().engine)  # an id may be that of an engine that has ended
        self._limit.begin()
        limit = 0 if self._op is Adasum else self._limit()
        known = job, limit, *((name, each.shape, each.dtype, where[name]) for name, each in dense.items())
        if self._plan[0] != known:
            pieces = []
            for name in sorted(dense):
                each = dense[name]
                place = where[name], name if each.nbytes >= ALONE_BYTES else ""
                pieces.append((place, each.itemsize, Piece(name, each.size, each.dtype.name, str(each.shape))))
            plans = plan_by_place(pieces, limit)
            buckets = [BucketMemory(plan, dense[plan.names[0]].dtype, self._lent) for plan in plans]
            self._plan = known, _Buckets(buckets, self._fields, self._order)
            self._left, self._rows = self._passes, {}
        return self._plan[1]


class _Buckets:
    """The gradients of a step in their buckets.

    Attributes:
        gradients: of this pass.
        first: is it the first pass of the step?
    """

    def __init__(self, buckets: Sequence[BucketMemory], fields: dict[str, Any], order: OrderOfUse | None) -> None:
        self._buckets, self._fields, self._order = buckets, fields, order
        self.gradients: dict[str, Array] = {}
        self.first = True

    def take_all(self) -> None:
        for bucket in self._buckets:
            self._take(bucket)

    def send(self) -> list[Handle]:
        """Submit each bucket as soon as it is full. Nothing is to be packed with it, so nothing is waited for."""
        handles = []
        for bucket in self._buckets:
            self._take(bucket)
            user = self._order.fields(bucket.name, self._fields["process_set"]) if self._order else {}
            handles += api.submit_when_free([bucket.entry_of({**self._fields, **user})], at_once=True)
        return handles

    def _take(self, bucket: BucketMemory) -> None:
        """Copy its gradients into it, or add them to what is there from earlier passes."""
        if bucket.borrow(self.gradients):
            return
        for name, part in bucket.parts(self.gradients).items():
            if self.first:
                np.copyto(part, self.gradients[name])
            else:
                np.add(part, self.gradients[name], out=part)

    def parts(self) -> dict[str, Array]:
        """The gradients again, as views of the buckets."""
        return {name: part for bucket in self._buckets for name, part in bucket.parts(self.gradients).items()}

    def give_back(self) -> None:
        """The reduction failed: what was lent goes back, though another bucket may be in flight."""
        for bucket in self._buckets:
            bucket.give_back()

    def let_go(self) -> None:
        """What was given back is the caller's from now on."""
        self.gradients = {}
        for bucket in self._buckets:
            bucket.let_go()


def _scaled(rows: Any, factor: float) -> Any:
    """A gradient of either form times ``factor``."""
    return (scaled(rows[0], factor), rows[1]) if isinstance(rows, tuple) else scaled(rows, factor)


def _merged(rows: list[Rows]) -> Rows:
    """The rows of several passes as one."""
    return np.concatenate([values for values, _ in rows]), np.concatenate([places for _, places in rows])
