"""A bucket of gradients: every ``.grad`` is a view of its array."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from workbench.collectives.reduction import wire_dtype
from workbench.core.buckets import Bucket
from workbench.job import api
from workbench.torch.compression import Compression
from workbench.torch.tensors import about, dtype_name, on_gpu, tensor_of, view
from workbench.training import memory
from workbench.training.compression import Compressor

Params = Mapping[str, torch.nn.Parameter]


class GradBucket:
    """A bucket, and the ``.grad`` of its parameters as views of it.

    With a compression that casts, the views lie in memory of this rank alone, in the parameters' dtype. As a whole they
    are cast to what is reduced when the bucket is full, and back when the result is there.

    Args:
        layout: which gradient is where.
        params: by name.
        compression: none, or one that casts.

    Attributes:
        layout: as given.
        array: what is reduced, as the engine takes it.
        flat: the gradients as a tensor; over the same memory, unless they are cast.
        views: for each name its part. What stands in ``.grad`` is another tensor over the same memory, for who holds a
            tensor can give it other memory, as ``model.float()`` does.
        about: what an entry says beside the array.
        lent: names of views that backward has written to, until they are taken.
    """

    def __init__(self, layout: Bucket, params: Params, compression: Compressor = Compression.none) -> None:
        self.layout = layout
        self._params = params
        first = params[layout.names[0]]
        like = torch.empty(0, dtype=first.dtype, device=first.device)
        short, _ = compression.compress(like)
        self.array, self._sent = mine, self.flat = _zeros(layout.length, short, memory.zeros)
        self._casts = short.dtype is not like.dtype
        if self._casts:  # numpy's zeros take no memory until they are written to
            mine, self.flat = _zeros(layout.length, like, np.zeros)
        self.about = about(self._sent)
        self._flags = self.flat[layout.flags :]
        self.views = self.shaped(self.flat if on_gpu(like) else mine)
        self._given = {name: view.data for name, view in self.views.items()}
        self._versions: dict[str, int] = {}
        self._absent: list[str] = []
        self.lent: set[str] = set()

    def shaped(self, bucket: api.Array | torch.Tensor) -> dict[str, torch.Tensor]:
        """The parts of an array with this layout, each shaped like its parameter and in its order in memory."""
        shaped = {}
        for name, part in self.layout.parts(bucket).items():
            param = self._params[name]
            tensor = part if isinstance(part, torch.Tensor) else tensor_of(part, param)
            # .data: it counts its changes by itself, and to torch it is no view, which could not be detached in place.
            shaped[name] = tensor.as_strided(param.shape, param.stride()).data
        return shaped

    def take(self, name: str) -> None:
        """Bring this rank's gradient into the bucket, if it is not there already."""
        param, view = self._params[name], self.views[name]
        grad = param.grad
        self.lent.discard(name)
        if grad is None:
            return
        if grad.layout is not torch.strided:
            grad = grad.to_dense()
        there = grad.data_ptr() == view.data_ptr() and grad.stride() == view.stride()
        if there and grad is self._given[name]:
            return
        if not there:
            with torch.no_grad():
                view.copy_(grad)
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
        self._absent = []
        self._versions = {}
        with torch.no_grad():
            self._flags.fill_(1)
            for i, (name, view) in enumerate(self.views.items()):
                self.take(name)
                grad = self._params[name].grad
                if grad is None:
                    view.zero_()
                    self._flags[i] = 0
                    self._absent.append(name)
                else:
                    self._versions[name] = grad._version
            if self._casts:
                self._sent.copy_(self.flat)

    def changed(self) -> list[str]:
        """Names of gradients that somebody changed or replaced during the reduction."""
        found = []
        for name, version in self._versions.items():
            grad = self._params[name].grad
            here = self.views[name].data_ptr()
            if grad is None or grad is not self._given[name] or (grad._version, grad.data_ptr()) != (version, here):
                found.append(name)
        return found

    def give(self) -> None:
        """After the reduction: parameters without a gradient here get that of the others, if any has one."""
        if self._casts:
            self.flat.copy_(self._sent)
        for name in self._absent:
            if self._flags[self.layout.names.index(name)] != 0:
                self.show(name)


def _zeros(length: int, like: torch.Tensor, make: Callable[[int, str], api.Array]) -> tuple[api.Array, torch.Tensor]:
    """An array that ``make`` makes, or on a GPU anything, for any memory will do there; and a tensor over it."""
    if on_gpu(like):
        flat = like.new_zeros(length)
        return view(flat), flat
    array = make(length, wire_dtype(dtype_name(like)).name)
    return array, tensor_of(array, like)
