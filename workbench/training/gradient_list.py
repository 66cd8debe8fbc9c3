"""All gradients of a step at once: for frameworks that hand them over together, after backward has finished them.

The gradients are copied into buckets in the backend's memory (:mod:`workbench.training.buckets`), side by side. Each
bucket travels while the next one is filled, is reduced where it lies, and what is handed back are views of it::

    gradients ──copy──► bucket 1 ──► on its way ─────────────► views of it
              ──copy──► bucket 2 ──────► on its way ─────────► views of it

The copy is the only one on the way out, and on the way back there is none. Buckets are planned by name, so it does not
matter in which order a rank's model has its layers.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench import api, memory
from workbench.api import Adasum, Average, ReduceOp, Sum
from workbench.arrays import given, on_gpu
from workbench.context import HOLDER
from workbench.process_sets import ProcessSet, global_process_set
from workbench.runtime.handle import Handle
from workbench.runtime.messages import Kind
from workbench.runtime.pending import Array, Entry
from workbench.training.buckets import Bucket, Piece, plan_buckets

Rows = tuple[Array, Array]
"""A sparse gradient: values, shape (k, …), and the rows that they belong to, shape (k,)."""


class GradientList:
    """Reduces the gradients of a step, given as host arrays.

    Args:
        names: one per gradient, all different; the same names on every rank, in any order.
        op: Average, Sum, or Adasum, which is applied to each gradient by itself.
        predivide: divide by it before the sum and multiply after; keeps half precision in range.
        passes: add up so many calls before anything travels.
        mean: divide by ``passes``, too.
        process_set: who takes part; a rank outside of it gets its own gradients back.

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
    ) -> None:
        if len(set(names)) < len(names):
            raise ValueError(f"Gradients need different names, not {', '.join(names)}.")
        if op not in (Average, Sum, Adasum):
            raise ValueError(f"Gradients can be reduced with Average, Sum or Adasum, not {op.value}.")
        if predivide != 1.0 and op is not Average:
            raise ValueError("gradient_predivide_factor goes with op=Average only.")
        if passes < 1:
            raise ValueError(f"backward_passes_per_step={passes}: there is at least one.")
        self._names, self._op, self._set, self._passes = list(names), op, process_set, passes
        scale = 1.0 / passes if mean else 1.0
        self._fields: dict[str, Any] = {"op": op, "prescale": scale / predivide, "postscale": predivide}
        self._scale = scale
        self._plan: tuple[Any, list[_Memory]] = (None, [])
        self._rows: dict[str, list[Rows]] = {}
        self._left = passes

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
        buckets = self._buckets(dense)
        first, self._left = self._left == self._passes, self._left - 1
        for name, rows in sparse.items():
            self._rows.setdefault(name, []).append(rows)
        if self._left > 0:
            for bucket in buckets:
                bucket.take(dense, first)
            return None
        try:
            return self._reduce(buckets, dense, first)
        finally:
            self._left, self._rows = self._passes, {}
            for bucket in buckets:
                bucket.let_go()

    def _reduce(self, buckets: list[_Memory], dense: dict[str, Array], first: bool) -> list[Any]:
        outside = not self._set.included()
        handles: list[Handle] = []
        for bucket in buckets:
            bucket.take(dense, first)
            if not outside:
                handles += api.submit([bucket.entry(self._fields, self._set)], at_once=True)
        gathered = {name: _merged(rows) for name, rows in self._rows.items()}
        if not outside:
            gathered = {name: self._gather(name, rows) for name, rows in sorted(gathered.items())}
        for handle in handles:
            handle.wait()
        reduced: dict[str, Any] = dict(gathered)
        for bucket in buckets:
            reduced |= bucket.give(dense)
        if outside and self._scale != 1.0:
            return [_scaled(reduced[name], self._scale) for name in self._names]
        return [reduced[name] for name in self._names]

    def _gather(self, name: str, rows: Rows) -> Rows:
        """Every rank's rows, one below the other: who adds them up has the sum."""
        if self._op is Adasum:
            raise NotImplementedError(
                f"{name!r} is sparse, and Adasum is not defined for it: say sparse_as_dense=True."
            )
        values, places = rows
        values = api.allgather(values, f"sparse.{name}.values", self._set)
        share = self._scale / (self._set.size() or 1) if self._op is Average else self._scale
        places = api.allgather(places, f"sparse.{name}.rows", self._set)
        return _scaled(values, share), places

    def _buckets(self, dense: dict[str, Array]) -> list[_Memory]:
        """The same memory as in the step before, where the gradients are alike."""
        where = {name: on_gpu(each) for name, each in dense.items()}
        known = id(HOLDER.get().engine), *((name, each.shape, each.dtype, where[name]) for name, each in dense.items())
        if self._plan[0] != known:
            limit = 0 if self._op is Adasum else memory.bucket_bytes()
            alike: dict[tuple[int, bool], list[Piece]] = {}
            for name in sorted(dense):
                each = dense[name]
                piece = Piece(name, each.size, each.dtype.name, str(each.shape))
                alike.setdefault((each.itemsize, where[name]), []).append(piece)
            plans = [plan for (itemsize, _), pieces in alike.items() for plan in plan_buckets(pieces, limit, itemsize)]
            self._plan = known, [_Memory(plan, dense[plan.pieces[0].name].dtype) for plan in plans]
            self._left, self._rows = self._passes, {}
        return self._plan[1]


