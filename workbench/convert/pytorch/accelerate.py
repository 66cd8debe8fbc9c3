"""A script for Hugging Face Accelerate → the workbench."""

from __future__ import annotations

from functools import partial

import libcst as cst

from workbench.convert import beginning
from workbench.convert.edits import Edits
from workbench.convert.origins import makers
from workbench.convert.pytorch import gradients, serial, sharding
from workbench.convert.pytorch.training import Training, training
from workbench.convert.script import Script, inside, last
from workbench.convert.source import Reason, RefusedError
from workbench.convert.ways import bare

_DEVICE = 'torch.device("cuda" if torch.cuda.is_available() else "cpu")'
_VALUES = {
    "device": _DEVICE,
    "is_main_process": "(hvd.rank() == 0)",
    "is_local_main_process": "(hvd.local_rank() == 0)",
    "process_index": "hvd.rank()",
    "local_process_index": "hvd.local_rank()",
    "num_processes": "hvd.size()",
}


def convert(script: Script) -> Edits:
    """The edits.

    Raises:
        RefusedError: something is not understood.
    """
    edits = Edits(script)
    found = training(edits)
    name = _accelerator(edits, found)
    loaders, functions = set[str](), list[str]()
    edits.attempt_each(
        [
            lambda: loaders.update(_prepare(edits, name)),
            lambda: functions.extend(sharding.shard(edits, found, keep_batch=True)),
            lambda: gradients.convert(edits, found),
            lambda: _uses(edits, name),
            lambda: _move_batches(edits, found, loaders),
            *(partial(serial.wrap, edits, each) for each in found.optimizers),
        ]
    )
    for node in script.imports("accelerate"):
        edits.remove(node)
    imports = ["import torch", *([] if functions else [sharding.SAMPLER_IMPORT])]
    beginning.convert(edits, "workbench.torch", serial.PIN, imports, functions)
    return edits


def _accelerator(edits: Edits, found: Training) -> str:
    """The name of the Accelerator, which is not made any more."""
    script = edits.script
    made = [
        node
        for node in script.all(cst.Assign)
        if isinstance(node.value, cst.Call) and script.meaning(node.value.func) == "accelerate.Accelerator"
    ]
    names = {script.text(node.targets[0].target) for node in made}
    shared = {each.name.value for said in script.all(cst.Nonlocal) for each in said.names}
    if len(names) != 1 or names & shared:
        text = f"it makes {len(made)} Accelerators, or a nested function makes it anew: one is converted."
        raise RefusedError(script.name, Reason(0, text))
    for node in made:
        call = cst.ensure_type(node.value, cst.Call)
        edits.remove(node)
        for arg in call.args:
            if arg.keyword is None or arg.keyword.value not in ("cpu", "project_dir"):
                text = (
                    f"Accelerator({script.text(arg).rstrip(', ')}) of line {script.line(call)} has no counterpart here."
                )
                edits.say(found.backward[0], text)
    return script.text(made[0].targets[0].target)


def _prepare(edits: Edits, name: str) -> set[str]:
    """``prepare`` returns what it is given, wrapped; here nothing is left to do. Returns the names of all of it."""
    script = edits.script
    names = set[str]()
    for call in script.all(cst.Call):
        if script.text(call.func) != f"{name}.prepare":
            continue
        for arg in call.args:
            made = makers(script, arg.value)
            if any("lr_scheduler" in script.meaning(each.func) or "scheduler" in last(each.func) for each in made):
                raise script.unclear(
                    call, "a prepared scheduler steps once for each process. Leave it out of prepare()."
                )
        assign = next((each for each in script.above(call) if isinstance(each, cst.Assign)), None)
        given = ", ".join(script.text(arg.value) for arg in call.args)
        if assign is None or script.text(assign.targets[0].target).strip("()") != given:
            raise script.unclear(call, "prepare() should give each thing its own name again.")
        edits.remove(call)
        names |= {script.text(arg.value) for arg in call.args}
    return names


def _uses(edits: Edits, name: str) -> None:
    """``accelerator.backward(loss)`` and the others."""
    script = edits.script
    for node in script.all(cst.Attribute):
        if script.text(node.value) != name:
            continue
        above = next(iter(script.above(node)))
        call = above if isinstance(above, cst.Call) and above.func is node else None
        if call is None and last(node) in _VALUES:
            is_in_text = any(isinstance(each, cst.FormattedString) for each in script.above(node))
            edits.replace(node, _VALUES[last(node)].replace('"', "'") if is_in_text else _VALUES[last(node)])
        elif call is None or not _call(edits, call, last(node)):
            edits.say(node, f"{script.text(node)} has no counterpart here.")


def _call(edits: Edits, call: cst.Call, method: str) -> bool:
    """Convert one call; False if it is not known."""
    script = edits.script
    given = [script.text(arg.value) for arg in call.args]
    if method == "backward" and len(given) == 1:
        edits.replace(call, f"{given[0]}.backward()")
    elif method == "print":
        edits.replace(call.func, "print")
        edits.guard(call)
    elif method == "save":
        edits.replace(call.func, "torch.save")
        edits.guard(call)
    elif method == "wait_for_everyone":
        edits.replace(call, "hvd.barrier()")
    elif method in ("unwrap_model", "gather_for_metrics") and given:
        edits.replace(call, given[0])  # each rank evaluates all samples
    elif method == "clip_grad_norm_":
        edits.replace(call.func, "torch.nn.utils.clip_grad_norm_")
    else:
        return method == "prepare"
    return True


def _move_batches(edits: Edits, found: Training, loaders: set[str]) -> None:
    """Accelerate moves a batch to the device; a loader does not."""
    script = edits.script
    for optimizer in found.optimizers:
        for model in optimizer.models:
            edits.before(optimizer.place, 3, f"{model}.to({_DEVICE})", said=False)
    for loop in script.all(cst.For):
        moves = any(last(call.func) in ("to", "cuda") for call in inside(loop.body, cst.Call))
        if moves or (
            all(loop is not each.loop for each in found.batches) and script.text(bare(script, loop.iter)) not in loaders
        ):
            continue
        target = loop.target
        if isinstance(target, cst.Tuple) and isinstance(target.elements[-1].value, cst.Tuple):
            target = target.elements[-1].value  # of enumerate()
        names = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else [target]
        if not all(isinstance(each, cst.Name) for each in names) or not isinstance(loop.body, cst.IndentedBlock):
            raise script.unclear(loop, "which tensors of a batch go to the device is not known.")
        text = ", ".join(script.text(each) for each in names)
        moved = ", ".join(f"{script.text(each)}.to(device)" for each in names)
        edits.before(loop, 3, f"device = {_DEVICE}", said=False)
        edits.before(loop.body.body[0], 3, f"{text} = {moved}", "a batch goes to this rank's GPU")
