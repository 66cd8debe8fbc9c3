"""What a rank is at while it runs a cell: the line of its main thread, its training loop, its processor and memory."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import psutil

from workbench.common.extras import loaded
from workbench.common.user_line import place_of, stack_of, users_own
from workbench.launch.ranks.gpu_use import GpuUse

_STEPS = ("step", "it", "iteration", "batch_idx", "batch", "i", "epoch")  # the first one that counts is shown
_LOSSES = ("loss", "train_loss", "loss_value")
_MOST_FRAMES = 12
_ASKED_S = 10.0  # so long after the last question the answers end
_STACK_S, _WAITS_S = 1.0, 0.2


class Activity:
    """Asked from another thread than the one that runs cells.

    Example:
        >>> activity = Activity()
        >>> activity.begins()
        >>> now = activity.now()
        >>> now["cell_s"] is not None, now["memory"] > 0
        (True, True)
    """

    def __init__(self) -> None:
        self._begun: float | None = None
        self._process = psutil.Process()
        self._statm: int | None = None
        self._gpu = GpuUse()
        with contextlib.suppress(OSError):
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def begins(self) -> None:
        self._begun = time.monotonic()

    def ends(self) -> None:
        self._begun = None

    def now(self, stack: bool = False) -> dict[str, Any]:
        """The cell's seconds (None: no cell), line, variables of the loop, seconds of processor, bytes of memory, GPU.

        Args:
            stack: say the main thread's innermost lines, too.
        """
        begun = self._begun
        found: dict[str, Any] = {"cell_s": time.monotonic() - begun if begun is not None else None}
        if begun is not None:
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            found |= {"line": place_of(each for each in stack_of(frame) if users_own(each[0])), "loop": loop_of(frame)}
            if stack and frame is not None:
                found["stack"] = "".join(traceback.format_stack(frame)[-_MOST_FRAMES:]).rstrip()
        return found | {"cpu_s": time.process_time(), "memory": self._memory(), "gpu": self._gpu.now()}

    def _memory(self) -> int:
        """Bytes; where there is ``/proc``, at a quarter of the cost."""
        if self._statm is None:
            return int(self._process.memory_info().rss)
        return int(os.pread(self._statm, 100, 0).split()[1]) * mmap.PAGESIZE


class Published:
    """Says again and again what a rank is at, as long as somebody asks for it now and then; all on one thread.

    Args:
        publish: says it once, with or without the stack; does the rank wait for another one? Then it has time to say
            so more often: this costs half a millisecond of a core, most of it for threads that wake up.
        later: calls a function after so many seconds.
    """

    def __init__(self, publish: Callable[[bool], bool], later: Callable[[float, Callable[[], None]], Any]) -> None:
        self._publish, self._later = publish, later
        self._until, self._every_s, self._stack, self._stack_at = 0.0, math.inf, False, 0.0

    def ask(self, every_s: float, stack: bool) -> None:
        """Somebody wants to know it so often; see also :meth:`Activity.now`."""
        runs, now = self._every_s < math.inf, time.monotonic()
        self._until, self._every_s, self._stack = now + _ASKED_S, min(every_s, self._every_s), stack or self._stack
        if not runs:
            self._later(every_s, self._again)

    def _again(self) -> None:
        now = time.monotonic()
        if now > self._until:
            self._every_s, self._stack = math.inf, False
            return
        if stack := self._stack and now - self._stack_at >= _STACK_S:
            self._stack_at = now
        waits = self._publish(stack)
        self._later(min(self._every_s, _WAITS_S) if waits else self._every_s, self._again)


def loop_of(frame: FrameType | None) -> dict[str, float]:
    """Of the innermost function of the user that has them: the number of its step, and its loss.

    Example:
        >>> def train():
        ...     for step in range(3):
        ...         loss = 0.5
        ...     return loop_of(sys._getframe())
        >>> train()
        {'step': 2, 'loss': 0.5}
    """
    found: dict[str, float] = {}
    while frame is not None:
        code = frame.f_code
        names = {*code.co_varnames, *code.co_cellvars} if code.co_flags & 2 else set(code.co_names)
        if users_own(code.co_filename) and names:
            values = frame.f_locals
            for name in _STEPS if not found.keys() - {"loss"} else ():
                if name in names and type(value := values.get(name)) is int:
                    found[name] = value
                    break
            for name in _LOSSES if "loss" not in found else ():
                if name in names and (loss := _number(values.get(name))) is not None:
                    found["loss"] = loss
                    break
        frame = frame.f_back
    return found


def _number(value: Any) -> float | None:
    """A float, or a tensor of torch with one element on the CPU: to read one on a GPU would wait for it."""
    if isinstance(value, float):
        return value
    torch = loaded("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel() == 1:
        return float(value.detach())
    return None
