"""The way back: a script for the workbench → PyTorch's own DistributedDataParallel, started by torchrun."""

from __future__ import annotations

import libcst as cst

from workbench.convert.edits import Edits
from workbench.convert.origins import origins
from workbench.convert.pytorch.ddp import OURS
from workbench.convert.script import Script, argument, inside, last
from workbench.convert.source import Reason, RefusedError, UnclearError

_OURS = "workbench.torch."
_SAME = {ours: f"dist.{theirs}()" for theirs, ours in OURS.items()} | {
    "init": 'dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")',
    "local_rank": 'int(os.environ["LOCAL_RANK"])',
    "local_size": 'int(os.environ["LOCAL_WORLD_SIZE"])',
}
_FUNCTIONS = {
    "broadcast_object": '''\
def broadcast_object(value):
    """The value of rank 0."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]
''',
    "allreduce": '''\
def allreduce(tensor):
    """The average of all ranks."""
    return allreduced(tensor) / dist.get_world_size()
''',
    "allreduced": '''\
def allreduced(tensor):
    """The sum of all ranks."""
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total
''',
}
_LOOKS = ("detach", "cpu", "numpy", "item", "clone", "norm", "size", "numel", "mean", "sum", "tolist")
_PASSED_ON = ("train", "eval", "parameters", "named_parameters", "zero_grad", "to", "cuda", "cpu", "training")


def convert(script: Script) -> Edits:
    """The edits.

    Raises:
        RefusedError: something has no counterpart in PyTorch.
    """
    edits = Edits(script)
    problems: list[Reason] = []
    used = set[str]()
    try:
        _optimizer(edits)
        _model(edits)
    except UnclearError as unclear:
        problems.append(unclear.reason)
    for call in script.all(cst.Call):
        name = script.meaning(call.func)
        if (
            name.startswith(_OURS)
            and not inside(call.func, cst.Call)
            and not _call(edits, call, name.removeprefix(_OURS), used)
        ):
            problems.append(script.reason(call, f"{script.text(call.func)}(…) has no counterpart in plain DDP."))
    _synchronize(edits)
    if problems:
        raise RefusedError(script.name, *problems)
    _imports(edits, used)
    return edits


def _call(edits: Edits, call: cst.Call, name: str, used: set[str]) -> bool:
    """Convert one call of ours; False if it has no counterpart."""
    if name in _SAME and not (call.args and name != "init"):
        edits.replace(call, _SAME[name])
    elif name in _FUNCTIONS and call.args and (len(call.args) == 1 or name == "broadcast_object"):
        used |= {name, "allreduced"} if name == "allreduce" else {name}
        edits.replace(call, f"{name}({edits.script.text(call.args[0].value)})")
    elif name == "allreduce" and len(call.args) == 2 and edits.script.text(call.args[1]).endswith(".Sum"):
        used.add("allreduced")
        edits.replace(call, f"allreduced({edits.script.text(call.args[0].value)})")
    elif name == "allreduce_" and len(call.args) == 2 and edits.script.text(call.args[1]).endswith(".Sum"):
        edits.replace(call, f"dist.all_reduce({edits.script.text(call.args[0].value)})")
    elif name == "broadcast_optimizer_state":
        edits.remove(call)
    else:
        return name in ("DistributedOptimizer", "broadcast_parameters")
    return True


def _optimizer(edits: Edits) -> None:
    """The optimizer is used as it is."""
    script = edits.script
    for call in script.calls(f"{_OURS}DistributedOptimizer"):
        inner = argument(call, 0, "optimizer")
        known = ("optimizer", "named_parameters", "backward_passes_per_step")
        other = [arg for arg in call.args[1:] if arg.keyword is None or arg.keyword.value not in known]
        if inner is None or other:
            text = script.text(other[0]).rstrip(", ") if other else "no optimizer"
            raise script.unclear(call, f"DistributedOptimizer({text}) has no counterpart in plain DDP.")
        assign = next((each for each in script.above(call) if isinstance(each, cst.Assign)), None)
        if assign is not None and script.text(assign.targets[0].target) == script.text(inner.value):
            edits.remove(assign)
        else:
            edits.replace(call, script.text(inner.value))


def _model(edits: Edits) -> None:
    """DDP takes the place of the broadcast: its wrapper copies rank 0's weights, and averages gradients."""
    script = edits.script
    calls = script.calls(f"{_OURS}broadcast_parameters")
    if len(calls) != 1:
        line = script.line(calls[1]) if calls else 0
        raise UnclearError(line, f"broadcast_parameters() is called {len(calls)} times, and should be once.")
    state = calls[0].args[0].value if calls[0].args else None
    if not isinstance(state, cst.Call) or last(state.func) not in ("state_dict", "named_parameters"):
        raise script.unclear(calls[0], "write broadcast_parameters(model.state_dict(), root_rank=0).")
    model = cst.ensure_type(state.func, cst.Attribute).value
    name = script.text(model)
    edits.replace(calls[0], f"DistributedDataParallel({name})")
    edits.assign(calls[0], name)
    same = set(origins(script, model))
    place, line = script.function(calls[0]), script.line(calls[0])
    nodes: list[cst.Attribute | cst.Subscript] = [*script.all(cst.Attribute), *script.all(cst.Subscript)]
    for node in nodes:
        is_later = script.function(node) is not place or script.line(node) > line
        if not is_later or last(node) in _PASSED_ON or not set(origins(script, node.value)) & same:
            continue
        if last(node) not in ("state_dict", "load_state_dict") and _is_called(script, node):
            raise script.unclear(
                node, f"{script.text(node)}: DDP averages gradients only of what goes through {name}(…)."
            )
        edits.replace(node.value, f"{script.text(node.value)}.module")


def _is_called(script: Script, node: cst.CSTNode) -> bool:
    """Is a part of the model called, and not only looked at?"""
    if isinstance(node, cst.Subscript):
        return True
    for above in script.above(node):
        if isinstance(above, cst.Call):
            return above.func is node and last(above.func) not in _LOOKS
        if not isinstance(above, (cst.Attribute, cst.Subscript)):
            return False
        node = above
    return False


def _synchronize(edits: Edits) -> None:
    """DDP's gradients are averaged when ``backward()`` returns; those of several batches add up to the same average."""
    script = edits.script
    for call in script.all(cst.Call):
        if last(call.func) == "synchronize" and not script.meaning(call.func).startswith("torch."):
            edits.remove(call)
    for node in script.all(cst.With):
        item = node.items[0].item
        if isinstance(item, cst.Call) and last(item.func) in ("skip_synchronize", "no_sync"):
            edits.unwrap(node)


def _imports(edits: Edits, used: set[str]) -> None:
    script = edits.script
    ours = [node for node in script.imports("workbench") if "torch" in script.text(node)]
    lines = ["import os", "import torch", "import torch.distributed as dist"]
    lines.append("from torch.nn.parallel import DistributedDataParallel")
    there = {script.text(node) for node in (*script.all(cst.Import), *script.all(cst.ImportFrom))}
    for line in lines:
        if line not in there:
            edits.after(ours[0], 1, line, said=False)
    for name in sorted(used):
        edits.after(ours[0], 1, f"\n{_FUNCTIONS[name]}", said=False)
    for node in ours:
        edits.remove(node)
