"""Sleep until a number in shared memory changes: Linux's futex, called without a compiler.

The sleeper costs nothing and is woken within microseconds. Linux only, and processors whose number of the system call
is known.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import Any

_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_NUMBER = _NUMBERS.get(platform.machine(), 0) if sys.platform == "linux" else 0
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1  # without FUTEX_PRIVATE_FLAG: who sleeps is another process

available = _NUMBER != 0


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


_call: Any = getattr(ctypes.CDLL(None), "syscall", None)  # releases the GIL; a browser has none
if _call is not None:
    _call.restype = ctypes.c_long
# syscall() takes any number of arguments, so ctypes cannot know their types: a plain int would be passed in 32 bits.
_number, _wait, _wake, _all = (ctypes.c_long(value) for value in (_NUMBER, _WAIT, _WAKE, _ALL))


def sleep_while(address: int, value: int, timeout_s: float) -> None:
    """Sleep while the 32-bit number at ``address`` is ``value``, at most so long; it may also end for no reason."""
    time_s, fraction = divmod(timeout_s, 1)
    timespec = _Timespec(int(time_s), int(fraction * 1e9))
    _call(_number, ctypes.c_void_p(address), _wait, ctypes.c_long(value), ctypes.byref(timespec))


def wake(address: int) -> None:
    """Wake all who sleep at ``address``, in whatever process."""
    _call(_number, ctypes.c_void_p(address), _wake, _all, None)
