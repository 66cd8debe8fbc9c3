"""How many bytes tensors keep in memory: each byte counted once, whoever looks at it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterable
from pathlib import Path

import torch

_SMAPS = Path("/proc/self/smaps_rollup")


class Counted:
    """Tensors that were counted; views of the same memory add nothing.

    Example:
        >>> counted, whole = Counted(), torch.zeros(10)
        >>> counted.add([whole[:4]]), counted.add([whole[2:6], None]), counted.add([whole])
        (16, 8, 16)
        >>> counted.add([torch.zeros(1).expand(1000)])
        4
    """

    def __init__(self) -> None:
        self._places: list[tuple[int, int]] = []

    def add(self, tensors: Iterable[torch.Tensor | None]) -> int:
        """Bytes that were not counted before. A tensor whose memory was given back has none."""
        before = _covered(self._places)
        with torch._C.DisableTorchFunctionSubclass():  # parameters that are sharded refuse to be looked at otherwise
            for tensor in tensors:
                if tensor is not None:
                    self._places.append(_place(tensor))
        return _covered(self._places) - before


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """Where it lies, within its storage: that has fewer bytes than elements would need if it was freed or expanded."""
    storage, begin = tensor.untyped_storage(), tensor.data_ptr()
    if not storage.nbytes():
        return 0, 0
    return begin, min(begin + tensor.numel() * tensor.element_size(), storage.data_ptr() + storage.nbytes())


def _covered(places: Iterable[tuple[int, int]]) -> int:
    total, end = 0, 0
    for begin, until in sorted(places):
        total += max(0, until - max(begin, end))
        end = max(end, until)
    return total


def of_the_system() -> int | None:
    """Bytes of this process that are no file's; of a page that k ranks share, a k-th. None where no system says so."""
    if not _SMAPS.exists():
        return None
    _trim()
    lines = (line.split() for line in _SMAPS.read_text(encoding="utf-8").splitlines()[1:])
    found = {words[0].rstrip(":"): int(words[1]) << 10 for words in lines}
    return found["Pss_Anon"] + found["Pss_Shmem"]


def _trim() -> None:
    """Give the system what was freed, where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
