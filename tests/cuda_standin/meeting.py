"""Where the ranks of a communicator meet: calls that wait for one another at the heads of their streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arithmetic import TYPES, Array, combine
from .operations import CUDARuntimeError, Op
from .world import World


@dataclass(eq=False)
class Call:
    """One call of one rank. `sent` and `received` are its elements, None where this rank has none."""

    kind: str
    count: int
    datatype: int
    op: int = 0
    root: int = 0
    peer: int = 0
    rank: int = -1
    sent: Array | None = None
    received: Array | None = None
    addresses: dict[str, int] = field(default_factory=dict)
    owner: Op | None = None
    done: bool = False

    def __str__(self) -> str:
        to = {"send": f" to {self.peer}", "recv": f" from {self.peer}"}.get(self.kind, "")
        return f"{self.kind}{to} of rank {self.rank}"

    def told(self) -> dict[str, Any]:
        """For the log. Of op, root and peer what the call has."""
        has = {"op": "educe" in self.kind, "root": self.kind in ("reduce", "broadcast"), "peer": self.paired()}
        extra = {name: getattr(self, name) for name, is_there in has.items() if is_there}
        return {"kind": self.kind, "count": self.count, "datatype": self.datatype, **extra, **self.addresses}

    def paired(self) -> bool:
        """It is for one other rank, not for all."""
        return self.kind in ("send", "recv")

    def terms(self) -> tuple[Any, ...]:
        """What all ranks must agree on; a send and its recv on count and type alone."""
        agreed = (self.count, self.datatype)
        return agreed if self.paired() else (self.kind, *agreed, self.op, self.root)

    def said(self) -> str:
        """For the message where ranks do not agree."""
        rest = "" if self.paired() else f", operation {self.op}, root {self.root}"
        return f"{self}: {self.count} elements of type {self.datatype}{rest}"

    def overlaps(self, size: int) -> bool:
        """The two buffers share memory otherwise than NCCL allows it."""
        if self.sent is None or self.received is None or not np.may_share_memory(self.sent, self.received):
            return False
        part = self.rank * self.count * TYPES[self.datatype].itemsize
        inside = {"reduceScatter": part, "allGather": -part}.get(self.kind, 0)
        return self.addresses["received"] - self.addresses["sent"] != inside


class Clique:
    """The ranks of one communicator and what they have called so far.

    A rank's n-th collective meets the n-th of all others, whatever lies between; the n-th send to a rank meets that
    rank's n-th recv from the sender.
    """

    def __init__(self, world: World, size: int) -> None:
        self.world = world
        self.size = size
        self.members: dict[int, Any] = {}
        self.number = len(world.cliques) + 1
        self._collectives: dict[int, list[Call]] = {rank: [] for rank in range(size)}
        self._wires: dict[tuple[int, int, str], list[Call]] = {}

    def __str__(self) -> str:
        return f"communicator {self.number} of {self.size} ranks"

    def _line(self, rank: int, peer: int, kind: str) -> list[Call]:
        if kind in ("send", "recv"):
            return self._wires.setdefault((rank, peer, kind), [])
        return self._collectives[rank]

    def add(self, call: Call) -> None:
        self._line(call.rank, call.peer, call.kind).append(call)

    def counterparts(self, call: Call) -> list[Call | str]:
        """The calls that it meets, its own among them; a text for each that has not been issued."""
        index = self._line(call.rank, call.peer, call.kind).index(call)
        if call.paired():
            other = "recv" if call.kind == "send" else "send"
            found = self._line(call.peer, call.rank, other)
            missing = f"rank {call.peer}, which has not issued its {other} {index + 1} with rank {call.rank}"
            return [call, found[index] if index < len(found) else missing]
        lines = [self._collectives[rank] for rank in range(self.size)]
        return [
            line[index] if index < len(line) else f"rank {rank}, which has not issued its collective {index + 1}"
            for rank, line in enumerate(lines)
        ]

    def waits_for(self, call: Call) -> str:
        """Why the call cannot happen now; empty where it can."""
        reasons = []
        for other in self.counterparts(call):
            if isinstance(other, str):
                reasons.append(other)
            elif fault := self.world.faults.of(other.rank):
                reasons.append(f"rank {other.rank}, which {fault}")
            elif other.owner is None or not other.owner.at_head():
                reasons.append(f"the {other}, which {_where(other)}")
        return "; ".join(reasons)

    def meet(self, call: Call) -> None:
        """Carries out the call for all who take part.

        Raises:
            CUDARuntimeError: they do not agree. NCCL would hang, or write beyond a buffer.
        """
        calls = [each for each in self.counterparts(call) if isinstance(each, Call)]
        for each in calls:
            each.done = True
        if len({each.terms() for each in calls}) > 1:
            terms = "; ".join(each.said() for each in calls)
            raise CUDARuntimeError(f"the ranks of {self} do not agree: {terms}")
        carry_out(calls)


def _where(call: Call) -> str:
    if call.owner is None or call.owner.queue is None or call.owner.done:
        return "was dropped"
    head = call.owner.queue.head()
    return f"stands behind {head.label} on {call.owner.queue}" if head is not call.owner else call.owner.queue.held_up()


def carry_out(calls: list[Call]) -> None:
    """Writes what every rank receives. All is read before anything is written, so buffers may be the same."""
    first = calls[0]
    sent = [np.empty(0) if each.sent is None else each.sent.copy() for each in calls]
    if first.paired():
        results = [sent[0 if first.kind == "send" else 1]] * 2
    elif first.kind == "broadcast":
        results = [sent[first.root]] * len(calls)
    elif first.kind == "allGather":
        results = [np.concatenate(sent)] * len(calls)
    else:
        total = combine(first.datatype, first.op, sent)
        results = np.split(total, len(calls)) if first.kind == "reduceScatter" else [total] * len(calls)
    for each, result in zip(calls, results, strict=True):
        if each.received is not None:
            each.received[...] = result.view(TYPES[first.datatype])


class GroupOp(Op):
    """The calls of one rank that were issued together. It ends when every one of them has happened."""

    def __init__(self, communicator: Any, clique: Clique, calls: list[Call]) -> None:
        super().__init__(" + ".join(map(str, calls)))
        self.communicator = communicator
        self._clique, self._calls = clique, calls
        for call in calls:
            call.owner = self
            clique.add(call)

    def waits_for(self) -> str:
        reasons = [self._clique.waits_for(call) for call in self._calls if not call.done]
        return "; ".join(dict.fromkeys(reasons)) if reasons and all(reasons) else ""

    def turn(self) -> bool:
        for call in self._calls:
            if not call.done and not self._clique.waits_for(call):
                self._clique.meet(call)
        return all(call.done for call in self._calls)
