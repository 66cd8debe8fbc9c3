"""What a training loop adds up over its batches is of one rank's samples: after the loop all ranks get that of all.

A sum over samples, as of right answers, is added over the ranks; a sum of batches' means, as of losses, is averaged.
Both are then what one process has, whatever they are divided by, printed in or compared with.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from workbench.convert.decisions import ADDED, Own, check, is_read_later, say_put
from workbench.convert.edits import Edits
from workbench.convert.origins import makers
from workbench.convert.pytorch import loss
from workbench.convert.pytorch.statistics import judged
from workbench.convert.pytorch.training import Batches, Training
from workbench.convert.script import Script, inside, last

_SCHEDULERS = ("scheduler", "sched")


def convert(edits: Edits, found: Training) -> None:
    """Reduce what is added up, and average what a scheduler looks at; what else a rank decides by is marked."""
    script = edits.script
    losses = [call.func.value for call in found.backward]  # type: ignore[attr-defined]
    losses += judged(script, found)
    own = Own(script, [each.loop for each in found.batches], losses)
    reduced = [key for each in found.batches for key in _reduce(edits, each, own)]
    own = Own(script, [each.loop for each in found.batches], losses, reduced)
    check(edits, own)
    for each in found.batches:
        say_put(edits, own, each.loop, lambda value: _kind(script, value) == loss.MEAN)
    for call in script.all(cst.Call):
        if last(call.func) == "step" and call not in found.steps and call.args and _is_scheduler(script, call):
            value = call.args[0].value
            if own.has(value) or _is_plateau(script, call):
                edits.wrap(value, "hvd.allreduce(torch.as_tensor({})).item()", 6, "the ranks' average decides")


def _is_scheduler(script: Script, call: cst.Call) -> bool:
    on = getattr(call.func, "value", call.func)
    return isinstance(on, (cst.Name, cst.Attribute)) and script.text(on).lower().endswith(_SCHEDULERS)


def _is_plateau(script: Script, call: cst.Call) -> bool:
    """Such a scheduler gets a metric, which may come from a file that is not seen."""
    made = makers(script, call.func.value)  # type: ignore[attr-defined]
    return any(last(each.func) == "ReduceLROnPlateau" for each in made)


def _reduce(edits: Edits, batches: Batches, own: Own) -> Iterator[tuple[cst.CSTNode | None, str]]:
    """The variables that are reduced after the loop."""
    script, lines = edits.script, dict[str, str]()
    for node in inside(batches.loop.body, cst.AugAssign):
        target = node.target
        if not isinstance(target, (cst.Name, cst.Attribute)) or not isinstance(node.operator, cst.AddAssign):
            continue
        name = script.text(target)
        if name in lines or not own.has(node.value) or not is_read_later(script, batches.loop, name):
            continue
        kind = _kind(script, node.value)
        _say_divisions(edits, batches, own, name, kind)
        if kind not in (loss.MEAN, loss.SUM) or not _begins_before(script, batches.loop, name):
            edits.say(node, ADDED)
            continue
        op = ", op=hvd.Sum" if kind == loss.SUM else ""
        end = ".item()" if _is_number(script, node.value) else ""
        value = f"torch.as_tensor({name})" if end else f"torch.as_tensor({name}).detach()"
        lines[name] = f"{name} = hvd.allreduce({value}{op}){end}"
        yield from own.keys(target)
    if not lines:
        return
    text = "\n".join(lines.values())
    if batches.only_if is not None:
        text = f"if {script.text(batches.only_if)}:\n" + "\n".join(f"    {each}" for each in lines.values())
    edits.after(batches.loop, 4, text, "what was added up is that of all ranks' samples")


def _begins_before(script: Script, loop: cst.For, name: str) -> bool:
    """Is it set anew each time that the loop begins? Else a second reduction would count the first sum again."""
    set_here: list[cst.CSTNode] = [each for each in script.all(cst.AssignTarget) if script.text(each.target) == name]
    for each in script.all(cst.Element):
        if script.text(each.value) == name and isinstance(
            next(script.above(next(script.above(each)))), cst.AssignTarget
        ):
            set_here.append(each)
    block, line = script.block(loop), script.line(loop)
    return any(script.block(each) is block and script.line(each) < line for each in set_here)


def _kind(script: Script, value: cst.BaseExpression) -> str:
    """Is it a sum over samples, or a mean of a batch?"""
    if isinstance(value, cst.BinaryOperation):
        left, right = _kind(script, value.left), _kind(script, value.right)
        if isinstance(value.operator, cst.Multiply):
            return loss.SUM if loss.SUM in (left, right) else left if left == right else _numbered(value, left, right)
        if isinstance(value.operator, cst.Divide):
            return left if left != loss.SUM else loss.MEAN if right == loss.SUM else loss.UNKNOWN
        return left if left == right else loss.UNKNOWN
    if isinstance(value, cst.Call):
        if last(value.func) in ("float", "int") and value.args:
            return _kind(script, value.args[0].value)
        if last(value.func) in ("item", "detach", "cpu", "double", "clone", "tolist", "float") and isinstance(
            value.func, cst.Attribute
        ):
            return _kind(script, value.func.value)
        if last(value.func) in ("sum", "len", "size", "numel", "count_nonzero"):
            return loss.SUM
    if isinstance(value, cst.Subscript):
        return loss.SUM if last(value.value) == "shape" else _kind(script, value.value)
    if isinstance(value, cst.Attribute) and last(value) in ("data", "num_graphs", "num_nodes"):
        return _kind(script, value.value) if last(value) == "data" else loss.SUM
    return loss.kind(script, value)


def _numbered(value: cst.BinaryOperation, left: str, right: str) -> str:
    number = isinstance(value.left, (cst.Integer, cst.Float)), isinstance(value.right, (cst.Integer, cst.Float))
    return right if number[0] else left if number[1] else loss.UNKNOWN


def _is_number(script: Script, value: cst.BaseExpression) -> bool:
    """A number of Python, and no tensor."""
    if isinstance(value, cst.BinaryOperation):
        return _is_number(script, value.left) and _is_number(script, value.right)
    if isinstance(value, cst.Call):
        return last(value.func) in ("item", "len", "size", "float", "int", "numel")
    if isinstance(value, cst.Subscript):
        return last(value.value) == "shape"
    return isinstance(value, (cst.Integer, cst.Float)) or last(value) in ("num_graphs", "num_nodes")


def _say_divisions(edits: Edits, batches: Batches, own: Own, name: str, kind: str) -> None:
    """Within the loop a sum is of this rank's samples so far: who divides it by the number of all gets too little."""
    script = edits.script
    for node in inside(batches.loop.body, cst.BinaryOperation) if kind == loss.SUM else ():
        divides = isinstance(node.operator, cst.Divide) and name in script.text(node.left)
        if divides and not own.has(node.right) and "sampler" not in script.text(node.right):
            text = f"{name} is a sum over this rank's samples, and {script.text(node.right)} may count all samples."
            edits.say(node, text)
