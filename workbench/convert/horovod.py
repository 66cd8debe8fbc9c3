"""A script for Horovod → the same calls of the workbench: only the imports change."""

from __future__ import annotations

import libcst as cst

from workbench.convert.edits import Edits
from workbench.convert.script import Script
from workbench.convert.source import Reason, RefusedError

_KNOWN = (
    *("torch", "torch.elastic", "tensorflow", "tensorflow.elastic", "keras", "keras.callbacks", "ray"),
    *("tensorflow.keras", "tensorflow.keras.callbacks", "spark", "spark.torch", "spark.keras"),
)


def convert(script: Script) -> Edits:
    """The edits.

    Raises:
        RefusedError: a module of Horovod has no counterpart.
    """
    edits = Edits(script)
    problems = []
    for node in script.imports("horovod"):
        for module in _modules(script, node):
            if module.removeprefix("horovod").removeprefix(".") not in _KNOWN:
                problems.append(Reason(script.line(node), f"{module} has no counterpart: see the guide on converting."))
    if problems:
        raise RefusedError(script.name, *problems)
    for name in script.all(cst.Name):
        if name.value == "horovod":
            edits.replace(name, "workbench")
    return edits


def _modules(script: Script, node: cst.CSTNode) -> list[str]:
    if isinstance(node, cst.Import):
        return [script.text(each.name) for each in node.names]
    assert isinstance(node, cst.ImportFrom)
    module = script.text(node.module) if node.module else ""
    if module != "horovod" or isinstance(node.names, cst.ImportStar):
        return [module]
    return [f"{module}.{script.text(each.name)}" for each in node.names]


__all__ = ["convert"]
