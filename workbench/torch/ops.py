"""How the verbs are run that return handles or work in place; and the reduction of sparse tensors.

The verbs themselves are in ``verbs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from workbench.core.handle import GroupHandle, Handle
from workbench.core.messages import Kind
from workbench.core.pending import Entry
from workbench.errors import UnsupportedTensorError
from workbench.job import api, calls
from workbench.job.api import Average, ReduceOp, Sum
from workbench.job.array_calls import poll
from workbench.job.calls import Call
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.torch.again import begin_again, remember
from workbench.torch.tensors import about, fresh_like, in_place, tensor_of

Tensors = Sequence[torch.Tensor]


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Reduce a sparse COO tensor: gather the indices and values of all ranks, and add up values with the same index.

    Args:
        tensor: sparse; each rank has its own number of non-zeros.
        name: the same on every rank.
        op: Average or Sum.
        process_set: who takes part.

    Returns:
        A function that waits and returns the sparse result.
    """
    if op not in (Average, Sum):
        raise ValueError(f"A sparse tensor can be reduced with Average or Sum, not {op.value}.")
    if not tensor.is_sparse:
        raise UnsupportedTensorError(f"A sparse COO tensor is needed, not one of layout {tensor.layout}.")
    return gather_sparse(tensor, name or api.auto_name(Kind.ALLREDUCE, process_set), op, process_set)


def gather_sparse(
    tensor: torch.Tensor, name: str, op: ReduceOp, process_set: ProcessSet, order: Mapping[str, Any] | None = None
) -> Callable[[], torch.Tensor]:
    """As :func:`sparse_allreduce_async`, for an optimizer; ``order``: see OrderOfUse.about()."""
    tensor = tensor.coalesce()

    def gather(part: torch.Tensor, what: str) -> Handle:
        call = Call(Kind.ALLGATHER, f"sparse.{name}.{what}", process_set=process_set, about=order or {})
        return begin(call, [part.contiguous()]).members[0]

    places, values = gather(tensor.indices().t(), "indices"), gather(tensor.values(), "values")

    def wait() -> torch.Tensor:
        found = synchronize(values)
        if op is Average:
            found = found / (process_set.size() or 1)
        return torch.sparse_coo_tensor(synchronize(places).t(), found, tensor.shape, check_invariants=True).coalesce()

    return wait


def synchronize(handle: Handle | GroupHandle | Callable[[], Any]) -> Any:
    """Wait for a handle, or for what :func:`sparse_allreduce_async` returned, and return the result."""
    return handle.wait() if isinstance(handle, (Handle, GroupHandle)) else handle()


def begin(call: Call, tensors: Tensors, fresh: bool = True) -> GroupHandle:
    """Begin any verb; no tensor starts before all are ready on every rank.

    Args:
        call: the verb, and how it is called.
        tensors: as many as there are to be results.
        fresh: the results go to new memory, else into the tensors; no matter where the verb is ``by_rows``.
    """
    return GroupHandle(call.begin(tensors, partial(_entry, call, fresh)))


def begin_in_place(call: Call, tensors: Tensors) -> GroupHandle:
    """As :func:`begin`, into the tensors; a named allreduce of all ranks is known from the second step on."""
    if call.kind is not Kind.ALLREDUCE or call.name is None or call.process_set is not global_process_set:
        return begin(call, tensors, fresh=False)
    again = ("torch", call.name, call.op, call.prescale, call.postscale)
    if known := begin_again(again, tensors):
        return GroupHandle(known)
    group = begin(call, tensors, fresh=False)
    remember(again, tensors, group.members)
    return group


def run_in_place(call: Call, tensors: Tensors) -> list[torch.Tensor]:
    """As :func:`begin_in_place`, and wait."""
    return api.wait_for(begin_in_place, call, tensors)  # type: ignore[no-any-return]


def rows_of(splits: torch.Tensor | Sequence[int] | None) -> tuple[int, ...] | None:
    """The splits of an alltoall as numbers.

    Raises:
        ValueError: a tensor of another dtype than int32.
    """
    if isinstance(splits, torch.Tensor) and splits.dtype is not torch.int32:
        raise ValueError(f"splits must be int32, not {splits.dtype}: write splits.to(torch.int32).")
    return calls.rows_of(splits)  # type: ignore[arg-type]  # a tensor of one dimension


def _entry(call: Call, fresh: bool, tensor: torch.Tensor, name: str | None, fields: dict[str, Any]) -> Entry:
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedTensorError(f"A torch.Tensor is needed, not {type(tensor).__name__}.")
    source, convert = in_place(tensor)
    target = None
    if call.verb.by_rows:
        convert = partial(_rows, call, tensor)
    elif fresh:
        target, convert = in_place(fresh_like(tensor))
    else:
        target = source
    return api.entry(call.kind, source, name, target=target, convert=convert, **about(tensor), **fields)


def _rows(call: Call, like: torch.Tensor, result: Any) -> Any:
    """The result array as a tensor; for alltoall with splits also how many rows came from each rank."""
    if not call.verb.splits:
        return tensor_of(result, like)
    rows = tensor_of(result[0], like)
    return rows if call.splits is None else (rows, torch.from_numpy(result[1]))


__all__ = ["poll", "sparse_allreduce_async", "synchronize"]
