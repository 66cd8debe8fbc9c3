"""The notebook's side of :mod:`workbench.common.cell_numbers`: it numbers what it sends, and says what has changed.

A view sends a request to each of its engines; a broadcast view sends one for all. What a load-balanced view sends has
no number, for nobody knows which engine gets it; nor has what a coalescing view sends, whose engines answer together,
when the last one has ended. The engines that may run such a request are not idle.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.common.cell_numbers import KEY
from workbench.common.notebook import running_shell

if TYPE_CHECKING:
    from workbench.cluster.ipyparallel_internals import Client, Find, Request

_SOON_S = 0.05  # answers that come together are told together
_AGAIN_S = 0.5
_QUIET_S = 0.5  # of engines and of calls, until who has answered counts as idle
_ONE_BY_ONE = 6  # times that after a call to some engines only: a program may send to one after the other, and be slow
_WHOLE_CALL_S = 2.0  # what a call has not sent by then it never will: Ctrl-C has ended it


@dataclass(eq=False)
class _SentCall:
    """One call of a view, which sends a request to each of some engines.

    Args:
        left: those that have not got it yet.
        number: of the calls that have sent something, the first one is 1.
        failures: how many answers had said until then that numbers may have drifted: the same for all its engines.
        begun_at: when the first one got it.
        all: does every engine get it?
    """

    left: set[int]
    number: int = 0
    failures: int = 0
    begun_at: float = float("inf")
    all: bool = False


class _Request(NamedTuple):
    """What an engine has not answered: when it was sent, by which call, and whether every engine gets it."""

    sent_at: float
    call: int
    all: bool

    def quiet_at(self) -> float:
        """From then on nobody else is taken to get it, too."""
        return self.sent_at + _QUIET_S * (1 if self.all else _ONE_BY_ONE)


class _Thread(threading.local):
    """Attributes: call: the one that this thread is about to make."""

    def __init__(self) -> None:
        self.call = _SentCall(set())


def _cell() -> int:
    """The number beside the notebook's cell that runs."""
    shell = running_shell()  # whose execution_count is, since IPython 9, that of the next one
    return len(shell.history_manager.input_hist_raw) - 1 if shell is not None else 0


