"""What a PyTorch script trains, and where: optimizer, model, loop over batches, loop over epochs, loader."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from workbench.convert.origins import assignments, origins
from workbench.convert.script import Script, argument, inside, last
from workbench.convert.unclear import UnclearError
from workbench.convert.ways import bare, is_self, loops_around

_LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")


@dataclass(frozen=True)
class Training:
    """The parts of one training.

    Args:
        optimizer: the expression that makes it.
        place: the statement after which it is there: its own, or an ``if`` with one in each branch.
        name: the variable that holds it.
        model: the text that names the model where the optimizer is made; "" where the optimizer's parameters do not
            say it.
        backward, step: the calls.
        loop: over batches.
        iterated: what it runs over, without ``enumerate`` and progress bars.
        loader: the expression that makes the loader.
    """

    optimizer: cst.Call
    place: cst.CSTNode
    name: str
    model: str
    backward: cst.Call
    step: cst.Call
    loop: cst.For
    iterated: cst.BaseExpression
    loader: cst.Call


def training(script: Script) -> Training:
    """Find them.

    Raises:
        UnclearError: one is missing, or there are several.
    """
    optimizer, place = _optimizer(script)
    name = _target(script, optimizer)
    backward = _backward(script)
    loop, iterated, loader = _batches(script, backward)
    model, step = _model(script, optimizer), _step(script, name)
    return Training(optimizer, place, name, model, backward, step, loop, iterated, loader)


def is_optimizer(meaning: str) -> bool:
    """Is this the full name of one of torch's optimizers?"""
    parts = meaning.split(".")
    beside = {"lr_scheduler", "swa_utils"}.intersection(parts)  # of schedules and averaged models
    return parts[:2] == ["torch", "optim"] and parts[-1][:1].isupper() and not beside


def _optimizer(script: Script) -> tuple[cst.Call, cst.CSTNode]:
    """The call that makes it, and the statement after which it is there."""
    found = [call for call in script.all(cst.Call) if is_optimizer(script.meaning(call.func))]
    if not found:
        raise UnclearError(0, "no optimizer of torch.optim is made in this file.")
    if len(found) == 1:
        return found[0], script.statement(found[0])
    branches = [_choice(script, call) for call in found]
    names = {(_target(script, call), _model(script, call)) for call in found}
    if None in branches or len(set(branches)) > 1 or len(names) > 1:
        lines = ", ".join(str(script.line(each)) for each in found)
        raise UnclearError(
            script.line(found[1]),
            f"there are several optimizers (lines {lines}). Wrap each in hvd.DistributedOptimizer by hand.",
        )
    place = branches[0]
    assert place is not None
    return found[0], place


def _choice(script: Script, call: cst.Call) -> cst.If | None:
    """The outermost ``if`` around it in its function."""
    found = None
    for each in script.above(call):
        if isinstance(each, cst.FunctionDef):
            break
        if isinstance(each, cst.If) and "__name__" not in script.text(each.test):
            found = each
    return found


def _target(script: Script, made: cst.Call) -> str:
    """The variable that a call's value gets."""
    for target, value in assignments(script):
        if value is made and isinstance(target, (cst.Name, cst.Attribute)):
            return script.text(target)
    raise UnclearError(script.line(made), f"give {script.text(made.func)}(…) a name of its own: optimizer = …")


def _model(script: Script, optimizer: cst.Call) -> str:
    """``model`` of ``SGD(model.parameters(), …)``, also in groups of parameters."""
    arg = argument(optimizer, 0, "params")
    if arg is None:
        raise UnclearError(script.line(optimizer), "the optimizer's parameters are not written in this call.")
    places = [arg.value, *origins(script, arg.value)]
    calls = [call for place in places for call in inside(place, cst.Call)]
    methods = [call.func for call in calls if isinstance(call.func, cst.Attribute)]
    owners = [each.value for each in methods if last(each) in ("parameters", "named_parameters")]
    owners = [each.value if isinstance(each, cst.Subscript) else each for each in owners]
    owners = [each for each in owners if isinstance(each, (cst.Name, cst.Attribute))]
    if not owners:
        raise UnclearError(
            script.line(optimizer), "the optimizer's parameters are not those of a model: model.parameters()."
        )
    roots = {script.text(each) if is_self(each) else script.text(each).split(".")[0] for each in owners}
    if len(roots) > 1:
        raise UnclearError(
            script.line(optimizer),
            f"the optimizer updates several models ({', '.join(sorted(roots))}). Put them into one ModuleDict.",
        )
    return roots.pop()


def _backward(script: Script) -> cst.Call:
    found = [
        call for call in script.all(cst.Call) if isinstance(call.func, cst.Attribute) and last(call.func) == "backward"
    ]
    if not found:
        raise UnclearError(0, "no loss.backward() in this file: what trains here is not known.")
    if len(found) > 1:
        lines = ", ".join(str(script.line(each)) for each in found)
        raise UnclearError(script.line(found[1]), f"backward() is called at several places (lines {lines}).")
    return found[0]


def _step(script: Script, optimizer: str) -> cst.Call:
    found = []
    for call in script.all(cst.Call):
        if isinstance(call.func, cst.Attribute) and last(call.func) == "step":
            on = [call.func.value, *(arg.value for arg in call.args[:1])]
            if any(_is_optimizer_itself(script, each, optimizer) for each in on):
                found.append(call)
    if len(found) != 1:
        line = script.line(found[1]) if found else 0
        raise UnclearError(line, f"{optimizer}.step() is called at {len(found)} places, and should be at one.")
    return found[0]


def _is_optimizer_itself(script: Script, node: cst.BaseExpression, name: str) -> bool:
    return script.text(node) == name or any(
        isinstance(each, cst.Call) and is_optimizer(script.meaning(each.func)) for each in origins(script, node)
    )


def _batches(script: Script, backward: cst.Call) -> tuple[cst.For, cst.BaseExpression, cst.Call]:
    """The innermost loop around ``backward()`` that runs over a DataLoader."""
    loops = loops_around(script, backward)
    for loop in loops:
        iterated = bare(script, loop.iter)
        made = origins(script, iterated)
        loaders = [each for each in made if isinstance(each, cst.Call) and script.meaning(each.func) in _LOADER]
        if len(loaders) == len(made) == 1:
            return loop, iterated, loaders[0]
        if loaders:
            lines = ", ".join(str(script.line(each)) for each in made)
            raise UnclearError(script.line(loop), f"this loop runs over one of several loaders (lines {lines}).")
    line = script.line(loops[0]) if loops else script.line(backward)
    raise UnclearError(
        line,
        "no loop over a torch DataLoader is around backward(). Which samples a rank gets must be said by a DataLoader: "
        "DataLoader(TensorDataset(x, y), batch_size=…).",
    )


__all__ = ["Training", "is_optimizer", "training"]
