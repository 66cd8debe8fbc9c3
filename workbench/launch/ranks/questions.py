"""``input()`` and ``breakpoint()`` on an engine: the notebook asks its user, if it can, and the rank waits.

An engine has no terminal. It publishes a question with its output; the notebook, which follows the cell, answers on
the control channel. Meanwhile the other ranks wait where they need this one: nothing in a job ends a wait for a rank
that is busy in its cell. ``pdb`` reads its commands by ``input()``, so a debugger works the same way, and so does
``%debug``.
"""

from __future__ import annotations

import pdb
import queue
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from IPython.core.error import StdinNotImplementedError

ASK = "workbench_ask"
"""The type of a question's message on the iopub channel, and of its answer on the control channel."""

ANSWERS = "workbench_answers"
"""In a request's metadata: the notebook can ask its user."""

_LOOK_S = 0.2
_NOBODY = (
    "input() was called on an engine, and nobody can be asked: the cell does not run in the foreground of a notebook "
    "or a terminal. Set the value in the notebook, and give it to the engines: engines.view['name'] = value."
)
_PASSED_OVER = (
    "breakpoint() was skipped: nobody can be asked what to do. It works in a %%px cell of a notebook or a terminal "
    "that runs in the foreground."
)


class Questions:
    """Of one engine.

    Args:
        publish: sends a question's content with the output of the running cell.
        stop: stops in a frame, if the notebook's own debugger is on.
    """

    def __init__(
        self, publish: Callable[[dict[str, Any]], None], stop: Callable[[FrameType | None], bool] = lambda frame: False
    ) -> None:
        self._publish, self._stop, self._number = publish, stop, 0
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._answered = self._interrupted = False

    def begins(self, answered: bool) -> None:
        """A cell begins; does the notebook that has sent it answer?"""
        self._answered, self._interrupted = answered, False

    def ask(self, prompt: str, password: bool = False) -> str:
        """What the user types.

        Raises:
            StdinNotImplementedError: nobody can be asked.
            EOFError: the user gave no answer.
        """
        if self._interrupted:  # pdb catches KeyboardInterrupt and asks again; by this it is left
            raise EOFError
        if not self._answered:
            raise StdinNotImplementedError(_NOBODY)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._number += 1
        self._publish({"prompt": prompt, "password": password, "number": self._number})
        try:
            text = self._wait()
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        if text is None:
            raise EOFError
        return text

    def _wait(self) -> str | None:
        while True:
            try:
                answer = self._answers.get(timeout=_LOOK_S)  # Ctrl-C is seen between two looks
            except queue.Empty:
                continue
            if answer["number"] == self._number:  # and not to a question that Ctrl-C has ended
                text: str | None = answer["text"]
                return text

    def answer(self, content: dict[str, Any]) -> None:
        """The notebook answers; on the thread of the control channel."""
        self._answers.put(content)

    def breakpoint(self, *options: Any, header: str | None = None, **more: Any) -> None:
        """What ``breakpoint()`` and ``pdb.set_trace()`` call: the debugger, or a warning, once for each line."""
        frame: FrameType | None = sys._getframe().f_back
        if self._stop(frame):
            return
        if not self._answered:
            warnings.warn(_PASSED_OVER, stacklevel=2)
            return
        debugger = pdb.Pdb(nosigint=True)  # Ctrl-C stays the cell's
        if header is not None:
            debugger.message(header)
        debugger.set_trace(frame)
