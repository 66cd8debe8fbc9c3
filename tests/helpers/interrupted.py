"""Ctrl-C at every place where it can hit: for tests of what is left behind then."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import workbench

_OURS = str(Path(workbench.__file__).parent)

# Marks a SIGINT as come, and returns: as trace function it runs no Python, so what it marks is dealt with where the
# interpreter itself looks for signals next, in the traced code. It is given a frame, an event and a value.
_INTERRUPT = ctypes.PyDLL(None).PyErr_SetInterrupt
_INTERRUPT.argtypes, _INTERRUPT.restype = [ctypes.py_object] * 3, None


def interrupts(action: Callable[[], Any]) -> Iterator[int]:
    """Call ``action()`` again and again, with Ctrl-C before its first instruction in our code, its second and so on.

    Yields after each call, the last one of which no Ctrl-C has hit. Skips the test where a debugger or coverage traces.
    """
    if sys.gettrace() is not None:
        pytest.skip("needs sys.settrace for itself, and another program traces")
    at, hit = 1, True
    while hit:
        hit = _interrupted(action, at)
        yield at
        at += 1


def _interrupted(action: Callable[[], Any], at: int) -> bool:
    """Was ``action()`` interrupted, before its instruction number ``at``? Else it has fewer."""
    left = at

    def trace(frame: types.FrameType, event: str, value: Any) -> Any:
        nonlocal left
        if left < 0 or not frame.f_code.co_filename.startswith(_OURS):
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left == 0:
            left = -1  # one is enough: a handler that holds it back is left in peace
            return _INTERRUPT
        return trace

    def once(*_: Any) -> None:
        sys.settrace(tracing)
        raise KeyboardInterrupt

    tracing, handler = sys.gettrace(), signal.signal(signal.SIGINT, once)
    gc.disable()  # libraries hang callbacks on the collector, and what is raised in one of them reaches nobody
    try:
        sys.settrace(trace)
        action()
        sys.settrace(tracing)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(tracing)
        signal.signal(signal.SIGINT, handler)
        gc.enable()
    return False
