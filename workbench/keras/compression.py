"""Compression for Keras' tensors on any backend: ``Compression.none``, ``.fp16`` and ``.bf16``."""

from __future__ import annotations

from typing import ClassVar

import keras

from workbench.training.compression import CastCompression, Compressor, NoCompression


def _cast(dtype: str) -> CastCompression:
    return CastCompression(
        is_wide=lambda t: keras.backend.standardize_dtype(t.dtype) in ("float32", "float64"),
        narrow=lambda t: keras.ops.cast(t, dtype),
        restore=lambda t, own: keras.ops.cast(t, keras.backend.standardize_dtype(own)),
    )


class Compression:
    """What ``compression=`` takes.

    Example:
        >>> short, ctx = Compression.fp16.compress(keras.ops.ones(2))
        >>> keras.backend.standardize_dtype(short.dtype)
        'float16'
    """

    none: ClassVar[Compressor] = NoCompression()
    fp16: ClassVar[Compressor] = _cast("float16")
    bf16: ClassVar[Compressor] = _cast("bfloat16")


__all__ = ["Compression"]
