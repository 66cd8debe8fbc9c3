"""What widgets of engines send to the page: bars of ``tqdm.auto`` become text, so that those of all ranks are one."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from typing import Any

VIEW = "application/vnd.jupyter.widget-view+json"
_MODEL = "IPY_MODEL_"
_BAR = ["HTMLModel", "FloatProgressModel", "HTMLModel"]
_WIDTH = 10
_ENDED = ("success", "danger")  # as tqdm colours a bar at its end
_PAUSE_S = 0.05


class Bars:
    """The bars that ranks have shown in one cell.

    Example:
        >>> bars, opened = Bars(), lambda name, **state: {"comm_id": name, "data": {"state": state}}
        >>> bars.take(0, "comm_open", opened("a", _model_name="HTMLModel", value=" 30%"))
        False
        >>> bars.take(0, "comm_open", opened("b", _model_name="FloatProgressModel", value=3.0, max=10.0))
        False
        >>> bars.take(0, "comm_open", opened("c", _model_name="HTMLModel", value=" 3/10 [00:01&lt;00:02]"))
        False
        >>> children = [f"IPY_MODEL_{name}" for name in "abc"]
        >>> bars.take(0, "comm_open", opened("d", _model_name="HBoxModel", children=children))
        False
        >>> bars.show(0, "d"), bars.lines(0)
        (True, [' 30%|███       | 3/10 [00:01<00:02]'])
        >>> bars.take(0, "comm_msg", {"comm_id": "a", "data": {"method": "update", "state": {"value": " 40%"}}})
        True
    """

    def __init__(self) -> None:
        self._models: dict[str, dict[str, Any]] = {}
        self._shown: dict[int, list[str]] = {}
        self._of_bars: set[str] = set()

    def take(self, engine: int, kind: str, content: Mapping[str, Any]) -> bool:
        """A comm is opened, used or closed; is it part of a bar, of which the page needs to know nothing?"""
        comm, data = content["comm_id"], content.get("data") or {}
        if kind == "comm_open":
            self._models[comm] = dict(data.get("state") or {})
        elif kind == "comm_close":
            self._models.pop(comm, None)
            if comm in self._shown.get(engine, ()):  # leave=False
                self._shown[engine].remove(comm)
            return False
        elif comm in self._models and data.get("method") == "update":
            self._models[comm].update(data["state"])
        return comm in self._of_bars

    def show(self, engine: int, model: str) -> bool:
        """A widget is displayed; is it a bar?"""
        parts = self._parts(model)
        if [self._models.get(each, {}).get("_model_name") for each in parts] != _BAR:
            return False
        self._of_bars.update(parts)
        self._shown.setdefault(engine, []).append(model)
        return True

    def lines(self, engine: int) -> list[str]:
        """The bars of a rank, as tqdm writes them on a terminal."""
        return [self._text(model) for model in self._shown.get(engine, ())]

    def finished(self, engine: int) -> list[str]:
        """The bars that have come to an end since the last question; they are no longer among the lines."""
        found = [model for model in self._shown.get(engine, ()) if self._bar(model).get("bar_style") in _ENDED]
        for model in found:
            self._shown[engine].remove(model)
        return [self._text(model) for model in found]

    def forget(self, engine: int) -> None:
        """The rank has cleared its output."""
        self._shown.pop(engine, None)

    def _bar(self, model: str) -> dict[str, Any]:
        return self._models.get(self._parts(model)[1], {})

    def _parts(self, model: str) -> list[str]:
        return [each.removeprefix(_MODEL) for each in self._models.get(model, {}).get("children") or ()]

    def _text(self, model: str) -> str:
        left, bar, right = (self._models.get(each, {}) for each in self._parts(model))
        before, after = (html.unescape(str(each.get("value", ""))).replace("\u2007", " ") for each in (left, right))
        if not before.rstrip().endswith("%"):  # nobody knows the end
            return before + after
        done = round(_WIDTH * bar.get("value", 0) / (bar.get("max") or 1))
        return f"{before}|{'█' * done:{_WIDTH}}|{after}"


class Relay:
    """Passes on what widgets send; of one that is set very often, the newest state, twenty times a second.

    Args:
        pass_on: takes a message.
        later: calls a function after so many seconds, on the same thread.
        clock: seconds.
    """

    def __init__(
        self,
        pass_on: Callable[[Any], None],
        later: Callable[[float, Callable[[], None]], Any],
        clock: Callable[[], float],
    ) -> None:
        self._pass_on, self._later, self._clock = pass_on, later, clock
        self._held: dict[str, dict[str, Any]] = {}
        self._passed_at: dict[str, float] = {}

    def take(self, message: dict[str, Any]) -> None:
        """A comm message of an engine."""
        content = message["content"]
        comm, data = content["comm_id"], content.get("data") or {}
        if message["header"]["msg_type"] == "comm_msg" and data.get("method") == "update" and not message["buffers"]:
            if comm in self._held:
                self._held[comm]["content"]["data"]["state"].update(data["state"])
                return
            if self._clock() - self._passed_at.get(comm, 0.0) < _PAUSE_S:
                self._held[comm] = message
                self._later(_PAUSE_S, lambda: self._release(comm))
                return
            self._passed_at[comm] = self._clock()
        else:
            self._release(comm)
            if message["header"]["msg_type"] == "comm_close":
                self._passed_at.pop(comm, None)
        self._pass_on(message)

    def _release(self, comm: str) -> None:
        if (held := self._held.pop(comm, None)) is not None:
            self._passed_at[comm] = self._clock()
            self._pass_on(held)
