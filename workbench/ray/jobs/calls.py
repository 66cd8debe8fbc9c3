"""Calls on all ranks: wait for their results, and find out why there are none.

When a rank fails, the others fail because of it. They get a little time to do so, for then they are free for the next
call, and then the error is that of the rank with which it began.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from workbench.common.text import rank_list
from workbench.errors import CollectiveError, DeadlineError, LaunchError, PeerLostError, RankFailedError
from workbench.ray.needed import ray
from workbench.ray.places import Location

PATIENCE_S = 15.0
"""So long the other ranks have after a failure. They hear of it within a second, if they are in a collective."""
_LONGEST = 500  # characters of what Ray says


class RankGoneError(PeerLostError):
    """A rank's process has ended, so there is nobody for the next call."""


@dataclass(frozen=True)
class Failure:
    """What became of a rank.

    Args:
        rank: which.
        error: Ray's.
    """

    rank: int
    error: Exception

    @property
    def gone(self) -> bool:
        return not isinstance(self.error, ray.exceptions.RayTaskError)

    @property
    def cause(self) -> BaseException:
        return getattr(self.error, "cause", None) or self.error

    @property
    def order(self) -> int:
        """Of several failures that with the smallest number was the first."""
        return 0 if self.gone else 2 if isinstance(self.cause, CollectiveError) else 1


def gather(refs: Sequence[Any], places: Sequence[Location] = (), patience_s: float = PATIENCE_S) -> list[Any]:
    """The results, by rank.

    Args:
        refs: of one call on each rank.
        places: of the ranks, for error texts.
        patience_s: see :data:`PATIENCE_S`.

    Raises:
        RankGoneError: a rank's process has ended.
        RankFailedError: a rank raised an exception; its traceback is in the text, and itself is the ``__cause__``.
        CollectiveError: what all ranks raised together.
    """
    waiting = dict(zip(refs, range(len(refs)), strict=True))
    results: dict[int, Any] = {}
    failures: list[Failure] = []
    until = float("inf")
    while waiting and (left_s := until - time.monotonic()) > 0:
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=left_s if failures else None)
        for ref in ready:
            rank = waiting.pop(ref)
            try:
                results[rank] = ray.get(ref)
            except ray.exceptions.RayError as error:
                failures.append(Failure(rank, error))
                until = min(until, time.monotonic() + patience_s)
    if failures:
        _fail(min(failures, key=lambda each: each.order), places, list(waiting.values()))
    return [results[rank] for rank in range(len(refs))]


def within(refs: Sequence[Any], timeout_s: float, what: str) -> list[Any]:
    """The results of something that takes little time.

    Args:
        refs: of one call on each rank.
        timeout_s: deadline.
        what: the ranks were to do; for the error's text.

    Raises:
        DeadlineError: some did not.
        LaunchError: one failed.
    """
    ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s)
    for ref in ready:
        try:
            ray.get(ref)
        except ray.exceptions.RayError as error:
            failure = Failure(refs.index(ref), error)
            why = reason(error) if failure.gone else f"{type(failure.cause).__name__}: {failure.cause}"
            raise LaunchError(f"Rank {failure.rank} did not {what}: {why}") from failure.cause
    if late:
        ranks = rank_list(refs.index(ref) for ref in late)
        raise DeadlineError(
            f"{ranks} did not {what} within {timeout_s:g} s. Is the node busy, or are its packages on a slow file "
            "system? create_settings(timeout_s=…) gives more time."
        )
    return list(ray.get(list(refs)))


def _fail(first: Failure, places: Sequence[Location], busy: Sequence[int]) -> NoReturn:
    where = f" on {places[first.rank].host} (process {places[first.rank].pid})" if places else ""
    rest = f"\n{rank_list(busy)} are still running; shutdown() ends them." if busy else ""
    if first.gone:
        raise RankGoneError(f"Rank {first.rank}{where} was lost: {reason(first.error)}{rest}") from None
    if isinstance(first.cause, CollectiveError):  # all ranks have the same
        raise type(first.cause)(f"{first.cause}{rest}") from None
    what = f"{type(first.cause).__name__}: {first.cause}".splitlines()[0]
    trace = str(first.error).strip()
    raise RankFailedError(f"Rank {first.rank}{where} raised {what}\n\n{trace}{rest}") from first.cause


def reason(error: BaseException) -> str:
    """Why Ray says that an actor is dead, in a line.

    Example:
        >>> reason(ValueError("The actor is dead because its node has died. Some common causes: …"))
        'its node has died.'
    """
    text = " ".join(str(error).partition("dead because ")[2].split()) or " ".join(str(error).split())
    said = text.rpartition("Worker exit detail: ")[2]
    return said.partition(" Some common causes")[0].partition(" The actor ")[0][:_LONGEST]
