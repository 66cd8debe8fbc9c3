"""Where a value comes from: back over assignments, parameters and returned values to the expressions that make it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from workbench.convert.script import Script, inside, last


def origins(script: Script, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    r"""The expressions that make the value, each once. One that cannot be followed further is itself an origin.

    Args:
        script: the whole.
        node: an expression in it.

    Example:
        >>> script = Script("a.py", "def make():\n    return open('x')\nf = make()\nf.close()\n")
        >>> [script.text(each) for each in origins(script, script.all(cst.Call)[-1].func.value)]
        ["open('x')"]
    """
    return list(dict.fromkeys(_follow(script, node, set())))


def origin(script: Script, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The one expression that makes the value; None if there are several."""
    found = origins(script, node)
    return found[0] if len(found) == 1 else None


def makers(script: Script, node: cst.BaseExpression) -> list[cst.Call]:
    """The calls among the expressions that make the value."""
    return [each for each in origins(script, node) if isinstance(each, cst.Call)]


def _follow(script: Script, node: cst.BaseExpression, seen: set[cst.CSTNode]) -> Iterator[cst.BaseExpression]:
    if node in seen:
        return
    seen.add(node)
    before = list(_before(script, node))
    if not before:
        yield node
    for each in before:
        yield from _follow(script, each, seen)


def _before(script: Script, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The expressions that this one is a name for, one step back."""
    if isinstance(node, cst.Name):
        yield from _of_name(script, node)
    elif isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == "self":
        owner = script.owner(node)
        for target, value in assignments(script, to=script.text(node)):
            if owner is not None and script.owner(target) is owner:
                yield value
    elif isinstance(node, cst.Call):
        if isinstance(node.func, cst.Attribute) and last(node.func) in ("to", "cuda", "cpu", "float", "double"):
            yield node.func.value  # the same model or tensor, elsewhere
        else:
            yield from returned(script, node)


def _of_name(script: Script, name: cst.Name) -> Iterator[cst.BaseExpression]:
    scope: cst.CSTNode | None = script.function(name)
    while True:
        values = [value for _, value in assignments(script, scope, name.value)]
        if values:
            yield from values
            return
        if isinstance(scope, cst.FunctionDef):
            if name.value in parameters(scope):
                yield from passed(script, scope, name.value)
                return
            scope = script.function(scope)
        else:
            return


def parameters(function: cst.FunctionDef) -> list[str]:
    """The names of a function's parameters."""
    every = function.params
    return [each.name.value for each in (*every.posonly_params, *every.params, *every.kwonly_params)]


def passed(script: Script, function: cst.FunctionDef, name: str) -> list[cst.BaseExpression]:
    """What the script's calls of a function pass for a parameter."""
    return [value for call in script.callers(function) if (value := bound(script, function, call, name)) is not None]


def bound(script: Script, function: cst.FunctionDef, call: cst.Call, name: str) -> cst.BaseExpression | None:
    """What one call passes for a parameter; its default if that is a value, and None if there is neither."""
    names = parameters(function)
    if script.owner(function) is not None and names[:1] == ["self"]:
        names = names[1:]
    for index, arg in enumerate(call.args):
        if arg.star:
            return None
        if (arg.keyword.value if arg.keyword else (names[index] if index < len(names) else "")) == name:
            return arg.value
    return None


def assignments(
    script: Script, scope: cst.CSTNode | bool | None = True, to: str = ""
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """(target, value) of all assignments.

    Args:
        script: the whole.
        scope: only those in this function; ``None`` is the module.
        to: only those to this name. Of ``a, b = make()`` the values are those that ``make`` returns together.
    """
    for node in script.all(cst.Assign):
        if scope is True or script.function(node) is scope:
            for target in node.targets:
                yield from _pairs(script, target.target, node.value, to)
    for annotated in script.all(cst.AnnAssign):
        if annotated.value is not None and (scope is True or script.function(annotated) is scope):
            yield from _pairs(script, annotated.target, annotated.value, to)


def _pairs(
    script: Script, target: cst.BaseExpression, value: cst.BaseExpression, to: str
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    if not isinstance(target, (cst.Tuple, cst.List)):
        if not to or script.text(target) == to:
            yield target, value
        return
    if to and not any(script.text(each) == to for each in inside(target, cst.BaseExpression)):  # type: ignore[type-abstract]
        return  # what the other values are is not looked at: this one may be needed for it
    values = [value] if isinstance(value, cst.Tuple) else []
    if isinstance(value, cst.Call) and last(value.func) == "prepare" and len(value.args) == len(target.elements):
        for element, arg in zip(target.elements, value.args, strict=True):  # Accelerate's: it returns what it is given
            yield from _pairs(script, element.value, arg.value, to)
        return
    if isinstance(value, cst.Call):
        values = [each for each in returned(script, value) if isinstance(each, cst.Tuple)]
    for each in values:
        for one, other in zip(target.elements, each.elements, strict=False):
            yield from _pairs(script, one.value, other.value, to)
    if not values:
        for element in target.elements:
            yield from _pairs(script, element.value, value, to)


def returned(script: Script, call: cst.Call) -> list[cst.BaseExpression]:
    """What the function of the script that is called returns; nothing if it is none of the script."""
    return [value for function in called(script, call) for value in returns(script, function)]


def called(script: Script, call: cst.Call) -> list[cst.FunctionDef]:
    """The functions of the script that a call runs; of an object, such as a model, its ``forward``."""
    if call not in script.found:
        script.found[call] = []  # one that is asked for again on the way does not lead further
        script.found[call] = _called(script, call)
    return script.found[call]


def _called(script: Script, call: cst.Call) -> list[cst.FunctionDef]:
    if not isinstance(call.func, cst.Attribute) or script.text(call.func.value) == "self":
        is_plain = isinstance(call.func, cst.Name)  # such a name is no method
        functions = [each for each in script.functions(last(call.func)) if not (is_plain and script.owner(each))]
        if functions:
            return functions
    if isinstance(call.func, (cst.Name, cst.Attribute, cst.Call)):
        made = [call.func] if isinstance(call.func, cst.Call) else origins(script, call.func)
        classes = {last(each.func) for each in made if isinstance(each, cst.Call)}
        methods = [*script.functions("forward"), *script.functions("__call__")]
        return [each for each in methods if (owner := script.owner(each)) and owner.name.value in classes]
    return []


def returns(script: Script, function: cst.FunctionDef) -> list[cst.BaseExpression]:
    """What a function returns."""
    found = [each for each in script.all(cst.Return) if script.function(each) is function]
    return [each.value for each in found if each.value is not None]
