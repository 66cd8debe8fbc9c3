"""What a rank's function may change outside of itself: kept, and put back in place.

It is found from the function and its arguments: closures, defaults, and the global names of user's code; through lists,
dicts, sets, arrays, random generators and objects with attributes. What only C code knows is not found, such as where
an iterator stands.
"""

from __future__ import annotations

import operator
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np

from workbench.common.user_line import users_own

Kept = list[tuple[Any, Any, "_Kind"]]
"""Objects, and what was in each."""
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type, np.float64, np.int64})


class Shared:
    """The state of all that some objects lead to.

    Args:
        roots: functions and their arguments.

    Example:
        >>> seen = [1]
        >>> shared = Shared([lambda: seen])
        >>> before = shared.keep()
        >>> seen.append(2)
        >>> shared.restore(before)
        >>> seen
        [1]
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self._roots = list(roots)
        self._last: Kept | None = None

    def keep(self) -> Kept:
        """What there is now; the same object as the last time if nothing has changed since then."""
        if self._last is None or not all(kind.same(content, kind.read(one)) for one, content, kind in self._last):
            self._last = list(self._found())
        return self._last

    def _found(self) -> Iterator[tuple[Any, Any, _Kind]]:
        todo, passed = [*self._roots], list[Any]()  # who has passed is kept, so that its id stays its own
        ids: set[int] = set()
        while todo:
            one = todo.pop()
            if type(one) in _ATOMS or id(one) in ids:
                continue
            ids.add(id(one))
            passed.append(one)
            todo += _leads_to(one)
            if kind := _kind(one):
                yield one, (content := kind.read(one)), kind
                todo += kind.inner(content)

    def restore(self, kept: Kept) -> None:
        """Make everything as it was."""
        for one, content, kind in kept:
            kind.write(one, content)
        self._last = kept


@dataclass(frozen=True)
class _Kind:
    """Objects that can change.

    Args:
        read: a copy of what is in one.
        write: puts it back.
        same: are two copies the same?
        inner: the objects in a copy.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object]
    same: Callable[[Any, Any], bool]
    inner: Callable[[Any], Iterable[Any]] = lambda content: ()


def _each_is(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(map(operator.is_, a, b))


def _same_dicts(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    return len(a) == len(b) and all(map(operator.is_, a, b)) and all(map(operator.is_, a.values(), b.values()))


def _whole(one: Any, content: Any) -> None:
    one[:] = content


def _filled(one: Any, content: Any) -> None:
    one.clear()
    one.update(content)


def _cell_set(one: CellType, content: list[Any]) -> None:
    for each in content:
        one.cell_contents = each


def _cell_read(one: CellType) -> list[Any]:
    try:
        return [one.cell_contents]
    except ValueError:  # not set yet
        return []


def _array_set(one: Any, content: Any) -> None:
    one[...] = content


def _same_arrays(a: Any, b: Any) -> bool:
    if a.dtype == object:
        return _each_is(a.ravel().tolist(), b.ravel().tolist())
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _globals_read(function: FunctionType) -> dict[str, Any]:
    names = _names(function.__code__)
    return {name: function.__globals__[name] for name in names if name in function.__globals__}


_LIST = _Kind(list, _whole, _each_is, list)
_DEQUE = _Kind(list, lambda one, content: (one.clear(), one.extend(content)), _each_is, list)
_DICT = _Kind(dict, _filled, _same_dicts, dict.values)
_SET = _Kind(set, _filled, set.__eq__)
_ARRAY = _Kind(np.copy, _array_set, _same_arrays, lambda content: content.flat if content.dtype == object else ())
_CELL = _Kind(_cell_read, _cell_set, _each_is, list)
_BYTES = _Kind(bytes, _whole, bytes.__eq__)
_RANDOM = _Kind(random.Random.getstate, random.Random.setstate, tuple.__eq__)
_GENERATOR = _Kind(
    lambda one: one.bit_generator.state,
    lambda one, content: setattr(one.bit_generator, "state", content),
    lambda a, b: repr(a) == repr(b),
)
_STATE = _Kind(
    lambda one: one.get_state(legacy=False),
    lambda one, content: one.set_state(content),
    lambda a, b: a["state"]["pos"] == b["state"]["pos"] and np.array_equal(a["state"]["key"], b["state"]["key"]),
)
_OBJECT = _Kind(lambda one: dict(vars(one)), lambda one, content: _filled(vars(one), content), _same_dicts, dict.values)
_GLOBALS = _Kind(_globals_read, lambda one, content: one.__globals__.update(content), _same_dicts, dict.values)
_KINDS: tuple[tuple[type, _Kind], ...] = (
    *((list, _LIST), (dict, _DICT), (set, _SET), (deque, _DEQUE), (bytearray, _BYTES), (CellType, _CELL)),
    *((random.Random, _RANDOM), (np.random.Generator, _GENERATOR), (np.random.RandomState, _STATE)),
    (SimpleNamespace, _OBJECT),
)


def _kind(one: Any) -> _Kind | None:
    if isinstance(one, np.ndarray):
        return _ARRAY if one.flags.writeable else None
    if isinstance(one, FunctionType):
        return _GLOBALS if users_own(one.__code__.co_filename) else None
    return _kind_of(type(one))


@cache
def _kind_of(kind: type) -> _Kind | None:
    for base, found in _KINDS:
        if issubclass(kind, base):
            return found
    top = kind.__module__.partition(".")[0]
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    own = top in ("__main__", "workbench") or (path is not None and users_own(path))
    return _OBJECT if own and kind.__dictoffset__ else None


def _leads_to(one: Any) -> list[Any]:
    """The objects in one that does not change itself."""
    if isinstance(one, FunctionType):
        drawn = [random._inst, np.random.mtrand._rand] if "random" in _names(one.__code__) else []  # type: ignore[attr-defined]
        defaults = [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        return [*(one.__closure__ or ()), *defaults, *drawn]
    if isinstance(one, (tuple, frozenset)):
        return list(one)
    if isinstance(one, MethodType):
        return [one.__self__, one.__func__]
    return [one.func, *one.args, *one.keywords.values()] if isinstance(one, partial) else []


@cache
def _names(code: CodeType) -> frozenset[str]:
    """The global names and attributes in a function, and in those within it."""
    within = (each for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(code.co_names).union(*map(_names, within))


__all__ = ["Kept", "Shared"]
