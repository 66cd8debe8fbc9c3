"""A lone tensor: known, the only one in flight, and its caller waits for it. One thread does all, in one go.

It is announced as ever, over the slots, and so is the result of a small one found; what it does without are batches,
plans and messages, for there is nothing to put together. Whatever is late goes on in the ordinary way.
"""

from __future__ import annotations

import time
from math import prod
from typing import Any, NamedTuple

import numpy as np

from workbench.collectives.reduction import Reduction, fold, wire_dtype
from workbench.core.execute import eager, reduction_of
from workbench.core.messages import Announce, Kind, ReduceOp, Response
from workbench.core.pending import Entry
from workbench.core.verbs import verb
from workbench.runtime.control.slots import Slots
from workbench.runtime.control.slots_channel import SlotsChannel
from workbench.runtime.steady.cache import CachingAnnouncer
from workbench.runtime.steady.eager import result_of, values_of, with_result
from workbench.runtime.steady.steady_state import Unit

_MOST_KNOWN = 1000
_IN_A_ROW_S = 0.5  # then one goes the ordinary way, which shows a sign of life


class Known(NamedTuple):
    """What was agreed on about a tensor: ``reduction`` where it is reduced, and ``mine``, the values of this rank."""

    response: Response
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    reduction: Reduction | None
    mine: slice


class SlotsAlone:
    """See :class:`workbench.core.protocols.Alone`.

    Args:
        announcer: knows the ids.
        slots, channel: of this rank.
        eager_bytes: of a tensor.
        rank, size: of this rank.
    """

    def __init__(
        self, announcer: CachingAnnouncer, slots: Slots, channel: SlotsChannel, eager_bytes: int, rank: int, size: int
    ) -> None:
        self._announcer, self._slots, self._channel = announcer, slots, channel
        self._limit, self._rank, self._ranks = eager_bytes, rank, range(size)
        self._known: dict[int, Known] = {}
        self._ordinary_at = 0.0

    def announce(self, entry: Entry, seen: int) -> Known | None:
        """Announce it, if it is such a tensor."""
        cache_id = self._announcer.known_id(entry.request) if self._slots.writes else None
        if cache_id is None:
            return None
        known = self._known.get(cache_id) or self._learn(cache_id)
        if known is None:
            return None
        values = values_of([entry], self._rank, self._limit) if entry.source is not None else {}
        return known if self._slots.write(Announce(self._rank, (cache_id,), seen, values)) else None

    def result(self, known: Known, entry: Entry, spin_s: float) -> tuple[bool, list[Any]]:
        """Have all agreed, and the result of the values that came with it."""
        now = time.monotonic()
        if now > self._ordinary_at:
            self._ordinary_at = now + _IN_A_ROW_S
            return False, []
        unit = self._slots.spin(now + spin_s)
        if unit is None:
            return False, []
        results = self._results(known, entry, unit)
        self._slots.release()
        self._channel.agreed([known.response])
        return True, results

    def _results(self, known: Known, entry: Entry, unit: Unit) -> list[Any]:
        response, dtype, shape, reduction, mine = known
        if response.kind is Kind.BARRIER:
            return [None]
        values = {rank: each[0] for rank, each in enumerate(unit.values) if each}
        if reduction and len(values) == len(self._ranks):
            parts = [np.frombuffer(value, dtype)[mine] for value in values.values()]
            out = np.empty(shape, dtype) if entry.target is None else entry.target
            place = out.reshape(-1)[mine] if out is entry.source else out.reshape(-1)
            if parts[0].size == place.size and entry.source is not None:
                fold(parts, reduction, place)
                return [out]
        found = result_of(response, values, self._ranks, len(self._ranks))
        return [eager(with_result(response, found), entry, self._rank, len(self._ranks))] if found else []

    def _learn(self, cache_id: int) -> Known | None:
        response = self._announcer.known[cache_id]
        one = verb(response.kind)
        if response.process_set or response.priority or response.device != "cpu" or response.op is ReduceOp.ADASUM:
            return None
        if not (one.eager or response.kind is Kind.BARRIER) or response.all_absent:
            return None
        reduction = reduction_of(response, len(self._ranks)) if one.reduces else None
        shape, mine = response.shape, slice(None)
        if one.reduces and one.by_rows:
            width, rows = prod(shape[1:]), response.rows[: self._rank + 1]
            shape, mine = (rows[-1], *shape[1:]), slice(width * sum(rows[:-1]), width * sum(rows))
        dtype = wire_dtype(response.dtype) if response.dtype else np.dtype(np.uint8)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[cache_id] = known = Known(response, dtype, shape, reduction, mine)
        return known
