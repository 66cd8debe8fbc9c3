"""What a rank finds in its samples is its own. By it ranks would decide differently, as when to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

import libcst as cst

from workbench.convert.edits import Edits
from workbench.convert.origins import returns
from workbench.convert.script import Script, inside, last

_Key = tuple[cst.CSTNode | None, str]
_COUNTS = ("sum", "reduce_sum", "len", "count_nonzero")
_CHANCE = ("time.", "random.", "numpy.random.", "torch.rand")


class Own:
    """The variables that hold something of a rank's own samples.

    A variable that is set at several places counts as one for each: what a validation loop reads into ``x`` is not what
    the training loop reads into it.

    Args:
        script: the whole.
        loops: over this rank's share: what they read is its own.
        losses: what the training lessens.
        reduced: variables that are made those of all ranks after one of these loops.
    """

    def __init__(
        self, script: Script, loops: Iterable[cst.For], losses: Iterable[cst.CSTNode] = (), reduced: Iterable[_Key] = ()
    ) -> None:
        self._script, self._loops, self._reduced = script, [*loops], {*reduced}
        self._found: dict[cst.CSTNode, set[_Key]] = {}
        self._keys = {key for loop in self._loops for node in _targets(script, loop) for key in self._of(node)}
        self._keys |= {key for node in losses for key in self._of(node) if "loss" in key[1].lower()}
        self._keys |= {key for node in losses if isinstance(node, (cst.Name, cst.Attribute)) for key in self.keys(node)}
        while (more := self._keys | {*self._next()}) != self._keys:
            self._keys = more

    def has(self, node: cst.CSTNode) -> bool:
        """Does an expression have one of these variables?"""
        found = self._keys.intersection(self._of(node))
        is_outside = not any(each in self._loops for each in self._script.above(node))
        return bool(found - self._reduced if is_outside else found)

    def keys(self, node: cst.Name | cst.Attribute) -> set[_Key]:
        """The places that set a variable that is read or set here; of an attribute its class."""
        if isinstance(node, cst.Attribute):
            return {(self._script.owner(node), self._script.text(node))}
        above = [*self._script.above(node)]
        functions: list[cst.CSTNode | None] = [each for each in above if isinstance(each, cst.FunctionDef)]
        for function in [*functions, None]:
            if sets := self._sets.get((function, node.value)):
                break
        else:
            return {(None, node.value)}
        if own := [each for each in sets if each is node or self._comprehension(each) in above]:
            return {(own[-1], node.value)}
        sets = [each for each in sets if self._comprehension(each) is None]
        line = self._script.line(node)
        before = [each for each in sets if self._script.line(each) < line and function in [*functions[:1], None]]
        if before and functions[:1] == ([function] if function else []):
            blocks = {each for each in self._script.above(before[-1]) if isinstance(each, _BLOCKS)}
            if blocks <= {*above}:
                return {(before[-1], node.value)}
        return {(each, node.value) for each in sets}

    def _comprehension(self, target: cst.CSTNode) -> cst.CSTNode | None:
        """The one whose variable this sets; it has no meaning elsewhere."""
        found = next((each for each in self._script.above(target) if not isinstance(each, _TARGETS)), None)
        while isinstance(found, cst.CompFor):
            found = next(self._script.above(found))
        return found if isinstance(found, (cst.BaseComp, cst.DictComp)) else None

    @cached_property
    def _sets(self) -> dict[tuple[cst.CSTNode | None, str], list[cst.CSTNode]]:
        """The nodes that set a function's variable, in their order: names in targets, and parameters."""
        script, found = self._script, dict[tuple[cst.CSTNode | None, str], list[cst.CSTNode]]()
        targets: list[cst.CSTNode] = [each.target for each in script.all(cst.AssignTarget)]
        targets += [each.target for each in script.all(cst.For)] + [each.target for each in script.all(cst.AnnAssign)]
        targets += [each.target for each in script.all(cst.CompFor)]
        targets += [each.name for each in script.all(cst.AsName)] + [each.name for each in script.all(cst.Param)]
        outer = {(script.function(each), name.name.value) for each in script.all(cst.Global) for name in each.names}
        for target in targets:
            for name in _names(target):
                key = script.function(target), name.value
                found.setdefault((None, name.value) if key in outer else key, []).append(name)
        for names in found.values():
            names.sort(key=script.line)
        return found

    def _of(self, node: cst.CSTNode) -> set[_Key]:
        if node not in self._found:
            attributes = [each for each in inside(node, cst.Attribute) if isinstance(each.value, cst.Name)]
            places: list[cst.Name | cst.Attribute] = [*attributes, *_names(node)]
            self._found[node] = {key for each in places for key in self.keys(each)}
        return self._found[node]

    def _next(self) -> Iterator[_Key]:
        """Those that are computed of them."""
        script = self._script
        functions = [each for each in script.all(cst.FunctionDef) if any(map(self.has, returns(script, each)))]
        returning = {each.name.value for each in functions}
        for node in script.nodes:
            if isinstance(node, (cst.Assign, cst.AugAssign, cst.AnnAssign)) and node.value is not None:
                calls = {last(call.func) for call in inside(node.value, cst.Call)}
                if calls & returning or self.has(node.value):
                    targets = [each.target for each in node.targets] if isinstance(node, cst.Assign) else [node.target]
                    yield from (key for target in targets for key in self._assigned(target))
            elif isinstance(node, (cst.For, cst.CompFor)) and self.has(node.iter):
                yield from self._assigned(node.target)
            elif isinstance(node, cst.Expr) and isinstance(node.value, cst.Call) and self.has(node.value):
                first = node.value.func  # an object that is given such a value, as a list or a meter
                if last(first) == "step":
                    continue
                while isinstance(first, cst.Attribute) and isinstance(first.value, cst.Attribute):
                    first = first.value
                if (
                    isinstance(first, cst.Attribute)
                    and isinstance(first.value, cst.Name)
                    and first.value.value != "self"
                ):
                    first = first.value
                if isinstance(first, cst.Attribute) or (isinstance(first, cst.Name) and self._is_variable(first)):
                    yield from self.keys(first)

    def _is_variable(self, name: cst.Name) -> bool:
        script = self._script
        made = [each.name.value for each in script.all(cst.FunctionDef)]
        made += [each.name.value for each in script.all(cst.ClassDef)]
        return name.value not in made and not script.is_imported(name)

    def _assigned(self, target: cst.BaseExpression) -> Iterator[_Key]:
        if isinstance(target, (cst.Tuple, cst.List)):
            for each in target.elements:
                yield from self._assigned(each.value)
        elif isinstance(target, cst.Subscript):
            yield from self._assigned(target.value)
        elif isinstance(target, (cst.Name, cst.Attribute)):
            yield from self.keys(target)


