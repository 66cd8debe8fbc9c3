"""The notebook numbers what it sends, and every request says what the other engines get."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from workbench.cluster.sent_cells import SentCells
from workbench.common.cell_numbers import KEY, CellNumbers


class Client:
    """Keeps what is sent; its loop runs when the test says so, and a request ends when the test says so."""

    def __init__(self) -> None:
        self._engines, self._closed, self._control_stream = {0: "a", 1: "b", 2: "c"}, False, None
        self.todo: list[Callable[[], None]] = []
        self.requests: list[tuple[str, dict[str, Any], Future[None]]] = []
        self.news: list[tuple[str, dict[str, Any]]] = []
        self._futures: dict[str, Future[None]] = {}  # of a broadcast's answers
        self.answered: list[Any] = []
        self._queue_handlers = dict.fromkeys(("execute_reply", "apply_reply"), self.answered.append)
        self._io_loop = SimpleNamespace(add_callback=self.todo.append, call_later=lambda s, do: self.todo.append(do))
        self.session = SimpleNamespace(send=self._say)

    def _build_targets(self, targets: list[int]) -> tuple[list[bytes], list[int]]:
        return [self._engines[each].encode() for each in targets], targets

    def _send(
        self, socket: Any, msg_type: str, content: Any, parent: Any, ident: Any, metadata: dict[str, Any]
    ) -> Future[None]:
        done: Any = Future[None]()
        done.msg_id = f"request {len(self.requests)}"
        if metadata.get("is_broadcast") and not metadata["is_coalescing"]:
            self._futures |= {f"{done.msg_id}_{name}": Future() for name, _ in metadata["targets"]}
        self.requests.append((ident.decode() if ident else "", metadata.get(KEY, {}), done))
        return done

    def _say(self, stream: Any, kind: str, content: Any, ident: bytes) -> None:
        assert kind == KEY
        self.news.append((ident.decode(), content))

    def spin(self) -> None:
        """What the loop has to do now, which may give it more to do."""
        for _ in range(3):
            todo, self.todo[:] = list(self.todo), []
            for do in todo:
                do()

    def call(self, *engines: int, stop_after: int = 9) -> None:
        """One call of a view."""
        for ident in self._build_targets(list(engines))[0][:stop_after]:
            self._send(None, "execute_request", None, None, ident, metadata={})

    def broadcast(self, *engines: int, is_coalescing: bool = False) -> None:
        """One call of a broadcast view."""
        names = [each.decode() for each in self._build_targets(list(engines))[0]]
        to = {"targets": list(zip(names, engines, strict=True)), "is_broadcast": True, "is_coalescing": is_coalescing}
        self._send(None, "apply_request", None, None, None, metadata=to)

    def load_balanced(self, *engines: int) -> None:
        """One call of a load-balanced view."""
        self._send(None, "apply_request", None, None, None, metadata={"targets": [self._engines[e] for e in engines]})


def engine(said: dict[str, Any], name: int = -1) -> CellNumbers:
    """Who has got only this."""
    numbers = CellNumbers(name if name >= 0 else said["numbers"][0][0])
    numbers.begin(said)
    return numbers


def test_the_first_request_of_a_call_speaks_of_all() -> None:
    """Whoever begins it knows that the others get it too, though nothing has been sent to them so far."""
    client = Client()
    SentCells(client)
    client.call(0, 1)
    client.call(0, 1, 2)
    assert [engine(said).sent for _, said, _ in client.requests[2:]] == [{0: 2, 1: 2, 2: 1}] * 3
    assert [(name, said["call"], said["numbers"]) for name, said, _ in client.requests] == [
        ("a", 1, [(0, 1)]), ("b", 1, [(1, 1)]), ("a", 2, [(0, 2)]), ("b", 2, [(1, 2)]), ("c", 2, [(2, 1)]),
    ]  # fmt: skip


def test_who_is_busy_hears_of_those_that_have_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of what was sent to others in calls of their own; an engine that has answered hears nothing."""
    client = Client()
    SentCells(client)
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
    client = Client()
    SentCells(client)
    client.call(0)
    client.spin()
    assert client.news[-1][1]["idle"] == []
    monkeypatch.setattr("workbench.cluster.sent_cells._QUIET_S", 0.0)
    client.call(0, 1, stop_after=1)
    client.spin()
    assert client.news[-1][1]["idle"] == [2]


