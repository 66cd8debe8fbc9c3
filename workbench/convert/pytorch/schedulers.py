"""A scheduler that looks at the loss gets the average of the ranks."""

from __future__ import annotations

import libcst as cst

from workbench.convert.decisions import check, mentions
from workbench.convert.edits import Edits
from workbench.convert.pytorch.training import Training
from workbench.convert.script import Script, last

_SCHEDULERS = ("scheduler", "sched")


def convert(edits: Edits, found: Training) -> None:
    """Average the metric of a scheduler.

    Raises:
        UnclearError: a loop is left, or a step is left out, by a rank's own loss.
    """
    script = edits.script
    own = check(script, getattr(found.backward.func, "value", found.backward.func))
    for call in script.all(cst.Call):
        if last(call.func) == "step" and call is not found.step and call.args and _is_scheduler(script, call):
            value = call.args[0].value
            if mentions(script, value, own):
                edits.wrap(value, "hvd.allreduce(torch.as_tensor({})).item()", 6, "the ranks' average decides")


def _is_scheduler(script: Script, call: cst.Call) -> bool:
    on = getattr(call.func, "value", call.func)
    return isinstance(on, (cst.Name, cst.Attribute)) and script.text(on).lower().endswith(_SCHEDULERS)


__all__ = ["convert"]
