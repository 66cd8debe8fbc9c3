"""XLA's own way to call a function of another library, by ctypes: for calls that get XLA's memory, not copies of it.

``io_callback`` copies each argument into an array of JAX's and each result out of one of numpy's. XLA's foreign
function interface (``xla/ffi/api/c_api.h``, a versioned C ABI) hands over the addresses of arguments and results::

    XLA ──frame: addresses──► handler ──► function(arguments, results), arrays over XLA's memory

XLA asks the handler for its version when it is registered. Where the interface is not one that this was tried with, the
handler does not answer, and :attr:`ForeignCalls.offered` is False: then there is ``io_callback``.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from typing import Any

import jax
import numpy as np

from workbench.core.backend.base import Array

NAME = "workbench_call"
_TRIED = (0, 3)  # of XLA's interface
_METADATA, _EXECUTE, _UNKNOWN = 1, 3, 2  # XLA_FFI_Extension_Metadata, …_ExecutionStage_EXECUTE, …_Error_Code_UNKNOWN
_NO_TEXT = "A call to the host has failed, with an exception that cannot be shown: its str() raises another one."

Run = Callable[[Sequence[int], Sequence[int]], None]
Find = Callable[[int], Run]


class _Extension(Structure):
    _fields_ = [("struct_size", c_size_t), ("type", c_int), ("next", c_void_p)]


class _Version(Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(Structure):
    _fields_ = [("struct_size", c_size_t), ("version", _Version), ("traits", c_uint32), ("state_type_id", c_int64)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _Buffer(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension", c_void_p), ("dtype", c_int), ("data", c_void_p), ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]  # fmt: skip


class _Buffers(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension", c_void_p), ("size", c_int64), ("types", c_void_p),
        ("all", POINTER(POINTER(_Buffer))),
    ]  # fmt: skip


class _Error(Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int)]


_Create = CFUNCTYPE(c_void_p, POINTER(_Error))


class _Api(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("extension", c_void_p), ("version", _Version), ("internal", c_void_p),
        ("create_error", _Create),
    ]  # fmt: skip


class _Frame(Structure):  # attributes follow, and more: they are not used
    _fields_ = [
        ("struct_size", c_size_t), ("extension", POINTER(_Extension)), ("api", POINTER(_Api)), ("context", c_void_p),
        ("stage", c_int), ("arguments", _Buffers), ("results", _Buffers),
    ]  # fmt: skip


_Handler = CFUNCTYPE(c_void_p, POINTER(_Frame))


class ForeignCalls:
    """The handler, made known to XLA for as long as the process lives.

    The first argument of a call is a ticket; the first result is the same number again.

    Args:
        find: what to run for a ticket: a function of the addresses of the other arguments and results.
    """

    def __init__(self, find: Find) -> None:
        self._find, self._fits = find, False
        self._handler = _Handler(self._handle)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # for XLA may call it as long as the process lives
        try:
            capsule = jax.ffi.pycapsule(self._handler)  # type: ignore[no-untyped-call]
            jax.ffi.register_ffi_target(NAME, capsule, platform="cpu")
        except Exception:  # noqa: BLE001 - XLA's refusals have many classes
            self._fits = False

    @property
    def offered(self) -> bool:
        """Does this XLA have the interface that this was tried with?"""
        return self._fits

    def _handle(self, frame: Any) -> int | None:
        """XLA calls. Nothing may be raised here: ctypes would drop it, and XLA take it for done."""
        frame = frame.contents
        try:
            if frame.extension and frame.extension.contents.type == _METADATA:
                self._introduce(frame)
            elif frame.stage == _EXECUTE:
                self._run(frame)
        except BaseException as error:  # noqa: BLE001 - it becomes XLA's
            return _failure(frame, error)
        return None

    def _introduce(self, frame: Any) -> None:
        """Say which version this is written for; XLA refuses a handler that says none."""
        version = frame.api.contents.version
        self._fits = (version.major, version.minor) == _TRIED and frame.struct_size >= ctypes.sizeof(_Frame)
        if self._fits:
            metadata = ctypes.cast(frame.extension, POINTER(_MetadataExtension)).contents.metadata.contents
            metadata.version.major, metadata.version.minor = _TRIED
            metadata.traits = 0

    def _run(self, frame: Any) -> None:
        given, wanted = _addresses(frame.arguments), _addresses(frame.results)
        ticket = c_int32.from_address(given[0]).value
        self._find(ticket)(given[1:], wanted[1:])
        c_int32.from_address(wanted[0]).value = ticket


def _addresses(buffers: Any) -> list[int]:
    """Of the arguments, or of the results; what has no elements may have none."""
    return [buffers.all[i].contents.data or 0 for i in range(buffers.size)]


def _failure(frame: Any, error: BaseException) -> int | None:
    """An error of XLA's, with the text of this one."""
    try:
        text = f"{type(error).__name__}: {error}".replace("\0", "").encode(errors="replace")
    except BaseException:  # noqa: BLE001 - the call must fail, whatever its error says
        text = _NO_TEXT.encode()
    made = _Error(ctypes.sizeof(_Error), None, text, _UNKNOWN)
    return frame.api.contents.create_error(made)  # type: ignore[no-any-return]


def array_at(address: int, shape: Sequence[int], dtype: Any) -> Array:
    """An array over XLA's memory, for as long as the call lasts."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    return np.ndarray(tuple(shape), dtype, (c_char * nbytes).from_address(address))
