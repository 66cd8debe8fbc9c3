"""`cupy.ndarray`: what it is told to compute, it computes in the order of the calling thread's current stream.

A call is evaluated twice: at once, on whatever the memory holds, to learn shape and type of the result; and for its
numbers when the stream gets there. A result that is a view of its argument (a slice, a reshape) is one at once.

Stricter than cupy in one point: `float(x)`, `int(x)` and `bool(x)` are refused too. There they wait for the device,
and where that is meant `item()` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from .deferred import DeviceArray, Host, assign, compute, copyto, device_arrays, is_basic, is_mask, launch, unwrap
from .memory import Allocation, address
from .operations import Op, words

METHODS = words(
    "all any argmax argmin clip conj copy cumsum diagonal dot flatten max mean min prod ravel repeat reshape round "
    "squeeze std sum swapaxes take trace transpose var view"
)
# What numpy hands over (`__array_function__`), of what cupy has too. None of these looks at an element to find a shape.
FUNCTIONS = words(
    "all amax amin any array_split broadcast_to can_cast clip concatenate cumsum dot expand_dims hstack max mean min "
    "moveaxis ndim norm outer prod ravel repeat reshape result_type round shape size split squeeze stack sum swapaxes "
    "take tensordot transpose vdot vstack where"
)
LIKE = words("empty_like full_like ones_like zeros_like")


class ndarray(DeviceArray, NDArrayOperatorsMixin):  # noqa: N801 — cupy's name
    """An array in device memory. It is no `np.ndarray`, and becomes one only through `get`, `item` and `tolist`."""

    __array_priority__ = 100

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: Any = "C"
    ) -> None:
        dtype = np.dtype(dtype)
        shape = (int(shape),) if np.ndim(shape) == 0 else tuple(int(each) for each in shape)
        if memptr is None:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            memptr = self.world.cupy.cuda.MemoryPointer(Allocation(self.world, size), 0)
            self.world.note("malloc", self.world.current().queue, ptr=memptr.ptr, bytes=size)
        self.data = memptr
        self.base: ndarray | None = None
        offset = memptr.ptr - memptr.mem.ptr
        self._host: Host = np.ndarray(
            shape, dtype, buffer=memptr.mem.content, offset=offset, strides=strides, order=order or "C"
        )

    def __getattr__(self, name: str) -> Any:
        if name in {"dtype", "flags", "itemsize", "nbytes", "ndim", "shape", "size", "strides"}:
            return getattr(self._host, name)
        if name in METHODS:
            return partial(compute, type(self), name, getattr(np.ndarray, name), self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r} (in the stand-in)")

    @property
    def T(self) -> ndarray:  # noqa: N802 — numpy's name
        return self._view(self._host.T)

    @property
    def device(self) -> Any:
        return self.data.device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "stream": self.world.current().ptr or 1,
            "version": 3,
            "strides": None if self._host.flags.c_contiguous else self.strides,
            "data": (self.data.ptr if self.size else 0, False),
        }

    def __len__(self) -> int:
        return len(self._host)

    def __repr__(self) -> str:
        return f"<cupy.ndarray {self.dtype}{list(self.shape)} on device {self.data.device_id}>"

    # --- to and from the host -----------------------------------------------------------------------------------------

    def get(self, stream: Any = None, order: str = "C", out: Host | None = None, blocking: bool = True) -> Host:
        """A copy on the host. Without `blocking` it is there later, if `out` is in pinned memory."""
        world = self.world
        queue = (world.current() if stream is None else stream).queue
        if out is not None and (out.dtype, out.shape) != (self.dtype, self.shape):
            raise TypeError(f"{out.dtype}{out.shape} cannot be obtained from {self.dtype}{self.shape}")
        result: Host = np.empty(self.shape, self.dtype) if out is None else out
        pageable = not world.memory.pinned(address(result))
        source = self._host
        op = Op(f"get of {self.nbytes} bytes", lambda: np.copyto(result, source))
        dst = address(result)
        world.issue(queue, op, "memcpy", kind="D2H", bytes=self.nbytes, dst=dst, src=self.data.ptr, pageable=pageable)
        if blocking or pageable:
            world.drive(lambda: op.done, f"{op.label} on {queue}")
        return result

    def set(self, arr: Host, stream: Any = None) -> None:
        """Copies from the host: pageable memory as it is now, pinned memory as it is when the stream gets there."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        world = self.world
        queue = (world.current() if stream is None else stream).queue
        pageable = not world.memory.pinned(address(arr))
        source, target = arr.copy() if pageable else arr, self._host
        op = Op(f"set of {self.nbytes} bytes", lambda: np.copyto(target, source))
        src = address(arr)
        world.issue(queue, op, "memcpy", kind="H2D", bytes=self.nbytes, dst=self.data.ptr, src=src, pageable=pageable)

    def item(self) -> Any:
        return self.get().item()

    def tolist(self) -> Any:
        return self.get().tolist()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Host:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __bool__(self) -> bool:
        raise TypeError("this would wait for the device; `item()` says so")

    def __float__(self) -> float:
        raise TypeError("this would wait for the device; `item()` says so")

    def __int__(self) -> int:
        raise TypeError("this would wait for the device; `item()` says so")

    # --- elements -----------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> ndarray:
        parts = key if isinstance(key, tuple) else (key,)
        if all(is_basic(part) for part in parts):
            return self._view(self._host[parts if any(part is ... for part in parts) else (*parts, ...)])
        if any(is_mask(part) for part in parts):
            raise NotImplementedError("a mask's shape of result is on the device: use `where`")
        return compute(type(self), "getitem", lambda host, *index: host[index], self, *parts, indices=True)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        parts = key if isinstance(key, tuple) else (key,)
        target, index = self._host, unwrap(list(parts), indices=True)
        content = unwrap(value)
        if all(is_basic(part) for part in parts):
            np.broadcast_to(content, np.shape(target[tuple(index)]))  # a wrong shape is told here
        launch(
            type(self),
            "setitem",
            [self, *device_arrays((parts, value))],
            partial(assign, target, tuple(index), content),
        )

    def fill(self, value: Any) -> None:
        """Fills with a number, or with the array of no axes that will hold it."""
        self[...] = value

    def astype(
        self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True
    ) -> ndarray:
        if not copy and self.dtype == np.dtype(dtype):
            return self
        return compute(type(self), "astype", np.ndarray.astype, self, dtype)

    # --- numpy's protocols --------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **kwargs: Any) -> Any:
        if method not in ("__call__", "reduce", "accumulate"):
            return NotImplemented
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        return compute(type(self), name, getattr(ufunc, method), *inputs, out=out, **kwargs)

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func.__name__
        if name in LIKE:
            return getattr(self.world.cupy, name)(*args, **kwargs)
        if name == "copyto":
            return copyto(*args, **kwargs)
        return compute(type(self), name, func, *args, **kwargs) if name in FUNCTIONS else NotImplemented

    def _view(self, host: Host) -> ndarray:
        view = object.__new__(type(self))
        view._host, view.base = host, self if self.base is None else self.base
        start = address(host) - self.data.mem.ptr if host.size else self.data.ptr - self.data.mem.ptr
        view.data = type(self.data)(self.data.mem, start)
        return view
