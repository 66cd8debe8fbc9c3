"""Gradients without a bucket: each is reduced under its own name, in place or compressed.

This is the way of all gradients in the first step, so an error can name the gradient about which ranks disagree. It is
always used with PowerSGD or a compression of the user's own, groups, or an op that needs each tensor as a whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from workbench.core.messages import Kind
from workbench.core.pending import Entry
from workbench.errors import MismatchError
from workbench.job import api
from workbench.job.api import Average, Sum
from workbench.job.context import HOLDER
from workbench.job.requests import OrderOfUse
from workbench.torch.low_communication.powersgd import PowerSGDCompression
from workbench.torch.tensors import about, in_place, tensor_of
from workbench.training.compression import Compressor

COPIED = 1024
"""Gradients of at most this number of elements are compared with a copy: ``.grad.data`` counts no changes."""
CHANGED = (
    "The gradient of {!r} was changed while it was being sent to the other ranks. Call optimizer.synchronize() after "
    "backward(), change the gradients then, and call step() within optimizer.skip_synchronize()."
)


class Sent:
    """A gradient as it was when it was sent.

    Args:
        grad: None: there was none.

    Attributes:
        copy: of a small gradient in the CPU's memory, which is then not reduced in place.
    """

    def __init__(self, grad: torch.Tensor | None) -> None:
        self._grad = grad
        self.copy: torch.Tensor | None = None
        if grad is not None:
            self._version, self._place = grad._version, grad.data_ptr()
            if grad.device.type == "cpu" and grad.numel() <= COPIED:
                self.copy = grad.detach().clone()

    def changed(self, now: torch.Tensor | None) -> bool:
        """Has somebody changed it since, or put another one in its place?"""
        if now is not self._grad:
            return True
        if now is None:
            return False
        if (now._version, now.data_ptr()) != (self._version, self._place):
            return True
        return self.copy is not None and not torch.allclose(now.detach(), self.copy, 0.0, 0.0, equal_nan=True)


class GradsByName:
    """From ``.grad`` to an entry, and the result back.

    Args:
        params: by name; may grow.
        compression: of what is sent.
        as_dense: a sparse gradient becomes dense; else it is no concern of this class.
        fields: of each request.
        order: of the optimizers.
    """

    def __init__(
        self,
        params: Mapping[str, torch.nn.Parameter],
        compression: Compressor,
        as_dense: bool,
        fields: Mapping[str, Any],
        order: OrderOfUse,
    ) -> None:
        self._params = params
        self._compression = compression
        self._as_dense = as_dense
        self._fields = fields
        self._order = order
        # Of a step alone: what was compressed, its context, and the gradient that it was made from.
        self._in_flight: dict[str, tuple[torch.Tensor, Any, Sent]] = {}
        self._powersgd = compression if isinstance(compression, PowerSGDCompression) else None
        if self._powersgd and fields["op"] not in (Average, Sum):
            raise ValueError(
                "Compression.powersgd works only with op=Average or Sum: its factors are sums over the ranks."
            )
        if self._powersgd:
            self._powersgd.belong_to(params.values())

    def entries(self, names: Sequence[str]) -> list[Entry]:
        if self._powersgd:
            self._powersgd.prepare(HOLDER.get().world)
        return [self._entry(name, group_fields(names)) for name in names]

    def dense(self, name: str) -> torch.Tensor | None:
        """The gradient, made dense where it is to be; None without one, or with one that stays sparse."""
        grad = self._params[name].grad
        if grad is None or (grad.is_sparse and not self._as_dense):
            return None
        if grad.layout is not torch.strided:
            self._params[name].grad = grad = grad.to_dense()
        return grad

    def _entry(self, name: str, group: dict[str, Any]) -> Entry:
        """Without a gradient this rank contributes zeros, or nothing if no rank has one."""
        param, grad = self._params[name], self.dense(name)
        fields = {**self._fields, **group, **self._order.fields(name, self._fields["process_set"])}
        if grad is None:
            zeros = param.new_zeros(()).expand(param.shape)  # takes no memory, however large the parameter
            small, ctx = self._compress(name, zeros)
            self._in_flight[name] = param.new_empty(0, dtype=small.dtype), ctx, Sent(None)
            shape = tuple(small.shape)
            return api.entry(Kind.ALLREDUCE, None, name, shape=shape, absent=True, **about(small), **fields)
        small, ctx = self._compress(name, grad.detach())
        small = small.contiguous()
        sent = Sent(grad)
        self._in_flight[name] = small, ctx, sent
        array, convert = in_place(small)
        goes: dict[str, Any] = {} if sent.copy is not None else {"target": array, "convert": convert}
        return api.entry(Kind.ALLREDUCE, array, name, **goes, **about(small), **fields)

    def _compress(self, name: str, grad: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What is sent, and what is needed to undo it. PowerSGD remembers each gradient by its name."""
        if self._powersgd is None:
            return self._compression.compress(grad)
        return (self._powersgd.begin(name, grad), "factor") if self._powersgd.compresses(grad) else (grad, None)

    def restart(self) -> None:
        """Not all ranks may have come as far: what they remember in common begins anew."""
        if self._powersgd:
            self._powersgd.restart()

    def completed(self, reduced: Mapping[str, Any]) -> Mapping[str, Any]:
        """The results of a step; with PowerSGD, those of its second round for first factors.

        Raises:
            CollectiveError: the second round failed.
        """
        powersgd = self._powersgd
        if powersgd is None:
            return reduced
        factors = [name for name, result in reduced.items() if result is not None and self._in_flight[name][1]]
        seconds = {name: powersgd.project(name, self._tensor(name, reduced[name])) for name in factors}
        entries = [self._second(name, second) for name, second in seconds.items() if second is not None]
        for handle in api.submit_when_free(entries):
            handle.wait()
        full = {name: powersgd.finish(name, second) for name, second in seconds.items()}
        powersgd.step_done()
        return {**reduced, **full}

    def _second(self, name: str, second: torch.Tensor) -> Entry:
        array, convert = in_place(second)
        fields = {**about(second), **self._fields}
        return api.entry(Kind.ALLREDUCE, array, f"{name}, factor 2", target=array, convert=convert, **fields)

    def _tensor(self, name: str, reduced: Any) -> torch.Tensor:
        """A result as a tensor like the one that was sent."""
        return reduced if isinstance(reduced, torch.Tensor) else tensor_of(reduced, self._in_flight[name][0])

    def store(self, name: str, reduced: Any) -> None:
        """Put a result into ``.grad``; None: no rank had a dense gradient.

        Raises:
            RuntimeError: the gradient was changed or replaced in the meantime.
            MismatchError: this rank's gradient is sparse, and another rank's is dense.
        """
        param, (small, ctx, sent) = self._params[name], self._in_flight.pop(name)
        if reduced is None:
            return
        if param.grad is not None and param.grad.is_sparse:
            raise MismatchError(
                f"The gradient of {name!r} is sparse on rank {api.rank()}, but dense on another rank. "
                "Give DistributedOptimizer sparse_as_dense=True on every rank."
            )
        if sent.changed(param.grad):
            raise RuntimeError(CHANGED.format(name))
        if not isinstance(reduced, torch.Tensor):
            reduced = tensor_of(reduced, small)
        full = self._compression.decompress(reduced, ctx)
        if param.grad is None:  # torch's fused optimizers take it for granted that both have one order in memory
            same = full.stride() == param.stride()
            param.grad = full if same else torch.empty_like(param, requires_grad=False).copy_(full)
        elif full.data_ptr() != param.grad.data_ptr():
            param.grad.copy_(full)


def group_fields(names: Sequence[str]) -> dict[str, Any]:
    """What the requests of a group have in common; its name is equal on two ranks only if all the members are."""
    if len(names) < 2:
        return {}
    return {"group": f"group.{names[0]}.{zlib.crc32('/'.join(names).encode()):08x}", "group_size": len(names)}
