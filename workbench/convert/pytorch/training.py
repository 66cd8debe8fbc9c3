"""What a PyTorch script trains, and where: optimizers, their models and steps, loops over batches, loaders."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from workbench.convert.edits import Edits
from workbench.convert.origins import assignments, makers, origins
from workbench.convert.script import Script, argument, inside, last
from workbench.convert.source import Reason, RefusedError, UnclearError
from workbench.convert.ways import bare, is_self, loops_around

_LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_GRAPHS = ("torch_geometric.loader.DataLoader", "torch_geometric.data.DataLoader")


@dataclass(frozen=True)
class Optimizer:
    """One optimizer.

    Args:
        made: the expression that makes it.
        place: the statement after which it is there: its own, or an ``if`` with one in each branch.
        name: the variable that holds it; "" if none does.
        models: the texts that name its models where it is made; none if its parameters do not say it.
        steps: the calls of its ``step()``.
    """

    made: cst.Call
    place: cst.CSTNode
    name: str
    models: list[str]
    steps: list[cst.Call]


@dataclass(frozen=True)
class Batches:
    """A loop over batches.

    Args:
        loop: over batches.
        iterated: what it runs over, without ``enumerate`` and progress bars.
        loader: the expression that makes the loader; None if it is not seen.
        backward: the call in it.
        only_if: the test by which the same loop trains or evaluates; None if it always trains.
    """

    loop: cst.For
    iterated: cst.BaseExpression
    loader: cst.Call | None
    backward: cst.Call
    only_if: cst.BaseExpression | None


@dataclass(frozen=True)
class Training:
    """The parts of a training; see above."""

    optimizers: list[Optimizer]
    backward: list[cst.Call]
    batches: list[Batches]

    @property
    def steps(self) -> list[cst.Call]:
        return [*dict.fromkeys(step for each in self.optimizers for step in each.steps)]


def training(edits: Edits, shares: bool = True) -> Training:
    """Find them. What is not found is left to be decided.

    Args:
        edits: of the script.
        shares: are its batches to be shared, so that loops over loaders are needed?

    Raises:
        RefusedError: nothing is trained here.
    """
    script = edits.script
    backward, optimizers = script.methods("backward"), _optimizers(script)
    if not backward or not optimizers:
        text = (
            "no optimizer of torch.optim is made in this file. Convert the one that makes it, together with this one."
            if backward
            else "no loss.backward() in this file: what trains here is not known."
        )
        raise RefusedError(script.name, Reason(0, text))
    for each in optimizers:
        if not each.steps:
            edits.say(each.made, "where this optimizer steps is not known.")
    batches = dict[cst.CSTNode, Batches]()
    for call in backward if shares else ():
        with edits.attempt():
            found = _batches(script, call)
            batches.setdefault(found.loop, found)
    return Training(optimizers, backward, [*batches.values()])


def is_optimizer(meaning: str) -> bool:
    """Is this the full name of one of torch's optimizers?"""
    parts = meaning.split(".")
    beside = {"lr_scheduler", "swa_utils"}.intersection(parts)  # of schedules and averaged models
    return parts[:2] == ["torch", "optim"] and parts[-1][:1].isupper() and not beside


def _optimizers(script: Script) -> list[Optimizer]:
    made = [call for call in script.all(cst.Call) if is_optimizer(script.meaning(call.func))]
    steps = script.methods("step")
    origin = {step: [each for on in _on(step) for each in makers(script, on)] for step in steps}
    # What is cleared and steps is an optimizer, also if another package has made it.
    cleared = {script.text(cst.ensure_type(call.func, cst.Attribute).value) for call in script.methods("zero_grad")}
    for step in steps:
        is_optimizer_itself = any(script.text(each) in cleared for each in _on(step))
        made += [
            each for each in origin[step] if each not in made and _makes_optimizer(script, each, is_optimizer_itself)
        ]
    groups: dict[tuple[cst.CSTNode | None, str], list[cst.Call]] = {}
    for call in made:
        name = _target(script, call)
        groups.setdefault((script.function(call) if name else call, name), []).append(call)
    found = []
    for (_, name), calls in groups.items():
        mine = [step for step in steps if set(calls) & set(origin[step]) or name in map(script.text, _on(step))]
        models = sorted({model for call in calls for model in _models(script, call)})
        place = _place(script, calls)
        found += [Optimizer(call, script.statement(call), name, models, mine) for call in calls if place is None]
        if place is not None:
            found.append(Optimizer(calls[0], place, name, models, mine))
    return found


def _on(step: cst.Call) -> list[cst.BaseExpression]:
    """What may be the optimizer in ``optimizer.step()`` and ``scaler.step(optimizer)``."""
    return [cst.ensure_type(step.func, cst.Attribute).value, *(arg.value for arg in step.args[:1])]


