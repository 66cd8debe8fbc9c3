"""The derivative of each verb, in one table: it is a collective again, so all ranks compute it together.

With ``dy`` for the derivative with respect to the result::

    allreduce       dx = allreduce(dy), with the same op and factors (Average and Sum only)
    allgather       dx = this rank's rows of the average of dy
    broadcast       dx = the average of dy on the root, 0 elsewhere
    alltoall        dx = alltoall(dy) back to where the rows came from
    reducescatter   dx = allgather(dy), times the number of ranks for Sum

Where averages stand for sums, the loss is understood as the average of the ranks' losses.

The rules are written in verbs, so they hold for host arrays and for the tensors of a framework whose verbs are
differentiable themselves: there the second derivative comes with the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.core.backend.base import Array
from workbench.core.messages import Kind
from workbench.job import api, arrays
from workbench.job.api import Average, Sum
from workbench.job.calls import Call

Derivative = Callable[[Sequence[Array], Sequence[int]], list[Array]]


class Verbs:
    """What a rule computes with: here host arrays; a framework has its own for its tensors."""

    def run(self, call: Call, tensors: Sequence[Any]) -> list[Any]:
        """The results of a collective; for alltoall the rows, and how many came from each rank."""
        return call(tensors)

    def zeros_like(self, tensor: Any) -> Any:
        return np.zeros_like(tensor)

    def scaled(self, tensor: Any, factor: float) -> Any:
        """``factor`` times the tensor, in its own dtype."""
        return arrays.scaled(tensor, factor)


@dataclass(frozen=True)
class BackwardContext:
    """What a rule is given.

    Args:
        call: the collective whose derivative is asked for.
        verbs: to compute with.
        dy: one per result.
        rows: how many rows each input had.
        received: for alltoall, how many rows came from each rank; None to ask the other ranks.
    """

    call: Call
    verbs: Verbs
    dy: Sequence[Any]
    rows: Sequence[int]
    received: Sequence[int] | None = None

    def run(self, kind: Kind, tensors: Sequence[Any], **changes: Any) -> list[Any]:
        """Another collective of the same ranks, without the first one's op, factors, root and splits."""
        plain = replace(self.call, kind=kind, name=self.name("grad"), op=None, prescale=1.0, postscale=1.0,
                        root=None, splits=None)  # fmt: skip
        return self.verbs.run(replace(plain, **changes), tensors)

    def averages(self) -> list[Any]:
        """Of ``dy``, over the ranks."""
        return self.run(Kind.ALLREDUCE, self.dy, op=Average)

    def name(self, part: str) -> str | None:
        return None if self.call.name is None else f"{self.call.name}.{part}"


def _allreduce(given: BackwardContext) -> list[Any]:
    call = given.call
    return given.run(Kind.ALLREDUCE, given.dy, op=call.op, prescale=call.prescale, postscale=call.postscale)


def _allgather(given: BackwardContext) -> list[Any]:
    totals, members = given.averages(), given.call.process_set
    rows = api.allgather(np.array([given.rows], np.int64), given.name("rows"), members)
    starts = rows[: members.rank()].sum(0).tolist()
    return [total[start : start + count] for total, start, count in zip(totals, starts, given.rows, strict=True)]


def _broadcast(given: BackwardContext) -> list[Any]:
    totals = given.averages()
    return totals if api.rank() == given.call.root else [given.verbs.zeros_like(total) for total in totals]


def _alltoall(given: BackwardContext) -> list[Any]:
    received = given.received
    if received is None:
        members = given.call.process_set
        n = members.size() or 1
        sent = given.call.splits if given.call.splits is not None else [given.rows[0] // n] * n
        counts, _ = api.alltoall(np.array(sent, np.int64), name=given.name("rows"), process_set=members)
        received = counts.tolist()
    return given.run(Kind.ALLTOALL, given.dy[:1], splits=tuple(received))[:1]


def _reducescatter(given: BackwardContext) -> list[Any]:
    call = given.call
    factor = call.prescale * call.postscale * ((call.process_set.size() or 1) if call.op is Sum else 1)
    return [given.verbs.scaled(each, factor) for each in given.run(Kind.ALLGATHER, given.dy)]


Rule = Callable[[BackwardContext], list[Any]]
DERIVATIVES: Mapping[Kind, Rule] = {
    Kind.ALLREDUCE: _allreduce,
    Kind.ALLGATHER: _allgather,
    Kind.BROADCAST: _broadcast,
    Kind.ALLTOALL: _alltoall,
    Kind.REDUCESCATTER: _reducescatter,
}
"""Every verb that moves data has its rule here."""


def rule_of(call: Call) -> Rule:
    """The rule for a collective.

    Raises:
        NotImplementedError: its verb or its op has no derivative.
    """
    if call.op not in (None, Average, Sum):
        raise NotImplementedError(
            f"{call.op.value} has no gradient here: use Average or Sum, or keep the input out of the derivative."
        )
    if call.kind not in DERIVATIVES:
        raise NotImplementedError(f"{call.kind.value} has no derivative: add its rule to {__name__}.DERIVATIVES.")
    return DERIVATIVES[call.kind]


def derivative_of(call: Call) -> Derivative:
    """A function from arrays dy, and the numbers of rows of the inputs, to arrays dx.

    It is a collective again: all ranks call it.

    Raises:
        NotImplementedError: the verb or its op has no derivative.
    """
    rule = rule_of(call)
    return lambda dy, rows: rule(BackwardContext(call, Verbs(), dy, rows))
