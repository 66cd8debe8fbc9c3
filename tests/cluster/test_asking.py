"""New engines are asked until they answer."""

from __future__ import annotations

import time
from typing import Any

import pytest

from workbench.cluster.answers import first_answers
from workbench.errors import LaunchError


class Answer:
    """What an engine answers, if the message has reached it."""

    def __init__(self, number: int, value: Any, reached: bool) -> None:
        self.msg_ids, self._value, self._reached = [f"message {number}"], value, reached

    def ready(self) -> bool:
        """Is it there?"""
        return self._reached

    def wait(self, timeout_s: float) -> None:
        """For nothing, if it has not reached anybody."""
        time.sleep(0 if self._reached else timeout_s)

    def get(self) -> Any:
        """The value."""
        return self._value


class Hub:
    """A client whose first messages to some engines are dropped, as a scheduler does that does not know them yet."""

    def __init__(self, dropped: dict[int, int]) -> None:
        self.ids, self.outstanding, self._dropped, self.sent = sorted(dropped), set[str](), dropped, 0

    def __getitem__(self, engine: int) -> Any:
        hub = self

        class View:
            def apply_async(self, function: Any) -> Answer:
                hub.sent += 1
                reached = hub._dropped[engine] == 0
                hub._dropped[engine] -= not reached
                answer = Answer(hub.sent, (engine, function()), reached)
                hub.outstanding.update([] if reached else answer.msg_ids)
                return answer

        return View()


def test_an_engine_whose_message_was_dropped_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are not; and nothing waits for the lost message afterwards."""
    monkeypatch.setattr("workbench.cluster.answers._AGAIN_S", 0.05)
    hub = Hub({0: 0, 1: 2, 2: 0})
    assert first_answers(hub, lambda: "here", time.monotonic() + 30.0) == {i: (i, "here") for i in range(3)}
    assert hub.sent == 5
    assert hub.outstanding == set()


def test_an_engine_that_never_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the deadline."""
    monkeypatch.setattr("workbench.cluster.answers._AGAIN_S", 0.05)
    with pytest.raises(LaunchError, match="engines 1, 3 had registered, but did not answer"):
        first_answers(Hub({0: 0, 1: 10**6, 2: 0, 3: 10**6}), lambda: "here", time.monotonic() + 0.3)
