"""Which collectives each rank calls: all ranks must call the same ones, in the same order.

The simulator makes collectives of messages, so two that differ would add up what does not belong together, or hang
inside an algorithm that the learner has not written. Here they are compared when they begin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from workbench.common.text import count
from workbench.errors import MismatchError

Method = TypeVar("Method", bound=Callable[..., Any])
_REDUCED = {"reduce": "sendobj", "allreduce": "sendobj", "Allreduce": "recvbuf"}  # by verb, the parameter


@dataclass(frozen=True)
class CollectiveCall:
    """A collective that a rank has called.

    Args:
        text: what must be equal on all ranks: ``allreduce(an array of shape (3,))``.
        where: the learner's line.
    """

    text: str
    where: str


class Calls:
    """By communicator (epoch) and rank, the collectives in their order."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int], list[CollectiveCall]] = {}
        self._first: dict[
            tuple[int, int], tuple[int, CollectiveCall]
        ] = {}  # by epoch and number: who came first, with what

    def begin(self, epoch: int, rank: int, call: CollectiveCall) -> None:
        """A rank begins its next collective.

        Raises:
            MismatchError: another rank has begun its collective of this number, and it is another one.
        """
        mine = self._of.setdefault((epoch, rank), [])
        number = len(mine)
        mine.append(call)
        other, theirs = self._first.setdefault((epoch, number), (rank, call))
        if theirs.text != call.text:
            raise MismatchError(
                f"Collective number {number + 1} is not the same on all ranks.\n"
                f"  rank {other}: {_stands(theirs)}\n  rank {rank}: {_stands(call)}\n"
                "  Make all ranks call the same collectives, in the same order, with values of the same shape."
            )

    def said_of(self, rank: int) -> str:
        """What a rank that has returned had called, for who waits for it in a collective."""
        mine = [call for (_, one), calls in self._of.items() if one == rank for call in calls]
        return (
            f"after {count(len(mine), 'collective')}, the last {_stands(mine[-1])}" if mine else "without calling any"
        )


def _stands(call: CollectiveCall) -> str:
    return f"{call.text} {call.where}".rstrip()


def collective(method: Method) -> Method:
    """A collective of a communicator: it is announced by the name that the caller wrote, and not what it is made of."""
    parameters = signature(method)

    @wraps(method)
    def called(self: Any, *args: Any, **options: Any) -> Any:
        if self._within:
            return method(self, *args, **options)
        self._within = method.__name__.lower()  # of a message, a capital letter says that it is a buffer
        try:
            self._begins(_text(method.__name__, parameters.bind(self, *args, **options).arguments))
            return method(self, *args, **options)
        finally:
            self._within = ""

    return called  # type: ignore[return-value]


def _text(verb: str, given: dict[str, Any]) -> str:
    said = [_shape(given[_REDUCED[verb]])] if verb in _REDUCED else []
    said += [f"root={given['root']}"] if given.get("root") else []
    return f"{verb}({', '.join(part for part in said if part)})"


def _shape(value: Any) -> str:
    """What reductions of numbers must agree on; of other objects, nothing."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape}"
    return "a number" if isinstance(value, (bool, int, float, complex, np.generic, np.ndarray)) else ""
