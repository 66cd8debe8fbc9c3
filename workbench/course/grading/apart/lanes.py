"""Calls between the judge and a notebook's process, both ways: each thread of the judge has a lane of its own.

On a lane only one side speaks at a time. Who has asked waits for the answer, and answers what it is asked meanwhile::

    judge      call ring_allreduce(comm, x) ─▶          ◀─ verb comm.sendrecv(…)     answer ─▶       ◀─ return
    notebook                                   runs it                      waits              goes on

When the judge gives a call up, because of a deadlock or a deadline, its lane ends on both sides.
"""

from __future__ import annotations

import builtins
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from workbench.course.grading.apart.values import NotDataError, ProtocolError, Values, receive, send
from workbench.errors import WorkbenchError

_POLL_S = 0.05  # a thread that waits can be halted that often
_LONGEST = 2000
Handler = Callable[["Lane", str, dict[str, Any]], dict[str, Any]]


class GoneError(WorkbenchError):
    """The other process has ended, or was ended."""


class Unwound(BaseException):
    """The judge has given up the call that this thread is in; no ``except Exception`` of the learner's catches it."""


class Lane:
    """One thread's calls.

    Args:
        wire: shared by all lanes.
        number: of the lane.
    """

    def __init__(self, wire: LaneConnection, number: int) -> None:
        self.wire, self.number = wire, number
        self.inbox: queue.SimpleQueue[tuple[dict[str, Any], memoryview] | None] = queue.SimpleQueue()
        self.until = float("inf")  # no answer later than that
        self.known: dict[int, BaseException] = {}  # errors of this side that the other one was told
        self.flying: dict[int, Any] = {}  # arrays under way, see remote.py: [the array, as the other side knows it]

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask the other side, and answer what it asks until it has answered.

        Raises:
            GoneError: there is no other side any more.
            Exception: what the other side has raised.
        """
        self.send(op, fields)
        while True:
            op, fields = self.receive()
            if op == "return":
                return fields
            if op == "raise":
                raise self._error(fields)
            self.answer(op, fields)

    def answer(self, op: str, fields: dict[str, Any]) -> None:
        """Do what the other side asks for, and answer."""
        try:
            found = self.wire.handle(self, op, fields)
        except Exception as error:  # noqa: BLE001 - the asker's to handle
            self.send("raise", self.error_fields(error))
            return
        try:
            self.send("return", found)
        except NotDataError as error:
            self.send("raise", self.error_fields(error))

    def changed(self) -> dict[int, Any]:
        """Of the arrays under way, those that this side has changed since the other one has seen them."""
        found = {}
        for number, one in self.flying.items():
            array, seen = one
            if array.tobytes() != seen.tobytes():
                found[number] = one[1] = array.copy()
        return found

    def send(self, op: str, fields: dict[str, Any]) -> None:
        blobs = bytearray()
        packed = {name: self.wire.values.pack(value, blobs) for name, value in fields.items()}
        self.wire.send({"lane": self.number, "op": op, "f": packed}, blobs)

    def receive(self) -> tuple[str, dict[str, Any]]:
        """The next message of this lane.

        Raises:
            GoneError, Unwound: there will be none.
        """
        while True:
            try:
                got = self.inbox.get(timeout=_POLL_S)
            except queue.Empty:
                if self.wire.gone.is_set() or time.monotonic() > self.until:
                    raise GoneError(self.wire.why) from None
                continue
            if got is None:
                raise Unwound
            message, blobs = got
            op, fields = message.get("op"), message.get("f")
            if not isinstance(op, str) or not isinstance(fields, dict):
                raise ProtocolError("A message without a verb.")
            return op, {name: self.wire.values.unpack(value, blobs) for name, value in fields.items()}

    # --- exceptions, as data --------------------------------------------------------------------------

    def error_fields(self, error: BaseException) -> dict[str, Any]:
        """An exception as fields; its own kind of text is kept, not the object."""
        self.known[id(error)] = error
        try:
            text = str(error)[:_LONGEST]
        except Exception:  # noqa: BLE001 - a learner's exception may be unable to say what it is
            text = ""
        kind = "NotImplementedError" if isinstance(error, NotImplementedError) else kind_of(error)
        theirs = getattr(error, "theirs", None)
        return {"kind": kind, "text": text, "mine": id(error), "yours": theirs, "place": self.wire.place(error)}

    def _error(self, fields: dict[str, Any]) -> BaseException:
        """The exception of those fields: this side's own, if it has come back, else one of the same name."""
        yours = fields.get("yours")
        if isinstance(yours, int) and yours in self.known:
            return self.known[yours]
        error = named(str(fields.get("kind", "")), str(fields.get("text", "")))
        error.place = str(fields.get("place", ""))[:_LONGEST]  # type: ignore[attr-defined]
        error.theirs = fields.get("mine")  # type: ignore[attr-defined]
        return error


