"""The judge's end of a notebook's process: it starts it, calls learners' functions there, and serves ``comm``."""

from __future__ import annotations

import dis
import inspect
import marshal
import secrets
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from workbench.core.verbs import VERBS
from workbench.course.grading.apart.lanes import GoneError, Lane, LaneConnection
from workbench.course.grading.apart.values import NotDataError, ProtocolError, Values
from workbench.course.judging import generators
from workbench.course.simulator.comm import Comm
from workbench.course.simulator.communicator import Communicator, Pending
from workbench.course.simulator.deadline import Halt
from workbench.job.context import HOLDER

_PRIMITIVES = {"post_send", "post_recv", "finish"}  # they take the name of the verb on trust
_COMM = frozenset(name for name in (*vars(Communicator), *vars(Comm)) if not name.startswith("_")) - _PRIMITIVES
_REQUEST = frozenset({"wait", "test"})
_OF_RANKS = (
    "rank",
    "size",
    "local_rank",
    "local_size",
    "cross_rank",
    "cross_size",
    "is_initialized",
    "init",
    "shutdown",
)
_CONSTANTS = ("Sum", "Average", "Min", "Max", "Product", "Adasum")
_HVD = frozenset((*_OF_RANKS, *_CONSTANTS, "synchronize", "poll", "fingerprint", "join", "barrier"))
_HVD_FORMS = ("", "_", "_async", "_async_")
_ALLOWED = {"comm": _COMM, "request": _REQUEST, "function": frozenset({"__call__"}), "opaque": frozenset[str]()}
_GIVEN = "workbench.course.tasks."  # objects made for learners' functions, with public methods
_MOST_OBJECTS = 2_000_000
_PURE = (bool, int, float, str, type(None))


def _hvd_names() -> frozenset[str]:
    return _HVD | {f"{verb.name.lower()}{form}" for verb in VERBS for form in _HVD_FORMS}


class LearnerObject:
    """An object of the learner's own kind: it can only be handed back to its process.

    A message takes its pickle, as between real ranks: the judge passes that on, and its size counts.

    Args:
        number: in its process; None of a copy that a message has brought.
        name: of its class.
        owner: its process.
        data: its pickle, made in a notebook's process and read in one; None if it has none.
    """

    def __init__(self, number: int | None, name: str, owner: NotebookWorker | None, data: bytes | None) -> None:
        self.number, self.name, self.owner, self.data = number, name, owner, data

    def __repr__(self) -> str:
        return f"<a {self.name}>"

    def __reduce__(self) -> Any:
        if self.data is None:
            raise TypeError(f"a {self.name} cannot be pickled, so no rank can send it")
        return LearnerObject, (None, self.name, None, self.data)


class Exposed:
    """The judge's objects that a notebook's process may name, each with what may be done with it.

    Args:
        owner: that process.
    """

    def __init__(self, owner: NotebookWorker) -> None:
        self._owner = owner
        self._of: list[tuple[Any, str]] = []
        self._known: dict[int, int] = {}
        self._classes: dict[str, type] = {}

    def entry(self, value: Any) -> dict[str, Any]:
        """What stands for an object.

        Raises:
            NotDataError: nothing can.
        """
        if isinstance(value, (LearnerObject, LearnersFunction)) and value.owner is self._owner:
            return {"t": "yours", "v": value.number}
        if isinstance(value, (LearnerObject, LearnersFunction)):
            raise NotDataError("A function, or an object without a pickle, cannot go from one rank to another.")
        kind, data = self._kind(value)
        number = self._known.get(id(value))
        if number is None:
            if len(self._of) >= _MOST_OBJECTS:
                raise NotDataError("There are too many objects.")
            number = self._known[id(value)] = len(self._of)
            self._of.append((value, kind))
        return {"t": "mine", "v": number, "k": kind, "n": data}

    @staticmethod
    def _kind(value: Any) -> tuple[str, dict[str, Any]]:
        if isinstance(value, Communicator):
            return "comm", {"rank": value.rank, "size": value.size}
        if isinstance(value, Pending):
            return "request", {}
        if hasattr(type(value), "init") or isinstance(value, types.ModuleType):
            return "hvd", {}
        if type(value).__module__.startswith(_GIVEN) and not isinstance(value, Enum) and not callable(value):
            return "given", {}
        if callable(value) and not isinstance(value, type):
            return "function", {"__name__": getattr(value, "__name__", "function")}
        if isinstance(value, Enum) or type(value).__module__.startswith("workbench"):
            return "opaque", {}
        raise NotDataError(f"A {type(value).__name__} cannot leave the judge. Its task needs live=True.")

    def __getitem__(self, number: Any) -> tuple[Any, str]:
        if not isinstance(number, int) or not 0 <= number < len(self._of):
            raise ProtocolError("A number that stands for nothing.")
        return self._of[number]

    def record(self, value: Any) -> dict[str, Any] | None:
        """The name and the fields of one of our dataclasses that never change; None if it is none."""
        kind = type(value)
        if not _frozen(value) or not kind.__module__.startswith("workbench"):
            return None
        name = f"{kind.__module__}:{kind.__qualname__}"
        self._classes[name] = kind
        return {"t": "record", "c": name, "v": {one.name: getattr(value, one.name) for one in fields(value)}}

    def class_of(self, name: Any) -> type:
        """A class whose objects were sent before; no other can be named."""
        if name not in self._classes:
            raise ProtocolError("A class that stands for nothing.")
        return self._classes[name]


