"""How torch's tensors become the bytes of a checkpoint, and come back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from workbench import elastic
from workbench.elastic.checkpoint_values import NUMPY, Bytes


class TensorKind:
    """Dense tensors of every dtype, bfloat16 and the 8-bit floats too, as they lie in memory."""

    name = "torch"

    def fits(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def take(self, value: Any) -> tuple[dict[str, Any], int, Callable[[int, int], Bytes]]:
        """Also where it lies, and whether its channels are last."""
        if type(value) is not torch.Tensor:
            raise ValueError(f"a {type(value).__name__}, not a plain tensor")
        if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
            raise ValueError(f"a {value.layout} tensor of {value.dtype} on {value.device}, not a dense one")
        about: dict[str, Any] = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        if value.device.type != "cpu":
            about["device"] = value.device.type
        if value.requires_grad:
            about["requires_grad"] = True
        if _channels_last(value):
            about["channels_last"] = True
            value = value.movedim(1, -1)  # as the bytes lie: nothing is copied
        flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return about, flat.numel(), lambda start, stop: flat[start:stop].cpu().numpy()

    def give(self, about: Mapping[str, Any], data: Bytes) -> torch.Tensor:
        """The tensor; one that lay on a GPU goes to this rank's, if there is one."""
        dtype = getattr(torch, about["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"no dtype: {about['dtype']}")
        if not len(data):  # numpy's array without bytes has strides that torch cannot view in another dtype
            return torch.empty(about["shape"], dtype=dtype)
        found, shape = torch.from_numpy(data).view(dtype), about["shape"]
        if about.get("channels_last"):
            found = found.reshape([shape[0], *shape[2:], shape[1]]).movedim(-1, 1)
        else:
            found = found.reshape(shape)
        if about.get("device") == "cuda" and torch.cuda.is_available():
            found = found.cuda()
        return found.requires_grad_(bool(about.get("requires_grad")))


def _channels_last(value: torch.Tensor) -> bool:
    """Is it of images or volumes, and only in that order without gaps?"""
    memory = {4: torch.channels_last, 5: torch.channels_last_3d}.get(value.dim())
    return memory is not None and not value.is_contiguous() and value.is_contiguous(memory_format=memory)


TENSORS = TensorKind()


def read_checkpoint(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What the newest whole checkpoint holds, by attribute, without a job; see :mod:`workbench.elastic.checkpoint`.

    Args:
        folder: as given to ``state.checkpoint``.

    Raises:
        CheckpointError: there is none, or all are damaged.

    Example:
        >>> import tempfile
        >>> from workbench.torch import elastic
        >>> from workbench.job import api
        >>> api.init()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     state = elastic.TorchState(torch.nn.Linear(2, 1), step=5)
        ...     _ = state.checkpoint(folder)
        ...     state.commit()
        ...     state.finish()
        ...     found = read_checkpoint(folder)
        >>> found["step"], found["model"]["weight"].equal(state.model.weight)
        (5, True)
        >>> api.shutdown()
    """
    return elastic.read_checkpoint(folder, (NUMPY, TENSORS))
