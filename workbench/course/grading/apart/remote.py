"""In a notebook's process: what a learner's function gets in the place of the judge's own objects.

``comm`` and ``hvd`` themselves stay with the judge. A call such as ``comm.sendrecv(x, dest=1)`` is made there, by the
thread of its rank; what is sent and received travels as data. Upper-case verbs and those that end with ``_`` change
arrays in place: after each call the arrays that the judge's side has changed are changed here, and before it the other
way round, so that an array that is overwritten before ``wait()`` is noticed.
"""

from __future__ import annotations

import marshal
import types
from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np

from workbench.course.grading.apart.lanes import Lane
from workbench.course.simulator.communicator import keep_apart

Array = np.ndarray[Any, Any]


class Proxy:
    """Stands for an object of the judge's."""

    _lane_of: Callable[[], Lane]

    def __init__(self, number: int, kind: str, lane_of: Callable[[], Lane], data: Mapping[str, Any]) -> None:
        self.__dict__.update(data)
        self._number, self._kind, self._lane_of = number, kind, lane_of

    def _do(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        lane = self._lane_of()
        fields: dict[str, Any] = {"of": self._number, "verb": verb, "args": args, "options": options}
        return self._asked(lane, fields)

    def _asked(self, lane: Lane, fields: dict[str, Any]) -> Any:
        fields["flying"], fields["changed"] = list(lane.flying), lane.changed()
        got = lane.ask("do", **fields)
        for number, array in got.get("changed", {}).items():
            if number in lane.flying:
                lane.flying[number][0][...] = array
                lane.flying[number][1] = array
        return got.get("value")

    def __reduce__(self) -> Any:
        raise TypeError("this belongs to its rank and cannot be sent")


class Opaque(Proxy):
    """A constant, or a handle: it can only be handed back."""

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other._number == self._number


class RemoteFunction(Proxy):
    """A function of the judge's."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._do("__call__", args, options)


class RemoteModule(Proxy):
    """``hvd``, and objects of a task: the methods and values that the judge lets through."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = self._lane_of().ask("attribute", of=self._number, name=name)
        if "value" in found:
            self.__dict__[name] = found["value"]
            return found["value"]

        def verb(*args: Any, **options: Any) -> Any:
            return self._do(name, args, options) if not name.endswith("_") else self._in_place(name, args, options)

        return verb

    def _in_place(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        result = self._do(name, args, options)
        target = next((one for one in (*args, *options.values()) if isinstance(one, np.ndarray)), None)
        if target is None or not isinstance(result, np.ndarray):
            return result
        target[...] = result
        return target


class RemoteGiven(RemoteModule):
    """An object of a task; if it is a file, ``open(path)`` and ``np.loadtxt(path)`` find its text here."""

    def __fspath__(self) -> str:
        folder = self.__dict__.setdefault("_folder", TemporaryDirectory())
        path = Path(folder.name, "given.txt")
        path.write_text(self.read_text())
        return str(path)

    def open(self, mode: str = "r") -> IO[Any]:
        return Path(self).open(mode)


class RemoteComm(Proxy):
    """``comm``: every verb is made by the judge."""

    rank: int
    size: int

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("now", "members"):
            return self._do(name, (), {})

        def verb(*args: Any, **options: Any) -> Any:
            link = name == "sendrecv" and len(args) == 4 and (args[0] is None or isinstance(args[2], np.ndarray))
            if link or name[:1].isupper():
                return self._with_arrays(name, args, options)
            return self._do(name, args, options)

        return verb

    def _with_arrays(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A verb that sends from, and receives into, the caller's own arrays."""
        lane, mine = self._lane_of(), []
        arrays = [one for one in (*args, *options.values()) if isinstance(one, np.ndarray)]
        for one, other in pairwise(arrays) if name[0].isupper() else ():
            keep_apart(one, other, name)  # copies, which the judge gets, are always apart

        def flown(value: Any) -> Any:
            array = value[0] if isinstance(value, (list, tuple)) and len(value) else value
            if not isinstance(array, np.ndarray) or array.dtype == object:
                return value
            if not array.flags.c_contiguous or (name[0] != "s" and not array.flags.writeable and name != "Send"):
                return value
            number = max(lane.flying, default=0) + 1
            lane.flying[number] = [array, array.copy()]
            mine.append(number)
            return _Flying(number, array)

        fields: dict[str, Any] = {"of": self._number, "verb": name}
        fields["args"] = tuple(map(flown, args))
        fields["options"] = {key: flown(value) for key, value in options.items()}
        try:
            result = self._asked(lane, fields)
        except BaseException:
            _land(lane, mine)
            raise
        if isinstance(result, RemoteRequest):
            result.__dict__["_arrays"] = mine
        else:
            _land(lane, mine)
        return result


class RemoteRequest(Proxy):
    """What ``isend`` and ``irecv`` return."""

    def wait(self) -> Any:
        try:
            return self._do("wait", (), {})
        finally:
            _land(self._lane_of(), self.__dict__.get("_arrays", ()))

    def test(self) -> Any:
        done, value = self._do("test", (), {})
        if done:
            _land(self._lane_of(), self.__dict__.get("_arrays", ()))
        return done, value

    Wait, Test = wait, test


class _Flying:
    """An array that belongs to a message under way, with its number."""

    def __init__(self, number: int, array: Array) -> None:
        self.number, self.array = number, array


def flying(value: Any) -> tuple[int, Array] | None:
    """Number and contents of an array under way; None of anything else."""
    return (value.number, value.array) if isinstance(value, _Flying) else None


def _land(lane: Lane, numbers: Any) -> None:
    for number in numbers:
        lane.flying.pop(number, None)


KINDS: dict[str, type[Proxy]] = {
    "comm": RemoteComm,
    "request": RemoteRequest,
    "hvd": RemoteModule,
    "given": RemoteGiven,
    "function": RemoteFunction,
    "opaque": Opaque,
}


def made(code: bytes, module: str, name: str, closure: tuple[Any, ...], defaults: Any) -> Any:
    """A function that the judge has sent whole, because calling it there would be slow: its own, never a learner's."""
    cells = tuple(types.CellType(value) for value in closure)
    return types.FunctionType(marshal.loads(code), vars(import_module(module)), name, defaults, cells)
