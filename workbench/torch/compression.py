"""Compression for torch tensors: ``Compression.none``, ``.fp16``, ``.bf16`` and ``.topk(ratio)``."""

from __future__ import annotations

from typing import ClassVar

import torch

from workbench.training.compression import CastCompression, Compressor, NoCompression


def _cast(dtype: torch.dtype) -> CastCompression:
    width = torch.finfo(dtype).bits
    return CastCompression(
        is_wide=lambda t: t.is_floating_point() and torch.finfo(t.dtype).bits > width,
        narrow=lambda t: t.to(dtype),
        restore=lambda t, own: t.to(own),
    )


class Compression:
    """What ``compression=`` takes.

    Example:
        >>> short, ctx = Compression.fp16.compress(torch.ones(2))
        >>> short.dtype, Compression.fp16.decompress(short, ctx).dtype
        (torch.float16, torch.float32)
    """

    none: ClassVar[Compressor] = NoCompression()
    fp16: ClassVar[Compressor] = _cast(torch.float16)
    bf16: ClassVar[Compressor] = _cast(torch.bfloat16)

    @staticmethod
    def topk(ratio: float) -> Compressor:
        """The ``ratio`` largest entries; see :class:`workbench.torch.topk.TopKCompression`. One for each optimizer."""
        from workbench.torch.topk import TopKCompression

        return TopKCompression(ratio)
