"""Between ``backward()`` and ``step()``: gradients that are clipped, scaled, or added up over several batches.

Where each ``backward()`` has its ``step()``, gradients travel while it runs. In all other scripts (several batches or
optimizers, or a step under a condition) each rank keeps what ``backward()`` has found, and ``step()`` averages it.
"""

from __future__ import annotations

import libcst as cst

from workbench.convert.edits import Edits
from workbench.convert.pytorch.training import Training
from workbench.convert.script import Script, last

_READ = ("unscale_", "grad")
_NO_READ = ("zero_grad", "step", "print", "update")


def convert(edits: Edits, found: Training) -> None:
    """Wait for the average before somebody reads gradients, and send none before the last is there."""
    if not _steps_at_once(edits.script, found):
        for call in found.backward:
            with edits.attempt():
                _keep(edits, found, call)
    for step in found.steps:
        with edits.attempt():
            _wait(edits, found, step)


def _steps_at_once(script: Script, found: Training) -> bool:
    """Is there one ``backward()``, and one step directly after it?"""
    if not len(found.optimizers) == len(found.backward) == len(found.steps) == 1:
        return False
    (backward,), (step,) = found.backward, found.steps
    is_closure = (
        (function := script.function(backward))
        and step.args
        and (script.text(step.args[0].value) == function.name.value)
    )
    return bool(is_closure) or script.block(backward) is script.block(step)


def _keep(edits: Edits, found: Training, backward: cst.Call) -> None:
    script = edits.script
    function = script.function(backward)
    names = dict.fromkeys(name(script, step) for step in found.steps if script.function(step) is function)
    if not names:
        raise script.unclear(
            backward,
            "the optimizer's step() is in another function. If it does not follow each backward(), put this one under "
            "with optimizer.no_sync(), so that step() averages the gradients.",
        )
    edits.within(backward, f"with {', '.join(f'{each}.no_sync()' for each in names)}:")


def _wait(edits: Edits, found: Training, step: cst.Call) -> None:
    """``synchronize()`` before the first that reads gradients."""
    script = edits.script
    function, end = script.function(step), script.place(step)
    same = [node for node in script.nodes if script.function(node) is function and not script.excludes(node, step)]
    begin = max(
        (script.place(call) for call in found.backward if call in same and script.place(call) < end), default=None
    )
    code = [node for node in same if isinstance(node, (cst.Name, cst.Attribute, cst.Call))]
    there = [node for node in code if begin is not None and begin < script.place(node) < end]
    readers: list[cst.CSTNode] = [node for node in there if _reads(script, node, name(script, step))]
    if not readers and script.text(step.func) == f"{name(script, step)}.step":
        return
    first = script.level(readers[0] if readers else step, step)
    if begin is not None and script.place(first) <= begin:
        raise script.unclear(
            step, f"gradients are read between backward() and step(): {_SYNCHRONIZE.format(name(script, step))}"
        )
    edits.before(first, 6, f"{name(script, step)}.synchronize()", "wait for the average of the gradients")
    edits.within(step, f"with {name(script, step)}.skip_synchronize():")


_SYNCHRONIZE = "call {0}.synchronize() before, and step() within {0}.skip_synchronize()."


def _reads(script: Script, node: cst.CSTNode, optimizer: str) -> bool:
    """Does it look at gradients, or may a function that gets the optimizer or its parameters do so?"""
    if last(node) in _READ:
        return True
    if not isinstance(node, cst.Call) or last(node.func) in _NO_READ:
        return False
    given = [script.text(arg.value) for arg in node.args]
    return optimizer in given or "clip_grad" in last(node.func) or any(".parameters()" in each for each in given)


def name(script: Script, step: cst.Call) -> str:
    """The optimizer's, where the step is."""
    on = step.func.value  # type: ignore[attr-defined]
    is_scaled = bool(step.args) and isinstance(step.args[0].value, (cst.Name, cst.Attribute)) and "scaler" in last(on)
    return script.text(step.args[0].value if is_scaled else on)
