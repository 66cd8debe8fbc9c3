"""The answers of engines, and the value that replaces a missing answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.common.text import numbered
from workbench.errors import LaunchError

_AGAIN_S = 0.1  # the first time; then twice as long, and so on: engines of a busy machine have enough to do
_MOST_S = 3.0


@dataclass(frozen=True)
class Silent:
    """In an answer's place: ``busy`` when none came in time, ``gone`` when none can come."""

    why: str


def first_answers(client: Any, function: Callable[..., Any], deadline: float) -> dict[int, Any]:
    """What new engines answer, by id; who does not answer is asked again.

    An engine is registered at the hub before each scheduler knows its connection, and what a scheduler is to hand to it
    meanwhile is dropped without an error. An engine that has answered has heard whatever comes later.

    Args:
        client: of the hub.
        function: changes nothing, for it may be called twice; of a module that the engines can import.
        deadline: by ``time.monotonic()``.

    Raises:
        LaunchError: some have not answered by then.
        Exception: the function's own.
    """
    asked: dict[int, list[Any]] = {engine: [] for engine in client.ids}
    again_s = _AGAIN_S
    while silent := [engine for engine, answers in asked.items() if not any(each.ready() for each in answers)]:
        if (left_s := deadline - time.monotonic()) <= 0:
            raise LaunchError(f"{numbered(silent, 'engine')} had registered, but did not answer.")
        for engine in silent:
            asked[engine].append(client[engine].apply_async(function))
        until = time.monotonic() + min(again_s, left_s)
        again_s = min(2 * again_s, _MOST_S)
        for engine in silent:
            asked[engine][-1].wait(max(0.01, until - time.monotonic()))
    found = {}
    for engine, answers in asked.items():
        first = next(i for i, each in enumerate(answers) if each.ready())
        for lost in answers[:first]:  # engines answer in order
            client.outstanding.difference_update(lost.msg_ids)
        found[engine] = answers[first].get()
    return found


def answer_of(asked: Any) -> Any:
    """What an engine that was asked has answered by now: a value, its exception, or a :class:`Silent`."""
    if asked is None:
        return Silent("gone")
    if not asked.ready():
        return Silent("busy")
    error = asked.exception()
    if error is None:
        return asked.get()
    return Silent("gone") if getattr(error, "ename", "") == "EngineError" else error
