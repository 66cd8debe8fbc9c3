"""Read another process's memory: Linux's ``process_vm_readv``.

One copy, made by the kernel, and the other process need not do anything. The system must allow it: the same user, and
no ``kernel.yama.ptrace_scope`` above 0. So it is tried out in ``init()``. Nobody writes into another process: it may
have given up the collective, and use the memory for something else.
"""

from __future__ import annotations

import ctypes
import errno
import os

import numpy as np

from workbench.core.backend.base import Array

_AT_ONCE_BYTES = 1 << 30  # Linux moves at most 0x7ffff000 in one call, and says how many it has moved


class _Piece(ctypes.Structure):  # struct iovec
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)  # its calls release the GIL
if hasattr(_libc, "process_vm_readv"):
    _libc.process_vm_readv.restype = ctypes.c_ssize_t


def read(pid: int, address: int, out: Array) -> None:
    """Fill ``out`` with what stands at ``address`` in another process.

    Raises:
        OSError: it is not allowed, or there is no such process or memory.
    """
    one, none, done = ctypes.c_ulong(1), ctypes.c_ulong(0), 0
    while done < out.nbytes:
        length = min(_AT_ONCE_BYTES, out.nbytes - done)
        here, there = _Piece(out.ctypes.data + done, length), _Piece(address + done, length)
        moved = _libc.process_vm_readv(pid, ctypes.byref(here), one, ctypes.byref(there), one, none)
        if moved <= 0:
            error = ctypes.get_errno() if moved < 0 else errno.EFAULT
            raise OSError(error, f"process {pid}: {done} of {out.nbytes} bytes were read: {os.strerror(error)}")
        done += moved


def works(pid: int, address: int, expected: bytes) -> bool:
    """Can memory of that process be read from here?"""
    found = np.zeros(len(expected), np.uint8)
    try:
        read(pid, address, found)
    except (OSError, AttributeError):  # not allowed; the system has no such calls
        return False
    return found.tobytes() == expected
