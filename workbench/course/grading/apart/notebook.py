"""The process that runs a notebook's cells, and calls its functions when the judge asks for it.

Nothing that it says is believed: it says where it is, which cell raised what, and what its functions return.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from workbench.course.grading import cells
from workbench.course.grading.apart import confine
from workbench.course.grading.apart.lanes import GoneError, Lane, LaneConnection, TheirError, Unwound
from workbench.course.grading.apart.remote import KINDS, Proxy, flying, made
from workbench.course.grading.apart.values import MOST_BYTES, NotDataError, Values
from workbench.course.judging import generators
from workbench.course.simulator.deadline import halt

CONTROL = 0
_COURSE = Path(__file__).resolve().parents[2]
_LONGEST = 2000


class Notebook:
    """The notebook's names, its functions, and the connection to the judge.

    Args:
        sock: the connection.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.module = ModuleType("__main__")
        self.functions: dict[str, Callable[..., Any]] = {}
        self._owner = os.getpid()
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._mine = threading.local()
        self._threads: dict[int, threading.Thread] = {}
        self._given_up: list[threading.Thread] = []
        self._calls = 0
        self._records: set[str] = set()  # the judge's dataclasses that have come
        self.wire = LaneConnection(sock, Values(self._outgoing, self._incoming), self.answer, _place)
        self.control = self.wire.open(CONTROL)

    # --- values ---------------------------------------------------------------------------------------

    def _outgoing(self, value: Any, pack: Callable[[Any], Any]) -> dict[str, Any]:
        if isinstance(value, Proxy):
            return {"t": "yours", "v": value._number}
        if (under_way := flying(value)) is not None:
            return {"t": "flying", "v": under_way[0], "a": pack(under_way[1])}
        name = _name(type(value))
        if (module := f"{type(value).__module__}:{type(value).__qualname__}") in self._records:
            return {"t": "record", "c": module, "v": pack(vars(value))}
        if isinstance(value, np.ndarray) and value.dtype == object:
            raise NotDataError("An array of Python objects: give it a dtype of numbers.")
        mine = {"t": "mine", "v": self.number_of(value), "k": name, "f": callable(value)}
        data = None if callable(value) else _pickled(value)
        return mine if data is None else {**mine, "p": pack(data)}

    def number_of(self, value: Any) -> int:
        """What stands for an object that stays here."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def _incoming(self, found: dict[str, Any], unpack: Callable[[Any], Any]) -> Any:
        tag, value = found["t"], found["v"]
        if tag == "yours":
            return self._objects[value]
        if tag == "mine":
            return KINDS[found["k"]](value, found["k"], self.lane, found["n"])
        if tag == "pickled":  # by another rank's function, which is the same notebook's
            return pickle.loads(unpack(value))
        if tag == "record":
            self._records.add(found["c"])
            return _record(found["c"], unpack(value))
        return made(*unpack(value))

    # --- what the judge asks for ----------------------------------------------------------------------

    def lane(self) -> Lane:
        """This thread's.

        Raises:
            RuntimeError: it has none.
        """
        lane: Lane | None = getattr(self._mine, "lane", None)
        if lane is None:
            raise RuntimeError("comm and hvd belong to the thread that the function was called in")
        return lane

    def strange(self, number: int, op: str, fields: dict[str, Any], blobs: memoryview) -> None:
        """A new lane, or the end of one."""
        thread = self._threads.get(number)
        if op == "unwind":
            lane = self.wire._lanes.get(number)
            self.wire.close(number)
            if lane is not None and thread is not None:
                lane.inbox.put(None)
                halt(thread.ident)
                self._given_up.append(thread)
            return
        lane = self.wire.open(number)
        lane.inbox.put(({"lane": number, "op": op, "f": fields}, blobs))
        self._threads[number] = threading.Thread(target=self._serve, args=(lane,), daemon=True)
        self._threads[number].start()

    def _serve(self, lane: Lane) -> None:
        self._mine.lane = lane
        try:
            while True:
                lane.answer(*lane.receive())
                lane.flying.clear()
        except (GoneError, Unwound):
            pass
        except BaseException:  # noqa: BLE001 - Halt, which ended a learner's function
            pass

    def answer(self, lane: Lane, op: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Call a function, look a name up that it can see, or count the calls that were given up and still run."""
        if op == "busy":
            return {"value": sum(one.is_alive() for one in self._given_up)}
        function = self._objects[asked["of"]]
        if op == "name":
            return {"value": getattr(function, "__globals__", {}).get(asked["name"])}
        args, options = asked["args"], asked["options"]
        before = [self._text(one) for one in args]
        drawn = self._generator()
        try:
            value = function(*args, **options)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            raise _ended(error) from error
        if os.getpid() != self._owner:
            os._exit(0)
        after = [self._text(one) for one in args]
        drew = [name for name, state in generators.states().items() if state != drawn.get(name)]
        return {"value": value, "changed": list(args) if before != after else None, "drew": drew}

    def _generator(self) -> dict[str, Any]:
        """The states of the generators of all code, which are other ones in each call, so that their use is seen."""
        self._calls += 1
        generators.seed(self._calls)
        return generators.states()

    def _text(self, value: Any) -> Any:
        """Equal if nothing in a value has changed."""
        if not isinstance(value, (list, dict, set, tuple, np.ndarray)):
            return None
        blobs = bytearray()
        try:
            return repr(self.wire.values.pack(value, blobs)), bytes(blobs)
        except NotDataError:
            return None

    # --- the cells ------------------------------------------------------------------------------------

    def run(self, sources: list[str], stops: dict[int, int]) -> None:
        """All cells, then wait for the judge's calls."""
        sys.modules["__main__"] = self.module
        cells.disarm(self.module.__dict__, lambda name, letter: self.control.send("cause", {"of": [name, letter]}))
        for number, source in enumerate(sources, 1):
            text = cells.run_cell(number, source, stops.get(number), self.module, self._at)
            if text:
                self.control.send("raised", {"cell": number, "text": text[:_LONGEST]})
        self.control.send("ready", {"functions": self._handed_in()})

    def _at(self, cell: int, statement: int) -> None:
        self.control.send("at", {"cell": cell, "statement": statement})

    def _handed_in(self) -> dict[str, Any]:
        from workbench.course import exercise
        from workbench.course.judging.task import is_blank

        found = {}
        for name, function in exercise.BOARD.functions.items():
            code = getattr(function, "__code__", None)
            found[name] = {
                "number": self.number_of(function),
                "blank": is_blank(function),
                "imported": code is not None and code.co_filename.startswith(str(_COURSE)),
                "parameters": _parameters(function),
            }
        return found


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _ended(error: BaseException) -> Exception:
    """What stands for SystemExit and its like, which must not end this thread."""
    return TheirError(type(error).__name__, str(error))