def test_what_a_call_that_was_interrupted_did_not_send_is_not_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next call, or after some time, the notebook takes it back."""
    client = Client()
    SentCells(client)
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
    client = Client()
    ready = client._send
    failing = {"b"}

    def send(socket: Any, msg_type: str, content: Any, parent: Any, ident: bytes, metadata: Any) -> Future[None]:
        if ident.decode() in failing:
            raise KeyboardInterrupt
        return ready(socket, msg_type, content, parent, ident, metadata)

    monkeypatch.setattr(client, "_send", send)
    monkeypatch.setattr("workbench.cluster.sent_cells._QUIET_S", 0.0)
    SentCells(client)
    with pytest.raises(KeyboardInterrupt):
        client.call(0, 1, 2)
    client.spin()
    numbers = CellNumbers(engine=0)
    numbers.receive(client.news[-1][1])
    assert (numbers.sent, numbers.idle) == ({0: 1, 1: 0, 2: 0}, [1, 2])
    failing.clear()
    client.call(1)
    assert client.requests[-1][1]["numbers"] == [(1, 1)]


def test_one_request_of_a_broadcast_view_has_a_number_for_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each answers for itself: who has not is not idle."""
    client = Client()
    SentCells(client)
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
    client._futures["request 1_b"].set_result(None)
    client.spin()
    numbers.receive(client.news[-1][1])
    assert numbers.idle == [1, 2]


def test_all_ranks_of_a_call_number_anew_after_an_answer_that_says_so() -> None:
    """Also where an engine gets its request of that call after another one has answered."""
    client = Client()
    SentCells(client)
    client.call(0, 1)
    client._queue_handlers["execute_reply"]({"metadata": {KEY: {"drifted": False}}})
    client._queue_handlers["apply_reply"]({"metadata": {}})  # of an engine with a kernel of its own
    client.call(0, 1)
    idents, _ = client._build_targets([0, 1])
    client._send(None, "execute_request", None, None, idents[0], metadata={})
    client._queue_handlers["execute_reply"]({"metadata": {KEY: {"drifted": True}}})
    client._send(None, "execute_request", None, None, idents[1], metadata={})
    client.load_balanced(1)
    client.call(0)
    assert [said["failures"] for _, said, _ in client.requests] == [0, 0, 0, 0, 0, 0, 1, 1]
    assert len(client.answered) == 3


@pytest.mark.parametrize("send", ["a coalescing view", "a load-balanced view"])
def test_nobody_is_idle_who_may_run_what_has_no_number(send: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it is not answered; whoever runs it judges nobody by what was said before."""
    client = Client()
    SentCells(client)
    monkeypatch.setattr("workbench.cluster.sent_cells._QUIET_S", 0.0)
    client.broadcast(1, is_coalescing=True) if send == "a coalescing view" else client.load_balanced(1)
    assert client.requests[0][1] == {"failures": 0}
    client.call(0)
    client.spin()
    assert client.news[-1][1]["idle"] == [2]
    client.requests[0][2].set_result(None)
    client.spin()
    assert client.news[-1][1]["idle"] == [1, 2]


def test_who_runs_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not whoever is about to get the same call; and what an engine has to do first counts."""
    client = Client()
    SentCells(client)
    client.call(1)
    client.call(0, 1, 2)
    one, first, *_, last = [said for _, said, _ in client.requests]
    assert [engine(said).elsewhere() for said in (one, first, last)] == [[], [1], [1]]
    client.requests[0][2].set_result(None)
    client.spin()
    numbers = engine(first)
    numbers.receive(client.news[-1][1])
    assert numbers.elsewhere() == []
