"""An op that waits without a thread: TensorFlow's part of :mod:`workbench.tf.host_calls`.

TensorFlow runs the ops of a graph on a pool of threads, by default one for each core. An op that waits for the other
ranks inside a ``tf.numpy_function`` holds one of them, and when all are held, nothing is left to run what the others
wait for. TensorFlow's own answer is an asynchronous kernel, which returns at once and calls back later. Plug-ins define
kernels with the C API of its library (``tensorflow/c/kernels.h``, a stable ABI), and so does this module, by ctypes.
The op takes a number and hands it on, when Python says so::

    ticket ──► op ──► ticket, as soon as the ticket's Future is done; or the Future's exception, as a status

The op's type is TensorFlow's own ``PyFunc``, with a kernel of ours for those of its nodes that have our token: so a
graph that is saved with a checkpoint can be read where the workbench is not.

1. Every pointer is used as the headers say: the tensor and the status are deleted here, and ``done`` is called once.
   TensorFlow makes and deletes kernels under its locks; no Python runs there, for it would wait for the GIL.
2. TensorFlow passes the address of a ``std::function`` that ends with the call, so a kernel that calls back later needs
   a copy of it, which the C API does not offer. :class:`_Done` makes one as libstdc++'s copy constructor does.
3. Where that is not known to be right (another system, a TensorFlow that this was not tried with), the op waits inside
   of the call, as the C API allows for certain: then it holds a thread, and many at once need
   ``tf.config.threading.set_inter_op_parallelism_threads``.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.kernel_def_pb2 import KernelDef

Find = Callable[[int], "Future[Any]"]
Code = Callable[[BaseException], tuple[int, str]]

_Compute = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
_Manager = CFUNCTYPE(ctypes.c_bool, c_void_p, c_void_p, c_int)
_CLONE, _DESTROY = 2, 3  # std::_Manager_operation
_TRIED = (2, 15), (2, 21)  # the oldest and the newest TensorFlow that the tests have run with
_NO_TEXT = "A call to the host has failed, with an exception that cannot be shown: its str() raises another one."

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "TF_NewStatus": (c_void_p, []),
    "TF_SetStatus": (None, [c_void_p, c_int, c_char_p]),
    "TF_GetCode": (c_int, [c_void_p]),
    "TF_Message": (c_char_p, [c_void_p]),
    "TF_DeleteStatus": (None, [c_void_p]),
    "TF_NewAsyncKernelBuilder": (c_void_p, [c_char_p, c_char_p, c_void_p, _Compute, c_void_p]),
    "TF_RegisterKernelBuilderWithKernelDef": (None, [c_char_p, c_char_p, c_void_p, c_void_p]),
    "TF_GetInput": (None, [c_void_p, c_int, POINTER(c_void_p), c_void_p]),
    "TF_SetOutput": (None, [c_void_p, c_int, c_void_p, c_void_p]),
    "TF_TensorData": (c_void_p, [c_void_p]),
    "TF_DeleteTensor": (None, [c_void_p]),
    "TF_OpKernelContext_Failure": (None, [c_void_p, c_void_p]),
    "TF_RunAsyncOpKernelDoneCallback": (None, [c_void_p]),
}


@functools.cache
def _library() -> Any:
    """TensorFlow's library, which is loaded already; with the functions' types."""
    folder = Path(tf.sysconfig.get_lib())
    found = sorted(folder.glob("libtensorflow_cc.*")) or sorted(folder.glob("libtensorflow_framework.*"))
    library = ctypes.CDLL(str(found[0]))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _Status:
    """A TF_Status, for the length of a block."""

    def __enter__(self) -> _Status:
        self.pointer = _library().TF_NewStatus()
        return self

    def __exit__(self, *_: object) -> None:
        _library().TF_DeleteStatus(self.pointer)

    def check(self) -> None:
        if _library().TF_GetCode(self.pointer):
            raise RuntimeError(f"TensorFlow: {_library().TF_Message(self.pointer).decode()}")

    def fail(self, context: int, code: int, text: str) -> None:
        _library().TF_SetStatus(self.pointer, code, text.replace("\0", "").encode(errors="replace"))
        _library().TF_OpKernelContext_Failure(context, self.pointer)


class _Done:
    """A copy of a C++ ``std::function<void()>``, of libstdc++: two words, a manager and an invoker.

    Args:
        address: of the original.
    """

    def __init__(self, address: int) -> None:
        self._words = (c_void_p * 4)()  # the function's object, or a pointer to it; then the manager, the invoker
        manager, invoker = c_void_p.from_address(address + 16).value, c_void_p.from_address(address + 24).value
        self._manage = _Manager(manager or 0)
        self._manage(self._words, address, _CLONE)
        self._words[2], self._words[3] = manager, invoker

    def __call__(self) -> None:
        _library().TF_RunAsyncOpKernelDoneCallback(self._words)
        self._manage(self._words, self._words, _DESTROY)


def _copies() -> bool:
    """Is a ``std::function`` of this TensorFlow known to be what :class:`_Done` takes it for?"""
    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    return sys.platform == "linux" and _TRIED[0] <= version <= _TRIED[1]


class WaitingOp:
    """The op, made known to TensorFlow for as long as the process lives; ``op(ticket)`` puts it into the graph.

    Args:
        find: the Future of a ticket.
        code: TensorFlow's error code and the text for an exception.
    """

    def __init__(self, find: Find, code: Code) -> None:
        self._find, self._code, self._copies = find, code, _copies()
        self._token = f"workbench-{uuid.uuid4().hex}"  # TensorFlow keeps kernels, but the module may be imported anew
        self._callback = _Compute(self._compute)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # for TensorFlow may call it as long as the process lives
        with _Status() as status:
            kernel = _library().TF_NewAsyncKernelBuilder(b"PyFunc", b"CPU", None, self._callback, None)
            where = self._where().SerializeToString()
            _library().TF_RegisterKernelBuilderWithKernelDef(where, self._token.encode(), kernel, status.pointer)
            status.check()

    def _where(self) -> Any:
        """For which nodes the kernel is: of those with our token it comes before TensorFlow's own."""
        where = KernelDef(op="PyFunc", device_type="CPU", priority=1)
        where.constraint.add(name="token").allowed_values.list.s.append(self._token.encode())
        return where

    def __call__(self, ticket: Any) -> Any:
        """The same number, when it is done; an error of TensorFlow's if it failed."""
        (done,) = tf.raw_ops.PyFunc(input=[ticket], token=self._token, Tout=[tf.int64], name="waits_for_ranks")
        done.set_shape(())
        return done

    def _compute(self, _: int, context: int, done: int) -> None:
        """TensorFlow runs the op. Nothing may be raised here: ctypes would drop it, and the graph wait for ever."""
        tensor = c_void_p()
        try:
            with _Status() as status:
                _library().TF_GetInput(context, 0, byref(tensor), status.pointer)
                status.check()
            future = self._find(c_int64.from_address(_library().TF_TensorData(tensor)).value)
        except BaseException as error:  # noqa: BLE001 - it ends the op
            future = Future()
            future.set_exception(error)
        if self._copies and not future.done():
            later = _Done(done)
            future.add_done_callback(lambda future: self._finish(future, context, tensor, later))
        else:
            self._finish(future, context, tensor, lambda: _library().TF_RunAsyncOpKernelDoneCallback(done))

    def _finish(self, future: Future[Any], context: int, tensor: c_void_p, done: Callable[[], None]) -> None:
        """The future is done. Whatever is raised here, the op must end: else the graph waits for ever."""
        try:
            failed = self._failure(future)
            with _Status() as status:
                if failed is None:
                    _library().TF_SetOutput(context, 0, tensor, status.pointer)
                else:
                    status.fail(context, *failed)
            if tensor.value:
                _library().TF_DeleteTensor(tensor)
        finally:
            done()

    def _failure(self, future: Future[Any]) -> tuple[int, str] | None:
        """TensorFlow's code and the text; None if all went well. An exception's own code may fail to say it."""
        try:
            error = future.exception()
            return None if error is None else self._code(error)
        except BaseException:  # noqa: BLE001 - it would be raised in a callback, where nobody sees it
            return tf.errors.UNKNOWN, _NO_TEXT
