"""Computing later: the result's arrays are there at once, their numbers when the stream gets there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .operations import Op
from .world import World

Host = np.ndarray[Any, Any]


class DeviceArray:
    """What computing needs of an array: its bytes as numpy sees them, and the place that keeps them alive."""

    world: World
    data: Any
    base: DeviceArray | None
    _host: Host

    def __init__(self, shape: Any, dtype: Any) -> None:
        raise NotImplementedError

    def _view(self, host: Host) -> DeviceArray:
        raise NotImplementedError


def compute(
    kind: type[DeviceArray],
    name: str,
    call: Callable[..., Any],
    *args: Any,
    out: Any = None,
    indices: bool = False,
    **more: Any,
) -> Any:
    """Gives the result's arrays at once and their numbers in the order of the stream.

    Args:
        kind: the world's array class.
        out: arrays to write into, in place of new ones.
        indices: whole numbers among the arguments are indices: what they hold now, which may be garbage, is not used.
    """
    outs = [each for each in (out if isinstance(out, tuple) else (out,)) if each is not None]
    if not all(isinstance(each, DeviceArray) for each in outs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed: `out` is on the host")
    arrays = device_arrays((args, more, outs))
    now, later = unwrap(list(args), indices), unwrap(more)
    trial = now[:1] + [_harmless(each) for each in now[1:]] if indices else now
    with kind.world.lock, np.errstate(all="ignore"):
        if outs:
            trial_out = tuple(np.empty_like(each._host) for each in outs)
            call(*now, out=trial_out[0] if len(outs) == 1 else trial_out, **later)
            targets = tuple(each._host for each in outs)
            target = targets[0] if len(outs) == 1 else targets
            launch(kind, name, arrays, lambda: call(*now, out=target, **later))
            return outs[0] if len(outs) == 1 else tuple(outs)
        known = call(*trial, **later)
        many = isinstance(known, (tuple, list)) and all(isinstance(each, (np.ndarray, np.generic)) for each in known)
        if not many and not isinstance(known, (np.ndarray, np.generic)):
            return known  # a shape, a type
        results = [_result(kind, each, arrays) for each in (known if many else [known])]
        fresh = [(at, array._host) for at, array in enumerate(results) if array.base is None]
        if fresh:
            launch(kind, name, [*arrays, *results], partial(_evaluate, call, now, later, fresh, many))
        return type(known)(results) if many else results[0]


def _evaluate(call: Callable[..., Any], args: Any, kwargs: Any, targets: list[tuple[int, Host]], many: bool) -> None:
    values = call(*args, **kwargs)
    for at, target in targets:
        np.copyto(target, values[at] if many else values)


def assign(target: Host, index: Any, value: Any) -> None:
    """An assignment as a call."""
    target[index] = value


def launch(kind: type[DeviceArray], name: str, arrays: Sequence[DeviceArray], work: Callable[[], object]) -> None:
    """Issues it on the current stream. All arrays must be on the current device, as cupy wants it."""
    queue = kind.world.current().queue
    for array in arrays:
        if array.data.device_id != queue.device:
            raise ValueError(
                f"Array device must be same as the current device: array device = {array.data.device_id} "
                f"while current = {queue.device}"
            )

    def quiet() -> None:
        with np.errstate(all="ignore"):
            work()

    addresses = [array.data.ptr for array in arrays]
    kind.world.issue(queue, Op(f"{name} of {len(arrays)} arrays", quiet), "compute", name=name, arrays=addresses)


def _result(kind: type[DeviceArray], known: Any, arrays: Sequence[DeviceArray]) -> DeviceArray:
    """A view of an argument, or a new array for what is computed later."""
    for array in arrays:
        if isinstance(known, np.ndarray) and np.may_share_memory(known, array._host):
            return array._view(known)
    return kind(np.shape(known), known.dtype)


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    """`np.copyto` between arrays of the device."""
    if not isinstance(dst, DeviceArray):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")
    target, source, mask = dst._host, unwrap(src), unwrap(where)
    np.copyto(np.empty_like(target), source, casting, where=mask)
    work = partial(np.copyto, target, source, casting, where=mask)
    launch(type(dst), "copyto", device_arrays((dst, src, where)), work)


def device_arrays(given: Any) -> list[DeviceArray]:
    """All device arrays in nested tuples, lists and dicts."""
    if isinstance(given, DeviceArray):
        return [given]
    inside = given.values() if isinstance(given, dict) else given if isinstance(given, (tuple, list)) else ()
    return [array for each in inside for array in device_arrays(each)]


def unwrap(given: Any, indices: bool = False) -> Any:
    """The same with host memory in the place of device arrays. Arrays of the host are refused, as by cupy."""
    if isinstance(given, DeviceArray):
        return given._host
    if isinstance(given, np.ndarray):
        if given.ndim and not indices:
            raise TypeError(f"Unsupported type {type(given)}")
        return given.copy()
    if isinstance(given, dict):
        return {key: unwrap(each, indices) for key, each in given.items()}
    return type(given)(unwrap(each, indices) for each in given) if type(given) in (tuple, list) else given


def _harmless(part: Any) -> Any:
    """Zeros for indices; they are allowed wherever there is an element at all."""
    return np.zeros_like(part) if isinstance(part, (np.ndarray, list)) else part


def is_basic(part: Any) -> bool:
    """This part of a key selects without a copy."""
    return part is None or part is ... or (isinstance(part, (int, np.integer, slice)) and not isinstance(part, bool))


def is_mask(part: Any) -> bool:
    """This part of a key selects by true and false."""
    return getattr(part, "dtype", None) == np.dtype(bool)
