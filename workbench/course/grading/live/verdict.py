"""Judging one function in a process of its own, beside the judge; this is the grader's end."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.course.grading.apart.process import Confined
from workbench.course.grading.apart.values import ProtocolError, receive, send
from workbench.course.grading.live.source import own_source
from workbench.course.judging.judge import Stage

_HEAVY = ("numpy", "numpy.testing", "torch", "torch.nn.functional", "workbench.torch")


def stages(
    name: str, cells: Sequence[str], folder: str, sandbox: bool, limits: Mapping[str, int], limit_s: float
) -> Iterator[Stage]:
    """The judge's stages, from that process."""
    try:
        found = own_source(cells, name)
    except RecursionError:
        found = None
    if found is None:
        yield Stage("defined", False, f'no cell has a function right below @exercise("{name}")')
        return
    process = Confined("workbench.course.grading.live.process", folder, sandbox, limits)
    timer = threading.Timer(limit_s, process.stop, [f"did not end within {limit_s:.3g} s"])
    timer.start()
    source, function = found
    order = {"name": name, "source": source, "function": function, "imports": _HEAVY, "limits": vars(process.limits)}
    try:
        yield from _heard(process, order)
    except EOFError:
        ended = process.ended or "ended the whole process: os._exit(), a signal or a crash"
        yield Stage("runs", False, f"{ended}{_words(process)}")
    except (ProtocolError, OSError) as error:
        yield Stage("runs", False, f"something was written to its grader's connection: {error}")
    finally:
        timer.cancel()
        process.stop()


def _words(process: Confined) -> str:
    words = process.last_words()
    return f" ({words})" if words else ""


def _heard(process: Confined, order: dict[str, Any]) -> Iterator[Stage]:
    """The stages, if they come with the key.

    Raises:
        EOFError, ProtocolError: it ended, or said what it never says.
    """
    key = secrets.token_hex(16)
    send(process.sock, order, bytearray())
    if receive(process.sock)[0] != {"judged": True}:
        raise ProtocolError("a frame before the judge was done")
    send(process.sock, {"key": key}, bytearray())
    told = receive(process.sock)[0]
    rows = told.get("stages")
    if told.get("key") != key or not isinstance(rows, list):
        raise ProtocolError("a verdict without its key")
    for row in rows:
        name, passed, text = row
        yield Stage(str(name), None if passed is None else passed is True, str(text))
