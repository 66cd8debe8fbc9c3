"""``hvd.Compression``: what is sent instead of a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from workbench.training.compression import Compression as Casts
from workbench.training.compression import Compressor

if TYPE_CHECKING:
    from workbench.torch.low_communication.powersgd import PowerSGDCompression


class TorchCompression(Casts):
    """``none``, ``fp16``, ``bf16``, ``topk(ratio)`` and ``powersgd(rank)``.

    Example:
        >>> short, ctx = Compression.fp16.compress(torch.ones(2))
        >>> short.dtype, Compression.fp16.decompress(short, ctx).dtype
        (torch.float16, torch.float32)
    """

    @staticmethod
    def topk(ratio: float) -> Compressor:
        """The ``ratio`` largest entries: :mod:`workbench.torch.low_communication.topk`."""
        from workbench.torch.low_communication.topk import TopKCompression

        return TopKCompression(ratio)

    @staticmethod
    def powersgd(rank: int = 4, start_step: int = 0) -> PowerSGDCompression:
        """Matrices as two factors, one compression for each optimizer.

        See :mod:`workbench.torch.low_communication.powersgd`.

        Args:
            rank: r, of the factors; the more, the closer to the gradient, and the more bytes: r (m + n) for m x n.
            start_step: this many steps are averaged uncompressed at first.
        """
        from workbench.torch.low_communication.powersgd import PowerSGDCompression

        return PowerSGDCompression(rank, start_step)


Compression = TorchCompression.casting(
    is_wider=lambda t, dtype: t.is_floating_point() and torch.finfo(t.dtype).bits > torch.finfo(dtype).bits,
    cast=lambda t, dtype: t.to(dtype),
    fp16=torch.float16,
    bf16=torch.bfloat16,
)
