"""Ask the engines of this notebook's cluster, and wait for none of them longer than a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from workbench.cluster.answers import answer_of
from workbench.cluster.cluster import Cluster, current
from workbench.errors import LaunchError


def running() -> Cluster:
    """The cluster of this kernel.

    Raises:
        LaunchError: there is none.
    """
    cluster = current()
    if cluster is None:
        raise LaunchError("There is no cluster in this kernel: start one with cluster.up().")
    return cluster


def ask(
    engines: Cluster, function: Callable[..., Any], *args: Any, timeout_s: float, ids: Iterable[int] | None = None
) -> dict[int, Any]:
    """Call ``function(*args)`` on every engine at once.

    Args:
        engines: whom to ask.
        function: of a module that the engines can import.
        timeout_s: for all of them together.
        ids: the engines; of an elastic cluster, whose engines are not its ranks. By default the ranks.

    Returns:
        What each rank answered; a :class:`Silent` where there is no answer; where the function raised, the exception.
    """
    wanted, there = list(range(engines.n) if ids is None else ids), set(engines.client.ids)
    asked = {each: engines.client[each].apply_async(function, *args) for each in wanted if each in there}
    deadline = time.monotonic() + timeout_s
    for answer in asked.values():
        answer.wait(max(0.01, deadline - time.monotonic()))
    return {each: answer_of(asked.get(each)) for each in wanted}
