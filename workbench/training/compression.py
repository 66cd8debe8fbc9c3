"""Fewer bytes on the wire: a compressor turns a tensor into a smaller one and back.

Knows no framework: each makes its ``Compression`` with :meth:`Compression.casting`, from two functions of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar

C = TypeVar("C", bound="Compression")


class Compressor(Protocol):
    """The contract: ``decompress(*compress(t))`` has t's dtype and about its values."""

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """(what is sent, what :meth:`decompress` needs to know); unless a compressor says otherwise, the tensor."""
        return tensor, None

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """Undo :meth:`compress` on the reduced tensor."""
        return tensor


class NoCompression(Compressor):
    """The null compressor.

    Example:
        >>> NoCompression().compress(3.5)
        (3.5, None)
    """

    def __repr__(self) -> str:
        return "Compression.none"  # the default in signatures


class CastCompression:
    """Wider floating-point tensors are sent in a shorter dtype, all others as they are.

    Args:
        dtype: the shorter one.
        is_wider: is a tensor of a floating-point dtype that is wider than this one?
        cast: a tensor in another dtype.
    """

    def __init__(self, dtype: Any, is_wider: Callable[[Any, Any], bool], cast: Callable[[Any, Any], Any]) -> None:
        self._dtype, self._is_wider, self._cast = dtype, is_wider, cast

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """(the shorter tensor, its own dtype)."""
        return (
            (self._cast(tensor, self._dtype), tensor.dtype) if self._is_wider(tensor, self._dtype) else (tensor, None)
        )

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """The tensor in its own dtype again."""
        return tensor if ctx is None else self._cast(tensor, ctx)


class Compression:
    """What ``compression=`` takes: ``Compression.none``, ``.fp16`` and, where the framework has it, ``.bf16``.

    Example:
        >>> import numpy as np
        >>> mine = Compression.casting(lambda t, dtype: t.itemsize > 2, lambda t, dtype: t.astype(dtype), np.float16)
        >>> short, ctx = mine.fp16.compress(np.ones(2, np.float32))
        >>> short.dtype.name, mine.fp16.decompress(short, ctx).dtype.name
        ('float16', 'float32')
    """

    none: ClassVar[Compressor] = NoCompression()
    fp16: Compressor
    bf16: Compressor

    @staticmethod
    def powersgd(rank: int = 4, start_step: int = 0) -> Compressor:
        """PowerSGD, which torch has: see :mod:`workbench.torch.low_communication.powersgd`.

        Raises:
            NotImplementedError: everywhere else.
        """
        raise NotImplementedError(
            "Compression.powersgd exists only for torch (import workbench.torch). Use Compression.fp16, which halves "
            "the bytes, or WORKBENCH_WIRE=float16, which does so between machines only."
        )

    @classmethod
    def casting(
        cls: type[C], is_wider: Callable[[Any, Any], bool], cast: Callable[[Any, Any], Any], fp16: Any, bf16: Any = None
    ) -> C:
        """A framework's.

        Args:
            is_wider, cast: see :class:`CastCompression`.
            fp16, bf16: its dtypes; None where it has no bfloat16.
        """
        made = cls()
        made.fp16 = CastCompression(fp16, is_wider, cast)
        if bf16 is not None:
            made.bf16 = CastCompression(bf16, is_wider, cast)
        return made
