"""A script for PyTorch in one process → the six steps."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from workbench.convert import beginning, files, rank_0
from workbench.convert.edits import Edits
from workbench.convert.pytorch import gradients, loss, refusals, schedulers, sharding
from workbench.convert.pytorch.training import Training, training
from workbench.convert.script import Script, argument, last
from workbench.convert.source import RefusedError
from workbench.convert.unclear import UnclearError

PIN = "if torch.cuda.is_available():\n    torch.cuda.set_device(hvd.local_rank())"


def convert(script: Script, loss_is: str = "", scale_rate: bool = False) -> Edits:
    """The edits.

    Args:
        script: which.
        loss_is: "mean" or "sum", where the user knows it.
        scale_rate: each rank takes a whole batch, and the learning rate is multiplied by the number of ranks.

    Raises:
        RefusedError: something is not understood.
    """
    edits = Edits(script)
    problems = list(refusals.found(script))
    try:
        found = training(script)
    except UnclearError as unclear:
        raise RefusedError(script.name, *problems, unclear.reason) from None
    steps: list[Callable[[], None]] = [
        lambda: sharding.new_order_each_epoch(edits, found, sharding.shard(edits, found, scale_rate)),
        lambda: _optimizer(edits, found, loss_is, scale_rate),
        lambda: gradients.convert(edits, found),
        lambda: schedulers.convert(edits, found),
        lambda: _one_device(edits),
    ]
    for step in steps:
        try:
            step()
        except UnclearError as unclear:
            problems.append(unclear.reason)
    if problems:
        raise RefusedError(script.name, *problems)
    _say_batch_norm(edits)
    rank_0.convert(edits, found.backward)
    sharding.download_once(edits)
    beginning.convert(edits, "workbench.torch", PIN, ["import torch", sharding.SAMPLER_IMPORT, *files.convert(edits)])
    return edits


# --- 5 and 6: weights and gradients -------------------------------------------------------------------


def _optimizer(edits: Edits, found: Training, loss_is: str, scale_rate: bool) -> None:
    script = edits.script
    refusals.check_weights_after(script, found)
    kind = loss_is or loss.kind(script, found.backward.func.value)  # type: ignore[attr-defined]
    if kind not in (loss.MEAN, loss.SUM):
        raise UnclearError(
            script.line(found.backward),
            "it is not known whether this loss is a mean over the samples of the batch, or a sum. "
            "Say it: --loss mean, or --loss sum.",
        )
    if not loss_is and (pairs := loss.compared(script, found.loop)):
        raise UnclearError(
            script.line(pairs),
            f"{script.text(pairs)}: the samples of a batch are compared with each other, but a rank has a part. "
            "Gather them by hand, or say --loss mean.",
        )
    if scale_rate:
        _scale_rate(edits, found)
    wrap(edits, found, gradients.options(script, found) + (", op=hvd.Sum" if kind == loss.SUM else ""))


def wrap(edits: Edits, found: Training, more: str, broadcast: bool = True) -> None:
    """Wrap the optimizer, and begin with rank 0's state.

    Args:
        edits: where to.
        found: the training.
        more: further arguments.
        broadcast: the weights, too.
    """
    name, model = found.name, found.model
    made = f"{name} = hvd.DistributedOptimizer({name}, named_parameters={model}.named_parameters(){more})"
    edits.after(found.place, 6, made)
    if broadcast:
        edits.after(found.place, 5, f"hvd.broadcast_parameters({model}.state_dict(), root_rank=0)")
    edits.after(found.place, 5, f"hvd.broadcast_optimizer_state({name}, root_rank=0)", said=not broadcast)


def _scale_rate(edits: Edits, found: Training) -> None:
    rate = argument(found.optimizer, 1, "lr")
    if rate is None:
        raise UnclearError(edits.script.line(found.optimizer), "write the learning rate: lr=….")
    text = edits.script.text(rate.value)
    plain = isinstance(rate.value, (cst.Name, cst.Attribute, cst.Float, cst.Integer, cst.Call, cst.Subscript))
    edits.replace(rate.value, f"{text if plain else f'({text})'} * hvd.size()", 2, "larger batches, so larger steps")


# --- 3: the device ------------------------------------------------------------------------------------


def _one_device(edits: Edits) -> None:
    """``"cuda"`` is the GPU that was set; ``"cuda:0"`` would be the first one on all ranks."""
    for text in edits.script.all(cst.SimpleString):
        if text.evaluated_value == "cuda:0":
            edits.replace(text, text.value.replace("cuda:0", "cuda"), 3)
        elif isinstance(text.evaluated_value, str) and text.evaluated_value.startswith("cuda:"):
            raise UnclearError(
                edits.script.line(text), f"{text.value} is a certain GPU, and each rank should have its own."
            )
    for call in edits.script.all(cst.Call):
        if isinstance(call.func, cst.Attribute) and last(call.func) == "cuda" and call.args:
            if edits.script.text(call.args[0].value) != "0":
                raise UnclearError(edits.script.line(call), "this is a certain GPU, and each rank should have its own.")
            edits.replace(call, lambda node: node.with_changes(args=()), 3)


def _say_batch_norm(edits: Edits) -> None:
    found = [call for call in edits.script.all(cst.Call) if last(call.func).startswith("BatchNorm")]
    if found:
        edits.note(
            found[0],
            "batch norm uses the samples of one rank, so the result differs from one process. "
            "hvd.SyncBatchNorm uses those of all ranks.",
        )


__all__ = ["PIN", "convert", "wrap"]
