"""Between ``backward()`` and ``step()``: gradients that are clipped, scaled, or added up over several batches."""

from __future__ import annotations

import libcst as cst

from workbench.convert.edits import Edits
from workbench.convert.pytorch.training import Training
from workbench.convert.script import Script, inside, last
from workbench.convert.unclear import UnclearError

_READ = ("clip_grad_norm_", "clip_grad_value_", "unscale_", "grad")


def convert(edits: Edits, found: Training) -> None:
    """Wait for the average before somebody reads gradients."""
    script = edits.script
    begin, end = script.line(found.backward), script.line(found.step)
    readers: list[cst.CSTNode] = [node for node in script.nodes if last(node) in _READ]
    readers = [node for node in readers if begin < script.line(node) < end]
    scaled = last(getattr(found.step.func, "value", found.step)) != last(cst.parse_expression(found.name))
    if not readers and not scaled:
        return
    if not readers:
        readers = [found.step.func]
    if accumulated(script, found):
        raise UnclearError(
            script.line(readers[0]), "gradients are read, and added up over several batches: convert this by hand."
        )
    edits.before(readers[0], 6, f"{name(found, script)}.synchronize()", "wait for the average of the gradients")
    edits.within(found.step, f"with {name(found, script)}.skip_synchronize():")


def name(found: Training, script: Script) -> str:
    """The optimizer's, where the step is."""
    call = found.step
    if call.args and last(call.func) == "step":
        return script.text(call.args[0].value)
    return script.text(call.func.value)  # type: ignore[attr-defined]


def options(script: Script, found: Training) -> str:
    """Further arguments of ``DistributedOptimizer``."""
    passes = accumulated(script, found)
    return f", backward_passes_per_step={passes}" if passes else ""


def accumulated(script: Script, found: Training) -> str:
    """The number of batches whose gradients are added up; "" if each has its step.

    Raises:
        UnclearError: the step depends on something else.
    """
    between = []
    for each in script.above(found.step):
        if each is found.loop:
            break
        if isinstance(each, cst.If):
            between.append(each)
    between = [each for each in between if found.backward not in inside(each, cst.Call)]
    if not between:
        return ""
    test = between[0].test
    if len(between) == 1 and isinstance(test, cst.Comparison) and isinstance(left := test.left, cst.BinaryOperation):
        is_zero = script.text(test.comparisons[0]) == "== 0"
        if is_zero and len(test.comparisons) == 1 and isinstance(left.operator, cst.Modulo):
            return script.text(left.right)
    raise UnclearError(
        script.line(between[0]),
        "the step depends on something else than if (i + 1) % n == 0, so when it happens is not known.",
    )


__all__ = ["accumulated", "convert", "name", "options"]
