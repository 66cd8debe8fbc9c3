"""Compression for MXNet's arrays: ``Compression.none`` and ``.fp16``."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from workbench.training.compression import CastCompression, Compressor, NoCompression


class Compression:
    """What ``compression=`` takes.

    Example:
        >>> import mxnet as mx
        >>> short, ctx = Compression.fp16.compress(mx.nd.ones(2))
        >>> short.dtype.__name__, Compression.fp16.decompress(short, ctx).dtype.__name__
        ('float16', 'float32')
    """

    none: ClassVar[Compressor] = NoCompression()
    fp16: ClassVar[Compressor] = CastCompression(
        is_wide=lambda tensor: tensor.dtype in (np.float32, np.float64),
        narrow=lambda tensor: tensor.astype("float16"),
        restore=lambda tensor, own: tensor.astype(own),
    )


__all__ = ["Compression"]
