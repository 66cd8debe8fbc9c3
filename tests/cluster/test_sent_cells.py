"""The notebook numbers what it sends, and every request says what the other engines get."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.cluster.ipyparallel_internals import Request
from workbench.cluster.sent_cells import SentCells
from workbench.common.cell_numbers import KEY, CellNumbers


class Client:
    """Keeps what is sent; its loop runs when the test says so, and a request ends when the test says so."""

    closed = False

    def __init__(self) -> None:
        self.engines = {0: "a", 1: "b", 2: "c"}
        self.todo: list[Callable[[], None]] = []
        self.requests: list[tuple[str, dict[str, Any], Future[None]]] = []
        self.news: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[tuple[int, int], Future[None]] = {}  # of a broadcast: by request and engine
        self.failing: set[int] = set()

    def named(self) -> list[tuple[int, str]]:
        return list(self.engines.items())

    def around_targets(self, wrap: Any) -> None:
        self.find = partial(wrap, lambda targets: ([], targets))

    def around_requests(self, number: Any) -> None:
        self.number = number

    def before_replies(self, look: Callable[[Any], None]) -> None:
        self.reply = look

    def soon(self, do: Callable[[], None]) -> None:
        self.todo.append(do)

    def later(self, after_s: float, do: Callable[[], None]) -> None:
        self.todo.append(do)

    def answer_of(self, request: Any, engine: int) -> Future[None]:
        return self.answers.get((request.msg_id, engine), request)

    def tell(self, engine: int, kind: str, content: dict[str, Any]) -> None:
        assert kind == KEY
        self.news.append((self.engines[engine], content))

    def send(self, engines: list[int], possible: Iterable[int] = (), apart: bool = False) -> None:
        """A request to engines; where they answer ``apart``, it is a broadcast's."""

        def go(metadata: dict[str, Any]) -> Any:
            if self.failing & set(engines):
                raise KeyboardInterrupt
            done: Any = Future[None]()
            done.msg_id = len(self.requests)
            if apart:
                self.answers |= {(done.msg_id, each): Future() for each in engines}
            to = self.engines[engines[0]] if len(engines) == 1 else ""
            self.requests.append((to, metadata[KEY], done))
            return done

        self.number(go, Request(engines, list(possible), {}))

    def spin(self) -> None:
        """What the loop has to do now, which may give it more to do."""
        for _ in range(3):
            todo, self.todo[:] = list(self.todo), []
            for do in todo:
                do()

    def call(self, *engines: int, stop_after: int = 9) -> None:
        """One call of a view."""
        self.find(list(engines))
        for each in engines[:stop_after]:
            self.send([each])

    def broadcast(self, *engines: int) -> None:
        """One call of a broadcast view."""
        self.find(list(engines))
        self.send(list(engines), apart=True)


def numbered() -> Any:
    """A client whose requests have numbers."""
    client: Any = Client()
    SentCells(client)
    return client


def engine(said: dict[str, Any], name: int = -1) -> CellNumbers:
    """Who has got only this."""
    numbers = CellNumbers(name if name >= 0 else said["numbers"][0][0])
    numbers.begin(said)
    return numbers


def test_the_first_request_of_a_call_speaks_of_all() -> None:
    """Whoever begins it knows that the others get it too, though nothing has been sent to them so far."""
    client = numbered()
    client.call(0, 1)
    client.call(0, 1, 2)
    assert [engine(said).sent for _, said, _ in client.requests[2:]] == [{0: 2, 1: 2, 2: 1}] * 3
    assert [(name, said["call"], said["numbers"]) for name, said, _ in client.requests] == [
        ("a", 1, [(0, 1)]), ("b", 1, [(1, 1)]), ("a", 2, [(0, 2)]), ("b", 2, [(1, 2)]), ("c", 2, [(2, 1)]),
    ]  # fmt: skip


def test_who_is_busy_hears_of_those_that_have_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of what was sent to others in calls of their own; an engine that has answered hears nothing."""
    client = numbered()
    client.call(0)
    client.call(1)
    client.requests[1][2].set_result(None)
    client.spin()
    numbers = engine(client.requests[0][1])
    assert numbers.sent == {0: 1, 1: 0, 2: 0}
    assert {name for name, _ in client.news} == {"a"}
    numbers.receive(client.news[-1][1])
    assert (numbers.sent, numbers.idle) == ({0: 1, 1: 1, 2: 0}, [])
    monkeypatch.setattr("workbench.cluster.sent_cells._QUIET_S", 0.0)
    client.spin()
    numbers.receive(client.news[-1][1])
    assert (numbers.sent, numbers.idle) == ({0: 1, 1: 1, 2: 0}, [1, 2])


def test_nobody_is_idle_to_whom_a_call_may_still_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an engine of the same call, nor one to which a program sends a moment later, in a call of its own."""
    now = time.monotonic()
    monkeypatch.setattr("workbench.cluster.sent_cells.time", SimpleNamespace(monotonic=lambda: now))
    client = numbered()
    client.call(0, 1, 2)
    client.requests[1][2].set_result(None)
    now += 1.0  # a call to all leaves no doubt
    client.spin()
    assert client.news[-1][1]["idle"] == [1]
    for _, _, done in client.requests:
        done.done() or done.set_result(None)
    client.call(0)
    now += 2.0
    client.spin()
    assert client.news[-1][1]["idle"] == []
    monkeypatch.setattr("workbench.cluster.sent_cells._QUIET_S", 0.0)
    client.call(0, 1, stop_after=1)
    client.spin()
    assert client.news[-1][1]["idle"] == [2]


