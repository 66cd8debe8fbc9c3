"""Read and write another process's memory: Linux's ``process_vm_readv`` and ``process_vm_writev``.

One copy, made by the kernel, and the other process need not do anything. The system must allow it: the same user, and
no ``kernel.yama.ptrace_scope`` above 0. So it is tried out in ``init()``.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

from workbench.backends.base import Array


class _Piece(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)  # its calls release the GIL


def read(pid: int, address: int, out: Array) -> None:
    """Fill ``out`` with what stands at ``address`` in another process.

    Raises:
        OSError: it is not allowed, or there is no such process or memory.
    """
    _transfer(_libc.process_vm_readv, pid, address, out)


def write(pid: int, address: int, data: Array) -> None:
    """Write ``data`` to ``address`` in another process. Errors as :func:`read`."""
    _transfer(_libc.process_vm_writev, pid, address, data)


def works(pid: int, address: int, expected: bytes) -> bool:
    """Can memory of that process be read and written from here?"""
    found = np.zeros(len(expected), np.uint8)
    try:
        read(pid, address, found)
        write(pid, address, found[:0])
    except (OSError, AttributeError):  # not allowed; the system has no such calls
        return False
    return found.tobytes() == expected


def _transfer(call: Any, pid: int, address: int, array: Array) -> None:
    here, there = _Piece(array.ctypes.data, array.nbytes), _Piece(address, array.nbytes)
    call.restype = ctypes.c_ssize_t
    moved = call(pid, ctypes.byref(here), ctypes.c_ulong(1), ctypes.byref(there), ctypes.c_ulong(1), ctypes.c_ulong(0))
    if moved != array.nbytes:
        error = ctypes.get_errno() if moved < 0 else 0
        raise OSError(error, f"process {pid}: {moved} of {array.nbytes} bytes moved: {os.strerror(error)}")
