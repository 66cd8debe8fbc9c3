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
from functools import cache, cached_property, partial
from types import CellType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np

from workbench.common.user_line import users_own
from workbench.course.simulator.comm import Comm
from workbench.course.simulator.request import Request

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type, np.float64, np.int64})


class Kept(list[tuple[Any, Any, "_Kind"]]):
    """Objects, and what was in each."""

    @cached_property
    def ids(self) -> frozenset[int]:
        """Of the objects, which live as long as this."""
        return frozenset(id(one) for one, _, _ in self)


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
        if self._last is None or not all(kind.same(content, one) for one, content, kind in self._last):
            self._last = Kept(self._found())
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

    def restore(self, kept: Kept, begin: Kept | None = None, since: Kept | None = None) -> None:
        """Make everything as it was.

        Args:
            kept: when.
            begin, since: there is now what there was at ``since``, but what was made from ``begin`` on has been made
                once more. The new ones take the places of the old ones.
        """
        if begin is not None and since is not None and not since.ids <= begin.ids and (new := self._made_again(since)):
            kept = Kept((new.get(id(one), one), _exchanged(content, new), kind) for one, content, kind in kept)
        for one, content, kind in kept:
            kind.write(one, content)
        self._last = kept

    def _made_again(self, since: Kept) -> dict[int, Any]:
        """By the id of an old object, the new one in its place."""
        contents = {id(one): content for one, content, _ in since}
        todo, found, passed = [(root, root) for root in self._roots], dict[int, Any](), set[int]()
        while todo:
            old, new = todo.pop()
            if type(old) in _ATOMS or type(old) is not type(new) or id(old) in passed:
                continue
            passed.add(id(old))
            if old is not new:
                found[id(old)] = new
            todo += zip(_leads_to(old), _leads_to(new), strict=False)
            kind = _kind(old)
            if kind and id(old) in contents:
                todo += zip(kind.inner(contents[id(old)]), kind.inner(kind.read(new)), strict=False)
        return found


def _exchanged(content: Any, new: dict[int, Any]) -> Any:
    if isinstance(content, list):
        return [new.get(id(each), each) for each in content]
    if isinstance(content, dict):
        return {name: new.get(id(each), each) for name, each in content.items()}
    return content


@dataclass(frozen=True)
class _Kind:
    """Objects that can change.

    Args:
        read: a copy of what is in one.
        write: puts it back.
        same: is a copy still what is in one?
        inner: the objects in a copy.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object]
    same: Callable[[Any, Any], bool]
    inner: Callable[[Any], Iterable[Any]] = lambda content: ()


def _each_is(a: Any, b: Any) -> bool:
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
    return a.shape == b.shape and bool((_bits(a) == _bits(b)).all())


def _bits(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _globals_read(function: FunctionType) -> dict[str, Any]:
    names = _names(function.__code__)
    return {name: function.__globals__[name] for name in names if name in function.__globals__}


def _same_globals(content: dict[str, Any], function: FunctionType) -> bool:
    return _same_dicts(content, _globals_read(function))


_KINDS: tuple[tuple[type, _Kind], ...] = (
    (list, _Kind(list, _whole, _each_is, list)),
    (deque, _Kind(list, lambda one, content: (one.clear(), one.extend(content)), _each_is, list)),
    (dict, _Kind(dict, _filled, _same_dicts, dict.values)),
    (set, _Kind(set, _filled, operator.eq)),
    (bytearray, _Kind(bytes, _whole, operator.eq)),
    (
        np.ndarray,
        _Kind(np.copy, _array_set, _same_arrays, lambda content: content.flat if content.dtype == object else ()),
    ),
    (CellType, _Kind(_cell_read, _cell_set, lambda content, one: _each_is(content, _cell_read(one)), list)),
    (
        FunctionType,
        _Kind(_globals_read, lambda one, content: one.__globals__.update(content), _same_globals, dict.values),
    ),
    (
        random.Random,
        _Kind(random.Random.getstate, random.Random.setstate, lambda content, one: content == one.getstate()),
    ),
    (
        np.random.Generator,
        _Kind(
            lambda one: one.bit_generator.state,
            lambda one, content: setattr(one.bit_generator, "state", content),
            lambda content, one: repr(content) == repr(one.bit_generator.state),
        ),
    ),
    (
        np.random.RandomState,
        _Kind(
            lambda one: one.get_state(),
            lambda one, content: one.set_state(content),
            lambda content, one: all(map(np.array_equal, content, one.get_state())),
        ),
    ),
    (
        SimpleNamespace,
        _Kind(
            lambda one: dict(vars(one)),
            lambda one, content: _filled(vars(one), content),
            lambda content, one: _same_dicts(content, vars(one)),
            dict.values,
        ),
    ),
)


def _kind(one: Any) -> _Kind | None:
    if isinstance(one, np.ndarray) and not one.flags.writeable:
        return None
    if isinstance(one, FunctionType) and not users_own(one.__code__.co_filename):
        return None
    kind: Any = type(one)
    return _kind_of(kind)


@cache
def _kind_of(kind: Any) -> _Kind | None:
    if issubclass(kind, (Comm, Request, random.SystemRandom, type)):  # the scheduler's own, and what has no state
        return None
    for base, found in _KINDS:
        if issubclass(kind, base):
            return found
    top = kind.__module__.partition(".")[0]
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    own = top in ("__main__", "workbench") or (path is not None and users_own(path))
    return _kind_of(SimpleNamespace) if own and kind.__dictoffset__ else None


def _leads_to(one: Any) -> list[Any]:
    """The objects in one that does not change itself."""
    if isinstance(one, FunctionType):
        drawn = [random._inst, np.random.mtrand._rand] if "random" in _names(one.__code__) else []
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
