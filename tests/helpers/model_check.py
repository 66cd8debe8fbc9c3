"""A small model checker: every state that a system can reach, breadth-first, and a way out of each one.

A state is any hashable value; ``actions(state)`` yields what may happen next, each with a name and the state after it.
What must never happen raises :class:`Violation`, and the report has the shortest sequence of actions that leads there.

Real objects take part through :class:`Automaton`: a deterministic object is known by what it was told, so two histories
that leave it alike are one state, which is a number here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Generic, TypeVar

S = TypeVar("S", bound=Hashable)

Actions = Callable[[S], Iterable[tuple[str, S]]]


class Violation(AssertionError):  # noqa: N818 - what it is called in this field
    """A property does not hold; the text says which."""


@dataclass(frozen=True)
class Explored:
    """What was looked at.

    Args:
        states, transitions, finals: how many there are.
        depth: the most actions on a shortest way to a state.
    """

    states: int
    transitions: int
    finals: int
    depth: int


def explore(start: S, actions: Actions[S], is_final: Callable[[S], bool], most: int = 5_000_000) -> Explored:
    """Look at all states.

    Raises:
        Violation: a property does not hold in one of them, or from one of them no final state can be reached.
        RuntimeError: there are more than ``most`` states, so nothing is known about the rest.

    Example:
        >>> explore(0, lambda n: [("one", n + 1), ("two", n + 2)] if n < 10 else [], lambda n: n >= 10).states
        12
        >>> explore(0, lambda n: [("loop", n)], lambda n: False)
        Traceback (most recent call last):
        model_check.Violation: There is no way out of the state after: (nothing)
        0
    """
    number, states = {start: 0}, [start]
    came: list[tuple[int, str]] = [(0, "")]  # by state: from which, and how; the first way found is a shortest
    before: list[list[int]] = [[]]  # by state: those from which it is reached
    depths, finals, ends, transitions = [0], list[int](), list[int](), 0
    for here, state in enumerate(states):  # grows meanwhile
        if is_final(state):
            finals.append(here)
        following, begun = iter(actions(state)), transitions
        while True:
            try:
                name, after = next(following)
            except StopIteration:
                ends += [here] if begun == transitions else []
                break
            except Violation as violation:
                raise Violation(f"{violation}\nAfter: {way_to(here, came)}") from None
            transitions += 1
            there = number.setdefault(after, len(states))
            if there == len(states):
                states.append(after)
                came.append((here, name))
                before.append([])
                depths.append(depths[here] + 1)
                if there > most:
                    raise RuntimeError(f"There are more than {most} states.")
            before[there].append(here)
    if stuck := without_way_out(len(states), finals, before):
        worst = min(stuck & set(ends) or stuck)  # where nothing happens any more, if there is such a state
        raise Violation(f"There is no way out of the state after: {way_to(worst, came)}\n{states[worst]}")
    return Explored(len(states), transitions, len(finals), depths[-1])


def without_way_out(n: int, finals: list[int], before: list[list[int]]) -> set[int]:
    """Those of ``n`` states from which no final state can be reached."""
    found, out = deque(finals), bytearray(n)
    for each in finals:
        out[each] = True
    while found:
        for each in before[found.popleft()]:
            if not out[each]:
                out[each] = True
                found.append(each)
    return {i for i in range(n) if not out[i]}


def way_to(state: int, came: list[tuple[int, str]]) -> str:
    """The actions that lead to a state."""
    names = []
    while state:
        state, name = came[state]
        names.append(name)
    return ", ".join(reversed(names)) or "(nothing)"


T = TypeVar("T")


class Automaton(Generic[T]):
    """A deterministic object, which takes part in a model as a number for each state that it can be in.

    A state is reached by replay: the object is made anew and told what it was told before. Each call in each state is
    made once.

    Args:
        make: a new object.
        call: tells it something, and returns its answer, which is hashable.
        look: what the model wants to know about a state.

    Example:
        >>> stack = Automaton(list, lambda a_list, item: a_list.append(item), len)
        >>> one, _ = stack.step(0, "a")
        >>> stack.step(0, "a") == (one, None), stack.look(one)
        (True, 1)
    """

    def __init__(
        self, make: Callable[[], T], call: Callable[[T, Any], Any], look: Callable[[T], Any] = lambda one: None
    ) -> None:
        self._make, self._call, self._look = make, call, look
        self._histories: list[tuple[Any, ...]] = [()]
        self._seen = [look(made := make())]
        self._numbers = {freeze(made): 0}
        self._steps: dict[tuple[int, Any], tuple[int, Any]] = {}

    def step(self, state: int, told: Hashable) -> tuple[int, Any]:
        """The state after it is told this, and its answer."""
        known = self._steps.get((state, told))
        if known is None:
            known = self._steps[state, told] = self._run(state, told)
        return known

    def look(self, state: int) -> Any:
        """What the model wants to know about this state."""
        return self._seen[state]

    def _run(self, state: int, told: Hashable) -> tuple[int, Any]:
        one, history = self._make(), self._histories[state]
        for each in history:
            self._call(one, each)
        answer = self._call(one, told)
        after = self._numbers.setdefault(freeze(one), len(self._histories))
        if after == len(self._histories):
            self._histories.append((*history, told))
            self._seen.append(self._look(one))
        return after, answer


_ATOMS = (str, bytes, int, float, bool, type(None), Enum, type)
_CODE = (FunctionType, BuiltinFunctionType, MethodType)


def freeze(value: Any) -> Hashable:
    """All that an object consists of, as a hashable value: two that behave differently differ in it.

    Code is left out; what a closure refers to must be reachable from the object in another way, too.

    Example:
        >>> freeze({"a": [1, {2}]}) == freeze({"a": [1, {2}]}), freeze([1]) == freeze((1, 2))
        (True, False)
    """
    if isinstance(value, _ATOMS):
        return value
    if isinstance(value, _CODE):
        return None
    kind = type(value).__name__
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(map(freeze, value))
    if isinstance(value, (bytearray, memoryview)):
        return kind, bytes(value)
    held: tuple[Hashable, ...] = ()
    if isinstance(value, dict):  # in order: who iterates over it sees that
        held = tuple((freeze(key), freeze(item)) for key, item in value.items())
    elif isinstance(value, (list, tuple, deque)):
        held = tuple(map(freeze, value))
    slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
    fields = {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots}}
    return kind, held, tuple((name, freeze(item)) for name, item in fields.items())