_TARGETS = (cst.Tuple, cst.List, cst.Element)
_BLOCKS = (cst.For, cst.While, cst.If, cst.Else, cst.FunctionDef, cst.ExceptHandler)


def _names(node: cst.CSTNode) -> list[cst.Name]:
    """The variables in an expression, without the names of attributes and of arguments."""
    parts: set[cst.CSTNode] = {each.attr for each in inside(node, cst.Attribute)}
    parts |= {arg.keyword for arg in inside(node, cst.Arg) if arg.keyword is not None}
    return [each for each in inside(node, cst.Name) if each not in parts]


def _targets(script: Script, loop: cst.For) -> list[cst.BaseExpression]:
    """What a loop reads, without a number that ``enumerate`` counts."""
    if isinstance(loop.target, cst.Tuple) and any(name.value == "enumerate" for name in inside(loop.iter, cst.Name)):
        return [each.value for each in loop.target.elements[1:]]
    return [loop.target]


ADDED = (
    "what is added up here is of this rank's samples. After the loop hvd.allreduce(…) averages means of batches, and "
    "with op=hvd.Sum adds sums over samples."
)


GATHERED = (
    "what is put together here is of this rank's samples. After the loop hvd.allgather_object(…) brings what all ranks "
    "have."
)
_PUT = ("append", "extend", "update", "add")


