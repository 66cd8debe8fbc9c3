"""``workbench.timeline()``: on ranks a collective; in a kernel with a cluster its engines are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.cluster.answers import Silent
from workbench.cluster.asking import ask
from workbench.cluster.cluster import Cluster, current
from workbench.cluster.elastic_cluster import ElasticCluster
from workbench.common.text import rank_list
from workbench.errors import DeadlineError, NotInitializedError, PeerLostError
from workbench.job import api
from workbench.observe.timeline_picture import Picture, all_recorded, gathered, recorded
from workbench.runtime.trace.epochs import Recorded, by_engine
from workbench.runtime.trace.recorder import Snapshot


def timeline(last: int = 20, timeout_s: float = 10.0) -> Picture:
    """Draw the last collectives of every rank: compute, negotiation, waiting for a rank, packing, transfer, unpacking.

    On ranks (``%%px``, mpiexec) it is a collective: all call it, and each gets the picture. In a kernel with a running
    cluster it asks the engines, which must be idle. It shows only finished collectives.

    Ranks of one machine share a clock, so bars at the same horizontal position are simultaneous, to 1 µs.
    Ranks of other machines are aligned on the arrival of the same responses, which is exact to the spread of the
    network's delay, about 0.1 ms. A wait ends when rank 0 has received the last rank's announcement.

    Args:
        last: how many batches; tensors that were sent together are one batch. At most 512 are stored.
        timeout_s: in the kernel: how long the engines have to answer.

    Raises:
        NotInitializedError: ``init()`` was not called, here or on an engine.
        DeadlineError, PeerLostError: in the kernel: an engine did not answer, or is gone.

    Example:
        >>> import numpy as np
        >>> def job():
        ...     api.allreduce(np.ones(3), name="x")
        ...     return timeline()
        >>> [len(track.bars) for track in api.run_threads(2, job)[1].tracks]
        [1, 1]
    """
    cluster = current()
    if cluster is not None and not (api.is_initialized() and api.size() > 1):
        if isinstance(cluster, ElasticCluster):
            found = _ask(cluster, cluster.ready(), all_recorded, last, timeout_s)
            return _of_epochs(found, cluster.changes, last)
        return Picture(_everybody(_ask(cluster, range(cluster.n), recorded, last, timeout_s)), last)
    return Picture(gathered(last), last)


def _of_epochs(found: dict[int, list[Recorded]], changes: Sequence[Any], last: int) -> Picture:
    lost = {each.engine for each in changes if each.engine >= 0}
    engines = sorted(lost | set(found))
    told = [(each.when_ns, each.text, each.engine) for each in changes]
    return Picture(by_engine(found, engines), last, engines, told)


def _everybody(found: dict[int, Snapshot | None]) -> list[Snapshot]:
    without = [rank for rank, one in found.items() if one is None]
    if without:
        raise NotInitializedError(f"timeline(): call init() on all engines first; {rank_list(without)} did not.")
    return [one for one in found.values() if one is not None]


def _ask(cluster: Cluster, engines: Sequence[int], what: Callable[[int], Any], last: int, timeout_s: float) -> Any:
    """The engines' records by engine, through the client."""
    answers = ask(cluster, what, last, timeout_s=timeout_s, ids=engines)
    if gone := [rank for rank, answer in answers.items() if answer == Silent("gone")]:
        raise PeerLostError(f"timeline(): there is no engine any more for {rank_list(gone)}. See cluster.rescue().")
    if silent := [rank for rank, answer in answers.items() if answer == Silent("busy")]:
        raise DeadlineError(
            f"timeline(): {rank_list(silent)} did not answer within {timeout_s:g} s. Is a cell still running there? "
            "Wait for it, or see cluster.rescue()."
        )
    for answer in answers.values():
        if isinstance(answer, Exception):
            raise answer
    return answers
