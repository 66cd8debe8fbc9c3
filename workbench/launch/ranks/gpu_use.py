"""How busy the GPU of a rank is, by NVIDIA's own library, which is where its driver is; nothing where there is none."""

from __future__ import annotations

import contextlib
import ctypes
import math
import time
from collections.abc import Callable
from typing import Any

from workbench import config
from workbench.common.extras import loaded

_EVERY_S = 1.0


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Utilization(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in ("gpu", "memory")]


class GpuUse:
    """Of the GPU that this process uses, at most once a second.

    Args:
        load: gives the library.

    Example:
        >>> def no_driver():
        ...     raise OSError
        >>> GpuUse(no_driver).now() is None
        True
    """

    def __init__(self, load: Callable[[], Any] = lambda: ctypes.CDLL("libnvidia-ml.so.1")) -> None:
        self._load = load
        self._nvml: Any = None
        self._asked_at, self._last = 0.0, dict[str, int]()

    def now(self) -> dict[str, int] | None:
        """``percent`` of the time it was busy, and ``memory``: bytes in use by all processes; None: not known."""
        if time.monotonic() - self._asked_at >= _EVERY_S:
            device, self._last = _device(), {}
            if device:
                with contextlib.suppress(OSError, AttributeError):  # no driver, or an old one
                    self._last = self._ask(device)
            self._asked_at = time.monotonic() if self._nvml is not None or device == "" else math.inf
        return self._last or None

    def _ask(self, device: str) -> dict[str, int]:
        if self._nvml is None:
            nvml = self._load()
            if nvml.nvmlInit_v2():
                return {}
            self._nvml = nvml
        nvml, handle, memory, used = self._nvml, ctypes.c_void_p(), _Memory(), _Utilization()
        if device.isdecimal():
            failed = nvml.nvmlDeviceGetHandleByIndex_v2(int(device), ctypes.byref(handle))
        else:
            failed = nvml.nvmlDeviceGetHandleByUUID(device.encode(), ctypes.byref(handle))
        if failed or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            return {}
        busy = {} if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(used)) else {"percent": int(used.gpu)}
        return {"memory": int(memory.used)} | busy


def _device() -> str:
    """The number or uuid of the GPU that this process uses; "" if it is not known.

    1. The only one that it may use.
    2. Of several the one on which its torch has most memory.
    """
    visible = config.visible_gpus()
    names = [each.strip() for each in visible.split(",") if each.strip()] if visible is not None else []
    if len(names) == 1 or visible == "":
        return "".join(names)
    torch = loaded("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    used = [torch.cuda.memory_reserved(i) for i in range(torch.cuda.device_count())]
    number = used.index(max(used))
    return (names[number] if names else str(number)) if any(used) else ""