def test_what_a_call_that_was_interrupted_did_not_send_is_not_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next call, or after some time, the notebook takes it back."""
    client = numbered()
    client.call(0, 1, 2, stop_after=1)
    client.call(0)
    assert engine(client.requests[-1][1]).sent == {0: 2, 1: 0, 2: 0}
    client.call(0, 1, 2, stop_after=1)
    monkeypatch.setattr("workbench.cluster.sent_cells._WHOLE_CALL_S", -1.0)
    client.spin()
    assert engine(client.requests[-1][1]).sent == {0: 3, 1: 1, 2: 1}
    numbers = CellNumbers(engine=0)
    numbers.receive(client.news[-1][1])
    assert numbers.sent == {0: 3, 1: 0, 2: 0}


def test_what_could_not_be_sent_is_not_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C amid it, or arguments that cannot be sent: the engine is idle, and its next request has the number."""
    client = numbered()
    client.failing = {1}
    monkeypatch.setattr("workbench.cluster.sent_cells._QUIET_S", 0.0)
    with pytest.raises(KeyboardInterrupt):
        client.call(0, 1, 2)
    client.spin()
    numbers = CellNumbers(engine=0)
    numbers.receive(client.news[-1][1])
    assert (numbers.sent, numbers.idle) == ({0: 1, 1: 0, 2: 0}, [1, 2])
    client.failing.clear()
    client.call(1)
    assert client.requests[-1][1]["numbers"] == [(1, 1)]


def test_one_request_of_a_broadcast_view_has_a_number_for_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each answers for itself: who has not is not idle."""
    client = numbered()
    monkeypatch.setattr("workbench.cluster.sent_cells._QUIET_S", 0.0)
    client.call(0)
    client.broadcast(0, 1)
    said = client.requests[-1][1]
    assert [engine(said, name).number for name in (0, 1)] == [2, 1]
    assert engine(said, 1).sent == {0: 2, 1: 1, 2: 0}
    assert not engine(said, 2).numbered
    client.spin()
    numbers = engine(said, 0)
    numbers.receive(client.news[-1][1])
    assert numbers.idle == [2]
    client.answers[1, 1].set_result(None)
    client.spin()
    numbers.receive(client.news[-1][1])
    assert numbers.idle == [1, 2]


def test_all_ranks_of_a_call_number_anew_after_an_answer_that_says_so() -> None:
    """Also where an engine gets its request of that call after another one has answered."""
    client = numbered()
    client.call(0, 1)
    client.reply({"metadata": {KEY: {"drifted": False}}})
    client.reply({"metadata": {}})  # of an engine with a kernel of its own
    client.call(0, 1)
    client.find([0, 1])
    client.send([0])
    client.reply({"metadata": {KEY: {"drifted": True}}})
    client.send([1])
    client.send([], possible=[1])
    client.call(0)
    assert [said["failures"] for _, said, _ in client.requests] == [0, 0, 0, 0, 0, 0, 1, 1]


def test_nobody_is_idle_who_may_run_what_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it is not answered; whoever runs it judges nobody by what was said before."""
    client = numbered()
    monkeypatch.setattr("workbench.cluster.sent_cells._QUIET_S", 0.0)
    client.send([], possible=[1])
    assert client.requests[0][1] == {"failures": 0, "cell": 0}
    client.call(0)
    client.spin()
    assert client.news[-1][1]["idle"] == [2]
    client.requests[0][2].set_result(None)
    client.spin()
    assert client.news[-1][1]["idle"] == [1, 2]


def test_who_runs_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not whoever is about to get the same call; and what an engine has to do first counts."""
    client = numbered()
    client.call(1)
    client.call(0, 1, 2)
    one, first, *_, last = [said for _, said, _ in client.requests]
    assert [engine(said).elsewhere() for said in (one, first, last)] == [[], [1], [1]]
    client.requests[0][2].set_result(None)
    client.spin()
    numbers = engine(first)
    numbers.receive(client.news[-1][1])
    assert numbers.elsewhere() == []