def named(kind: str, text: str) -> BaseException:
    """An exception of this name: Python's or the workbench's own, else one that says it.

    Example:
        >>> named("ValueError", "no"), kind_of(named("Odd", "no"))
        (ValueError('no'), 'Odd')
        >>> isinstance(named("KeyboardInterrupt", ""), Exception)  # it must not end who reads it
        True
    """
    from workbench import errors

    own = getattr(builtins, kind, None) or getattr(errors, kind, None)
    fits = isinstance(own, type) and issubclass(own, (Exception, SystemExit))
    try:
        if fits and own is not None:
            found: BaseException = own(text)
            return found
    except Exception:  # noqa: BLE001 - some take more arguments than a text
        pass
    return TheirError(kind, text)


class TheirError(Exception):
    """An exception of a kind that is not known on this side.

    Args:
        kind: the name of its class.
        text: what it says.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.told_as = kind if kind.isidentifier() and len(kind) < 80 else "Error"


def kind_of(error: BaseException) -> str:
    """The name of an exception's class, where it was raised."""
    return error.told_as if isinstance(error, TheirError) else type(error).__name__


class LaneConnection:
    """The connection, its lanes, and the thread that reads.

    Args:
        sock: the connection.
        values: how values travel.
        handle: does what the other side asks for.
        place: the learner's line of an exception.

    Attributes:
        gone: set when the connection has ended.
        why: in some words.
    """

    def __init__(self, sock: socket.socket, values: Values, handle: Handler, place: Callable[[BaseException], str]):
        self._sock, self.values, self.handle, self.place = sock, values, handle, place
        self.gone, self.why = threading.Event(), "The process with the notebook has ended."
        self._sending = threading.Lock()
        self._lanes: dict[int, Lane] = {}

    def send(self, message: dict[str, Any], blobs: bytearray) -> None:
        """Send a frame.

        Raises:
            GoneError: nobody is there any more.
        """
        try:
            with self._sending:
                send(self._sock, message, blobs)
        except OSError:
            self.end("")
            raise GoneError(self.why) from None

    def open(self, number: int) -> Lane:
        self._lanes[number] = lane = Lane(self, number)
        return lane

    def close(self, number: int) -> None:
        """No more messages of this lane."""
        self._lanes.pop(number, None)

    def unwind(self, number: int) -> None:
        """End what runs on a lane of the other side."""
        self.close(number)
        if not self.gone.is_set():
            self.send({"lane": number, "op": "unwind", "f": {}}, bytearray())

    def listen(self, strange: Callable[[int, str, dict[str, Any], memoryview], None]) -> None:
        """Read until the connection ends, in a thread of its own.

        Args:
            strange: gets what belongs to no open lane: lane, verb, fields as JSON, bytes.
        """
        threading.Thread(target=self._read, args=(strange,), name="wire", daemon=True).start()

    def _read(self, strange: Callable[[int, str, dict[str, Any], memoryview], None]) -> None:
        why = ""
        try:
            while True:
                message, blobs = receive(self._sock)
                number, op, fields = message.get("lane"), message.get("op"), message.get("f")
                if not (isinstance(number, int) and isinstance(op, str) and isinstance(fields, dict)):
                    raise ProtocolError("A message without lane, verb or fields.")
                lane = self._lanes.get(number)
                if lane is None or op == "unwind":
                    strange(number, op, fields, blobs)
                elif lane.inbox.qsize() > 1:  # one side speaks at a time
                    raise ProtocolError("A second message where an answer was due.")
                else:
                    lane.inbox.put((message, blobs))
        except EOFError:
            pass
        except ProtocolError as error:
            why = str(error)
        finally:
            self.end(why)

    def end(self, why: str) -> None:
        if why:
            self.why = f"The process with the notebook has written to its grader's connection: {why}"
        self.gone.set()