def _makes_optimizer(script: Script, call: cst.Call, is_cleared: bool) -> bool:
    """By its name, or, of what is cleared, too, by the parameters that it gets."""
    name = script.text(call.func).lower()
    gets = any(last(each.func) in ("parameters", "named_parameters") for each in inside(call, cst.Call))
    return ("optim" in name and "sched" not in name and "swa" not in name) or (is_cleared and gets)


def _place(script: Script, calls: list[cst.Call]) -> cst.CSTNode | None:
    """The statement after which the variable has its optimizer: the innermost ``if`` that has all of the calls."""
    if len(calls) == 1:
        return script.statement(calls[0])
    around = [each for each in script.above(calls[0]) if isinstance(each, cst.If)]
    shared = [each for each in around if all(each in script.above(call) for call in calls)]
    return script.statement(shared[0]) if shared else None


def _target(script: Script, made: cst.Call) -> str:
    """The variable that a call's value gets."""
    for target, value in assignments(script):
        if value is made and isinstance(target, (cst.Name, cst.Attribute)):
            return script.text(target)
    return ""


def _models(script: Script, optimizer: cst.Call) -> list[str]:
    """``model`` of ``SGD(model.parameters(), …)``, also in groups of parameters."""
    arg = argument(optimizer, 0, "params")
    if arg is None:
        return []
    places = [arg.value, *origins(script, arg.value)]
    calls = [call for place in places for call in inside(place, cst.Call)]
    methods = [call.func for call in calls if isinstance(call.func, cst.Attribute)]
    owners = [each.value for each in methods if last(each) in ("parameters", "named_parameters")]
    owners = [each.value if isinstance(each, cst.Subscript) else each for each in owners]
    owners = [each for each in owners if isinstance(each, (cst.Name, cst.Attribute))]
    return [script.text(each) if is_self(each) else script.text(each).split(".")[0] for each in owners]


# --- batches ------------------------------------------------------------------------------------------


def _batches(script: Script, backward: cst.Call) -> Batches:
    """The innermost loop around ``backward()`` that runs over a loader."""
    function = script.function(backward)
    runs = [step for step in script.all(cst.Call) if last(step.func) == "step" and step.args]
    passed = [step for step in runs if function and script.text(step.args[0].value) == function.name.value]
    place = passed[0] if passed else backward  # a closure is run by its step
    here = [each for each in script.above(place) if script.function(each) is script.function(place)]
    loops = [each for each in here if isinstance(each, cst.For)]
    if not any(_is_over_batches(script, loop) for loop in loops):
        loops = loops_around(script, place)
    for loop in loops:
        if not _is_over_batches(script, loop):
            continue
        iterated = bare(script, loop.iter)
        made = origins(script, iterated)
        loaders = [each for each in made if isinstance(each, cst.Call) and script.meaning(each.func) in _LOADER]
        only = loaders[0] if len(loaders) == len(made) == 1 else None
        return Batches(loop, iterated, only, backward, _only_if(script, loop, backward))
    line = script.line(loops[0]) if loops else script.line(backward)
    raise UnclearError(
        line,
        "no loop over a DataLoader is around backward(), so it is not known which samples each rank takes; as it is, "
        "all take the same. A DistributedSampler shares them: DataLoader(TensorDataset(x, y), sampler=…).",
    )


def _is_over_batches(script: Script, loop: cst.For) -> bool:
    iterated = bare(script, loop.iter)
    made = makers(script, iterated)
    known = any(script.meaning(each.func) in (*_LOADER, *_GRAPHS) for each in made)
    return known or _is_loader_by_name(script, iterated)


def _is_loader_by_name(script: Script, node: cst.BaseExpression) -> bool:
    """A loader that another file makes: the converted script looks at what it is."""
    base = node.value if isinstance(node, cst.Subscript) else node
    made = origins(script, base)
    known = any(isinstance(each, (cst.List, cst.ListComp, cst.Integer)) for each in made)
    meanings = {script.meaning(each.func) for each in makers(script, base)}.difference(_GRAPHS)
    # Those that sample by themselves, such as neighbours in a graph.
    others = any(each.startswith(("torch_geometric.", "builtins.", "torchtext.")) for each in meanings)
    return not known and not others and any(word in last(base).lower() for word in ("loader", "dataiter", "train_dl"))


def _only_if(script: Script, loop: cst.For, backward: cst.Call) -> cst.BaseExpression | None:
    """The test around ``backward()`` that says whether this run over the loader trains."""
    changed = {name.value for name in inside(loop.target, cst.Name)}
    changed |= {name.value for node in inside(loop.body, cst.AssignTarget) for name in inside(node.target, cst.Name)}
    backwards = [call for call in inside(loop, cst.Call) if last(call.func) == "backward"]
    for each in script.above(backward):
        if each is loop:
            return None
        if isinstance(each, cst.If) and not changed & {name.value for name in inside(each.test, cst.Name)}:
            there = [call for call in backwards if each in script.above(call)]
            if any(script.excludes(backward, call) for call in there):
                continue
            return each.test if backward in inside(each.body, cst.Call) else cst.UnaryOperation(cst.Not(), each.test)
    return None
