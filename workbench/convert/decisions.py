"""The loss of a rank is its own. What is decided by it, as when to stop, ranks would decide differently."""

from __future__ import annotations

import libcst as cst

from workbench.convert.origins import returns
from workbench.convert.script import Script, inside, last
from workbench.convert.unclear import UnclearError

_Name = tuple[cst.FunctionDef | None, str]
_CHANCE = ("time.", "random.", "numpy.random.", "torch.rand")


def check(script: Script, loss: cst.BaseExpression) -> set[_Name]:
    """The variables that hold something of a rank's own loss.

    Args:
        script: the whole.
        loss: of the training.

    Raises:
        UnclearError: by one of them, the time or a random number, a loop is left or a step left out.
    """
    own = _own_to_a_rank(script, loss)
    tests: list[cst.If | cst.While] = [*script.all(cst.If), *script.all(cst.While)]
    for node in tests:
        by_loss = mentions(script, node.test, own)
        by_chance = any(script.meaning(call.func).startswith(_CHANCE) for call in inside(node.test, cst.Call))
        if (by_loss or by_chance) and (names := _leaves(node)):
            what = "a loss of its own" if by_loss else "a time and random numbers of its own"
            raise UnclearError(
                script.line(node),
                f"each rank has {what}, and would decide about {names} by itself. Let all decide alike: "
                "hvd.allreduce(…) averages a value.",
            )
    return own


def _own_to_a_rank(script: Script, loss: cst.BaseExpression) -> set[_Name]:
    """By function and name."""
    own = {(script.function(each), each.value) for each in inside(loss, cst.Name) if "loss" in each.value.lower()}
    if isinstance(loss, cst.Name):
        own.add((script.function(loss), loss.value))
    while True:
        more = own | _next(script, own)
        if more == own:
            return own
        own = more


def _next(script: Script, own: set[_Name]) -> set[_Name]:
    """And those that are computed of them."""
    more = set[_Name]()
    returning = {
        function.name.value
        for function, _ in own
        if function is not None and any(mentions(script, value, own) for value in returns(script, function))
    }
    for node in script.nodes:
        if isinstance(node, (cst.Assign, cst.AugAssign, cst.AnnAssign)) and node.value is not None:
            calls = {last(call.func) for call in inside(node.value, cst.Call)}
            if calls & returning or mentions(script, node.value, own):
                targets = [each.target for each in node.targets] if isinstance(node, cst.Assign) else [node.target]
                names = [name for target in targets for name in inside(target, cst.Name)]
                more |= {(script.function(name), name.value) for name in names}
        elif isinstance(node, cst.Expr) and isinstance(node.value, cst.Call) and mentions(script, node.value, own):
            first = node.value.func  # an object that is given such a value, as a list or a meter
            while isinstance(first, cst.Attribute):
                first = first.value
            if isinstance(first, cst.Name) and first is not node.value.func and first.value != "self":
                more.add((script.function(first), first.value))
    return more


def mentions(script: Script, node: cst.CSTNode, own: set[_Name]) -> bool:
    """Does an expression have one of these variables?"""
    return any((script.function(name), name.value) in own for name in inside(node, cst.Name))


def _leaves(node: cst.If | cst.While) -> str:
    """What happens by this test that all ranks must do alike."""
    found = [
        str(type(each).__name__).lower() for kind in (cst.Break, cst.Continue, cst.Return) for each in _in(node, kind)
    ]
    found += [f"{name}()" for call in inside(node.body, cst.Call) if (name := last(call.func)) in ("step", "exit")]
    if isinstance(node, cst.While):
        found.append("the loop")
    return ", ".join(dict.fromkeys(found))


def _in(node: cst.If | cst.While, kind: type[cst.BaseSmallStatement]) -> list[cst.BaseSmallStatement]:
    return inside(node.body, kind)


__all__ = ["check", "mentions"]
