"""Eager values: a small tensor's values travel inside its announcement, and the result inside the response.

So a lone small tensor costs one round to rank 0, and no second one in the data plane. Rank 0 does the reduction, in the
order of the ranks; all get its bits, and take their rows of them where each rank has its own. A tensor that a rank
announces without its values, or of which it has no row, is moved by the data plane, for all; so is an alltoall of more
than 64 KiB together. ``eager_bytes`` 0 turns it off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter

import numpy as np

from workbench.collectives.reduction import fold, wire_dtype
from workbench.core.backend.base import Array
from workbench.core.execute import reduction_of
from workbench.core.messages import Announce, Decision, Event, Key, ReduceOp, Request, Response, Values
from workbench.core.pending import Entry
from workbench.core.protocols import Announcer
from workbench.core.verbs import verb
from workbench.runtime.coordinators import Coordinator, Wrapper

MOST_BYTES = 64 << 10  # of one message; rank 0 sends all of them to every rank


class EagerAnnouncer:
    """Every rank's side; see :class:`workbench.core.protocols.Announcer`.

    Args:
        inner: announces without values.
        rank: this rank.
        limit_bytes: of one tensor. It may be changed: where the ranks' differ, the data plane moves the tensor.
    """

    def __init__(self, inner: Announcer, rank: int, limit_bytes: int) -> None:
        self._inner, self._rank, self.limit_bytes = inner, rank, limit_bytes

    def announce(self, entries: list[Entry], seen: int) -> Announce:
        """With the values of small tensors."""
        event = self._inner.announce(entries, seen)
        return Announce(event.rank, event.items, event.seen, values_of(entries, self._rank, self.limit_bytes))

    def read(self, decision: Decision) -> list[Response]:
        """With the results that came."""
        if not decision.results:
            return self._inner.read(decision)
        items = [
            with_result(item, decision.results[i]) if isinstance(item, Response) and i in decision.results else item
            for i, item in enumerate(decision.items)
        ]
        return self._inner.read(Decision(decision.number, items))


class EagerCoordinator(Wrapper):
    """Rank 0's side: reduces where all values have come.

    Args:
        inner: decides.
        members: the ranks of each process set.
    """

    def __init__(self, inner: Coordinator, members: Mapping[int, tuple[int, ...]]) -> None:
        super().__init__(inner)
        self._members = members
        self._values: dict[Key, dict[int, bytes]] = {}

    def take(self, event: Event, now: float) -> Decision:
        decision = super().take(event, now)
        if isinstance(event, Announce) and event.values:
            for item in event.items:  # what was sent before the rank had read of a failure is not counted
                if isinstance(item, Request) and item.key not in self.waiting:
                    self._values.pop(item.key, None)
        return decision

    def before(self, event: Announce) -> Announce:
        """Keep the values until the name is complete. An older announcement's may not stand for this one's."""
        if event.values or self._values:
            for i, item in enumerate(event.items):
                if not isinstance(item, Request):
                    continue
                if i in event.values:
                    self._values.setdefault(item.key, {})[event.rank] = event.values[i]
                elif item.key in self._values:
                    self._values[item.key].pop(event.rank, None)
        return event

    def validate(self) -> None:
        super().validate()
        void = [key for key, values in self._values.items() if values and key not in self.waiting]
        assert not void, f"Values are kept of names that do not wait: {void}"

    def after(self, decision: Decision) -> Decision:
        if not self._values:
            return decision
        results = dict(decision.results)
        for i, item in enumerate(decision.items):
            values = self._values.pop(item.key, None) if isinstance(item, Response) else None
            if values and isinstance(item, Response):
                size = len(self._members.get(item.process_set, ()))
                if result := answer(item, values, size):
                    results[i] = result
        return Decision(decision.number, decision.items, results, decision.evicted)


_all_but_result = attrgetter(*(field.name for field in fields(Response) if field.name != "result"))


def with_result(response: Response, result: bytes) -> Response:
    """The same with the result that came with it."""
    return Response(*(*_all_but_result(response), result))  # dataclasses.replace() takes five times as long


def values_of(entries: list[Entry], rank: int, limit_bytes: int) -> Values:
    """The values that travel with the announcement, by the index of their entry.

    Args:
        limit_bytes: of one tensor.
    """
    values: Values = {}
    left = MOST_BYTES
    for i, entry in enumerate(entries):
        nbytes = 0 if entry.source is None else entry.source.nbytes
        if entry.source is not None and 0 < nbytes <= limit_bytes and nbytes <= left and _is_eager(entry.request, rank):
            values[i] = entry.source.tobytes()
            left -= nbytes
    return values


def _is_eager(request: Request, rank: int) -> bool:
    one = verb(request.kind)
    if request.device != "cpu" or not one.eager:  # the CPU would wait for the GPU
        return False
    return request.op is not ReduceOp.ADASUM if one.reduces else not one.rooted or request.root == rank


def answer(response: Response, values: Mapping[int, bytes | memoryview], size: int) -> bytes:
    """:func:`result_of` on rank 0, which knows what each rank has asked for."""
    requests = response.requests
    return result_of(response, values, sorted(requests), size, [r for r, each in requests.items() if each.absent])


def result_of(
    response: Response,
    values: Mapping[int, bytes | memoryview],
    ranks: Sequence[int],
    size: int,
    absent: Collection[int] = (),
) -> bytes:
    """The result of one tensor, or nothing if the data plane has to move it.

    Args:
        response: what the ranks agreed on.
        values: of those ranks whose values came with the announcement.
        ranks: who takes part, in order.
        size: of the process set; ranks that have joined contribute zeros.
        absent: those that have no data, and contribute zeros.
    """
    if response.error or response.all_absent or not values:
        return b""
    one = verb(response.kind)
    if one.rooted and not one.reduces:
        return bytes(values.get(response.root, b""))
    if one.ragged:
        if len(values) < size:
            return b""
        whole = b"".join(values[rank] for rank in ranks)
        return whole if not one.splits or len(whole) <= MOST_BYTES else b""  # it goes to all, who need a part of it
    if any(rank not in values and rank not in absent for rank in ranks):
        return b""
    dtype = wire_dtype(response.dtype)
    length = len(next(iter(values.values())))
    arrays: list[Array] = [np.frombuffer(values.get(rank, bytes(length)), dtype) for rank in ranks]
    if len({len(array) for array in arrays}) > 1:
        return b""
    out = np.empty_like(arrays[0])
    fold(arrays, reduction_of(response, size), out)
    return out.tobytes()
