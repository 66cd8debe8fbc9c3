"""A step's gradients, averaged over the ranks in place: what optimizer and trainer have in common."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import mxnet as mx
import numpy as np

from workbench.core.backend.base import Array
from workbench.job.process_sets import ProcessSet, check_registered, global_process_set, is_alone
from workbench.mxnet.tensors import array_of, fill
from workbench.training.compression import Compressor, NoCompression
from workbench.training.gradient_list import GradientList, Rows


class InPlaceAverage:
    """Averages NDArrays in place, dense ones and those of ``row_sparse``.

    Args:
        predivide: divide by it before the sum and multiply after.
        num_groups: so many parts that are sent one after the other; 0: as the buckets have room.
        process_set: who takes part; another rank keeps its own gradients.
        compression: for dense gradients.
        prefix: before the names.

    Raises:
        ValueError: num_groups negative, or the set is not registered.
    """

    def __init__(
        self,
        predivide: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        compression: Compressor | None = None,
        prefix: str | None = None,
    ) -> None:
        if num_groups < 0:
            raise ValueError(f"num_groups={num_groups}: give 0 (no groups) or more.")
        check_registered(process_set)  # here, and not in a step
        self._predivide, self._num_groups, self._set = predivide, num_groups, process_set
        self._compression, self._prefix = compression or NoCompression(), prefix or ""
        self._lists: dict[tuple[str, ...], GradientList] = {}

    def average(self, keys: Sequence[Hashable], gradients: Sequence[Any]) -> None:
        """Average these gradients; the same keys on every rank.

        Raises:
            CollectiveError: the reduction failed. A part that failed is unchanged.
        """
        if is_alone(self._set):
            return
        names = [f"{self._prefix}{key}" for key in keys]
        length = -(-len(names) // max(1, min(self._num_groups, len(names))))
        for start in range(0, len(names), length):
            self._average_part(tuple(names[start : start + length]), gradients[start : start + length])

    def _average_part(self, names: tuple[str, ...], gradients: Sequence[Any]) -> None:
        if names not in self._lists:
            self._lists[names] = GradientList(names, predivide=self._predivide, process_set=self._set)
        small = [self._small(gradient) for gradient in gradients]
        reduced = self._lists[names]([_on_host(each) for each, _ in small])
        assert reduced is not None  # one pass only
        for gradient, (each, ctx), result in zip(gradients, small, reduced, strict=True):
            if isinstance(result, tuple):
                _fill_rows(gradient, *result)
            else:
                fill(each, result)
                if each is not gradient:
                    gradient[:] = self._compression.decompress(each, ctx)

    def _small(self, gradient: Any) -> tuple[Any, Any]:
        return (gradient, None) if gradient.stype == "row_sparse" else self._compression.compress(gradient)


def _on_host(gradient: Any) -> Array | Rows:
    """The values; of a sparse gradient with the rows that they belong to."""
    if gradient.stype == "row_sparse":
        return gradient.data.asnumpy(), gradient.indices.asnumpy()
    return array_of(gradient)


def _fill_rows(gradient: Any, values: Array, rows: Array) -> None:
    """Give a sparse gradient these rows, in place; a row of several ranks is added up, for MXNet wants each once."""
    places, where = np.unique(rows, return_inverse=True)
    total = np.zeros((len(places), *values.shape[1:]), values.dtype)
    np.add.at(total, where, values)
    about = {"shape": gradient.shape, "ctx": gradient.context, "dtype": gradient.dtype}
    mx.nd.sparse.row_sparse_array((total, places), **about).copyto(gradient)
