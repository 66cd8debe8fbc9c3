"""A script for DistributedDataParallel → the workbench."""

from __future__ import annotations

import libcst as cst

from workbench.convert import beginning
from workbench.convert.edits import Edits
from workbench.convert.pytorch import gradients, serial
from workbench.convert.pytorch.training import Training, training
from workbench.convert.rank_0 import also
from workbench.convert.script import Script, argument, last
from workbench.convert.source import Reason, UnclearError

_DDP = "DistributedDataParallel"
OURS = {
    "get_rank": "rank",
    "get_world_size": "size",
    "barrier": "barrier",
    "is_initialized": "is_initialized",
    "destroy_process_group": "shutdown",
}
"""By the function of torch.distributed, ours that does the same."""
_VARIABLES = {"LOCAL_RANK": "hvd.local_rank()", "RANK": "hvd.rank()", "WORLD_SIZE": "hvd.size()"}
_IMPORTS = ("torch.distributed", "torch.nn.parallel")


def convert(script: Script) -> Edits:
    """The edits.

    Raises:
        RefusedError: something is not understood.
    """
    edits = Edits(script)
    found = training(edits, shares=False)
    edits.decide(*_refused(script))
    edits.attempt_each(
        [lambda: _model(edits), lambda: _calls(edits), lambda: _numbers(edits), lambda: _samplers(edits, found)]
    )
    for each in found.optimizers:
        serial.wrap(edits, each, broadcast=False)
    gradients.convert(edits, found)
    for node in script.imports(*_IMPORTS):
        if not isinstance(node, cst.ImportFrom) or "data" not in script.text(node):
            edits.remove(node)
    pin = "" if script.calls("torch.cuda.set_device") else serial.PIN
    beginning.convert(edits, "workbench.torch", pin, ["import torch"])
    return edits


def _refused(script: Script) -> list[Reason]:
    found = []
    for call in script.all(cst.Call):
        name = script.meaning(call.func)
        if name.endswith("multiprocessing.spawn"):
            found.append(
                script.reason(call, "the script starts processes: call the function once, a launcher starts ranks.")
            )
        if ".fsdp" in name or last(call.func) in ("no_sync", "Join", "register_comm_hook", "convert_sync_batchnorm"):
            found.append(script.reason(call, f"{last(call.func)} has no counterpart in the converted script."))
    for text in script.all(cst.SimpleString):
        if str(text.evaluated_value).startswith("--local") and "rank" in str(text.evaluated_value):
            found.append(script.reason(text, "--local_rank: read os.environ['LOCAL_RANK'], as under torchrun."))
    return found


def _wrapped(script: Script) -> list[tuple[cst.Assign, cst.Call]]:
    """``model = DistributedDataParallel(model)``: the assignments, and the calls."""
    return [
        (node, node.value)
        for node in script.all(cst.Assign)
        if isinstance(node.value, cst.Call) and script.meaning(node.value.func).endswith(f".{_DDP}")
    ]


def _model(edits: Edits) -> None:
    """The wrapper goes, and all ranks take the weights of rank 0 in its place."""
    script = edits.script
    found = _wrapped(script)
    if not found:
        raise UnclearError(
            0, f"no {_DDP}(…) is assigned here: wrap no model, and call hvd.broadcast_parameters(…) once."
        )
    names = set()
    for assign, call in found:
        model = argument(call, 0, "module")
        if model is None:
            raise script.unclear(call, f"{_DDP} has no model here.")
        name, inner = script.text(assign.targets[0].target), script.text(model.value)
        names.add(name)
        edits.after(assign, 5, f"hvd.broadcast_parameters({name}.state_dict(), root_rank=0)")
        if name == inner:
            edits.remove(assign)
        else:
            edits.replace(call, inner)
    for attribute in script.all(cst.Attribute):
        if last(attribute) == "module":
            on = script.text(attribute.value)
            if on in names or "model" in on.lower():
                edits.replace(attribute, lambda node: node.value)


def _calls(edits: Edits) -> None:
    script = edits.script
    for call in script.all(cst.Call):
        name = script.meaning(call.func)
        if not name.startswith("torch.distributed."):
            continue
        short = name.removeprefix("torch.distributed.")
        if short == "init_process_group":
            edits.remove(call)
        elif short == "is_available" and not call.args:
            edits.replace(call, "True")
        elif short in OURS and not (call.args and short != "barrier" and short != "destroy_process_group"):
            edits.replace(call, f"hvd.{OURS[short]}()")
        elif short in ("all_reduce", "broadcast") and (text := _collective(script, call, short)):
            edits.replace(call, text)
        else:
            said = f"{script.text(call.func)}(…): replace it by hand, see the table in docs/how-to/convert.md."
            edits.say(call, said)


def _collective(script: Script, call: cst.Call, name: str) -> str:
    """``hvd.allreduce_`` or ``hvd.broadcast_``, which work in place; "" with arguments that they do not have."""
    tensor = argument(call, 0, "tensor")
    more = argument(call, 1, "op" if name == "all_reduce" else "src")
    if tensor is None or len(call.args) > 2 or (len(call.args) == 2 and more is None):
        return ""
    if name == "broadcast":
        return f"hvd.broadcast_({script.text(tensor.value)}, root_rank={script.text(more.value) if more else 0})"
    op = last(more.value) if more else "SUM"
    return f"hvd.allreduce_({script.text(tensor.value)}, op=hvd.{_OPS[op]})" if op in _OPS else ""


_OPS = {"SUM": "Sum", "AVG": "Average", "MIN": "Min", "MAX": "Max"}


def _numbers(edits: Edits) -> None:
    """``int(os.environ["RANK"])`` → ``hvd.rank()``."""
    script = edits.script
    for node in script.all(cst.BaseExpression):  # type: ignore[type-abstract]
        name = _variable(script, node)
        around = next(iter(script.above(node)), None)
        if not name:
            continue
        if isinstance(around, cst.AssignTarget):
            edits.say(node, "a launcher sets this for each rank, as workbench run does: leave it out.")
            continue
        outer = next(iter(script.above(around)), None) if around is not None else None
        if isinstance(outer, cst.Call) and script.meaning(outer.func) == "builtins.int":
            edits.replace(outer, _VARIABLES[name])
        else:
            edits.replace(node, f"str({_VARIABLES[name]})")


def _variable(script: Script, node: cst.BaseExpression) -> str:
    """The launcher's variable that is read here."""
    if isinstance(node, cst.Subscript) and script.meaning(node.value) == "os.environ":
        text = script.text(node.slice[0].slice)
    elif isinstance(node, cst.Call) and script.meaning(node.func) in ("os.environ.get", "os.getenv") and node.args:
        text = script.text(node.args[0].value)
    else:
        return ""
    name = text.strip("'\"")
    return name if name in _VARIABLES else ""


def _samplers(edits: Edits, found: Training) -> None:
    """torch's sampler asks torch.distributed for the numbers, unless it is told them."""
    script = edits.script
    samplers = [call for call in script.all(cst.Call) if last(call.func) == "DistributedSampler"]
    for call in samplers:
        if argument(call, 1, "num_replicas") is None:
            edits.replace(call, lambda node: also(also(node, "num_replicas=hvd.size()"), "rank=hvd.rank()"), 4)
    if not samplers:
        raise script.unclear(
            found.backward[0], "no loader has a DistributedSampler here, so ranks may share no samples."
        )
