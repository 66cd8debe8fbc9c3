"""The notebook's side of :mod:`workbench.common.cell_numbers`: it numbers what it sends, and says what has changed."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from workbench.common.cell_numbers import KEY

_REQUESTS = ("execute_request", "apply_request")
_SOON_S = 0.05  # answers that come together are told together
_AGAIN_S = 0.5
_QUIET_S = 0.5  # requests that a program sends one by one within this time belong together
_WHOLE_CALL_S = 2.0  # what a call has not sent by then it never will: Ctrl-C has ended it


@dataclass(eq=False)
class _Call:
    """One call of a view, which sends a request to each of some engines.

    Args:
        left: those that have not got it yet.
        begun_at: when the first one got it.
    """

    left: set[int]
    begun_at: float = float("inf")


class _Thread(threading.local):
    """Attributes: call: the one that this thread is about to make."""

    def __init__(self) -> None:
        self.call = _Call(set())


class SentCells:
    """Numbers the requests of one client.

    Args:
        client: the ``ipyparallel.Client``; what it sends is numbered from now on.
        watch: called with the engines that have not answered, twice a second while there are any, and once after
            that; on the client's own thread.
    """

    def __init__(self, client: Any, watch: Callable[[Collection[int]], None] = lambda busy: None) -> None:
        self._client, self._watch, self._lock = client, watch, threading.Lock()
        self._sent = Counter[int]()
        self._open: dict[int, dict[int, float]] = defaultdict(dict)  # by engine: what it has not answered, sent when
        self._answered_at: dict[int, float] = defaultdict(float)
        self._thread, self._calls = _Thread(), list[_Call]()  # calls that have begun to send
        self._version = self._told = 0
        self._idle: list[int] = []
        self._scheduled = False
        self._build_targets, self._send = client._build_targets, client._send
        client._build_targets, client._send = self._targets, self._numbered

    def _targets(self, targets: Any) -> Any:
        """Every call of a view asks for its engines first, and then sends to one after the other."""
        idents, engines = self._build_targets(targets)
        with self._lock:
            self._end(self._thread.call)
        self._thread.call = _Call(set(engines))
        return idents, engines

    def _numbered(
        self, socket: Any, msg_type: str, content: Any = None, parent: Any = None, ident: Any = None, **options: Any
    ) -> Any:
        """Send a request with its number."""
        engine = self._engine(ident) if msg_type in _REQUESTS else None
        if engine is None:
            return self._send(socket, msg_type, content, parent, ident, **options)
        with self._lock:
            number = self._count(engine)
            said = self._state() | {"engine": engine, "number": number}
        options["metadata"] = {**(options.get("metadata") or {}), KEY: said}
        try:
            future = self._send(socket, msg_type, content, parent, ident, **options)
        except BaseException:  # Ctrl-C, or arguments that cannot be sent
            self._not_sent(engine, number)
            raise
        future.add_done_callback(lambda done: self._answered(engine, number))
        self._client._io_loop.add_callback(self._soon)
        return future

    def _engine(self, ident: Any) -> int | None:
        name = ident.decode() if isinstance(ident, bytes) else None
        return next((engine for engine, each in list(self._client._engines.items()) if each == name), None)

    def _engines(self) -> list[int]:
        """Those that there are, at once: the client's own thread takes in others and drops those that have gone."""
        return list(self._client._engines)

    def _count(self, engine: int) -> int:
        call, now = self._thread.call, time.monotonic()
        if call.begun_at == float("inf"):
            call.begun_at = now
            self._calls.append(call)
        call.left.discard(engine)
        if not call.left and call in self._calls:
            self._calls.remove(call)
        self._sent[engine] += 1
        self._open[engine][self._sent[engine]] = now
        self._version += 1
        return self._sent[engine]

    def _not_sent(self, engine: int, number: int) -> None:
        """Nobody waits for an answer to it; and its call sends nothing more."""
        with self._lock:
            self._open[engine].pop(number, None)
            if self._sent[engine] == number:
                self._sent[engine] -= 1
            self._version += 1
            self._end(self._thread.call)
        self._client._io_loop.add_callback(self._soon)

    def _end(self, call: _Call) -> None:
        """It sends nothing more."""
        if call in self._calls:
            self._calls.remove(call)
            self._version += 1

    def _state(self) -> dict[str, Any]:
        """What has been sent, with what begun calls are about to send, and who is idle."""
        ahead = Counter(engine for call in self._calls for engine in call.left)
        engines = self._engines()
        sent = [[each, self._sent[each] + ahead[each]] for each in engines]
        idle, quiet = [], time.monotonic() - _QUIET_S
        if all(min(sent_at.values()) <= quiet for sent_at in self._open.values() if sent_at):
            there = [each for each in engines if not self._open[each] and not ahead[each]]
            idle = [each for each in there if self._answered_at[each] <= quiet]
        if idle != self._idle:
            self._idle, self._version = idle, self._version + 1
        return {"version": self._version, "sent": sent, "idle": idle}

    def _answered(self, engine: int, number: int) -> None:
        with self._lock:
            self._open[engine].pop(number, None)
            self._answered_at[engine] = time.monotonic()
            self._version += 1
        self._client._io_loop.add_callback(self._soon)

    # --- on the client's own thread -------------------------------------------------------------------

    def _soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._client._io_loop.call_later(_SOON_S, self._tell)

    def _tell(self) -> None:
        """Say to engines that have not answered what has changed; they may wait for others that have."""
        self._scheduled = False
        if self._client._closed:
            return
        with self._lock:
            for call in [each for each in self._calls if time.monotonic() - each.begun_at > _WHOLE_CALL_S]:
                self._end(call)
            state, busy = self._state(), [each for each in self._engines() if self._open[each]]
            news, self._told = self._version != self._told, self._version
        for each in busy if news else ():
            ident = self._client._engines[each].encode()
            self._client.session.send(self._client._control_stream, KEY, content=state, ident=ident)
        self._watch(busy)
        if busy and not self._scheduled:
            self._scheduled = True
            self._client._io_loop.call_later(_AGAIN_S, self._tell)


__all__ = ["SentCells"]
