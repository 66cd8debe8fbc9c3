"""A script for PyTorch in one process → the six steps."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from workbench.convert import beginning, files, randomness, rank_0
from workbench.convert.edits import Edits
from workbench.convert.pytorch import gradients, loss, sharding, statistics, totals
from workbench.convert.pytorch.training import Batches, Optimizer, Training, training
from workbench.convert.script import Script, argument, inside, last
from workbench.convert.source import Reason
from workbench.convert.steps import MEAN_OR_SUM

PIN = "if torch.cuda.is_available():\n    torch.cuda.set_device(hvd.local_rank())"
_CALLS = {
    "torch.nn.DataParallel": "DataParallel splits a batch over GPUs itself: remove it, a rank has one GPU.",
    "torch.nn.parallel.DataParallel": "DataParallel splits a batch over GPUs itself: remove it, a rank has one GPU.",
    "torch.cuda.set_device": "this chooses a GPU, which would be the same on all ranks: remove it.",
    "torch.multiprocessing.spawn": "the script starts processes: call the function once, a launcher starts ranks.",
    "torch.autograd.grad": "gradients of torch.autograd.grad() do not pass the optimizer: average them by hand.",
}
_BASES = {
    "torch.utils.data.IterableDataset": "an IterableDataset has no indices: share it by rank in __iter__, by hand."
}


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
    edits.decide(*_refused(script))
    found, shared = training(edits), list[str]()
    edits.attempt_each(
        [
            lambda: shared.extend(sharding.shard(edits, found, scale_rate)),
            lambda: _optimizers(edits, found, loss_is, scale_rate),
            lambda: gradients.convert(edits, found),
            lambda: totals.convert(edits, found),
            lambda: _one_device(edits),
        ]
    )
    statistics.convert(edits, found)
    rank_0.convert(edits, [*found.backward, *statistics.evaluations(script)])
    sharding.download_once(edits)
    imports = ["import torch", *([] if shared else [sharding.SAMPLER_IMPORT]), *files.convert(edits)]
    beginning.convert(edits, "workbench.torch", PIN, imports, shared)
    return edits


# --- 5 and 6: weights and gradients -------------------------------------------------------------------


def _optimizers(edits: Edits, found: Training, loss_is: str, scale_rate: bool) -> None:
    script = edits.script
    losses = {call: call.func.value for call in found.backward}  # type: ignore[attr-defined]
    kinds = {call: loss_is or loss.kind(script, value) for call, value in losses.items()}
    for call, kind in kinds.items():
        if kind not in (loss.MEAN, loss.SUM) or len({*kinds.values()}) > 1:
            edits.say(call, MEAN_OR_SUM.format("DistributedOptimizer"))
    for batches in found.batches:
        edits.decide(*_drawn(script, batches))
        if not loss_is and (pairs := loss.compared(script, batches.loop)):
            text = (
                f"{script.text(pairs)}: the samples of a batch are compared with each other, but a rank has a part. "
                "Gather them with hvd.allgather(…), or leave it."
            )
            edits.say(pairs, text)
    more = ", op=hvd.Sum" if {*kinds.values()} == {loss.SUM} else ""
    for each in found.optimizers:
        with edits.attempt():
            edits.decide(*_weights_after(script, each))
            if scale_rate:
                _scale_rate(edits, each)
            wrap(edits, each, more)


def _drawn(script: Script, batches: Batches) -> Iterator[Reason]:
    """Random numbers of a batch, such as noise, are the same on all ranks; also those of a model."""
    modules = [each for each in script.all(cst.ClassDef) if any(last(base.value) == "Module" for base in each.bases)]
    methods = [each for module in modules for each in inside(module, cst.FunctionDef) if each.name.value != "__init__"]
    for call in [call for place in (batches.loop.body, *methods) for call in inside(place, cst.Call)]:
        if randomness.is_draw(script, call):
            yield script.reason(
                call,
                "all ranks draw the same numbers here. If each should have its own, seed by the rank before the "
                "training: torch.manual_seed(… + hvd.rank()).",
            )


def wrap(edits: Edits, optimizer: Optimizer, more: str = "", broadcast: bool = True) -> None:
    """Wrap an optimizer, and begin with rank 0's state.

    Args:
        edits: where to.
        optimizer: which.
        more: further arguments.
        broadcast: the weights, too.
    """
    name, place, models = optimizer.name, optimizer.place, optimizer.models
    weights = [f"hvd.broadcast_parameters({model}.state_dict(), root_rank=0)" for model in models]
    if not name:
        edits.wrap(optimizer.made, f"hvd.DistributedOptimizer({{}}{more})", 6)
        if not models:
            text = "before the training, give all ranks the weights of rank 0: broadcast_parameters."
            edits.say(optimizer.made, text)
        for each in weights:
            edits.before(place, 5, each)
        return
    named = f", named_parameters={models[0]}.named_parameters()" if len(models) == 1 else ""
    edits.after(place, 6, f"{name} = hvd.DistributedOptimizer({name}{named}{more})")
    every = f'[param for group in {name}.param_groups for param in group["params"]]'
    weights = weights or [f"hvd.broadcast_parameters({every}, root_rank=0)"]
    for index, each in enumerate(weights if broadcast else []):
        edits.after(place, 5, each, said=not index)
    edits.after(place, 5, f"hvd.broadcast_optimizer_state({name}, root_rank=0)", said=not broadcast)


def _scale_rate(edits: Edits, optimizer: Optimizer) -> None:
    rate = argument(optimizer.made, 1, "lr")
    if rate is None:
        raise edits.script.unclear(optimizer.made, "write the learning rate: lr=….")
    edits.replace(rate.value, f"{edits.script.factor(rate.value)} * hvd.size()", 2, "larger batches, so larger steps")


# --- 3: the device ------------------------------------------------------------------------------------


def _one_device(edits: Edits) -> None:
    """``"cuda"`` is the GPU that was set; ``"cuda:0"`` would be the first one on all ranks."""
    for text in edits.script.all(cst.SimpleString):
        if text.evaluated_value == "cuda:0":
            edits.replace(text, text.value.replace("cuda:0", "cuda"), 3)
        elif isinstance(text.evaluated_value, str) and text.evaluated_value.startswith("cuda:"):
            edits.say(text, f"{text.value} is a certain GPU, and each rank should have its own.")
    for call in edits.script.all(cst.Call):
        if isinstance(call.func, cst.Attribute) and last(call.func) == "cuda" and call.args:
            if edits.script.text(call.args[0].value) == "0":
                edits.replace(call, lambda node: node.with_changes(args=()), 3)
            else:
                edits.say(call, "this is a certain GPU, and each rank should have its own.")


# --- what must not be there ---------------------------------------------------------------------------


def _refused(script: Script) -> Iterator[Reason]:
    for call in script.all(cst.Call):
        if text := _CALLS.get(script.meaning(call.func)):
            yield script.reason(call, text)
    for each in script.all(cst.ClassDef):
        for base in each.bases:
            if text := _BASES.get(script.meaning(base.value)):
                yield script.reason(each, text)
    yield from randomness.refused(script)


def _weights_after(script: Script, optimizer: Optimizer) -> Iterator[Reason]:
    """Weights that are drawn after the optimizer was made would be drawn after the broadcast."""
    place, line = script.function(optimizer.made), script.line(optimizer.made)
    for call in script.all(cst.Call):
        meaning = script.meaning(call.func)
        draws = meaning.startswith("torch.nn.init.") or last(call.func) in ("apply", "reset_parameters")
        if draws and script.function(call) is place and script.line(call) > line:
            yield script.reason(call, "this changes weights after their broadcast: move it before the optimizer.")
