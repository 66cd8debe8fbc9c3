"""Compression for TensorFlow tensors: ``Compression.none``, ``.fp16`` and ``.bf16``."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

from workbench.training.compression import CastCompression, Compressor, NoCompression


def _cast(dtype: Any) -> CastCompression:
    return CastCompression(
        is_wide=lambda t: t.dtype.is_floating and t.dtype.size > dtype.size,
        narrow=lambda t: tf.cast(t, dtype),
        restore=tf.cast,
    )


class Compression:
    """What ``compression=`` takes.

    Example:
        >>> short, ctx = Compression.fp16.compress(tf.ones(2))
        >>> short.dtype.name, Compression.fp16.decompress(short, ctx).dtype.name
        ('float16', 'float32')
    """

    none: ClassVar[Compressor] = NoCompression()
    fp16: ClassVar[Compressor] = _cast(tf.float16)
    bf16: ClassVar[Compressor] = _cast(tf.bfloat16)


__all__ = ["Compression"]
