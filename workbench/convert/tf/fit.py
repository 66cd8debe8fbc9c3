"""A script whose training is ``model.fit`` of Keras → the six steps."""

from __future__ import annotations

import libcst as cst

from workbench.convert import beginning, files, rank_0
from workbench.convert.edits import Change, Edits
from workbench.convert.origins import makers, origins
from workbench.convert.script import Script, argument, last, stars
from workbench.convert.source import Reason, RefusedError, UnclearError
from workbench.convert.tf import device, pipeline

_WRITERS = ("ModelCheckpoint", "TensorBoard", "CSVLogger")
_CALLBACKS = "hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()"


def convert(script: Script, scale_rate: bool = False) -> Edits:
    """The edits.

    Args:
        script: which.
        scale_rate: not for Keras: the rate is within the optimizer.

    Raises:
        RefusedError: something is not understood.
    """
    edits = Edits(script)
    if scale_rate:
        reason = Reason(0, "--scale-lr is for PyTorch; in Keras the rate is within the optimizer.")
        raise RefusedError(script.name, reason)
    compiled, fits = _calls(script, "compile"), _calls(script, "fit")
    if not compiled or not fits:
        missing = "compile" if fits else "fit"
        raise RefusedError(
            script.name, Reason(0, f"there is no call of model.{missing}(): what trains here is not known.")
        )
    edits.decide(*device.refused(script), *_refused(script))
    functions, needed = list[str](), list[str]()
    for call in compiled:
        with edits.attempt():
            needed += _optimizer(edits, call)
    for fit in fits:
        with edits.attempt():
            functions += _data(edits, fit)
        with edits.attempt():
            _arguments(edits, fit)
    _writers(edits)
    rank_0.convert(edits, fits)
    ours = "workbench.tensorflow.keras" if script.imports("tensorflow") else "workbench.keras"
    imports = ["import tensorflow as tf", *needed, *files.convert(edits)]
    beginning.convert(edits, ours, device.PIN, imports, [*dict.fromkeys(functions)])
    return edits


def _refused(script: Script) -> list[Reason]:
    found = []
    for arg in script.all(cst.Arg):
        if (
            arg.keyword is not None
            and arg.keyword.value == "reduction"
            and script.text(arg.value).strip("'\"") == "sum"
        ):
            found.append(script.reason(arg, "this loss is a sum, and the ranks' average of sums is too small."))
    for call in script.all(cst.Call):
        if last(call.func) == "BackupAndRestore":
            found.append(script.reason(call, "BackupAndRestore would restore another epoch on each rank."))
    for text in script.all(cst.SimpleString):
        if text.evaluated_value in ("jax", "torch") and script.imports("keras"):
            found.append(script.reason(text, f"Keras on {text.evaluated_value}: convert its device by hand."))
    return found


def _calls(script: Script, name: str) -> list[cst.Call]:
    """The calls of a method of models."""
    others = ("re.", "torch.", "sklearn.")
    found = [call for call in script.methods(name) if not script.meaning(call.func).startswith(others)]
    return [call for call in found if name != "fit" or _is_training(script, call)]


def _is_training(script: Script, call: cst.Call) -> bool:
    """Not a scaler of scikit-learn."""
    made = makers(script, call.func.value)  # type: ignore[attr-defined]
    return not any(script.meaning(each.func).startswith("sklearn.") for each in made)


def _keras(script: Script) -> tuple[str, list[str]]:
    """By which name the new script calls Keras, and the imports that this needs."""
    for node in script.all(cst.ImportAlias):
        if script.text(node.name) == "keras" or script.text(node.name).endswith(".keras"):
            return script.text(node.asname.name) if node.asname else script.text(node.name), []
    return ("tf.keras", []) if script.imports("tensorflow") else ("keras", ["import keras"])


def _optimizer(edits: Edits, compiled: cst.Call) -> list[str]:
    """Wrap it; returns the imports that this needs."""
    script = edits.script
    if stars(compiled):
        raise script.unclear(compiled, "write the arguments of compile() out.")
    arg = argument(compiled, 0, "optimizer")
    keras, imports = _keras(script)
    if arg is None:
        more = f'optimizer=hvd.DistributedOptimizer({keras}.optimizers.get("rmsprop"))'
        edits.replace(compiled, lambda call: rank_0.also(call, more), 6)
        return imports
    made = origins(script, arg.value)
    is_name = all(isinstance(each, (cst.SimpleString, cst.FormattedString)) for each in made)
    optimizer = f"{keras}.optimizers.get({{}})" if is_name else "{}"
    edits.wrap(arg.value, f"hvd.DistributedOptimizer({optimizer})", 6)
    return imports if is_name else []


# --- 2 and 4 ------------------------------------------------------------------------------------------


