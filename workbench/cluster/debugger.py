"""JupyterLab's debugger for the ranks: it takes the place of a method of the notebook's own, until :meth:`forget`.

JupyterLab speaks DAP, the Debug Adapter Protocol, with the kernel, which has a debugger for itself. What belongs to a
rank goes to its engine, see ``launch/ranks/debugger.py``; all else goes to the kernel's own, as ever.

JupyterLab knows one thread. So ranks that stand are shown as one: of the chosen rank all frames, of each other one the
innermost. Who looks at a frame of another rank has chosen that rank. The buttons are for all ranks that stand, or for
the chosen one alone; see :meth:`RanksDebugger._choose`, which JupyterLab's side bar asks for that.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.cluster.names import for_engines
from workbench.common.text import rank_spans
from workbench.launch.ranks.debugger import DEBUG

RANKS = "workbenchRanks"
"""The command of our own, and its event."""

STANDS = "the debugger has stopped"
"""How a note begins that says which ranks stand."""

_THREAD = 1
_OURS = 1 << 50  # numbers of frames and variables from here on are those of ranks; a debugger's own are addresses
_BASES = 7  # JupyterLab keeps the frame that it shows while it is there: by other numbers it shows another rank's
_OF_A_RANK = 1 << 32
_ANSWER_S, _LOOK_S, _TOGETHER_S = 20.0, 0.05, 0.05
_GO = ("continue", "next", "stepIn", "stepOut")
_OF_A_STOP = ("stackTrace", "scopes", "variables", "evaluate", "richInspectVariables", "copyToGlobals", *_GO)
_NUMBERS = ("frameId", "srcFrameId", "variablesReference")


class RanksDebugger:
    """See the module. It runs on the thread of the kernel's control channel.

    Args:
        client: a :class:`workbench.cluster.ipyparallel_internals.Client`.
        kernel: the notebook's.
    """

    def __init__(self, client: Any, kernel: Any) -> None:
        self._client, self._kernel, self._own = client, kernel, kernel.debugger
        self._loop = kernel.control_thread.io_loop
        self._filters: list[str] = []
        self._changed_ns = time.time_ns()  # when what is to be stopped at became so
        self._stopped: dict[int, dict[str, Any]] = {}
        self._chosen = self._rank = -1  # by the user; shown
        self._base = _OURS
        self._alone = self._scheduled = self._shown = False
        self._process = kernel.debugger.process_request
        kernel.debugger.process_request = self.process_request
        self._event = kernel.debugger.event_callback
        kernel.debugger.event_callback = self._own_event
        names = [name for name in sys.modules if name.startswith(("ipyparallel.", "workbench.cluster."))]
        found = [getattr(sys.modules[name], "__file__", None) for name in names]
        # While a cell runs on engines, the kernel's own debugger does not stop in what waits for them.
        kernel.debugger.kernel_modules = list({*kernel.debugger.kernel_modules, *filter(None, found)})
        client.debugger = self

    def forget(self) -> None:
        """The kernel's debugger is alone again."""
        self._own.__dict__.pop("process_request", None)
        if self._own.event_callback == self._own_event:
            self._own.event_callback = self._event
        self._client.debugger = None
        self._loop.add_callback(self._none_stands)

    def note(self) -> str:
        """Which ranks stand."""
        return f"{STANDS} {rank_spans(sorted(stopped))}" if (stopped := dict(self._stopped)) else ""

    # --- for the client, on any thread -------------------------------------------------------------------

    def told(self, code: str) -> dict[str, Any]:
        """What engines get with a cell: where it stands in the notebook, and what is to be stopped at."""
        return {"place": self._place(code), **self._wanted()}

    def happened(self, content: Mapping[str, Any]) -> None:
        """An engine says that it stands, or that it goes on."""
        self._loop.add_callback(self._stands, dict(content))

    def gone(self, engine: int) -> None:
        self._loop.add_callback(self._stands, {"engine": engine, "event": "continued"})

    def _place(self, code: str) -> tuple[str, int] | None:
        """The name that JupyterLab has for the running cell, and how many lines of it are before ``code``."""
        whole = self._kernel.get_parent("shell").get("content", {}).get("code", "")
        at = whole.find(code.rstrip("\n")) if code.strip() else -1
        if at < 0:
            return None
        return self._kernel.shell.compile.get_code_name(whole, whole, 0), whole.count("\n", 0, at)

    def _wanted(self) -> dict[str, Any]:
        changed_ns = self._changed_ns  # read first: a change meanwhile comes in a message of its own, too
        found = {path: [each["line"] for each in lines] for path, lines in dict(self._own.breakpoint_list).items()}
        return {"changed_ns": changed_ns, "on": self._own.is_started, "breaks": found, "filters": self._filters}

    # --- for JupyterLab -----------------------------------------------------------------------------------

    async def process_request(self, message: dict[str, Any]) -> dict[str, Any]:
        """What the kernel's method returns."""
        command, arguments = message["command"], message.get("arguments") or {}
        if command == RANKS:
            return self._choose(message)
        if command == "pause" and self._client.outstanding:
            self._tell("pause")
            return _reply(message)
        if command in _OF_A_STOP and (rank := self._meant(command, arguments)) is not None:
            return await (self._go(message, rank) if command in _GO else self._look(message, rank))
        if command == "setBreakpoints" and self._is_for_engines(path := arguments["source"]["path"]):
            found = [{"line": line} for line in _with_code(path, [each["line"] for each in arguments["breakpoints"]])]
            self._own.breakpoint_list[path] = found
            self._tell("change")
            return _reply(
                message, {"breakpoints": [each | {"verified": True, "source": {"path": path}} for each in found]}
            )
        reply: dict[str, Any] = await self._process(message)
        if command in _GO:
            self._soon()  # the kernel's own cell goes on: JupyterLab clears what it shows, and ranks may stand now
        if command == "debugInfo" and self._stopped:
            reply["body"]["stoppedThreads"] = [_THREAD]
        if command == "setExceptionBreakpoints":
            self._filters = list(arguments.get("filters", ()))
        if command == "disconnect":
            self._stopped.clear()
            self._chosen, self._alone = -1, False
        if command in ("initialize", "setBreakpoints", "setExceptionBreakpoints", "disconnect"):
            self._tell("change")
        return reply

    def _choose(self, message: dict[str, Any]) -> dict[str, Any]:
        """Our own command: ``rank`` is looked at; with ``alone`` the buttons are for it only. It says who stands."""
        arguments = message.get("arguments") or {}
        self._alone = arguments.get("alone", self._alone)
        if (rank := arguments.get("rank")) in self._stopped and rank != self._current():
            self._chosen = rank
            self._base = _OURS * (self._base // _OURS % _BASES + 1)
            self._show()
        return _reply(message, self._state())

    def _state(self) -> dict[str, Any]:
        return {"stopped": sorted(self._stopped), "rank": self._current(), "alone": self._alone}

    def _current(self) -> int:
        """The rank that is shown: the chosen one, the one that was shown before, or the lowest one; -1 for none."""
        there = [rank for rank in (self._chosen, self._rank) if rank in self._stopped]
        return there[0] if there else min(self._stopped, default=-1)

    def _meant(self, command: str, arguments: Mapping[str, Any]) -> int | None:
        """The rank for which a request is; None for the kernel's own debugger."""
        number = next((arguments[name] for name in _NUMBERS if arguments.get(name)), 0)
        if number >= _OURS:
            return int(number % _OURS // _OF_A_RANK)
        return self._current() if self._stopped and not number and command != "variables" else None

    def _is_for_engines(self, path: str) -> bool:
        return for_engines(code := _read(path), len(code)) is not None

    async def _look(self, message: dict[str, Any], rank: int) -> dict[str, Any]:
        if message["command"] == "stackTrace":
            return _reply(message, await self._stack(message))
        if message["command"] == "scopes" and rank != self._rank and rank in self._stopped:
            self._chosen = self._rank = rank
            self._publish(RANKS, self._state())
        return await self._ask(rank, message)

    async def _stack(self, message: dict[str, Any]) -> dict[str, Any]:
        current = self._current()
        ranks = sorted(self._stopped, key=lambda rank: (rank != current, rank))
        replies = await asyncio.gather(*(self._ask(rank, message) for rank in ranks))
        frames = []
        for rank, reply in zip(ranks, replies, strict=True):
            for frame in (reply["body"].get("stackFrames") or [])[: None if rank == current else 1]:
                frames.append(frame | {"name": f"rank {rank}: {frame['name']}"})
        return {"stackFrames": frames, "totalFrames": len(frames)}

    async def _go(self, message: dict[str, Any], rank: int) -> dict[str, Any]:
        ranks = [rank] if self._alone else list(self._stopped)
        for rank in ranks:
            self._stopped.pop(rank, None)
        replies = await asyncio.gather(*(self._ask(rank, message) for rank in ranks))
        if self._stopped and message["command"] == "continue":
            self._soon()
        self._publish(RANKS, self._state())
        return replies[0] if replies else _reply(message)

    async def _ask(self, rank: int, message: dict[str, Any]) -> dict[str, Any]:
        """One rank's answer; its numbers become ours."""
        asked = {name: each % _OF_A_RANK if name in _NUMBERS else each for name, each in message["arguments"].items()}
        future = self._send(rank, message["command"], asked)
        answer = asyncio.wrap_future(future) if future is not None else None
        until = asyncio.get_running_loop().time() + _ANSWER_S
        while answer is not None and not answer.done() and rank in self._client.ids:
            if asyncio.get_running_loop().time() > until:
                return _reply(message, why=f"rank {rank} has not answered for {_ANSWER_S:.0f} s")
            await asyncio.wait([answer], timeout=_LOOK_S)
        if answer is None or not answer.done():
            self._stands({"engine": rank, "event": "continued"})
            return _reply(message, why=f"rank {rank} is gone")
        content = answer.result()["content"]
        body = content.get("body", {})
        plain = message["command"] == "richInspectVariables"
        return _reply(
            message, body if plain else _numbered(body, self._base + rank * _OF_A_RANK), content.get("message", "")
        )

    def _tell(self, command: str) -> None:
        """Say something to all engines, and wait for nothing. What is to be stopped at may have changed."""
        self._changed_ns = max(time.time_ns(), self._changed_ns + 1)  # a clock may be set back
        for engine in self._client.ids:
            self._send(engine, command, self._wanted())

    def _send(self, engine: int, command: str, arguments: dict[str, Any]) -> Any:
        """A future of the answer; None if the engine is gone, or the cluster."""
        return self._client.ask(engine, DEBUG, {"command": command, "arguments": arguments})

    # --- events -------------------------------------------------------------------------------------------

    def _own_event(self, message: dict[str, Any]) -> None:
        self._event(message)
        if message["event"] == "continued":
            self._loop.add_callback(self._soon)  # as above, where that is heard late

    def _stands(self, content: dict[str, Any]) -> None:
        engine = content["engine"]
        if content["event"] == "stopped":
            self._stopped[engine] = content
            self._soon()
        elif self._stopped.pop(engine, None) is not None or (self._shown and not self._stopped):
            self._soon() if self._stopped else self._none_stands()

    def _soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_later(_TOGETHER_S, self._show)

    def _show(self) -> None:
        """JupyterLab looks at all that stand."""
        self._scheduled = False
        if not self._stopped:
            return
        self._rank, self._shown = self._current(), True
        content = self._stopped[self._rank]
        about = {"reason": content["reason"], "text": content["text"], "threadId": _THREAD, "allThreadsStopped": True}
        self._publish("stopped", about)
        self._publish(RANKS, self._state())

    def _none_stands(self) -> None:
        self._stopped.clear()
        if self._shown:
            self._shown = False
            self._publish("continued", {"threadId": _THREAD, "allThreadsContinued": True})
            self._publish(RANKS, self._state())

    def _publish(self, event: str, body: dict[str, Any]) -> None:
        self._event({"type": "event", "seq": 0, "event": event, "body": body})


def _reply(message: Mapping[str, Any], body: dict[str, Any] | None = None, why: str = "") -> dict[str, Any]:
    found = {"type": "response", "seq": message["seq"], "request_seq": message["seq"], "command": message["command"]}
    return found | {"success": not why, "body": body or {}} | ({"message": why} if why else {})


def _numbered(body: Any, base: int) -> Any:
    """With our numbers of frames and variables in place of the rank's."""
    if isinstance(body, list):
        return [_numbered(each, base) for each in body]
    if not isinstance(body, dict):
        return body
    found = {name: _numbered(each, base) for name, each in body.items()}
    return found | {name: base + found[name] for name in ("id", "variablesReference") if found.get(name)}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _with_code(path: str, lines: list[int]) -> list[int]:
    """The lines of a cell at which it can stop: the next ones that have code."""
    from IPython import get_ipython

    cell = _read(path)
    begin = for_engines(cell, len(cell)) or 0
    try:
        tree = ast.parse(get_ipython().transform_cell(cell[begin:]))
    except SyntaxError:
        return lines
    before = cell.count("\n", 0, begin)
    there = sorted({before + node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr)})
    return sorted({next((each for each in there if each >= line), 0) for line in lines} - {0})