class NotebookWorker:
    """A notebook's process, seen by the judge.

    Attributes:
        wire: the connection; set by whoever starts the process.
        exposed: what it may name.
        used: verbs that its functions have called, such as ``comm.send``.
    """

    wire: LaneConnection

    def __init__(self) -> None:
        self.exposed = Exposed(self)
        self.used: set[str] = set()
        self._mine = threading.local()
        self._number = 0
        self._counting = threading.Lock()
        self.values = Values(self._outgoing, self._incoming)
        self._hvd = _hvd_names()

    # --- values ---------------------------------------------------------------------------------------

    def _outgoing(self, value: Any, pack: Callable[[Any], Any]) -> dict[str, Any]:
        if isinstance(value, LearnerObject) and value.owner is not self and value.data is not None:
            return {"t": "pickled", "v": pack(value.data)}
        record = self.exposed.record(value)
        if record is not None:
            return {**record, "v": pack(record["v"])}
        if isinstance(value, types.FunctionType) and (closed := _pure(value)) is not None:
            code = marshal.dumps(value.__code__)
            return {"t": "code", "v": pack((code, value.__module__, value.__name__, closed, value.__defaults__))}
        return self.exposed.entry(value)

    def _incoming(self, found: dict[str, Any], unpack: Callable[[Any], Any]) -> Any:
        tag, value = found["t"], found.get("v")
        if tag == "yours":
            return self.exposed[value][0]
        if tag == "mine" and isinstance(value, int):
            name = str(found.get("k"))[:80]
            if found.get("f"):
                return LearnersFunction(self, value, name)
            data = unpack(found["p"]) if "p" in found else None
            return LearnerObject(value, name, self, data if isinstance(data, bytes) else None)
        if tag == "record":
            return self.exposed.class_of(found.get("c"))(**unpack(value))
        if tag == "flying" and isinstance(value, int):
            array = unpack(found["a"])
            self.lane().flying[value] = [array, array.copy()]
            return array
        raise ProtocolError("A value of no known kind.")

    # --- calls ----------------------------------------------------------------------------------------

    def lane(self) -> Lane:
        lane: Lane | None = getattr(self._mine, "lane", None)
        if lane is None or lane.wire is not self.wire:
            with self._counting:
                self._number += 1
                lane = self._mine.lane = self.wire.open(self._number)
        return lane

    def call(self, number: int, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Call one of the notebook's functions. What it changes in its arguments is changed here, too."""
        lane = self.lane()
        try:
            got = lane.ask("call", of=number, args=list(args), options=dict(options))
        except Halt:  # a deadlock or a deadline
            self._give_up(lane)
            raise
        for old, new in zip(args, got.get("changed") or (), strict=False):
            _become(old, new)
        for name in got.get("drew") or ():  # generators of all code, which are this process's, too, where there is one
            generators.draw(str(name))
        return got.get("value")

    def _give_up(self, lane: Lane) -> None:
        self._mine.lane = None
        with suppress(GoneError):
            self.wire.unwind(lane.number)

    def answer(self, lane: Lane, op: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Do what a learner's function asks for."""
        value, kind = self.exposed[asked.get("of")]
        if op == "attribute":
            return self._attribute(value, kind, str(asked.get("name")))
        verb, args, options = asked.get("verb"), asked.get("args"), asked.get("options")
        allowed = self._allowed(value, kind)
        if op != "do" or verb not in allowed or not isinstance(args, tuple) or not isinstance(options, dict):
            raise AttributeError(f"{kind} has no {str(verb)[:80]!r} when it is graded")
        self._fly(lane, asked.get("flying"), asked.get("changed"))
        self.used.add(f"{kind}.{verb}")
        done = getattr(value, verb) if verb != "__call__" else value
        result = done(*args, **options) if callable(done) else done
        return {"value": result, "changed": lane.changed()}

    @staticmethod
    def _fly(lane: Lane, under_way: Any, changed: Any) -> None:
        """Forget the arrays that are no longer under way; change the others as the learner has."""
        for number in [number for number in lane.flying if number not in (under_way or ())]:
            del lane.flying[number]
        for number, array in (changed or {}).items():
            if number in lane.flying and lane.flying[number][0].shape == array.shape:
                lane.flying[number][0][...] = array

    def _allowed(self, value: Any, kind: str) -> frozenset[str]:
        """What may be done with an object, by name."""
        if kind == "given":
            return frozenset(name for name in (*vars(value), *vars(type(value))) if not name.startswith("_"))
        return self._hvd if kind == "hvd" else _ALLOWED[kind]

    def _attribute(self, value: Any, kind: str, name: str) -> dict[str, Any]:
        if kind not in ("hvd", "given") or name not in self._allowed(value, kind):
            raise AttributeError(f"{kind} has no {name[:80]!r} when it is graded")
        found = getattr(value, name)
        return {} if callable(found) and not isinstance(found, Enum) else {"value": found}


class LearnersFunction:
    """A function of a notebook's process, as the judge calls it."""

    def __init__(self, worker: NotebookWorker, number: int, name: str, parameters: Sequence[str] = ()) -> None:
        self.owner, self.number, self.__name__ = worker, number, name
        fitting = [one for one in parameters if isinstance(one, str) and one.isidentifier()]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        with_names = [inspect.Parameter(one, kind) for one in dict.fromkeys(fitting)]
        self.__signature__ = inspect.Signature(with_names)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.owner.call(self.number, args, options)

    @property
    def __globals__(self) -> Mapping[str, Any]:
        return _Names(self.owner, self.number)


class OnRanks:
    """A function of two processes that know nothing of each other, as the judge calls it.

    Which of them a rank runs in is drawn for each run, and no two processes have all ranks: what one rank learns of
    another comes by a message, or not at all.

    Args:
        here, there: the function, in either process.
    """

    def __init__(self, here: LearnersFunction, there: LearnersFunction) -> None:
        self._both, self.__name__, self.__signature__ = (here, there), here.__name__, here.__signature__
        self._drawn: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self._drawing = threading.Lock()

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._both[self._side(args)](*args, **options)

    @property
    def __globals__(self) -> Mapping[str, Any]:
        return self._both[0].__globals__

    def _side(self, args: Sequence[Any]) -> int:
        """Of the rank whose thread this is; without ranks it is the first."""
        comm: Any = next((one for one in args if isinstance(one, Communicator)), None)
        while comm is not None and hasattr(comm, "comm"):
            comm = comm.comm
        if comm is not None:
            return self._sides(comm._world, comm.size)[int(comm.rank)]
        context = HOLDER.own()
        if context is None:
            return 0
        there: Any = context.bootstrap  # of threads: what their ranks share
        return self._sides(there.mailboxes, context.world.size)[context.rank]

    def _sides(self, run: Any, size: int) -> list[int]:
        """By rank, for one run."""
        with self._drawing:
            found = self._drawn.get(run)
            if found is None:
                found = self._drawn[run] = [secrets.randbelow(2) for _ in range(size)]
                if size > 1 and len(set(found)) == 1:
                    found[secrets.randbelow(size)] ^= 1
        return found


class _Names(Mapping[str, Any]):
    """The functions that a learner's function can see, by name."""

    def __init__(self, worker: NotebookWorker, number: int) -> None:
        self._worker, self._number = worker, number

    def __getitem__(self, name: str) -> Any:
        found = self._worker.lane().ask("name", of=self._number, name=name).get("value")
        if not isinstance(found, LearnersFunction):
            raise KeyError(name)
        return found

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


def _pure(function: types.FunctionType) -> tuple[Any, ...] | None:
    """What a function of the course has closed over, if it is numbers and the like; None if it must stay here."""
    if not function.__module__.startswith("workbench.") or function.__kwdefaults__:
        return None
    closed = tuple(cell.cell_contents for cell in function.__closure__ or ())
    if any("STORE_DEREF" in one.opname for one in dis.get_instructions(function)):
        return None
    plain = all(isinstance(one, _PURE) or _frozen(one) or _is_pure(one) for one in closed)
    return closed if plain else None


def _is_pure(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and _pure(value) is not None


def _frozen(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _become(old: Any, new: Any) -> None:
    """Change an argument in place into what a learner's function has made of its own."""
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        if old.shape == new.shape and old.dtype == new.dtype and old.flags.writeable:
            old[...] = new
    elif isinstance(old, (list, tuple)) and type(new) is type(old) and len(old) == len(new):
        for i, (mine, theirs) in enumerate(zip(old, new, strict=True)):
            if isinstance(mine, (list, tuple, dict, np.ndarray)) and type(mine) is type(theirs):
                _become(mine, theirs)
            elif isinstance(old, list):
                old[i] = theirs
    elif isinstance(old, list) and isinstance(new, list):
        old[:] = new
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in [key for key in old if key not in new]:
            del old[key]
        for key, theirs in new.items():
            if key in old and isinstance(old[key], (list, dict, np.ndarray)) and type(old[key]) is type(theirs):
                _become(old[key], theirs)
            else:
                old[key] = theirs
