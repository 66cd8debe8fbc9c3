"""Which kind of script is it, and what does it become?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from workbench.convert import horovod
from workbench.convert.edits import Edits
from workbench.convert.pytorch import accelerate, ddp, serial, to_ddp
from workbench.convert.script import Script, last
from workbench.convert.source import Reason, RefusedError
from workbench.convert.tf import fit, loop


@dataclass(frozen=True)
class Options:
    """What the user says about a conversion.

    Args:
        to: "workbench", or "ddp" for plain PyTorch.
        loss: "mean", "sum", or "" if the script says it.
        scale_rate: each rank takes a whole batch, and the learning rate grows with the ranks.
    """

    to: str = "workbench"
    loss: str = ""
    scale_rate: bool = False


@dataclass(frozen=True)
class Converted:
    """A conversion.

    Args:
        before, after: the texts.
        kind: what the script was, in words.
        edits: what was changed, and why.
    """

    before: str
    after: str
    kind: str
    edits: Edits

    @property
    def was_alone(self) -> bool:
        """Was it for one process?"""
        return self.kind in ("PyTorch", "Keras", "TensorFlow")


def convert(name: str, text: str, options: Options | None = None) -> Converted:
    r"""Convert a script.

    Args:
        name: for messages.
        text: the script.
        options: what it becomes.

    Raises:
        RefusedError: with lines and reasons.

    Example:
        >>> convert("a.py", "import torch\n")
        Traceback (most recent call last):
        workbench.convert.source.RefusedError: a.py is not converted:
          no loss.backward() in this file: what trains here is not known.
    """
    options = options or Options()
    script = Script(name, text)
    kind, change = _kind(script, options)
    stars = _stars(script) if options.to == "workbench" else []
    try:
        edits = change()
    except RefusedError as error:
        raise RefusedError(name, *error.reasons, *stars) from None
    edits.decide(*stars)
    after = edits.apply()
    cst.parse_module(after)
    return Converted(text, after, kind, edits)


def _stars(script: Script) -> list[Reason]:
    """Star imports, by which a name may mean anything."""
    text = "import * hides what comes from there: a loader, optimizer or file of it is not converted. Import by name."
    stars = [node for node in script.all(cst.ImportFrom) if isinstance(node.names, cst.ImportStar)]
    return [script.reason(node, text) for node in stars if script.text(node.module or node) != "__future__"]


def _kind(script: Script, options: Options) -> tuple[str, Callable[[], Edits]]:
    if options.to == "ddp":
        if not script.imports("workbench.torch", "workbench"):
            raise RefusedError(
                script.name, Reason(0, "it does not import workbench.torch, from which --to ddp converts.")
            )
        return "the workbench", lambda: to_ddp.convert(script)
    if ours := script.imports("workbench"):
        raise RefusedError(
            script.name,
            script.reason(ours[0], "it uses the workbench already. --to ddp converts it to plain DDP."),
        )
    if script.imports("horovod"):
        return "Horovod", lambda: horovod.convert(script)
    if script.imports("pytorch_lightning", "lightning", "transformers.trainer", "fastai", "ignite"):
        (node, *_) = script.imports("pytorch_lightning", "lightning", "transformers.trainer", "fastai", "ignite")
        raise RefusedError(
            script.name, script.reason(node, "its trainer has the loop: see the guide on converting by hand.")
        )
    if script.imports("accelerate"):
        return "Accelerate", lambda: accelerate.convert(script)
    if script.imports("torch.distributed", "torch.nn.parallel"):
        return "DistributedDataParallel", lambda: ddp.convert(script)
    if script.calls("tensorflow.GradientTape"):
        return "TensorFlow", lambda: loop.convert(script, options.loss)
    by_keras = [call for call in script.all(cst.Call) if last(call.func) in ("fit", "compile")]
    if script.imports("keras", "tensorflow", "tf_keras") and (by_keras or not script.imports("torch")):
        return "Keras", lambda: fit.convert(script, options.scale_rate)
    if script.imports("torch"):
        return "PyTorch", lambda: serial.convert(script, options.loss, options.scale_rate)
    raise RefusedError(script.name, Reason(0, "it imports neither torch, nor tensorflow, nor keras."))
