"""A script for TensorFlow with a loop of its own around a ``GradientTape`` → the six steps."""

from __future__ import annotations

import libcst as cst

from workbench.convert import beginning, files, rank_0
from workbench.convert.decisions import Own, check, say_put, say_sums
from workbench.convert.edits import Edits
from workbench.convert.origins import origin, origins
from workbench.convert.script import Script, argument, inside, last
from workbench.convert.source import Reason, RefusedError, UnclearError
from workbench.convert.steps import MEAN_OR_SUM
from workbench.convert.tf import device, pipeline
from workbench.convert.ways import bare, loops_around, shown_at, way_out

_VARIABLES = ("trainable_variables", "trainable_weights", "variables")


def convert(script: Script, loss_is: str = "") -> Edits:
    """The edits.

    Args:
        script: which.
        loss_is: "mean" or "sum", where the user knows it.

    Raises:
        RefusedError: something is not understood.
    """
    edits = Edits(script)
    edits.decide(*device.refused(script))
    gradients = _gradients(script)
    if not gradients:
        raise RefusedError(script.name, Reason(0, "no tape.gradient(…) in this file: what trains here is not known."))
    functions = list[str]()
    for tape, name in gradients.items():
        with edits.attempt():
            _average(edits, name, tape, loss_is)
        with edits.attempt():
            _same_start(edits, tape)
        with edits.attempt():
            functions += _shard(edits, tape)
    losses = [arg.value for tape in gradients if (arg := argument(tape, 0, "target"))]
    with edits.attempt():
        loops = [loop for tape in gradients for loop in loops_around(script, tape)[:1]]
        own = Own(script, loops, losses)
        check(edits, own)
        say_sums(edits, own, loops)
        for loop in loops:
            say_put(edits, own, loop)
    rank_0.convert(edits, [*gradients])
    imports = ["import tensorflow as tf", *files.convert(edits)]
    beginning.convert(edits, "workbench.tensorflow", device.PIN, imports, [*dict.fromkeys(functions)])
    return edits


def _gradients(script: Script) -> dict[cst.Call, str]:
    """The calls that compute gradients, and the names of their tapes."""
    tapes = {
        script.text(item.asname.name)
        for item in script.all(cst.WithItem)
        if item.asname is not None
        and isinstance(item.item, cst.Call)
        and script.meaning(item.item.func) == "tensorflow.GradientTape"
    }
    calls = script.methods("gradient")
    found = {call: script.text(cst.ensure_type(call.func, cst.Attribute).value) for call in calls}
    return {call: name for call, name in found.items() if name in tapes}


def _shard(edits: Edits, gradient: cst.Call) -> list[str]:
    script = edits.script
    loops = loops_around(script, gradient)
    for loop in loops:
        data = bare(script, loop.iter)
        if pipeline.is_pipeline(script, data):
            return pipeline.shard(edits, data)
    line = script.line(loops[0]) if loops else script.line(gradient)
    raise UnclearError(line, "no loop over a data set of tf.data that this file makes is around the gradients.")


def _average(edits: Edits, tape: str, gradient: cst.Call, loss_is: str) -> None:
    script = edits.script
    loss = argument(gradient, 0, "target")
    kind = loss_is or (_kind(script, loss.value) if loss else "unknown")
    if kind not in ("mean", "sum"):
        edits.say(gradient, MEAN_OR_SUM.format("DistributedGradientTape"))
    more = ", op=hvd.Sum" if kind == "sum" else ""
    edits.before(gradient, 6, f"{tape} = hvd.DistributedGradientTape({tape}{more})")


def _kind(script: Script, loss: cst.BaseExpression) -> str:
    found = set()
    for each in origins(script, loss):
        if not isinstance(each, cst.Call):
            return "unknown"
        name = script.meaning(each.func)
        made = origin(script, each.func) if isinstance(each.func, (cst.Name, cst.Attribute)) else each.func
        if name in ("tensorflow.reduce_mean", "tensorflow.reduce_sum", "keras.ops.mean") and len(each.args) == 1:
            found.add("sum" if name.endswith("sum") else "mean")
        elif isinstance(made, cst.Call) and ".losses." in script.meaning(made.func):
            text = script.word(argument(made, None, "reduction"), "mean")
            found.add({"mean": "mean", "sum_over_batch_size": "mean", "sum": "sum"}.get(text, "unknown"))
        else:
            return "unknown"
    return found.pop() if len(found) == 1 else "unknown"


def _same_start(edits: Edits, gradient: cst.Call) -> None:
    """Broadcast the weights before the outermost loop; a model that is not built yet gets a batch first."""
    script = edits.script
    around = way_out(script, gradient)
    if not around:
        raise script.unclear(
            gradient, "no loop is around this. Broadcast the variables before the training: broadcast_variables."
        )
    place, through = around[-1]
    sources = argument(gradient, 1, "sources")
    names = _sources(script, sources.value, through) if sources else []
    if not names:
        raise script.unclear(
            gradient,
            "the variables have no names before the loop: model.trainable_variables, or a list of tf.Variable.",
        )
    model = names[0].removesuffix(".variables")
    first = f"{model}(next(iter({_batches(script, gradient, through)}))[0])\n" if _needs_batch(script, sources) else ""
    text = "a first batch makes the variables; all ranks take those of rank 0" if first else ""
    several = f"[{', '.join(names)}]" if len(names) > 1 or "." not in names[0] else names[0]
    edits.before(place, 5, f"{first}hvd.broadcast_variables({several}, root_rank=0)", text)


def _sources(script: Script, node: cst.BaseExpression, through: list[cst.Call]) -> list[str]:
    """``model.variables``, or the names of variables, as they are written before the loop."""
    if isinstance(node, (cst.List, cst.Tuple)):
        found = [_sources(script, each.value, through) for each in node.elements]
        return [name for names in found for name in names] if all(found) else []
    if isinstance(node, cst.Attribute) and last(node) in _VARIABLES:
        name = shown_at(script, node.value, through)
        return [f"{name}.variables"] if name else []
    made = origin(script, node)
    if isinstance(made, (cst.List, cst.Attribute)) and made is not node:
        return _sources(script, made, through)
    if isinstance(made, cst.Call) and script.meaning(made.func) == "tensorflow.Variable":
        name = shown_at(script, node, through)
        return [name] if name else []
    return []


def _needs_batch(script: Script, sources: cst.Arg | None) -> bool:
    """Has the model no variables before its first batch?"""
    models = [node.value for node in (inside(sources, cst.Attribute) if sources else []) if last(node) in _VARIABLES]
    made = [origin(script, each) for each in models]
    return bool(made) and not all(isinstance(each, cst.Call) and _is_built(each) for each in made)


def _batches(script: Script, gradient: cst.Call, through: list[cst.Call]) -> str:
    """The data set's name before the loop; its batches begin with what goes into the model."""
    for loop in loops_around(script, gradient):
        data = bare(script, loop.iter)
        if pipeline.is_pipeline(script, data):
            name = shown_at(script, data, through)
            target = loop.target if isinstance(loop.target, cst.Tuple) else None
            if name and target is not None and len(target.elements) == 2:
                return name
    raise script.unclear(
        gradient,
        "this model has no variables before its first batch, so none to broadcast: begin with keras.Input(…), or call "
        "it once before the loop.",
    )


def _is_built(made: cst.Call) -> bool:
    if last(made.func) == "Model" and len(made.args) >= 2:
        return True
    calls = inside(made, cst.Call) if last(made.func) == "Sequential" else []
    return any(last(call.func) in ("Input", "InputLayer") or argument(call, None, "input_shape") for call in calls)
