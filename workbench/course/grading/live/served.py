"""The judge's end of one rank: its collectives are made here, among the judge's own ranks, with the arrays it sends."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from workbench.collectives.reduction import wire_dtype
from workbench.core.backend.base import Array
from workbench.core.handle import Handle
from workbench.core.messages import Kind, ReduceOp, Request
from workbench.core.pending import Entry
from workbench.core.verbs import verb
from workbench.course.grading.apart.lanes import named
from workbench.course.grading.apart.values import NotDataError, ProtocolError
from workbench.course.grading.live.engine import JudgeConnection
from workbench.errors import CollectiveError, PeerLostError, WorkbenchError
from workbench.job.context import HOLDER

_KINDS = {
    one.value: one
    for one in (
        *(Kind.ALLREDUCE, Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL, Kind.REDUCESCATTER),
        *(Kind.BARRIER, Kind.JOIN),
    )
}
_OPS = {one.value: one for one in ReduceOp}
_MOST_PASSES, _MOST_KEPT = 100_000, 1 << 28
_LONGEST_NAME, _MOST_ELEMENTS, _MOST_UNDER_WAY = 4096, 1 << 25, 10_000


class ServedRank:
    """Serves one rank, on the thread of the judge's rank of that number.

    Args:
        wire: to its process.
        size: how many ranks there are.

    Attributes:
        sent: by training pass, what it has handed over after the pass began, for others to get.
    """

    def __init__(self, wire: JudgeConnection, size: int) -> None:
        self.wire, self._size = wire, size
        self.sent: list[list[Array]] = []
        self._room = _MOST_KEPT
        self._under_way: dict[str, Handle] = {}

    def run(self, until: float) -> dict[str, Any]:
        """Do what the rank asks for until it returns; return what it has seen.

        Args:
            until: when, by the monotonic clock, it has to have ended.

        Raises:
            Exception: what its function has raised.
            PeerLostError: it has ended without a word, or in time.
            ProtocolError: it has said what it never says by itself.
        """
        while True:
            try:
                op, fields = self.wire.receive()
            except EOFError:
                late = time.monotonic() > until - 0.5
                why = "did not come to its end in time" if late else "ended the whole process: os._exit(), a signal"
                raise PeerLostError(f"rank {HOLDER.get().rank} {why}") from None
            if op == "submit":
                self._submit(fields.get("entries"))
            elif op == "pass" and len(self.sent) < _MOST_PASSES:
                self.sent.append([])
            elif op == "waits":
                handle = self._under_way.get(str(fields.get("name")))
                with suppress(CollectiveError):
                    handle.wait() if handle else None  # so that a deadlock is seen as one
            elif op == "return":
                seen: dict[str, Any] = fields.get("seen", {})
                return seen
            elif op == "raise":
                raise self._error(fields)
            else:
                raise ProtocolError("A message without a verb.")

    @staticmethod
    def _error(fields: dict[str, Any]) -> BaseException:
        error = named(str(fields.get("kind")), str(fields.get("text")))
        error.place = str(fields.get("place", ""))  # type: ignore[attr-defined]
        return error

    def _submit(self, fields: Any) -> None:
        if not isinstance(fields, list) or len(fields) + len(self._under_way) > _MOST_UNDER_WAY:
            raise ProtocolError("Tensors that cannot be read, or too many of them.")
        entries = [self._entry(one) for one in fields]
        for one, entry in zip(fields, entries, strict=True):
            self._under_way[entry.request.name] = entry.handle
            entry.handle.add_done_callback(self._tells(one.get("of")))
        try:
            HOLDER.get().engine.submit(entries, at_once=True)
        except WorkbenchError as error:  # a name twice
            for entry in entries:
                entry.handle.finish(error=error)

    def _tells(self, number: Any) -> Callable[[Handle], None]:
        def send_result(handle: Handle) -> None:
            self._under_way.pop(handle.name, None)
            with suppress(OSError):
                if handle.error is not None:
                    self.wire.send("done", of=number, kind=type(handle.error).__name__, text=str(handle.error))
                    return
                try:
                    self.wire.send("done", of=number, value=handle.result)
                except NotDataError as error:
                    self.wire.send("done", of=number, kind="ValueError", text=str(error))

        return send_result

    def _entry(self, fields: Any) -> Entry:
        """A tensor, as the engine takes it.

        Raises:
            ProtocolError: no rank of ours says that.
        """
        try:
            request, array = self._request(fields), fields["array"]
            if array is not None:
                if not isinstance(array, np.ndarray) or array.dtype != wire_dtype(request.dtype):
                    raise ValueError("its dtype")
                if array.shape != request.shape and prod(request.shape) != array.size:
                    raise ValueError("its shape")
                array = np.ascontiguousarray(array.reshape(request.shape))
                self._keep(array)
            elif verb(request.kind).moves and not request.absent:
                raise ValueError("no array")
            in_place = fields["in_place"] is True and array is not None
            return Entry(request, array, array if in_place else None, Handle(request.name))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ProtocolError(f"A tensor that cannot be read: {error}.") from None

    def _keep(self, array: Array) -> None:
        """A copy: the array itself becomes the result."""
        if self.sent and array.dtype.kind == "f" and array.nbytes < self._room:
            self._room -= array.nbytes
            self.sent[-1].append(array.astype(np.float64).reshape(-1))

    def _request(self, fields: dict[str, Any]) -> Request:
        kind, op, dtype, name = _KINDS[fields["kind"]], _OPS[fields["op"]], fields["dtype"], fields["name"]
        shape, splits, user = (tuple(int(n) for n in fields[one]) for one in ("shape", "splits", "user"))
        group, group_size = str(fields["group"]), int(fields["group_size"])
        if not isinstance(name, str) or len(name) > _LONGEST_NAME or len(group) > _LONGEST_NAME:
            raise ValueError("its name")
        if verb(kind).moves and dtype not in verb(kind).dtypes:
            raise ValueError("its dtype")
        if len(shape) > 32 or min(shape, default=0) < 0 or prod(shape) > _MOST_ELEMENTS:
            raise ValueError("its shape")
        if verb(kind).splits and (len(splits) != self._size or min(splits) < 0 or sum(splits) != shape[0]):
            raise ValueError("its splits")
        root = int(fields["root"])
        if verb(kind).rooted and not 0 <= root < self._size:
            raise ValueError("its root")
        before, after = float(fields["prescale"]), float(fields["postscale"])
        return Request(
            name, kind, dtype, shape, op, root, prescale=before, postscale=after, splits=splits, group=group,
            group_size=group_size, absent=fields["absent"] is True, user=user,
        )  # fmt: skip
