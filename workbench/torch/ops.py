"""The verbs on torch tensors that return handles or work in place. The differentiable ones are in ``autograd.py``.

What all share: :mod:`workbench.job.api`. ``op`` is Average (default), Sum, Min, Max, Product or Adasum (allreduce);
``average=`` is Horovod's older way to say Average (True) or Sum (False).
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
from workbench.job import api
from workbench.job.api import Average, ReduceOp, Sum
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.torch.again import begin_again, remember
from workbench.torch.tensors import about, fresh_like, in_place, tensor_of
from workbench.training.calls import Call, choose_op

Tensors = Sequence[torch.Tensor]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Reduce into new memory; the handle's result is the new tensor."""
    return grouped_allreduce_async([tensor], average, name, op, prescale_factor, postscale_factor, process_set).members[
        0
    ]


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Reduce in place; the handle's result is the tensor itself."""
    return grouped_allreduce_async_(
        (tensor,), average, name, op, prescale_factor, postscale_factor, process_set
    ).members[0]


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As :func:`allreduce_async_`, and wait."""
    factors = prescale_factor, postscale_factor
    return api.wait_for(allreduce_async_, tensor, average, name, op, *factors, process_set)  # type: ignore[no-any-return]


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> GroupHandle:
    """Reduce several tensors into new memory; none starts before all are ready on every rank."""
    call = Call(
        Kind.ALLREDUCE, name, choose_op(op, average), prescale_factor, postscale_factor, process_set=process_set
    )
    return begin(call, tensors)


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> GroupHandle:
    """As :func:`grouped_allreduce_async`, in place."""
    again = (
        None
        if name is None or process_set is not global_process_set
        else ("torch", name, average, op, prescale_factor, postscale_factor)
    )
    if again and (known := begin_again(again, tensors)):
        return GroupHandle(known)
    call = Call(
        Kind.ALLREDUCE, name, choose_op(op, average), prescale_factor, postscale_factor, process_set=process_set
    )
    group = begin(call, tensors, fresh=False)
    if again:
        remember(again, tensors, group.members)
    return group


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As :func:`grouped_allreduce_async_`, and wait."""
    factors = prescale_factor, postscale_factor
    return api.wait_for(grouped_allreduce_async_, tensors, average, name, op, *factors, process_set)  # type: ignore[no-any-return]


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Concatenate along the first dimension, which may differ between ranks."""
    return grouped_allgather_async([tensor], name, process_set).members[0]


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> GroupHandle:
    """Allgather several tensors; none starts before all are ready on every rank."""
    return begin(Call(Kind.ALLGATHER, name, process_set=process_set), tensors)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """The root's tensor, in new memory."""
    return begin(Call(Kind.BROADCAST, name, root=root_rank, process_set=process_set), [tensor]).members[0]


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """The root's tensor, in place."""
    call = Call(Kind.BROADCAST, name, root=root_rank, process_set=process_set)
    return begin(call, [tensor], fresh=False).members[0]


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """As :func:`broadcast_async_`, and wait."""
    return api.wait_for(broadcast_async_, tensor, root_rank, name, process_set)  # type: ignore[no-any-return]


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Send ``splits[i]`` rows to rank i. With splits the result is (tensor, received splits), else the tensor.

    Raises:
        ValueError: splits of another dtype than int32, or that do not fit the rows.
    """
    call = Call(Kind.ALLTOALL, name, splits=rows_of(splits), process_set=process_set)
    return begin(call, [tensor]).members[0]


def rows_of(splits: torch.Tensor | Sequence[int] | None) -> tuple[int, ...] | None:
    """The splits of an alltoall as numbers.

    Raises:
        ValueError: a tensor of another dtype than int32.
    """
    if isinstance(splits, torch.Tensor) and splits.dtype is not torch.int32:
        raise ValueError(f"splits must be int32, not {splits.dtype}: write splits.to(torch.int32).")
    return None if splits is None else tuple(int(part) for part in splits)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Reduce, and keep this rank's rows; the first ``rows % size()`` ranks get one more."""
    return grouped_reducescatter_async([tensor], name, op, process_set, prescale_factor, postscale_factor).members[0]


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> GroupHandle:
    """Reduce-scatter several tensors; none starts before all are ready on every rank."""
    call = Call(Kind.REDUCESCATTER, name, op, prescale_factor, postscale_factor, process_set=process_set)
    return begin(call, tensors)


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


def poll(handle: Handle | GroupHandle) -> bool:
    """True when :func:`synchronize` would not block."""
    return handle.poll()


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


__all__ = [
    "allgather_async",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
