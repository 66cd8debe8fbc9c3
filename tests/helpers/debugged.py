"""A notebook's kernel whose debugger is used as JupyterLab uses it: DAP on the control channel."""

from __future__ import annotations

import queue
import time
from itertools import dropwhile
from typing import Any

from live_kernel import LiveKernel, Message

from workbench.cluster.debugger import RANKS
from workbench.common.text import spans

Body = dict[str, Any]
_MOST_S = 30.0


class Debugged:
    """The debugger of one kernel; while a cell runs, too."""

    def __init__(self, kernel: LiveKernel) -> None:
        self.kernel, self._seq, self.messages = kernel, 0, list[Message]()
        self._cell = ""

    def ask(self, command: str, **arguments: Any) -> Body:
        """The whole answer."""
        client, self._seq = self.kernel.client, self._seq + 1
        content = {"type": "request", "seq": self._seq, "command": command, "arguments": arguments}
        sent = client.session.msg("debug_request", content)
        client.control_channel.send(sent)
        while True:
            try:
                reply = client.get_control_msg(timeout=30)
            except queue.Empty:
                raise AssertionError(f"{command} is not answered") from None
            if reply["parent_header"]["msg_id"] == sent["header"]["msg_id"]:
                found: Body = reply["content"]
                return found

    def body(self, command: str, **arguments: Any) -> Body:
        """What the answer brings."""
        reply = self.ask(command, **arguments)
        assert reply["success"], reply
        found: Body = reply.get("body", {})
        return found

    def on(self) -> None:
        """The bug icon is pressed."""
        self.body("initialize", clientID="test", adapterID="python3", linesStartAt1=True, pathFormat="path")
        self.body("attach")

    def off(self) -> None:
        """It is pressed again."""
        self.ask("disconnect", restart=False, terminateDebuggee=False)

    def breaks(self, code: str, *lines: int) -> list[int]:
        """Set the breakpoints of a cell; those that are set."""
        path = self.body("dumpCell", code=code)["sourcePath"]
        asked = [{"line": line} for line in lines]
        found = self.body("setBreakpoints", source={"path": path}, breakpoints=asked, sourceModified=False)
        return [each["line"] for each in found["breakpoints"]]

    def begin(self, code: str, asked: bool = True) -> None:
        """Run a cell, and wait for nothing."""
        self.messages.clear()
        self._cell = self.kernel.client.execute(code, allow_stdin=asked)

    def event(self, name: str, after: str = "") -> Body:
        """Wait for an event of the debugger, which may have come since the cell began, or since another event."""
        while True:
            events = [each.content for each in self.messages if "event" in each.content]
            later = dropwhile(lambda each: after not in ("", each["event"]), events)
            if found := [each for each in later if each["event"] == name]:
                break
            self._next()
        body: Body = found[0]["body"]
        return body

    def prints(self, text: str) -> None:
        """Wait until this is below the cell."""
        while text not in self._next().text:
            pass

    def stands(self, ranks: str) -> None:
        """Wait until these ranks stand and no others."""
        until = time.monotonic() + _MOST_S
        while (found := spans(self.body(RANKS)["stopped"])) != ranks:
            assert time.monotonic() < until, f"{found or 'no ranks'} stand, not {ranks}"
            time.sleep(0.01)

    def end(self) -> list[Message]:
        """Wait for the cell's end; what has come since it began."""
        while True:
            kind, content = self._next()
            if kind == "status" and content["execution_state"] == "idle":
                self.kernel.client.get_shell_msg(timeout=10)
                return self.messages

    def _next(self) -> Message:
        until = time.monotonic() + _MOST_S
        while time.monotonic() < until:
            try:
                message = self.kernel.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") == self._cell or message["msg_type"] == "debug_event":
                self.messages.append(Message(message["msg_type"], message["content"]))
                return self.messages[-1]
        raise AssertionError(f"nothing more comes after {self.messages[-3:]}")

    def begin_evaluation(self, expression: str, frame: int) -> None:
        """Evaluate something, and wait for nothing."""
        client, self._seq = self.kernel.client, self._seq + 1
        arguments = {"expression": expression, "frameId": frame}
        content = {"type": "request", "seq": self._seq, "command": "evaluate", "arguments": arguments}
        client.control_channel.send(client.session.msg("debug_request", content))

    def stack(self) -> list[tuple[str, int]]:
        """The names and lines of the frames that are shown."""
        return [(each["name"], each["line"]) for each in self.frames()]

    def frames(self) -> list[Body]:
        """What the call stack shows."""
        found: list[Body] = self.body("stackTrace", threadId=1)["stackFrames"]
        return found

    def within(self, variable: Body) -> list[Body]:
        """What a variable, or a scope, has within."""
        found: list[Body] = self.body("variables", variablesReference=variable["variablesReference"])["variables"]
        return found

    def local(self, frame: Body | None = None) -> dict[str, str]:
        """The local variables of a frame, by default of the first one."""
        scopes = self.body("scopes", frameId=(frame or self.frames()[0])["id"])["scopes"]
        return {each["name"]: each["value"] for each in self.within(scopes[0])}
