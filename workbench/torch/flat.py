"""Gradients that live where they are reduced: every ``.grad`` is a view of a bucket in the backend's memory.

Backward adds to a ``.grad`` that is there, so it then writes to the bucket by itself. Where it was set to None,
backward makes a tensor of its own; its hook copies that one into the bucket while it is still in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from workbench import api, memory
from workbench.torch.tensors import dtype_name, on_gpu, tensor_of, view
from workbench.training.buckets import Bucket, Piece, plan_buckets

Params = Mapping[str, torch.nn.Parameter]


class FlatBucket:
    """The memory of one bucket.

    Attributes:
        array: all of it, as the engine takes it.
        flat: the same as a tensor.
        views: for each name its part. What stands in ``.grad`` is another tensor over the same memory, for who holds a
            tensor can give it other memory, as ``model.float()`` does.
    """

    def __init__(self, bucket: Bucket, params: Params) -> None:
        self.bucket, self._params = bucket, params
        like = params[bucket.pieces[0].name]
        self.flat, self.array = _zeros(bucket, like)
        self._flags = self.flat[bucket.flags :]
        self.views = {
            piece.name: self.part(self.flat if on_gpu(like) else self.array, start, params[piece.name])
            for piece, start in zip(bucket.pieces, bucket.starts, strict=True)
        }
        self._given = {name: view.data for name, view in self.views.items()}
        self._versions: dict[str, int] = {}
        self._absent: list[int] = []

    @staticmethod
    def part(memory: api.Array | torch.Tensor, start: int, param: torch.Tensor) -> torch.Tensor:
        """The elements from ``start`` on, shaped like the parameter, in the order in which its own lie in memory."""
        found = memory[start : start + param.numel()]
        tensor = found if isinstance(found, torch.Tensor) else tensor_of(found, param)
        # .data: it counts its changes by itself, and to torch it is no view, which could not be detached in place.
        return tensor.as_strided(param.shape, param.stride()).data

    def take(self, name: str) -> None:
        """Bring this rank's gradient into the bucket, if it is not there already."""
        param, view = self._params[name], self.views[name]
        grad = param.grad
        if grad is None or (grad is self._given[name] and grad.data_ptr() == view.data_ptr()):
            return
        with torch.no_grad():
            view.copy_(grad.to_dense() if grad.layout is not torch.strided else grad)
        self.show(name)

    def show(self, name: str) -> None:
        """Let the parameter's ``.grad`` be its part of the bucket."""
        given = self._given[name]
        if given.data_ptr() != self.views[name].data_ptr():
            given = self._given[name] = self.views[name].data
        self._params[name].grad = given

    def suits(self, name: str) -> bool:
        """Has the parameter still the bucket's dtype, and is it where the bucket is?"""
        param = self._params[name]
        return param.dtype is self.flat.dtype and param.device == self.flat.device

    def fill(self) -> None:
        """Before the reduction: take what is there, zeros for what is not, and note which is which."""
        self._absent, self._versions = [], {}
        with torch.no_grad():
            self._flags.fill_(1)
            for i, (name, view) in enumerate(self.views.items()):
                self.take(name)
                grad = self._params[name].grad
                if grad is None:
                    view.zero_()
                    self._flags[i] = 0
                    self._absent.append(i)
                else:
                    self._versions[name] = grad._version

    def changed(self) -> list[str]:
        """Names of gradients that somebody changed during the reduction."""
        now = {name: self._params[name].grad for name in self._versions}
        return [name for name, grad in now.items() if grad is not None and grad._version != self._versions[name]]

    def give(self) -> None:
        """After the reduction: parameters without a gradient here get that of the others, if any has one."""
        if not self._absent:
            return
        names = list(self.views)
        for i in self._absent:
            if self._flags[i] != 0:
                self.show(names[i])


def _zeros(bucket: Bucket, like: torch.Tensor) -> tuple[torch.Tensor, api.Array]:
    """Memory in which this rank's backend reduces, as tensor and as array: the backend's own, or on a GPU any."""
    if on_gpu(like):
        flat = torch.zeros(bucket.length, dtype=like.dtype, device=like.device)
        return flat, view(flat)
    array = memory.empty(bucket.length, "uint16" if like.dtype is torch.bfloat16 else bucket.dtype)
    array[...] = 0
    return tensor_of(array, like), array


def flat_buckets(params: Params, names: Sequence[str], limit_bytes: int) -> list[FlatBucket]:
    """Buckets for the gradients of these parameters."""
    alike: dict[tuple[torch.device, int], list[Piece]] = {}
    for name in names:
        param = params[name]
        piece = Piece(name, param.numel(), dtype_name(param), "" if param.is_contiguous() else str(param.stride()))
        alike.setdefault((param.device, param.element_size()), []).append(piece)
    return [
        FlatBucket(bucket, params)
        for (_, itemsize), pieces in alike.items()
        for bucket in plan_buckets(pieces, limit_bytes, itemsize)
    ]


def can_be_flat(param: torch.Tensor) -> bool:
    """Does a gradient of it fill its memory without gaps, where it can be reduced, with numbers that can be?"""
    dense = param.is_contiguous() or _dense(param)
    return (on_gpu(param) or param.device.type == "cpu") and dense and param.is_floating_point() and param.numel() > 0


def _dense(param: torch.Tensor) -> bool:
    """Not contiguous, but a permutation of something that is, as channels_last."""
    order = sorted(zip(param.stride(), param.shape, strict=True), reverse=True)
    expected = int(np.prod([size for _, size in order]))
    for stride, size in order:
        if size == 1:
            continue
        expected //= size
        if stride != expected:
            return False
    return True
