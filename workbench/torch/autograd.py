"""Collectives that gradients flow through, by the rules of :mod:`workbench.training.derivatives`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import Function

from workbench.job import api
from workbench.job.calls import Call
from workbench.torch import ops
from workbench.training.compression import Compression, Compressor
from workbench.training.derivatives import BackwardContext, Verbs, rule_of


class _Collective(Function):
    """Any verb on any number of tensors; alltoall, of one, has the numbers of rows received as its second result."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> Any:
        results = api.wait_for(ops.begin, call, tensors)
        ctx.call, ctx.rows, ctx.received = call, [each.shape[0] if each.dim() else 0 for each in tensors], None
        if call.verb.splits:
            results = results[0]
            ctx.received = results[1].tolist()
            ctx.mark_non_differentiable(results[1])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        rule = rule_of(ctx.call)
        # Nothing else has a gradient.
        of = [i for i, g in enumerate(grads[: len(ctx.rows)]) if g.is_floating_point() or g.is_complex()]
        dy, rows = [grads[i].contiguous() for i in of], [ctx.rows[i] for i in of]
        dx = dict(
            zip(of, rule(BackwardContext(ctx.call, _Tensors(), dy, rows, ctx.received)) if of else [], strict=True)
        )
        return None, *(dx.get(i) for i in range(len(ctx.rows)))


class _Tensors(Verbs):
    """On torch tensors."""

    def run(self, call: Call, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Differentiable, so a derivative has one itself. Complex numbers are reduced as pairs of reals."""
        paired = [call.verb.reduces and each.is_complex() for each in tensors]
        made = _Collective.apply(
            call,
            *(torch.view_as_real(t.resolve_conj()) if pair else t for t, pair in zip(tensors, paired, strict=True)),
        )
        pairs = [*paired, *[False] * (len(made) - len(paired))]  # alltoall's second result
        return [torch.view_as_complex(t) if pair else t for t, pair in zip(made, pairs, strict=True)]

    def zeros_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor)

    def scaled(self, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        return tensor * factor


def run(call: Call, tensors: Sequence[torch.Tensor], compression: Compressor = Compression.none) -> list[torch.Tensor]:
    """A verb on tensors, into new memory."""
    small = [compression.compress(tensor) for tensor in tensors]
    made = _Collective.apply(call, *(tensor for tensor, _ in small)) if small else []
    return [compression.decompress(tensor, ctx) for tensor, (_, ctx) in zip(made, small, strict=True)]


def exchange(call: Call, tensor: torch.Tensor) -> Any:
    """Alltoall: the rows received; with splits a pair of these and the number received from each rank."""
    n = call.process_set.size() or 1
    if call.splits is not None or not tensor.dim() or tensor.shape[0] % n:  # the last two are refused
        made = _Collective.apply(call, tensor)
    else:
        made = _Collective.apply(replace(call, splits=(tensor.shape[0] // n,) * n), tensor)
    return made[0] if call.splits is None else made