def _data(edits: Edits, fit: cst.Call) -> list[str]:
    """Share the samples; returns functions that the new script needs."""
    script = edits.script
    line = script.line(fit)
    if stars(fit):
        raise UnclearError(line, "write the arguments of fit() out.")
    x, y = argument(fit, 0, "x"), argument(fit, 1, "y")
    if x is None:
        raise UnclearError(line, "fit() has no data here.")
    if pipeline.is_pipeline(script, x.value):
        return pipeline.shard(edits, x.value)
    if y is None:
        raise UnclearError(
            line,
            "fit() has neither arrays x and y nor a data set of tf.data that this file makes, so each rank takes all "
            "samples: give it this rank's, hvd.rank() of hvd.size().",
        )
    if argument(fit, None, "steps_per_epoch") is not None:
        raise UnclearError(line, "steps_per_epoch with arrays: leave it out, a share of the data has its own steps.")
    arrays = [x, y, *(arg for name in ("sample_weight",) if (arg := argument(fit, None, name)) is not None)]
    first = _first(script, x.value)
    name = script.unused("share")
    number = f"len({first}) // hvd.size() * hvd.size()"
    edits.before(
        fit, 4, f"{name} = slice(hvd.rank(), {number}, hvd.size())", "each rank trains on its own samples, equally many"
    )
    for arg in arrays:
        edits.replace(arg.value, _shared(script, arg.value, name))
    batch = argument(fit, 2, "batch_size")
    local = script.unused("local_batch")
    edits.before(fit, 2, f"{local} = {script.factor(batch.value) if batch else 32} // hvd.size()")  # Keras' default
    if batch is None:
        edits.replace(fit, lambda call: rank_0.also(call, f"batch_size={local}"))
    else:
        edits.replace(batch.value, local)
    return []


def _first(script: Script, node: cst.BaseExpression) -> str:
    if isinstance(node, (cst.List, cst.Tuple)) and node.elements:
        return _first(script, node.elements[0].value)
    if isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)):
        return script.text(node)
    raise script.unclear(node, "give these samples a name before fit(), so that they can be shared.")


def _shared(script: Script, node: cst.BaseExpression, name: str) -> str:
    if isinstance(node, (cst.List, cst.Tuple)):
        return "[" + ", ".join(_shared(script, each.value, name) for each in node.elements) + "]"
    if isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)):
        return f"{script.text(node)}[{name}]"
    raise script.unclear(node, "give these samples a name before fit(), so that they can be shared.")


# --- 5 and 7 ------------------------------------------------------------------------------------------


def _arguments(edits: Edits, fit: cst.Call) -> None:
    """Callbacks and ``verbose``."""
    script = edits.script
    if sum(arg.keyword is None for arg in fit.args) > 4:
        raise script.unclear(fit, "write the arguments of fit() with their names, after the batch size.")
    callbacks, verbose = argument(fit, None, "callbacks"), argument(fit, None, "verbose")
    name = script.unused("hvd_callbacks")
    edits.before(fit, 5, f"{name} = [{_CALLBACKS}]")
    if callbacks is None:
        edits.replace(fit, lambda call: rank_0.also(call, f"callbacks={name}"))
    elif isinstance(callbacks.value, cst.List):
        edits.replace(callbacks.value, _starred_first(name))
    else:
        listed = "{}" if isinstance(callbacks.value, (cst.Name, cst.Attribute, cst.Call)) else "({})"
        is_one = any("callbacks." in script.meaning(each.func) for each in makers(script, callbacks.value))
        edits.wrap(callbacks.value, f"[*{name}, {'' if is_one else '*'}{listed}]")
    if verbose is None:
        edits.replace(fit, lambda call: rank_0.also(call, 'verbose="auto" if hvd.rank() == 0 else 0'), 7)
    elif script.text(verbose.value) != "0":
        edits.replace(verbose.value, f"{script.text(verbose.value)} if hvd.rank() == 0 else 0", 7)


def _starred_first(name: str) -> Change:
    """A list that begins with the elements of another."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))

    def change(made: cst.List) -> cst.List:
        first = cst.StarredElement(cst.Name(name), comma=comma if made.elements else cst.MaybeSentinel.DEFAULT)
        return made.with_changes(elements=[first, *made.elements])

    return change


def _writers(edits: Edits) -> None:
    """Callbacks that write files are rank 0's."""
    script = edits.script
    for each in script.all(cst.Element):
        if _writes(script, each.value):
            text = script.text(each.value)
            star = cst.parse_expression(f"([{text}] if hvd.rank() == 0 else [])")
            edits.replace(each, lambda old, star=star: cst.StarredElement(value=star, comma=old.comma), 7)  # type: ignore[misc]
    for call in script.methods("append"):
        if any(_writes(script, arg.value) for arg in call.args if isinstance(arg.value, (cst.Call, cst.Name))):
            edits.guard(call)


def _writes(script: Script, callback: cst.BaseExpression) -> bool:
    return any(last(each.func) in _WRITERS for each in makers(script, callback))
