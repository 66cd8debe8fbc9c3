"""Functions of the module `cupy` itself: new arrays, and numpy's names for arrays of the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .deferred import Host, device_arrays, unwrap
from .operations import words
from .world import World

# Called as `cupy.add(…)`, these refuse arrays of the host.
SAME_NAMES = words(
    "absolute add all any bitwise_and bitwise_or bitwise_xor clip concatenate copyto divide dot equal exp greater "
    "isfinite isinf isnan less logical_and logical_not logical_or matmul max maximum mean min minimum multiply "
    "negative power prod ravel reshape rint sign split sqrt square stack subtract sum true_divide vdot where"
)
VALUES = words(
    "bool_ complex64 complex128 dtype float16 float32 float64 inf int8 int16 int32 int64 nan newaxis uint8 uint16 "
    "uint32 uint64"
)


class Creation:
    """The functions that make arrays, in the memory of the current device."""

    def __init__(self, world: World, kind: type[Any]) -> None:
        self._world = world
        self.ndarray = kind
        for name in VALUES:
            setattr(self, name, getattr(np, name))
        for name in SAME_NAMES:
            setattr(self, name, partial(self._on_device, getattr(np, name)))

    def empty(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        return self.ndarray(shape, dtype, order=order)

    def zeros(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        return self.full(shape, 0, dtype, order)

    def ones(self, shape: Any, dtype: Any = float, order: str = "C") -> Any:
        return self.full(shape, 1, dtype, order)

    def full(self, shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
        if dtype is None:
            dtype = fill_value.dtype if isinstance(fill_value, self.ndarray) else np.asarray(fill_value).dtype
        new = self.empty(shape, dtype, order)
        new.fill(fill_value)
        return new

    def arange(self, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
        host = np.arange(start, dtype=dtype) if stop is None else np.arange(start, stop, step, dtype=dtype)
        return self.asarray(host)

    def empty_like(
        self, prototype: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
    ) -> Any:
        shape = prototype.shape if shape is None else shape
        return self.empty(shape, prototype.dtype if dtype is None else dtype)

    def zeros_like(self, a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> Any:
        return self.full_like(a, 0, dtype, shape=shape)

    def ones_like(self, a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> Any:
        return self.full_like(a, 1, dtype, shape=shape)

    def full_like(
        self, a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
    ) -> Any:
        new = self.empty_like(a, dtype, shape=shape)
        new.fill(fill_value)
        return new

    def array(self, obj: Any, dtype: Any = None, copy: bool | None = True, order: str = "K", **_: Any) -> Any:
        if isinstance(obj, self.ndarray):
            return obj.astype(obj.dtype if dtype is None else dtype, copy=bool(copy))
        if hasattr(obj, "__cuda_array_interface__"):
            taken = self._take(obj, obj.__cuda_array_interface__)
            return taken.astype(taken.dtype if dtype is None else dtype, copy=bool(copy))
        host: Host = np.asarray(obj, dtype)
        new = self.empty(host.shape, host.dtype)
        new.set(host)
        return new

    def asarray(self, a: Any, dtype: Any = None, order: str | None = None, **_: Any) -> Any:
        return self.array(a, dtype, copy=None)

    def asnumpy(self, a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Host:
        return a.get(stream, order, out, blocking) if isinstance(a, self.ndarray) else np.asarray(a)

    def get_array_module(self, *args: Any) -> Any:
        return self._world.cupy if device_arrays(args) else np

    def is_available(self) -> bool:
        return bool(self._world.defaults)

    def may_share_memory(self, a: Any, b: Any) -> bool:
        return np.may_share_memory(a._host, b._host)

    def _on_device(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        unwrap((args, kwargs))  # refuses arrays of the host
        if not device_arrays((args, kwargs)):
            raise NotImplementedError(f"cupy.{getattr(function, '__name__', function)} without an array of the device")
        return function(*args, **kwargs)

    def _take(self, owner: Any, described: dict[str, Any]) -> Any:
        """Another library's array, without a copy. As in cupy, the host waits for the stream that it names."""
        cuda, (ptr, _) = self._world.cupy.cuda, described["data"]
        dtype = np.dtype(described["typestr"])
        strides = described.get("strides")
        shape = described["shape"]
        if described.get("stream") is not None:
            self._world.finish(self._world.queue(described["stream"]))
        extent = [(n - 1) * s for n, s in zip(shape, strides, strict=True)] if strides else []
        size = dtype.itemsize + sum(extent) if strides else int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if any(each < 0 for each in extent):
            raise NotImplementedError("negative strides")
        memory = cuda.UnownedMemory(ptr, size if all(shape) else 0, owner)
        return self.ndarray(shape, dtype, cuda.MemoryPointer(memory, 0), strides)
