"""Batch norm's statistics are those of a rank's own samples: before a model is evaluated, all take those of rank 0.

A validation loss is then the same on all ranks, so that all stop, save and choose their rates alike.
"""

from __future__ import annotations

import itertools

import libcst as cst

from workbench.convert.edits import Edits
from workbench.convert.origins import assignments
from workbench.convert.pytorch.training import Training
from workbench.convert.script import Script, last

_LIBRARIES = ("torch.", "copy.", "builtins.", "transformers.", "tokenizers.")


def convert(edits: Edits, found: Training) -> None:
    """Broadcast them."""
    script = edits.script
    norms = [call for call in script.all(cst.Call) if "BatchNorm" in last(call.func)]
    if norms:
        edits.note(
            norms[0],
            "batch norm uses the samples of one rank, so the result differs from one process. "
            "hvd.SyncBatchNorm uses those of all ranks.",
        )
    for call in evaluations(script):
        model = script.text(call.func.value)  # type: ignore[attr-defined]
        edits.before(
            call,
            5,
            f"hvd.broadcast_parameters({model}.state_dict(), root_rank=0)",
            "all evaluate with rank 0's statistics",
        )


def judged(script: Script, found: Training) -> list[cst.BaseExpression]:
    """Variables with what functions of other files have found out about a model by a rank's own statistics."""
    models = {model for each in found.optimizers for model in each.models}
    if not _may_have_batch_norm(script):
        return []
    return [
        target
        for target, value in assignments(script)
        if isinstance(value, cst.Call)
        and script.is_imported(value.func)
        and not script.meaning(value.func).startswith(_LIBRARIES)
        and any(script.text(arg.value) in models for arg in value.args)
    ]


def evaluations(script: Script) -> list[cst.Call]:
    """Calls of ``model.eval()`` in a script whose models may have batch norm."""
    if not _may_have_batch_norm(script):
        return []
    calls = [call for call in script.methods("eval") if not call.args]
    return [call for call in calls if isinstance(next(script.above(call)), cst.Expr)]


def _may_have_batch_norm(script: Script) -> bool:
    """It is named here, or models come from other files."""
    hidden = any(isinstance(each.names, cst.ImportStar) for each in script.all(cst.ImportFrom))
    if hidden or script.calls("torch.hub.load"):
        return True
    if any("BatchNorm" in name or "batch_norm" in name for name in script.used):
        return True
    words = ("model", "net", "timm", "backbone", "encoder", "smp")
    names = {script.meaning(call.func) for call in script.all(cst.Call)}
    others = [name for name in names if any(word in name.lower() for word in words) and not name.startswith(_LIBRARIES)]
    return any(script.imports(*itertools.accumulate(name.split("."), "{}.{}".format)) for name in others)
