"""Fewer bytes on the wire: a compressor turns a tensor into a smaller one and back.

Works on any tensor type that has ``dtype`` and, for the casts, a function that the framework provides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Compressor(Protocol):
    """The contract: ``decompress(*compress(t))`` has t's dtype and about its values."""

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """(what travels, what :meth:`decompress` needs to know)."""

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """Undo :meth:`compress` on the reduced tensor."""


class NoCompression:
    """The null compressor.

    Example:
        >>> NoCompression().compress(3.5)
        (3.5, None)
    """

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """The tensor itself."""
        return tensor, None

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """The tensor itself."""
        return tensor


class CastCompression:
    """Floating-point tensors travel in a shorter dtype; others as they are.

    Args:
        is_wide: True for tensors that become shorter.
        narrow: casts to the shorter dtype.
        restore: casts back to the dtype given.
    """

    def __init__(
        self, is_wide: Callable[[Any], bool], narrow: Callable[[Any], Any], restore: Callable[[Any, Any], Any]
    ) -> None:
        self._is_wide, self._narrow, self._restore = is_wide, narrow, restore

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        """(the shorter tensor, its own dtype)."""
        return (self._narrow(tensor), tensor.dtype) if self._is_wide(tensor) else (tensor, None)

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """The tensor in its own dtype again."""
        return tensor if ctx is None else self._restore(tensor, ctx)
