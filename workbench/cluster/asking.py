"""Ask the engines of this notebook's cluster, and wait for none of them longer than a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
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


def ask(engines: Cluster, function: Callable[..., Any], *args: Any, timeout_s: float) -> dict[int, Any]:
    """Call ``function(*args)`` on every engine at once.

    Args:
        engines: whom to ask.
        function: of a module that the engines can import.
        timeout_s: for all of them together.

    Returns:
        What each rank answered; a :class:`Silent` where there is no answer; where the function raised, the exception.
    """
    there = set(engines.client.ids)
    asked = {rank: engines.client[rank].apply_async(function, *args) for rank in range(engines.n) if rank in there}
    deadline = time.monotonic() + timeout_s
    for answer in asked.values():
        answer.wait(max(0.01, deadline - time.monotonic()))
    return {rank: answer_of(asked.get(rank)) for rank in range(engines.n)}
