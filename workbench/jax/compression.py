"""Compression for jax arrays: ``Compression.none``, ``.fp16`` and ``.bf16``."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp

from workbench.training.compression import CastCompression, Compressor, NoCompression


def _cast(dtype: Any) -> CastCompression:
    return CastCompression(
        is_wide=lambda t: jnp.issubdtype(t.dtype, jnp.floating) and t.dtype.itemsize > 2,
        narrow=lambda t: t.astype(dtype),
        restore=lambda t, own: t.astype(own),
    )


class Compression:
    """What ``compression=`` takes.

    Example:
        >>> short, ctx = Compression.fp16.compress(jnp.ones(2))
        >>> str(short.dtype), str(Compression.fp16.decompress(short, ctx).dtype)
        ('float16', 'float32')
    """

    none: ClassVar[Compressor] = NoCompression()
    fp16: ClassVar[Compressor] = _cast(jnp.float16)
    bf16: ClassVar[Compressor] = _cast(jnp.bfloat16)


__all__ = ["Compression"]