class SentCells:
    """Numbers the requests of one client.

    Args:
        client: what it sends is numbered from now on.
        watch: called with the engines that have not answered, and the number of the request that each runs, twice a
            second while there are any, and once after that; on the client's own thread.
    """

    def __init__(self, client: Client, watch: Callable[[Mapping[int, int]], None] = lambda busy: None) -> None:
        self._client, self._watch, self._lock = client, watch, threading.Lock()
        self._sent = Counter[int]()
        self._open: dict[int, dict[int, _Request]] = defaultdict(dict)  # by engine and number
        self._unnumbered = Counter[int]()  # by engine: requests that it may run
        self._answered_at: dict[int, float] = defaultdict(float)
        self._thread, self._calls = _Thread(), list[_SentCall]()  # calls that have begun to send
        self._version = self._announced = self._begun = 0
        self._failures = 0  # answers of engines whose numbers of unnamed tensors may have drifted
        self._idle: list[int] = []
        self._scheduled = False
        client.around_targets(self._targets)
        client.around_requests(self._numbered)
        client.before_replies(self._replied)

    def _targets(self, find: Find, targets: Any) -> tuple[list[bytes], list[int]]:
        """Every call of a view asks for its engines first, and then sends to one after the other."""
        idents, engines = find(targets)
        with self._lock:
            self._end(self._thread.call)
        self._thread.call = _SentCall(set(engines), all={each for each, _ in self._client.named()} <= set(engines))
        return idents, engines

    def _numbered(self, send: Callable[..., Any], request: Request) -> Any:
        if not request.engines:
            future = send(metadata={**request.metadata, KEY: {"failures": self._failures, "cell": _cell()}})
            self._without_number(future, request.possible)
            return future
        with self._lock:
            call, numbers = self._count(request.engines)
            said = self._state() | {"call": call.number, "numbers": numbers, "failures": call.failures, "cell": _cell()}
        try:
            future = send(metadata={**request.metadata, KEY: said})
        except BaseException:  # Ctrl-C, or arguments that cannot be sent
            self._not_sent(numbers)
            raise
        for engine, number in numbers:
            self._client.answer_of(future, engine).add_done_callback(partial(self._answered, engine, number))
        self._client.soon(self._soon)
        return future

    def _without_number(self, future: Any, engines: list[int]) -> None:
        """A request was sent that these may run."""
        with self._lock:
            self._unnumbered.update(engines)
            self._version += 1
        future.add_done_callback(partial(self._may_be_idle, engines))
        self._client.soon(self._soon)

    def _may_be_idle(self, engines: list[int], done: Any) -> None:
        with self._lock:
            self._unnumbered.subtract(engines)
            self._answered_at.update(dict.fromkeys(engines, time.monotonic()))
            self._version += 1
        self._client.soon(self._soon)

    def _count(self, engines: list[int]) -> tuple[_SentCall, list[tuple[int, int]]]:
        """The call, and the number of the request for each engine."""
        call, now = self._thread.call, time.monotonic()
        if call.begun_at == float("inf"):
            self._begun += 1
            call.begun_at, call.number, call.failures = now, self._begun, self._failures
            self._calls.append(call)
        call.left.difference_update(engines)
        if not call.left and call in self._calls:
            self._calls.remove(call)
        self._sent.update(engines)
        self._version += 1
        for each in engines:
            self._open[each][self._sent[each]] = _Request(now, call.number, call.all)
        return call, [(each, self._sent[each]) for each in engines]

    def _not_sent(self, numbers: list[tuple[int, int]]) -> None:
        """Nobody waits for an answer to it; and its call sends nothing more."""
        with self._lock:
            for engine, number in numbers:
                self._open[engine].pop(number, None)
                if self._sent[engine] == number:
                    self._sent[engine] -= 1
            self._version += 1
            self._end(self._thread.call)
        self._client.soon(self._soon)

    def _end(self, call: _SentCall) -> None:
        if call in self._calls:
            self._calls.remove(call)
            self._version += 1

    def _state(self) -> dict[str, Any]:
        """What has been sent, with what begun calls are about to send, and who is idle."""
        ahead = Counter(engine for call in self._calls for engine in call.left)
        sent = [[each, self._sent[each] + ahead[each]] for each, _ in self._client.named()]
        running = {engine: call.number for call in self._calls for engine in call.left}
        running |= {engine: oldest.call for engine, oldest in self._oldest()}
        idle, now = [], time.monotonic()
        if all(each.quiet_at() <= now for _, each in self._oldest()):
            busy = running.keys() | {engine for engine, n in self._unnumbered.items() if n}
            there = [each for each, _ in self._client.named() if each not in busy]
            idle = [each for each in there if self._answered_at[each] + _QUIET_S <= now]
        if idle != self._idle:
            self._idle, self._version = idle, self._version + 1
        return {"version": self._version, "sent": sent, "idle": idle, "running": list(running.items())}

    def _oldest(self) -> list[tuple[int, _Request]]:
        """By engine the request that it runs, if it has not answered all."""
        return [(engine, sent[min(sent)]) for engine, sent in self._open.items() if sent]

    def _answered(self, engine: int, number: int, done: Any) -> None:
        with self._lock:
            self._open[engine].pop(number, None)
            self._answered_at[engine] = time.monotonic()
            self._version += 1
        self._client.soon(self._soon)

    # --- on the client's own thread -------------------------------------------------------------------

    def _replied(self, message: Mapping[str, Any]) -> None:
        """An engine answers. What it says of its numbers counts before anybody learns that the request is over.

        Of engines that answer together the last one speaks; the others will with their next answers.
        """
        if message["metadata"].get(KEY, {}).get("drifted"):
            with self._lock:
                self._failures += 1

    def _soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._client.later(_SOON_S, self._announce)

    def _announce(self) -> None:
        """Say to engines that have not answered what has changed; they may wait for others that have."""
        self._scheduled = False
        if self._client.closed:
            return
        with self._lock:
            for call in [each for each in self._calls if time.monotonic() - each.begun_at > _WHOLE_CALL_S]:
                self._end(call)
            state = self._state()
            busy = {each: min(self._open[each]) for each, _ in self._client.named() if self._open[each]}
            news, self._announced = self._version != self._announced, self._version
        for each in busy if news else ():
            self._client.tell(each, KEY, state)
        self._watch(busy)
        if busy and not self._scheduled:
            self._scheduled = True
            self._client.later(_AGAIN_S, self._announce)
