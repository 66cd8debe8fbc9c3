"""A script for Horovod → the same calls of the workbench: only the imports change."""

from __future__ import annotations

from pathlib import Path

import libcst as cst

from workbench.convert.edits import Edits
from workbench.convert.script import Script, last
from workbench.convert.source import RefusedError

_SAME = ("torch", "tensorflow", "keras", "mxnet", "spark", "ray")  # below these our names are Horovod's
_PACKAGE = Path(__file__).parents[1]


def convert(script: Script) -> Edits:
    """The edits.

    Raises:
        RefusedError: no module of Horovod that it imports has a counterpart.
    """
    edits = Edits(script)
    unknown = [
        (node, module)
        for node in script.imports("horovod")
        for module in _modules(script, node)
        if not _is_ours(module)
    ]
    reasons = [
        script.reason(node, f"{module} has no counterpart: see docs/how-to/convert.md.") for node, module in unknown
    ]
    for node in script.all(cst.Attribute):
        if script.text(node.value) == "horovod" and not _is_ours(name := script.text(node)) and name != "horovod.run":
            reasons.append(script.reason(node, f"{name} has no counterpart: see docs/how-to/convert.md."))
    left = [node for node, _ in unknown]
    if len(left) == len(script.imports("horovod")):
        raise RefusedError(script.name, *reasons)
    edits.decide(*reasons)
    for each in script.all(cst.Name):
        if each.value == "horovod" and not any(node in left for node in script.above(each)):
            edits.replace(each, "workbench")
    return edits


def _is_ours(module: str) -> bool:
    """Is there such a file or folder?"""
    parts = module.split(".")[1:]
    path = _PACKAGE.joinpath(*parts)
    if parts and parts[0] not in _SAME:
        return False
    return path.is_dir() or path.with_suffix(".py").exists()


def _modules(script: Script, node: cst.CSTNode) -> list[str]:
    if isinstance(node, cst.Import):
        return [script.text(each.name) for each in node.names]
    assert isinstance(node, cst.ImportFrom)
    module = script.text(node.module) if node.module else ""
    if module != "horovod" or isinstance(node.names, cst.ImportStar):
        return [module]
    return [f"{module}.{last(each.name)}" for each in node.names if last(each.name) != "run"]
