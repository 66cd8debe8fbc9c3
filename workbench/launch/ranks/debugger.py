"""The debugger of an engine, which JupyterLab's debugger uses by way of the notebook's kernel.

It speaks DAP, the Debug Adapter Protocol, over what connects notebook and engine anyway: requests come on the control
channel, which has a thread of its own, and events go with the output. There is no port: whoever can connect to a
debugger's port can run code.

Only the main thread stops, in which cells run. It does what is asked while it stands, such as to evaluate an
expression. Nothing in a job ends a wait for a rank that is busy in its cell: so deadlines stand still meanwhile. A step
stops in the user's own code; breakpoints can be anywhere.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from workbench.common.user_line import users_own
from workbench.launch.ranks.variables import Names, Variables, text_of

DEBUG = "workbench_debug"
"""The type of a request on the control channel and of an event on the iopub channel; a key of a cell's metadata."""

_LOOK_S = 0.2
_NOT_STOPPED = "the rank is not stopped"
_ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)

Respond = Callable[[dict[str, Any]], None]


class Debugger:
    """Of one engine. It is off, and costs nothing, until the notebook's is on.

    Args:
        shell: IPython's.
        publish: sends the content of an event with the output of the running cell.

    Attributes:
        is_on: is the notebook's debugger switched on?
    """

    def __init__(self, shell: Any, publish: Callable[[dict[str, Any]], None]) -> None:
        self._shell, self._publish, self.is_on = shell, publish, False
        self._cells: dict[str, tuple[str, int]] = {}  # by the engine's name of its file: the notebook's, lines before
        self._breaks: dict[str, list[int]] = {}  # by the notebook's name of a file
        self._lines: dict[str, set[int]] = {}  # by the engine's name
        self._filters: list[str] = []  # exceptions: "raised", "uncaught"
        self._changed_ns = 0  # of the notebook's clock: when these became so
        self._step: FrameType | bool | None = None  # stop at the next line of this frame, or of any of the user's
        self._raised: BaseException | None = None
        self._requests: queue.SimpleQueue[tuple[dict[str, Any], Respond]] = queue.SimpleQueue()
        self._lock, self._stands, self._stops = threading.Lock(), False, 0
        self._changing = threading.Lock()  # a cell begins while the notebook says what is to be stopped at
        self._frames: list[tuple[FrameType, int, dict[str, Any]]] = []
        self._variables = Variables()

    # --- on the main thread ---------------------------------------------------------------------------

    def begins(self, code: str, told: dict[str, Any] | None) -> None:
        """A cell begins; with it the notebook says where the cell stands, and what is to be stopped at."""
        self._step = None
        if told is None:
            return
        if told["place"]:
            self._cells[self._shell.compile.get_code_name(code, code, 0)] = (told["place"][0], told["place"][1])
        self.change(told)
        self.ends()
        if self.is_on:
            sys.settrace(self._trace)

    def ends(self) -> None:
        if sys.gettrace() == self._trace:
            sys.settrace(None)

    def stop(self, frame: FrameType | None) -> bool:
        """What ``breakpoint()`` does in a frame; False if the debugger is off."""
        if not self.is_on:
            return False
        sys.settrace(None)  # what is evaluated meanwhile is not traced
        try:
            self._stand([(each, each.f_lineno) for each in _outward(frame)], "breakpoint")
        finally:
            sys.settrace(self._trace)
        return True

    def failed(self) -> None:
        error = sys.exc_info()[1]
        if not (self.is_on and error and "uncaught" in self._filters) or error is self._raised:
            return
        found, trace = list[tuple[FrameType, int]](), error.__traceback__
        while trace is not None:
            found.insert(0, (trace.tb_frame, trace.tb_lineno))
            trace = trace.tb_next
        while found and not isinstance(error, KeyboardInterrupt | SystemExit):
            sys.settrace(None)
            self._stand(found, "exception", f"{type(error).__name__}: {text_of(error)}")
            break

    def _trace(self, frame: FrameType, event: str, about: Any) -> Any:
        """What ``sys.settrace`` sets. Most calls are of no interest, and quickly passed over."""
        path = frame.f_code.co_filename
        if event == "call":
            wanted = path in self._lines or ((self._step or "raised" in self._filters) and _own(path))
            return self._trace if wanted else None
        reason, text = "", ""
        if event == "line":
            if frame.f_lineno in self._lines.get(path, ()):
                reason = "breakpoint"
            elif self._step is frame or (self._step is True and _own(path)):
                reason = "step"
        elif event == "return" and self._step is frame:
            self._step = _caller(frame)
        elif event == "exception" and "raised" in self._filters and _own(path):
            error = about[1]
            if error is not self._raised and not isinstance(error, _ENDS):
                self._raised, reason, text = error, "exception", f"{type(error).__name__}: {text_of(error)}"
        if reason:
            self._stand([(each, each.f_lineno) for each in _outward(frame)], reason, text)
        return self._trace

    def _stand(self, stack: list[tuple[FrameType, int]], reason: str, text: str = "") -> None:
        """Do what is asked until the rank is to go on."""
        own = [i for i, (frame, _) in enumerate(stack) if _own(frame.f_code.co_filename)]
        stack = stack[: own[-1] + 1] if own else stack[:1]
        for frame, _ in stack:
            frame.f_trace = self._trace
        self._step = None
        self._frames = [(frame, line, frame.f_locals) for frame, line in stack]
        self._stops += 1
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with self._lock:
            self._stands = True
        self._publish({"event": "stopped", "reason": reason, "text": text})
        try:
            while not self._serve():
                pass
        finally:
            with self._lock:
                self._stands = False
                while not self._requests.empty():
                    self._requests.get()[1](_refused(_NOT_STOPPED))
            self._frames = []
            self._variables.clear()
            self._publish({"event": "continued"})

    def _serve(self) -> bool:
        """Do one thing that is asked, if there is one; does the rank go on?"""
        try:
            request, respond = self._requests.get(timeout=_LOOK_S)  # Ctrl-C is seen between two looks
        except queue.Empty:
            return False
        command, arguments = request["command"], request.get("arguments") or {}
        if command in ("continue", "next", "stepIn", "stepOut"):
            frame = self._frames[0][0]
            steps: dict[str, FrameType | bool] = {"next": frame, "stepIn": True, "stepOut": _caller(frame)}
            self._step = steps.get(command)
            respond({"success": True, "body": {"allThreadsContinued": False}})
            return True
        try:
            respond({"success": True, "body": self._answer(command, arguments)})
        except KeyboardInterrupt:
            respond(_refused("interrupted"))
            raise
        except Exception as error:  # noqa: BLE001 - of an expression of the user
            respond(_refused(f"{type(error).__name__}: {error}"))
        return False

    def _answer(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The body of what DAP, and JupyterLab beyond it, want to know of a rank that stands."""
        if command == "stackTrace":
            frames = [self._frame(i) for i in range(len(self._frames))]
            return {"stackFrames": frames, "totalFrames": len(frames)}
        if command == "variables":
            return {"variables": self._variables.within(arguments["variablesReference"])}
        frame, names = self._named(arguments.get("frameId", arguments.get("srcFrameId")))
        if command == "scopes":
            scopes = {"Locals": self._users(names), "Globals": self._users(frame.f_globals)}
            return {
                "scopes": [
                    {"name": name, "variablesReference": self._variables.number(Names(values)), "expensive": False}
                    for name, values in scopes.items()
                ]
            }
        if command == "evaluate":
            return self._evaluated(arguments["expression"], frame, names)
        if command == "richInspectVariables":
            value = (frame.f_globals | names)[arguments["variableName"]]
            data, metadata = self._shell.display_formatter.format(value)
            return {"data": data, "metadata": metadata}
        if command == "copyToGlobals":
            self._shell.user_ns[arguments["dstVariableName"]] = names[arguments["srcVariableName"]]
            return {}
        raise ValueError(f"{command} is not known to the debugger of ranks")

    def _named(self, number: int | None) -> tuple[FrameType, dict[str, Any]]:
        """A frame, and its variables."""
        stop, i = divmod(self._stops * _OF_A_STOP if number is None else number, _OF_A_STOP)
        if stop != self._stops:
            raise LookupError("the rank has gone on from there")
        return self._frames[i][0], self._frames[i][2]

    def _frame(self, i: int) -> dict[str, Any]:
        frame, line, _ = self._frames[i]
        path, before = self._cells.get(frame.f_code.co_filename, (frame.f_code.co_filename, 0))
        return {
            "id": self._stops * _OF_A_STOP + i,
            "name": frame.f_code.co_name,
            "line": line + before,
            "column": 1,
            "source": {"path": path, "sourceReference": 0},
        }

    def _users(self, names: dict[str, Any]) -> dict[str, Any]:
        """Without what IPython has put there."""
        if names is not self._shell.user_ns:
            return names
        return {k: value for k, value in names.items() if k not in self._shell.user_ns_hidden and k[0] != "_"}

    def _evaluated(self, text: str, frame: FrameType, names: dict[str, Any]) -> dict[str, Any]:
        try:
            code = compile(text, "<evaluated>", "eval")
        except SyntaxError:
            exec(compile(text, "<evaluated>", "exec"), frame.f_globals, names)
            return {"result": "", "variablesReference": 0}
        shown = self._variables.shown(eval(code, frame.f_globals | names))
        return {"result": shown.pop("value"), **shown}

    # --- on the thread of the control channel -------------------------------------------------------------

    def receive(self, request: dict[str, Any], respond: Respond) -> None:
        """The notebook asks something; ``respond`` is called at once, or by the main thread."""
        if request["command"] == "change":
            self.change(request["arguments"])
            return respond({"success": True})
        if request["command"] == "pause":
            self._step = True
            self._look_at_running()
            return respond({"success": True})
        with self._lock:
            if self._stands:
                return self._requests.put((request, respond))
        respond(_refused(_NOT_STOPPED))

    def change(self, told: dict[str, Any]) -> None:
        """The notebook says what is to be stopped at; a rank that stands goes on when the debugger is off."""
        with self._changing:
            if told["changed_ns"] >= self._changed_ns:  # cells and changes come on two channels: the other may be newer
                self._breaks, self._filters, self.is_on = told["breaks"], told["filters"], told["on"]
                self._changed_ns = told["changed_ns"]
            lines = {path: set(found) for path, found in self._breaks.items()}
            for own, (path, before) in list(self._cells.items()):
                if path in self._breaks:
                    lines[own] = {line - before for line in self._breaks[path]}
            self._lines = lines
        self._look_at_running()
        with self._lock:
            if self._stands and not self.is_on:
                self._requests.put(({"command": "continue"}, lambda answer: None))

    def _look_at_running(self) -> None:
        """Functions that have been called before are traced, too, if they are of interest now."""
        for frame in _outward(sys._current_frames().get(threading.main_thread().ident or 0)) if self.is_on else ():
            if frame.f_code.co_filename in self._lines or (self._step and _own(frame.f_code.co_filename)):
                frame.f_trace = self._trace


_OF_A_STOP = 1000  # frames, by which they are numbered


def _own(path: str) -> bool:
    """Is it code that the user wrote? What dataclasses generate has no file."""
    return users_own(path) and not path.startswith("<")


def _outward(frame: FrameType | None) -> Iterable[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _caller(frame: FrameType) -> FrameType | bool:
    """The next frame outwards that is the user's; True for whichever comes next."""
    return next((each for each in _outward(frame.f_back) if _own(each.f_code.co_filename)), True)


def _refused(why: str) -> dict[str, Any]:
    return {"success": False, "message": why, "body": {}}