def _pickled(value: Any) -> bytes | None:
    """An object of the learner's own kind, for the case that it is sent; None if it cannot be."""
    try:
        data = pickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever their own __reduce__ raises
        return None
    return data if len(data) <= MOST_BYTES // 2 else None


def _name(kind: type) -> str:
    return str(getattr(kind, "__name__", "object"))[:80]


def _place(error: BaseException) -> str:
    return "\n".join(cells.described(error).split("\n")[1:])


def _record(name: str, values: dict[str, Any]) -> Any:
    """An object of one of the judge's dataclasses."""
    again: Any = object.__new__(_class(name))
    for key, value in values.items():
        object.__setattr__(again, key, value)
    return again


@cache
def _class(name: str) -> type:
    module, _, kind = name.partition(":")
    found: Any = import_module(module)
    for part in kind.split("."):
        found = getattr(found, part)
    assert isinstance(found, type)
    return found


def main() -> None:
    """``python -m workbench.course.grading.apart.notebook DESCRIPTOR FOLDER``: the connection, and where to work."""
    from workbench.course import exercise, tasks

    exercise.BOARD.path = Path(sys.argv[2]) / "progress.json"
    tasks.names()  # imported while an error of this process can still be read
    sock = socket.socket(fileno=int(sys.argv[1]))
    notebook = Notebook(sock)
    notebook.wire.listen(notebook.strange)
    _, asked = notebook.control.receive()
    os.chdir(sys.argv[2])
    unbounded = confine.confine(Path(sys.argv[2]), confine.ProcessLimits(**asked["limits"]))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    notebook.control.send("confined", {"unbounded": unbounded})
    notebook.run(asked["cells"], {int(cell): stop for cell, stop in asked["stops"].items()})
    notebook.wire.gone.wait()
    os._exit(0)  # not waiting for threads that the notebook has left


if __name__ == "__main__":
    main()