@dataclass(eq=False)
class _Memory:
    """A bucket's memory. It is used again when nobody looks at it any more; until then there is another one."""

    bucket: Bucket
    dtype: Any

    def __post_init__(self) -> None:
        self._bytes: list[tuple[Array, weakref.ref[Array] | None]] = []
        self._array: Array | None = None

    def take(self, gradients: dict[str, Array], first: bool) -> None:
        """Copy the gradients in, or add them to what is there."""
        if self._array is None:
            like = gradients[self.bucket.pieces[0].name]
            # On a GPU it is always new: the pool there knows best what is free in the order of its streams.
            self._array = np.zeros_like(like, shape=self.bucket.flags) if on_gpu(like) else self._free()
        array = self._array
        for piece, start in zip(self.bucket.pieces, self.bucket.starts, strict=True):
            part, gradient = array[start : start + piece.length], gradients[piece.name].reshape(-1)
            if first:
                np.copyto(part, gradient)
            else:
                np.add(part, gradient, out=part)

    def entry(self, fields: dict[str, Any], process_set: ProcessSet) -> Entry:
        """What the engine takes."""
        assert self._array is not None
        name = self.bucket.name if len(self.bucket.pieces) > 1 else self.bucket.pieces[0].name
        about = {"target": self._array, "process_set": process_set, **given(self._array)[1], **fields}
        return api.entry(Kind.ALLREDUCE, self._array, f"gradients.{name}", **about)

    def give(self, gradients: dict[str, Array]) -> dict[str, Array]:
        """The gradients again, as views."""
        assert self._array is not None
        return {
            piece.name: self._array[start : start + piece.length].reshape(gradients[piece.name].shape)
            for piece, start in zip(self.bucket.pieces, self.bucket.starts, strict=True)
        }

    def let_go(self) -> None:
        """What was given is the caller's from now on."""
        self._array = None

    def _free(self) -> Array:
        at = next((i for i, (_, seen) in enumerate(self._bytes) if seen is None or seen() is None), len(self._bytes))
        if at == len(self._bytes):
            raw = memory.empty(self.bucket.flags * self.dtype.itemsize, "uint8")
            raw[...] = 0  # what lies between two gradients travels, too
            self._bytes.append((raw, None))
        raw = self._bytes[at][0]
        # Over a memoryview: views of this array keep *it* alive, so its end says that there are none.
        seen: Array = np.frombuffer(raw.data, np.uint8)
        self._bytes[at] = raw, weakref.ref(seen)
        return seen.view(self.dtype)


def _scaled(array: Any, factor: float) -> Any:
    """``factor`` times a gradient of either form, in its own dtype."""
    if isinstance(array, tuple):
        return _scaled(array[0], factor), array[1]
    # An array, also of a gradient without dimensions, whose product is a number.
    if factor == 1.0 or on_gpu(array):
        return array * factor if factor != 1.0 else array
    return np.asarray(array * array.dtype.type(factor), array.dtype)


def _merged(rows: list[Rows]) -> Rows:
    """The rows of several passes as one."""
    return np.concatenate([values for values, _ in rows]), np.concatenate([places for _, places in rows])


__all__ = ["GradientList", "Rows"]