def is_read_later(script: Script, loop: cst.For, name: str) -> bool:
    """Outside of the loop, and not only set anew."""
    nodes: list[cst.BaseExpression] = [*script.all(cst.Name), *script.all(cst.Attribute)]
    for node in nodes:
        if script.text(node) == name and script.function(node) is script.function(loop):
            above = [*script.above(node)]
            if loop not in above and not isinstance(above[0], (cst.AssignTarget, cst.NameItem)):
                return True
    return False


def say_put(
    edits: Edits, own: Own, loop: cst.For, is_loss: Callable[[cst.BaseExpression], bool] = lambda value: False
) -> None:
    """Leave to be decided what a loop puts into lists, tables or meters, and something after it reads.

    Not so a list of batches' losses, which shows how the training goes as well with this rank's.
    """
    script, said = edits.script, set[str]()
    places: list[tuple[cst.CSTNode, cst.CSTNode, bool, str]] = [
        (node, node.target.value, own.has(node.target) or own.has(node.value), ADDED)
        for node in inside(loop.body, cst.AugAssign)
        if isinstance(node.target, cst.Subscript)
    ]
    places += [
        (call, call.func.value, any(own.has(arg.value) and not is_loss(arg.value) for arg in call.args), GATHERED)
        for call in inside(loop.body, cst.Call)
        if isinstance(call.func, cst.Attribute) and last(call.func) in _PUT
    ]
    for node, where, is_own, text in places:
        name = script.text(where)
        if is_own and name not in said and is_read_later(script, loop, name):
            said.add(name)
            edits.say(node, text)


def say_sums(edits: Edits, own: Own, loops: Iterable[cst.For]) -> None:
    """Leave to be decided what a training loop adds up over samples, and something after it reads."""
    script = edits.script
    for loop in loops:
        for node in inside(loop.body, cst.AugAssign):
            counts = any(last(call.func) in _COUNTS for call in inside(node.value, cst.Call))
            if counts and own.has(node.value) and is_read_later(script, loop, script.text(node.target)):
                edits.say(node, ADDED)


def check(edits: Edits, own: Own) -> None:
    """Leave to be decided where a loop is left, or a step left out, by what is a rank's own, the time or chance."""
    script = edits.script
    tests: list[cst.If | cst.While] = [*script.all(cst.If), *script.all(cst.While)]
    for node in tests:
        by_own = own.has(node.test)
        by_chance = any(script.meaning(call.func).startswith(_CHANCE) for call in inside(node.test, cst.Call))
        if (by_own or by_chance) and (names := _leaves(node)):
            what = "samples of its own" if by_own else "a time and random numbers of its own"
            text = (
                f"each rank has {what}, and would decide about {names} by itself. Let all decide alike: "
                "hvd.allreduce(…) averages a value."
            )
            edits.say(node, text)


def _set(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    yield from (each.target for each in inside(node, cst.AssignTarget))
    yield from (each.target for each in inside(node, cst.AugAssign))


def _leaves(node: cst.If | cst.While) -> str:
    """What happens by this test, or else, that all ranks must do alike."""
    branches = [node.body, *([node.orelse] if node.orelse else [])]
    found = [
        str(type(each).__name__).lower()
        for branch in branches
        for kind in (cst.Break, cst.Continue, cst.Return)
        for each in inside(branch, kind)
    ]
    calls = [call for branch in branches for call in inside(branch, cst.Call)]
    found += [f"{name}()" for call in calls if (name := last(call.func)) in ("step", "exit")]
    keys = [each for branch in branches for target in _set(branch) for each in inside(target, cst.SimpleString)]
    found += ["the learning rate" for each in keys if each.evaluated_value == "lr"]
    if isinstance(node, cst.While):
        found.append("the loop")
    return ", ".join(dict.fromkeys(found))
